//! The record of requests that are refused before they reach a model.

use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, MatchedPath, Request},
    http::{HeaderValue, Method, Uri, header},
    response::Response,
};
use packhorse_cluster::{ModelName, Time};

use super::{platforms::settings::PREDICT, state::Inference};
use crate::{
    api::{bearer_of, error::ClientErrorMessage},
    telemetry::{RejectedRequest, RequestIdentity},
};

/// A request as it came, by which it is found if it is refused.
#[derive(Debug)]
pub(super) struct Asked {
    arrived: Time,
    uri: Uri,
    route: Option<MatchedPath>,
    /// The header with the key, where keys are required.
    authorization: Option<HeaderValue>,
    peer: Option<SocketAddr>,
}

impl Asked {
    /// Takes note of a request. Those that ask for no inference are not recorded.
    pub(super) fn of(inference: &Inference, request: &Request) -> Option<Self> {
        if *request.method() != Method::POST {
            return None;
        }
        let extensions = request.extensions();
        let keys = inference.keys.as_ref();
        let authorization = keys.and_then(|_| request.headers().get(header::AUTHORIZATION));
        let peer = extensions.get::<ConnectInfo<SocketAddr>>();
        Some(Self {
            arrived: inference.data_plane.telemetry().clock().now(),
            uri: request.uri().clone(),
            route: extensions.get().cloned(),
            authorization: authorization.cloned(),
            peer: peer.map(|ConnectInfo(peer)| *peer),
        })
    }

    /// Records the request if its answer says that it was refused before it reached a model.
    pub(super) fn end(
        self,
        inference: &Inference,
        identity: &RequestIdentity,
        response: &Response,
    ) {
        let extensions = response.extensions();
        let Some(ClientErrorMessage(reason)) = extensions.get().cloned() else {
            return;
        };
        let telemetry = inference.data_plane.telemetry();
        let key = self.authorization.as_ref().and_then(bearer_of);
        let key = inference.keys.as_ref().zip(key);
        telemetry.rejected().add(RejectedRequest {
            status: response.status().as_u16(),
            reason,
            id: identity.id().to_owned(),
            trace: identity.trace_id().unwrap_or_default(),
            key: key.and_then(|(keys, text)| keys.id(text)),
            address: self.peer.map(|peer| peer.ip().to_canonical()),
            model: self.model(),
            arrived: self.arrived,
            latency: telemetry
                .clock()
                .now()
                .saturating_since(self.arrived)
                .into(),
        });
    }

    /// Returns the model that the path names.
    fn model(&self) -> Option<ModelName> {
        let route = self.route.as_ref()?.as_str();
        let mut segments = route.split('/').zip(self.uri.path().split('/'));
        let (_, name) = segments.find(|(segment, _)| segment.starts_with("{model}"))?;
        name.strip_suffix(PREDICT).unwrap_or(name).parse().ok()
    }
}
