//! A server on one listener.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use packhorse_tls::{Reloaded, ServerTls};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    address_shares::{AddressShares, ShareMember},
    connection::{Origin, serve_connection},
    handshake::begin,
    limits::{BUFFER_BYTES, ConnectionLimits, HEAD_LIMIT},
    multiplexed,
    overflow::Overflow,
    receive_window,
    unknown_clients::UnknownClients,
};
use crate::tasks::Tasks;

/// The time for the last answers to leave after the handlers have ended.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The wait before the next attempt after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server on one listener.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    end: CancellationToken,
    connections: TaskTracker,
}

impl Server {
    /// Binds the address and serves `router` there by HTTP/1.1, over TLS if `tls` is given. The task that accepts connections has this name.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        router: Router,
        limits: ConnectionLimits,
        tls: Option<Arc<Reloaded<ServerTls>>>,
        task: (&Tasks, &'static str),
    ) -> io::Result<Self> {
        Self::bind_for(Protocol::Http1(http()), address, router, limits, tls, task).await
    }

    /// Binds the address and serves `router` there by HTTP/2 alone, as clients of gRPC speak it.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind_multiplexed(
        address: SocketAddr,
        router: Router,
        limits: ConnectionLimits,
        tls: Option<Arc<Reloaded<ServerTls>>>,
        task: (&Tasks, &'static str),
    ) -> io::Result<Self> {
        let http = multiplexed::http(limits.write_timeout);
        Self::bind_for(Protocol::Http2(http), address, router, limits, tls, task).await
    }

    async fn bind_for(
        protocol: Protocol,
        address: SocketAddr,
        router: Router,
        limits: ConnectionLimits,
        tls: Option<Arc<Reloaded<ServerTls>>>,
        (tasks, name): (&Tasks, &'static str),
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        if let Err(e) = receive_window::widen(&listener) {
            tracing::warn!(error = %e, "large requests of a new connection may come slowly");
        }
        let server = Self {
            address: listener.local_addr()?,
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            connections: TaskTracker::new(),
        };
        let acceptor = Acceptor {
            router,
            limits,
            tls,
            protocol,
            stop: server.stop.clone(),
            end: server.end.clone(),
            connections: server.connections.clone(),
        };
        let accepting = server.connections.track_future(acceptor.run(listener));
        tasks.spawn(name, accepting);
        Ok(server)
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further connection, and waits until the present ones have answered their requests and are closed, at most until
    /// `deadline`. Returns true if none is left.
    pub async fn drain(&self, deadline: Instant) -> bool {
        self.stop.cancel();
        self.connections.close();
        tokio::time::timeout_at(deadline, self.connections.wait())
            .await
            .is_ok()
    }

    /// Drains the connections until `deadline`, and closes those that are left.
    pub async fn shutdown(self, deadline: Instant) {
        if self.drain(deadline).await || self.drain(Instant::now() + LAST_ANSWERS).await {
            return;
        }
        tracing::warn!(listener = %self.address, connections = self.connections.len(), "closing connections that have unanswered requests after the grace period");
        self.end.cancel();
        self.connections.wait().await;
    }
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    // The connection has its own clock, which tells an idle connection from a slow head.
    http.header_read_timeout(None)
        .max_buf_size(BUFFER_BYTES)
        .max_header_size(HEAD_LIMIT);
    http
}

/// What a listener speaks.
#[derive(Clone)]
enum Protocol {
    /// HTTP/1.1, with one request at a time.
    Http1(http1::Builder),
    /// HTTP/2.
    Http2(multiplexed::Builder),
}

struct Acceptor {
    router: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Reloaded<ServerTls>>>,
    protocol: Protocol,
    stop: CancellationToken,
    end: CancellationToken,
    connections: TaskTracker,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(
            self.limits.connections.min(Semaphore::MAX_PERMITS),
        ));
        let mut unknown = UnknownClients::default();
        let mut shares = AddressShares::default();
        let mut overflow =
            Overflow::new(self.router.clone(), self.limits, self.tls.clone(), http());
        loop {
            let stream = tokio::select! {
                () = self.stop.cancelled() => return,
                stream = accept_one(&listener) => stream,
            };
            // Answers are written in one piece; waiting to fill a segment would only delay them.
            let _ = stream.set_nodelay(true);
            let mut origin = Origin::of(&stream);
            let place = Arc::clone(&permits).try_acquire_owned().ok();
            let mut is_given = || {
                if self.limits.unknown_yield {
                    unknown.end_oldest()
                } else {
                    shares.give_way_to(origin.address(), Instant::now())
                }
            };
            if place.is_none() && !is_given() {
                // A client of gRPC connects again later; it could not read an answer without a request of its own.
                if let Protocol::Http1(_) = &self.protocol {
                    overflow.refuse(stream);
                }
                continue;
            }
            let member = shares.add(origin.address());
            let mut yields = member.place.clone();
            if self.limits.unknown_yield {
                let (mark, place) = unknown.add();
                origin.set_mark(mark);
                yields = place;
            }
            let connection = self.serve(stream, origin, member);
            let (end, permits) = (self.end.clone(), Arc::clone(&permits));
            self.connections.spawn(async move {
                let served = async {
                    // The place of a connection that gives it up is free at once.
                    let _place = match place {
                        Some(place) => Ok(place),
                        None => permits.acquire_owned().await,
                    };
                    connection.await;
                };
                tokio::select! {
                    () = served => {}
                    () = end.cancelled() => {}
                    () = yields.cancelled() => {}
                }
            });
        }
    }

    /// Serves a connection, from its handshake to its end.
    fn serve(
        &self,
        stream: TcpStream,
        origin: Origin,
        member: ShareMember,
    ) -> impl Future<Output = ()> + use<> {
        let (protocol, router, limits) = (self.protocol.clone(), self.router.clone(), self.limits);
        let (tls, stop) = (self.tls.clone(), self.stop.clone());
        async move {
            // The connection counts for its address until it has ended.
            let member = member;
            let stream = tokio::select! {
                biased;
                stream = begin(stream, tls.as_deref(), limits.head_timeout) => stream,
                () = stop.cancelled() => return,
            };
            match stream {
                Ok(stream) => {
                    let origin = (origin, Arc::clone(&member.activity));
                    match protocol {
                        Protocol::Http1(http) => {
                            serve_connection(stream, origin, &http, router, limits, stop).await;
                        }
                        Protocol::Http2(http) => {
                            multiplexed::serve(stream, origin, &http, router, limits, stop).await;
                        }
                    }
                }
                Err(e) => tracing::debug!(error = %e, "a handshake failed"),
            }
        }
    }
}

async fn accept_one(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(e) => {
                // The process has no descriptor left, or the peer has gone: neither is a reason to stop serving the others.
                tracing::warn!(error = %e, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
