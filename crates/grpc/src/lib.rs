//! The Open Inference Protocol, version 2, over gRPC: messages, frames, requests and responses. Without HTTP/2.
//!
//! A message of gRPC is a frame with a [`Prefix`]. A gateway looks at a request's [`Layout`] before it decodes it, reads a
//! [`RequestMessage`](packhorse_protocol::RequestMessage) of it with [`read_request`], and writes an answer with [`write_response`]; raw tensors are
//! never copied. [`messages`] are generated from the files of `proto`, which clients get from the reflection service ([`reflected`]).
//!
//! The crate is pure, and safe on any bytes: a layout bounds the memory that decoding needs.

mod convert;
mod fields;
mod frame;
mod layout;
mod parameters;
mod reflection;
mod request;
mod response;

pub use frame::{BadFlag, Prefix, framed};
pub use layout::{Beginning, Layout, LayoutError, SOUGHT, beginning};
pub use reflection::{SERVICES, reflected};
pub use request::{names_region, read_request, wants_final_mark};
pub use response::{AnsweredTensor, ResponseHead, write_response, write_stream_response};

/// The messages, as the files of `proto` have them. Written by `cargo xtask grpc`.
#[allow(
    missing_docs,
    clippy::pedantic,
    reason = "generated: the names are the protocol's own"
)]
pub mod messages {
    /// The messages of `inference.proto`.
    pub mod inference {
        include!("generated/inference.rs");
    }
    /// The messages of `health.proto`.
    pub mod health {
        include!("generated/grpc.health.v1.rs");
    }
    /// The messages of `reflection.proto`.
    pub mod reflection {
        include!("generated/grpc.reflection.v1.rs");
    }
}
