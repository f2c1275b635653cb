//! The bodies of the admin listener: received whole, within the size, the time and the memory that their route has for them.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, Request},
    http::{StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::{ApiError, parse_json};
use crate::memory::MemoryBudget;

/// The limits of the bodies of a route, an extension of its requests. All bodies with the same memory share it.
#[derive(Clone, Debug)]
pub(crate) struct BodyLimits {
    /// The most bytes of a body.
    pub(crate) bytes: u64,
    /// The longest time for a whole body.
    pub(crate) time: Duration,
    /// The memory for all bodies together, of which a body takes what has come of it.
    pub(crate) memory: MemoryBudget,
}

/// A whole body, within the [`BodyLimits`] of its route.
#[derive(Clone, Debug)]
pub(crate) struct Body(pub(crate) Bytes);

/// A JSON body with any `Content-Type`. An error names the field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl BodyLimits {
    async fn receive(&self, mut body: axum::body::Body) -> Result<Bytes, ApiError> {
        // Each body is like a model of its own: one may hold as much as is free.
        let mut memory = self.memory.model().reservation();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "the request body ended early or arrived too slowly",
                )
            })?;
            let Ok(data) = frame.into_data() else {
                continue; // trailers
            };
            if (bytes.len() + data.len()) as u64 > self.bytes {
                return Err(self.too_large());
            }
            memory.grow(data.len() as u64).map_err(|_| {
                ApiError::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the memory for request bodies of this kind is exhausted; retry later",
                )
            })?;
            bytes.extend_from_slice(&data);
        }
        Ok(Arc::new(memory).hold(bytes.freeze()))
    }

    fn too_large(&self) -> ApiError {
        let message = format!(
            "the request body is larger than the limit of {} bytes",
            self.bytes
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let limits = request.extensions().get::<BodyLimits>().cloned();
        let limits = limits.expect("the router limits the bodies of all routes");
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|bytes| bytes > limits.bytes) {
            return Err(limits.too_large());
        }
        let received = timeout(limits.time, limits.receive(request.into_body()));
        received.await.map_or_else(
            |_| {
                let message = format!(
                    "the request body arrived too slowly: it may take {:?} in all",
                    limits.time
                );
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
            },
            |received| received.map(Self),
        )
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let Body(bytes) = Body::from_request(request, state).await?;
        parse_json(&bytes).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use futures_util::{StreamExt as _, stream};

    use super::*;

    fn limits(memory: &MemoryBudget) -> BodyLimits {
        BodyLimits {
            bytes: 100,
            time: Duration::from_millis(50),
            memory: memory.clone(),
        }
    }

    /// A request whose body has these pieces, and no end if `is_open`.
    fn request(limits: BodyLimits, pieces: &[&'static str], is_open: bool) -> Request {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, Infallible>(*piece))
            .collect();
        let open = stream::once(pending::<Result<&str, Infallible>>()).take(usize::from(is_open));
        let body = axum::body::Body::from_stream(stream::iter(pieces).chain(open));
        let mut request = Request::new(body);
        request.extensions_mut().insert(limits);
        request
    }

    #[tokio::test]
    async fn memory_is_taken_as_bytes_come_and_given_back_with_the_body() {
        let memory = MemoryBudget::new(100);
        let received = Body::from_request(request(limits(&memory), &["half", "whole"], false), &());
        let Body(bytes) = received.await.unwrap();
        assert_eq!((&*bytes, memory.used()), (&b"halfwhole"[..], 9));
        drop(bytes);
        assert_eq!(memory.used(), 0);

        let waits = request(limits(&memory), &["0123456789"], true);
        let waiting = tokio::spawn(async move { Body::from_request(waits, &()).await });
        tokio::task::yield_now().await;
        assert_eq!(memory.used(), 10);
        let error = waiting.await.unwrap().unwrap_err();
        let slow = "the request body arrived too slowly: it may take 50ms in all";
        assert_eq!(error, ApiError::new(StatusCode::REQUEST_TIMEOUT, slow));
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn what_is_over_a_limit_is_refused() {
        let memory = MemoryBudget::new(40);
        let refusal = async |pieces: &[&'static str]| {
            let refused = Body::from_request(request(limits(&memory), pieces, false), &()).await;
            refused.unwrap_err()
        };
        let long = "0123456789012345678901234567890123456789012345678901";
        let large = "the request body is larger than the limit of 100 bytes";
        assert_eq!(
            refusal(&[long, long]).await,
            ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the memory for request bodies of this kind is exhausted; retry later"
            )
        );
        let memory = MemoryBudget::new(1000);
        let refused = Body::from_request(request(limits(&memory), &[long, long], false), &()).await;
        assert_eq!(
            refused.unwrap_err(),
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, large)
        );
        assert_eq!(memory.used(), 0);
    }
}
