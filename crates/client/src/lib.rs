//! HTTP clients of a Packhorse gateway: [`AdminClient`] for the admin API (`/v1`) and [`InferenceClient`] for the Open Inference
//! Protocol.
//!
//! Each client uses HTTP/1.1, over TLS or not, with one listener, whose address is a [`BaseUrl`]. Clients ignore proxies and limit the time and the
//! size of every response. A failed call is a [`CallError`]; operations that can also fail for other reasons have their own error
//! type, which includes it.

mod admin;
mod artifact;
mod base_url;
mod call;
mod dry_run;
mod events;
mod history;
mod inference;
mod load_connection;
mod requests;
mod server_sent;

pub use admin::{AdminClient, BackupError, ClientError, KernelsError, ProfilesError, TokenError};
pub use artifact::{ArtifactFile, HashError, UploadError};
pub use base_url::{BaseUrl, BaseUrlError};
pub use call::{CallError, Cause};
pub use dry_run::DryRun;
pub use events::{EventFollower, EventMessage, EventStream, Followed};
pub use history::WhichHistory;
pub use inference::{InferError, InferenceClient};
pub use load_connection::{AnswerHead, EncodedRequest, ExchangeError, LoadConnection};
pub use packhorse_tls::{Authorities, AuthoritiesError, RefusedCertificate};
pub use requests::{ListedActs, ListedRequests};
