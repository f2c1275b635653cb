//! HTTP client of a Packhorse gateway: [`AdminClient`] for the admin API (`/v1`) and [`InferenceClient`] for the Open
//! Inference Protocol.
//!
//! Both speak plain HTTP/1.1 to one listener, whose address is a [`BaseUrl`], ignore proxies, and put a limit on the time
//! and the size of every answer. What goes wrong in an exchange is a [`CallError`]; operations that can also fail for
//! reasons of their own have their own error around it.

mod admin;
mod artifact;
mod base_url;
mod call;
mod inference;

pub use admin::{AdminClient, KernelsError, ProfilesError, TokenError};
pub use artifact::{ArtifactFile, HashError, UploadError};
pub use base_url::{BaseUrl, BaseUrlError};
pub use call::{CallError, Cause};
pub use inference::{InferError, InferenceClient};
