//! The state that the handlers share.

use std::time::Duration;

use super::budget::Budget;
use crate::driver::DataPlane;

/// The limits of a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct InferenceLimits {
    /// The most bytes of a request's body, before and after decompression.
    pub body_bytes: u64,
    /// The most bytes of all bodies in memory together; a request that would need more is refused.
    pub payload_budget_bytes: u64,
    /// The longest pause in a body before it is given up.
    pub body_timeout: Duration,
}

impl Default for InferenceLimits {
    fn default() -> Self {
        Self {
            body_bytes: 256 << 20,
            payload_budget_bytes: 1 << 30,
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// The state that the handlers share.
#[derive(Clone, Debug)]
pub struct Inference {
    pub(super) data_plane: DataPlane,
    pub(super) limits: InferenceLimits,
    pub(super) budget: Budget,
}

impl Inference {
    /// Creates the state, with an unused memory budget.
    pub fn new(data_plane: DataPlane, limits: InferenceLimits) -> Self {
        Self {
            data_plane,
            limits,
            budget: Budget::new(limits.payload_budget_bytes),
        }
    }
}
