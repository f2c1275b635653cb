//! Connections above the limit: each gets one answer, which is 503 but for the paths that are always answered, and is closed.

use std::{collections::VecDeque, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use packhorse_tls::{Reloaded, ServerTls};
use tokio::{net::TcpStream, task::AbortHandle, time::timeout};

use super::{
    connection::call,
    handshake::{Transport, begin, close},
    limits::ConnectionLimits,
};
use crate::api::ApiError;

/// The most connections above the limit at a time; one more ends the oldest of them.
pub(crate) const OVERFLOW_CONNECTIONS: usize = 32;

/// The longest life of a connection above the limit.
const OVERFLOW_TIME: Duration = Duration::from_secs(1);

/// The connections above the limit.
pub(super) struct Overflow {
    router: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Reloaded<ServerTls>>>,
    http: http1::Builder,
    /// The connections, the oldest first. Some may have ended.
    connections: VecDeque<AbortHandle>,
}

impl Overflow {
    pub(super) fn new(
        router: Router,
        limits: ConnectionLimits,
        tls: Option<Arc<Reloaded<ServerTls>>>,
        mut http: http1::Builder,
    ) -> Self {
        http.keep_alive(false);
        Self {
            router,
            limits,
            tls,
            http,
            connections: VecDeque::new(),
        }
    }

    /// Answers a connection for which there is no room.
    pub(super) fn refuse(&mut self, stream: TcpStream) {
        self.connections
            .retain(|connection| !connection.is_finished());
        if self.connections.len() >= OVERFLOW_CONNECTIONS
            && let Some(oldest) = self.connections.pop_front()
        {
            oldest.abort();
        }
        let (http, router) = (self.http.clone(), self.router.clone());
        let (limits, tls) = (self.limits, self.tls.clone());
        let answer = async move {
            if let Ok(stream) = begin(stream, tls.as_deref(), OVERFLOW_TIME).await {
                answer_once(stream, http, router, limits).await;
            }
        };
        let task = tokio::spawn(async move {
            // A client that takes longer loses its connection.
            let _ = timeout(OVERFLOW_TIME, answer).await;
        });
        self.connections.push_back(task.abort_handle());
    }
}

impl Drop for Overflow {
    fn drop(&mut self) {
        for connection in &self.connections {
            connection.abort();
        }
    }
}

async fn answer_once(
    stream: Transport,
    http: http1::Builder,
    router: Router,
    limits: ConnectionLimits,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move {
            let mut answer = if request.uri().path().starts_with(limits.always_answered) {
                call(&router, request.map(Body::new)).await
            } else {
                no_room(limits.connections)
            };
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let Ok(parts) = pin!(connection.without_shutdown()).await else {
        return;
    };
    close(parts.io.into_inner()).await;
}

fn no_room(limit: usize) -> Response {
    let message = format!("the gateway is at its limit of {limit} connections; retry later");
    let mut answer = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    let retry_after = HeaderValue::from_static("1");
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, retry_after);
    answer
}
