//! The contracts of platforms: the paths and bodies by which `KServe` (version 1), `SageMaker` and Vertex AI ask the model of a container.
//!
//! A call has rows that say neither datatypes nor shapes. They become requests of at most as many rows as the model takes, each of which the engine
//! answers as any other.

mod document;
mod predict;
mod predictions;
mod routes;
mod schema;
pub(in crate::api::inference) mod settings;

pub(super) use document::document;
pub(super) use routes::{add_to, with_vertex};
pub use settings::{Platform, Platforms, PlatformsError, VertexRoutes};
