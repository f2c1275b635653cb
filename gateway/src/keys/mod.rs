//! API keys of clients and admins: what each may do, how much, and until when.
//!
//! A key is `phk_<id>_<secret>`. The store has the SHA-256 of the whole text, and memory has the same; the secret is shown once, when it
//! is made. All keys are in memory, so that a request is checked without the database.

mod key;
mod keyring;
mod latest_time;
mod secret;

pub(crate) use key::{KeyCounts, ModelScope, RESPONSE_CLASSES};
pub use key::{KeyRecord, KeyRefusal, KeyUse};
pub(crate) use keyring::{AdminScope, KeyOwner};
pub use keyring::{KeyError, Keyring};
pub use secret::KeyHash;
