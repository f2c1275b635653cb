//! A connection of HTTP/2 within its limits, from its beginning to its end.
//!
//! What a peer may have others keep in memory is what it makes a window for. The windows of a connection are small, and a client whose answers wait
//! for room for too long loses its connection: nothing ends a single stream whose client does not read it.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    server::conn::http2,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    activity::{Activity, Check},
    connection::Origin,
    handshake::Transport,
    held::HeldUntilSent,
    limits::{ConnectionLimits, HEAD_LIMIT},
    stream::ClientStream,
    streams::{StreamMember, Streams},
};

/// The builder of connections.
pub(super) type Builder = http2::Builder<TokioExecutor>;

/// The most requests of a connection at a time. A client that opens more waits, or is refused.
pub const MAX_STREAMS: u32 = 256;
/// The most bytes that all requests of a connection together may send before they are read.
pub const CONNECTION_WINDOW: u32 = 1 << 20;
/// The most bytes that a request may send before they are read. Eight requests that wait leave room for others; and the smallest messages that fill it are
/// fewer than the HTTP/2 library takes from an attacker.
const STREAM_WINDOW: u32 = 128 << 10;
/// The largest frame of data in bytes: four times the smallest that a peer must take, and a quarter of the frames.
const FRAME_BYTES: u32 = 64 << 10;
/// The most bytes of an answer that are kept for a client beyond what it has room for, unless they are one piece.
const SEND_BUFFER: usize = 64 << 10;
/// The most requests that a client has begun and reset again before they were looked at.
const RESET_STREAMS: usize = 64;
/// The most streams that were reset because of the client's mistakes, and that are still remembered.
const FAULTY_STREAMS: usize = 64;
/// The time without a sign of the client after which it is asked for one.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// An extension of a request: cancelled when the listener stops, so that a stream of requests ends.
#[derive(Clone, Debug)]
pub struct Stopping(pub CancellationToken);

/// Returns the builder of connections whose clients answer within a time.
pub(super) fn http(timeout: Duration) -> Builder {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEAD_LIMIT as u32)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(FAULTY_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(timeout);
    http
}

/// Serves a connection until its client closes it, it breaks a limit, or, once `stop` is cancelled, its requests are answered.
pub(super) fn serve(
    stream: Transport,
    (origin, activity): (Origin, Arc<Activity>),
    http: &Builder,
    router: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    activity.multiplex();
    activity.begin_first_head();
    let io = ClientStream::new(stream, Arc::clone(&activity), limits.write_timeout);
    let streams = Streams::new(Arc::clone(&activity));
    let (served, stopping) = (streams.clone(), Stopping(stop.clone()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        origin.tell(request.extensions_mut());
        request.extensions_mut().insert(stopping.clone());
        let member = Arc::new(served.begin());
        let body_member = Arc::clone(&member);
        let request = request.map(|body| {
            if body.is_end_stream() {
                body_member.received();
            }
            Body::new(WatchedBody {
                body,
                member: body_member,
            })
        });
        let answer = router.call(request);
        async move {
            let mut answer: Response = answer.await?;
            let held = answer.extensions_mut().remove::<HeldUntilSent>();
            if !answer.body().is_end_stream() {
                // A client that makes no room from the beginning stalls, too.
                member.passed_on();
            }
            Ok::<_, Infallible>(answer.map(|body| AnswerBody {
                body,
                member,
                _held: held,
            }))
        }
    });
    let connection = http.serve_connection(TokioIo::new(io), service);
    async move {
        let mut connection = pin!(connection);
        let first = limits.head_timeout.min(limits.idle_timeout);
        let mut check = pin!(sleep(first));
        let mut closing = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(e) = ended {
                        tracing::debug!(error = %e, "a connection ended with an error");
                    }
                    return;
                }
                () = stop.cancelled(), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = check.as_mut() => {
                    let now = Instant::now();
                    if streams.is_stalled(now, limits.write_timeout) {
                        tracing::debug!("a client took nothing of an answer for too long");
                        return;
                    }
                    match activity.check(now, &limits) {
                        Check::NextAt(time) => {
                            // Answers stall while requests are served, of which the activity says nothing.
                            check.as_mut().reset(time.min(now + limits.write_timeout / 2));
                        }
                        // Another request may be on its way, then it is answered: the client is told, and opens another connection.
                        Check::Idle if !closing => {
                            closing = true;
                            connection.as_mut().graceful_shutdown();
                            check.as_mut().reset(now + limits.head_timeout);
                        }
                        Check::Idle | Check::SlowHead => return,
                    }
                }
            }
        }
    }
}

/// A request's body, whose end is told.
struct WatchedBody {
    body: Incoming,
    member: Arc<StreamMember>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.body.is_end_stream() || matches!(frame, Poll::Ready(None)) {
            self.member.received();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.member.received();
    }
}

/// An answer's body; once it is dropped, everything of it has been passed on.
struct AnswerBody {
    body: Body,
    member: Arc<StreamMember>,
    _held: Option<HeldUntilSent>,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // It is asked for the next piece only when the client has room for some of it.
        self.member.has_room();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(&frame, Poll::Ready(Some(Ok(frame))) if frame.is_data()) {
            self.member.passed_on();
        }
        let is_trailers = matches!(&frame, Poll::Ready(Some(Ok(frame))) if frame.is_trailers());
        if is_trailers || matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            // Nothing is left that the client has to make room for.
            self.member.has_room();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
