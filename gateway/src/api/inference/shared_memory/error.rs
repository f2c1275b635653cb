//! The refusals of shared memory, with the limits that they name.

use axum::http::StatusCode;

use crate::api::inference::error::InferenceError;

/// The most regions that are registered at a time. A tenant has at most as many as are free.
pub(super) const MAX_REGIONS: usize = 256;
/// The most bytes of a region's name, those of a tensor's.
pub(super) const NAME_BYTES: usize = 256;

/// The reason why a client does not get at shared memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::api) enum SharedMemoryError {
    /// The extension is off.
    #[error("system shared memory is off: the gateway's flag --system-shared-memory turns it on")]
    Off,
    /// The client is not known to run on this host as the gateway's user.
    #[error(
        "system shared memory is for clients on the gateway's host that connect over loopback and run as the gateway's user"
    )]
    Stranger,
    /// There is no such region.
    #[error("there is no shared memory region {0:?}")]
    Unknown(String),
    /// There is such a region.
    #[error("shared memory region {0:?} is registered already: unregister it first")]
    Taken(String),
    /// A name is empty or too long.
    #[error("the name of a shared memory region has 1 to {NAME_BYTES} bytes")]
    Name,
    /// The client has its share of the table.
    #[error(
        "the client has {0} shared memory regions, and may have no more than are free: {MAX_REGIONS} are registered at a time; unregister one first"
    )]
    TooMany(usize),
    /// The object cannot be used.
    #[error("key {key:?}: {problem}")]
    Object {
        /// The object's name.
        key: String,
        /// The cause.
        problem: String,
    },
}

impl From<SharedMemoryError> for InferenceError {
    fn from(error: SharedMemoryError) -> Self {
        let status = match error {
            SharedMemoryError::Stranger => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}
