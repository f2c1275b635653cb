//! The data plane: its drivers own serving engines and drive them with the clock, the workers' links and clients' requests.
//!
//! The control plane changes what shall be served ([`ServeChange`](packhorse_control::ServeChange)) and follows the state of every
//! replica ([`LinkState`](packhorse_control::LinkState)); HTTP handlers submit requests and wait for their answer.

mod batch;
mod batch_failure;
mod blamed_tenants;
mod catalog;
mod components;
mod config;
mod connector;
mod data_plane;
mod director;
mod drivers;
mod end;
mod failure_log;
mod home;
mod inbox;
mod load;
mod message;
mod padding;
mod request;
mod requested_model;
mod served_model;
mod shape_class;
mod task;
mod threads;
mod version_route;

pub(crate) use batch::OutputRows;
pub(crate) use batch_failure::BatchFailure;
pub(crate) use catalog::{Catalog, FindModelError};
pub use config::DataPlaneConfig;
pub use data_plane::DataPlane;
pub use packhorse_links::LinkChange;
pub(crate) use request::{Submission, UnansweredRequest};
pub(crate) use requested_model::RequestedModel;
pub(crate) use served_model::ServedModel;
