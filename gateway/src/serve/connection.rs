//! A connection within its limits, from its beginning to its end.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::Extensions,
    response::Response,
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    activity::{Activity, Check},
    bodies::{AnswerBody, AnswerWatch, RequestBody, RequestWatch},
    handshake::Transport,
    held::HeldUntilSent,
    limits::ConnectionLimits,
    local_client::LocalClient,
    stream::ClientStream,
    unknown_clients::ClientMark,
};

/// The end from which a connection comes.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    peer: Option<SocketAddr>,
    /// The client, if it is on this host.
    local: Option<Arc<LocalClient>>,
    /// The mark of known clients, where unknown ones give their places up.
    mark: Option<ClientMark>,
}

impl Origin {
    /// Returns the client's address, which is unknown if the connection has ended already.
    pub(super) fn address(&self) -> IpAddr {
        let unknown = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        self.peer.map_or(unknown, |peer| peer.ip())
    }

    /// Tells the handlers where a request comes from.
    pub(super) fn tell(&self, extensions: &mut Extensions) {
        let Self { peer, local, mark } = self.clone();
        if let Some(peer) = peer {
            extensions.insert(ConnectInfo(peer));
        }
        if let Some(local) = local {
            extensions.insert(local);
        }
        if let Some(mark) = mark {
            extensions.insert(mark);
        }
    }

    /// Sets the mark of a client that has to prove who he is.
    pub(super) fn set_mark(&mut self, mark: ClientMark) {
        self.mark = Some(mark);
    }

    pub(super) fn of(stream: &TcpStream) -> Self {
        let peer = stream.peer_addr().ok();
        let ends = peer.zip(stream.local_addr().ok());
        let local = ends.and_then(|(client, gateway)| LocalClient::new(client, gateway));
        Self {
            peer,
            local: local.map(Arc::new),
            mark: None,
        }
    }
}

/// Serves a connection until its client closes it, it breaks a limit, or, once `stop` is cancelled, its requests are answered.
pub(super) fn serve_connection(
    stream: Transport,
    (origin, activity): (Origin, Arc<Activity>),
    http: &http1::Builder,
    router: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    activity.begin_first_head();
    let io = ClientStream::new(stream, Arc::clone(&activity), limits.write_timeout, None);
    let watched = Arc::clone(&activity);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        origin.tell(request.extensions_mut());
        let ending = EndOfRequest(Arc::clone(&watched));
        watched.begin_body();
        let body_watch = Arc::clone(&watched);
        let request = request.map(|body| Body::new(RequestBody::new(body, body_watch)));
        let answer = router.call(request);
        async move {
            let mut answer: Response = answer.await?;
            let held = answer.extensions_mut().remove::<HeldUntilSent>();
            Ok::<_, Infallible>(answer.map(|body| AnswerBody::new(body, ending, held)))
        }
    });
    let connection = http.serve_connection(TokioIo::new(io), service);
    async move {
        let mut connection = pin!(connection);
        let mut check = pin!(sleep(limits.head_timeout.min(limits.idle_timeout)));
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
                () = check.as_mut() => match activity.check(Instant::now(), &limits) {
                    Check::NextAt(time) => check.as_mut().reset(time),
                    // The next head may be on its way, then it is answered: the connection closes after it.
                    Check::Idle if !closing => {
                        closing = true;
                        connection.as_mut().graceful_shutdown();
                        check.as_mut().reset(Instant::now() + limits.head_timeout);
                    }
                    Check::Idle | Check::SlowHead => return,
                },
            }
        }
    }
}

/// Ends the request when it is dropped.
struct EndOfRequest(Arc<Activity>);

impl Drop for EndOfRequest {
    fn drop(&mut self) {
        self.0.end_request();
    }
}

impl RequestWatch for Arc<Activity> {
    fn ends(&mut self) {
        self.end_body();
    }
}

impl AnswerWatch for EndOfRequest {}

/// Calls a router.
pub(super) async fn call(router: &Router, request: Request) -> Response {
    let answer = TowerToHyperService::new(router.clone()).call(request).await;
    answer.unwrap_or_else(|never| match never {})
}
