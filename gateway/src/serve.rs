//! An HTTP/1.1 server with limits on its connections.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo};
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// The limits of the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The most connections at a time; further ones wait in the listener's backlog.
    pub connections: usize,
    /// The longest time for a request's head, from the beginning of the connection or the end of the previous request.
    pub head_timeout: Duration,
}

/// A server on one listener.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<GracefulShutdown>,
}

impl Server {
    /// Binds the address and serves `router` there.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        router: Router,
        limits: ConnectionLimits,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, router, limits, stop.clone()));
        Ok(Self {
            address,
            stop,
            task,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further connection, waits at most for `grace` until the present connections have answered their requests, and
    /// closes them.
    pub async fn shutdown(self, grace: Duration) {
        self.stop.cancel();
        let Ok(connections) = self.task.await else {
            return;
        };
        let open = connections.count();
        if tokio::time::timeout(grace, connections.shutdown())
            .await
            .is_err()
        {
            tracing::warn!(listener = %self.address, connections = open, "closed connections that had unanswered requests after the grace period");
        }
    }
}

async fn accept(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) -> GracefulShutdown {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout);
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            (permit, accept_one(&listener).await)
        };
        let (permit, (stream, peer)) = tokio::select! {
            () = stop.cancelled() => return graceful,
            next = next => next,
        };
        // Answers are written in one piece; waiting to fill a segment would only delay them.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            // Handlers may ask where a request comes from.
            request.extensions_mut().insert(ConnectInfo(peer));
            service.call(request)
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a connection ended with an error");
            }
            drop(permit);
        });
    }
}

async fn accept_one(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(e) => {
                // The process has no descriptor left, or the peer has gone: neither is a reason to stop serving the others.
                tracing::warn!(error = %e, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
