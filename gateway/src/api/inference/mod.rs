//! The Open Inference Protocol over HTTP.

use std::time::Duration;

use utoipa_axum::router::OpenApiRouter;

use crate::driver::DataPlane;

/// What a client may ask for.
#[derive(Clone, Copy, Debug)]
pub struct InferenceLimits {
    /// The most bytes of a request's body, before and after inflating.
    pub body_bytes: u64,
    /// The most bytes of all bodies together that are in memory; a request that would need more is refused.
    pub payload_budget_bytes: u64,
    /// A body that sends nothing for so long is given up.
    pub body_timeout: Duration,
}

impl Default for InferenceLimits {
    fn default() -> Self {
        Self { body_bytes: 256 << 20, payload_budget_bytes: 1 << 30, body_timeout: Duration::from_secs(10) }
    }
}

/// The routes of the inference listener, with the state and the fallbacks that they need: every error is `{"error": ...}`.
pub fn router(data_plane: DataPlane, limits: InferenceLimits) -> OpenApiRouter {
    let _ = (data_plane, limits);
    OpenApiRouter::new()
}
