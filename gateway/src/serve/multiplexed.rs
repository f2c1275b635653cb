//! A connection of HTTP/2 within its limits, from its beginning to its end.
//!
//! What a peer may have others keep in memory is what it makes a window for. The windows of a connection are small, and a client whose answers wait
//! for room for too long loses its connection: nothing ends a single stream whose client does not read it.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Extensions, response::Response};
use hyper::{
    body::{Body as _, Incoming},
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
    bodies::{AnswerBody, AnswerWatch, RequestBody, RequestWatch},
    connection::Origin,
    control_frames::ControlFrames,
    handshake::Transport,
    held::HeldUntilSent,
    limits::{ConnectionLimits, HEAD_LIMIT},
    stream::ClientStream,
    streams::{StreamMember, Streams},
    unread::{UnreadBodies, UnreadBody},
};

/// The builder of connections.
pub(super) type Builder = http2::Builder<TokioExecutor>;

/// The most requests of a connection at a time. A client that opens more waits, or is refused.
pub const MAX_STREAMS: u32 = 256;
/// The most bytes that all requests of a connection together may send before they are read.
pub const CONNECTION_WINDOW: u32 = 2 << 20;
/// The most bytes that a request may send before they are read. Eight requests that wait leave room for others; and the smallest messages that fill it are
/// fewer than the HTTP/2 library takes from an attacker. An image of 0.6 MB waits twice for its client; half of the window would wait five times.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
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

/// The time without a byte after which a connection without requests is closed once the listener stops. A client that has seen the end closes it sooner.
const LAST_SIGNS: Duration = Duration::from_millis(500);

/// An extension of a request: cancelled when the listener stops, so that a stream of requests ends.
#[derive(Clone, Debug)]
pub struct Stopping(CancellationToken);

impl Stopping {
    /// Returns what is cancelled when the listener of a request stops; nothing is for one that has no listener.
    pub(crate) fn of(extensions: &Extensions) -> CancellationToken {
        let stopping = extensions.get::<Self>().cloned();
        stopping.map(|Self(token)| token).unwrap_or_default()
    }
}

/// An extension of an answer that goes on as long as its client likes, and has something to say only when something changes. Its connection gives way to
/// others like one that does nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watching;

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
    let frames = Some(ControlFrames::new(Instant::now()));
    let io = ClientStream::new(stream, Arc::clone(&activity), limits.write_timeout, frames);
    let (streams, unread) = (Streams::new(Arc::clone(&activity)), UnreadBodies::default());
    let (served, stopping) = (streams.clone(), Stopping(stop.clone()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        origin.tell(request.extensions_mut());
        request.extensions_mut().insert(stopping.clone());
        request.extensions_mut().insert(unread.clone());
        let member = Arc::new(served.begin());
        let watch = MemberBody {
            member: Arc::clone(&member),
            unread: unread.begin(),
        };
        let request = request.map(|body| Body::new(RequestBody::new(body, watch)));
        let answer = router.call(request);
        async move {
            let mut answer: Response = answer.await?;
            let held = answer.extensions_mut().remove::<HeldUntilSent>();
            if answer.extensions().get::<Watching>().is_some() {
                member.watches();
            } else if !answer.body().is_end_stream() {
                // A client that makes no room from the beginning stalls, too.
                member.passed_on();
            }
            Ok::<_, Infallible>(answer.map(|body| AnswerBody::new(body, member, held)))
        }
    });
    let connection = http.serve_connection(TokioIo::new(io), service);
    async move {
        let mut connection = pin!(connection);
        let first = limits.head_timeout.min(limits.idle_timeout);
        let mut check = pin!(sleep(first));
        let (mut closing, mut stopping, mut moves) = (false, false, 0);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(e) = ended {
                        tracing::debug!(error = %e, "a connection ended with an error");
                    }
                    return;
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    if !std::mem::replace(&mut closing, true) {
                        connection.as_mut().graceful_shutdown();
                    }
                    check.as_mut().reset(Instant::now() + LAST_SIGNS);
                }
                () = check.as_mut() => {
                    let now = Instant::now();
                    if streams.is_stalled(now, limits.write_timeout) {
                        tracing::debug!("a client took nothing of an answer for too long");
                        return;
                    }
                    if stopping {
                        let before = std::mem::replace(&mut moves, activity.moves());
                        if streams.are_none() && moves == before {
                            // Its client does not say that it has seen the end.
                            return;
                        }
                        check.as_mut().reset(now + LAST_SIGNS);
                        continue;
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

/// The watch of a request's body.
struct MemberBody {
    member: Arc<StreamMember>,
    unread: UnreadBody,
}

impl RequestWatch for MemberBody {
    fn waits(&mut self) {
        self.unread.waits();
    }

    fn read(&mut self) {
        self.unread.read();
    }

    fn ends(&mut self) {
        self.unread.ends();
        self.member.received();
    }
}

impl AnswerWatch for Arc<StreamMember> {
    fn has_room(&self) {
        StreamMember::has_room(self);
    }

    fn passed_on(&self) {
        StreamMember::passed_on(self);
    }
}
