//! The client of a call.

use axum::{
    extract::Request,
    http::{Extensions, HeaderMap},
};

use super::{call::CallHead, messages::MessageReader, state::Grpc};
use crate::{
    api::{
        bearer,
        inference::{authorize::require_key, error::InferenceError, middleware::identity_of},
    },
    telemetry::RequestIdentity,
};

/// The client of a call.
pub(super) struct Caller {
    pub(super) grpc: Grpc,
    pub(super) head: CallHead,
    pub(super) headers: HeaderMap,
    pub(super) extensions: Extensions,
    pub(super) identity: RequestIdentity,
}

impl Caller {
    /// Reads the head of a call, and refuses one without a key where it needs one.
    pub(super) fn new(
        grpc: Grpc,
        request: Request,
    ) -> Result<(Self, MessageReader), InferenceError> {
        let now = grpc.data_plane.clock().now();
        let (mut parts, body) = request.into_parts();
        let head = CallHead::read(now, &parts.headers)?;
        if let Some(keys) = &grpc.keys {
            // Whatever is received counts for the key's tenant.
            let tenant = require_key(keys, bearer(&parts.headers))?;
            parts.extensions.insert(tenant);
        }
        let reader = MessageReader::new(&parts, body, grpc.limits);
        let identity = identity_of(&parts.extensions, &parts.headers, grpc.telemetry());
        let caller = Self {
            grpc,
            head,
            headers: parts.headers,
            extensions: parts.extensions,
            identity,
        };
        Ok((caller, reader))
    }
}
