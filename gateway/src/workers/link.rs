//! A replica's link: it connects, serves the connection until it is lost, waits, and connects again.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_cluster::Program;
use packhorse_service::is_of_this_machine;
use packhorse_serving::ReplicaParameters;
use packhorse_tls::{ClientTls, Refresh, Reloaded};
use packhorse_wire::{ClientHandshake, Features, Hello, LinkSecret, WorkerIdentity};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    connection::{Connection, ConnectionLimits, NetworkStream},
    connection_error::ConnectionError,
    link_event::LinkEvent,
    socket::{connect, connect_locally, secure},
};
use crate::input_memory::InputMemory;

/// The shortest wait before connecting again.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// The longest wait before connecting again.
const BACK_OFF_MAX: Duration = Duration::from_secs(2);
/// The time limit for making the connection, and again for the handshake.
const OPEN_TIME: Duration = Duration::from_secs(5);

/// The settings of all links.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    /// The secret that is shared with the workers.
    pub(crate) secret: LinkSecret,
    /// TLS of connections to workers on other machines; `None` without.
    pub(crate) tls: Option<Arc<Reloaded<ClientTls>>>,
    /// The largest result of one batch, in bytes.
    pub(crate) payload_limit: u64,
    /// The longest time for which a worker may hold a batch before its connection is ended.
    pub(crate) batch_time: Duration,
    /// True if links to workers of this host use shared memory.
    pub(crate) shared_memory: bool,
    /// The user that workers of this host run as, beside the gateway's.
    pub(crate) worker_user: Option<u32>,
}

/// The runtimes of links.
#[derive(Clone, Debug)]
pub(crate) struct Runtimes {
    /// The links' own.
    pub(crate) links: Handle,
    /// The runtime of HTTP.
    pub(crate) http: Handle,
}

/// The address and the identity of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The address that the worker listens on.
    pub(crate) address: SocketAddr,
    /// The Unix socket on which it listens for gateways of its host, if it does.
    pub(crate) local_path: Option<String>,
    /// The memory for its model's inputs if it is on this host.
    pub(crate) inputs: InputMemory,
    /// The program that it runs.
    pub(crate) program: Arc<Program>,
    /// The identity that the worker must prove.
    pub(crate) identity: WorkerIdentity,
    /// The most batches that the worker takes before it has answered one, if it reported that.
    pub(crate) in_flight: Option<u32>,
}

/// A link to a worker. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct WorkerLink {
    task: JoinHandle<()>,
}

impl WorkerLink {
    /// Connects, and keeps connected, in a task of its own.
    pub(crate) fn open(
        runtimes: &Runtimes,
        endpoint: Endpoint,
        config: LinkConfig,
        report: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> Self {
        let http = runtimes.http.clone();
        let run = run(endpoint, config, http, Arc::new(report));
        Self {
            task: runtimes.links.spawn(run),
        }
    }
}

impl Drop for WorkerLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    endpoint: Endpoint,
    config: LinkConfig,
    http: Handle,
    report: Arc<impl Fn(LinkEvent) + Send + Sync + 'static>,
) {
    let mut back_off = BACK_OFF_MIN;
    loop {
        let error = match open(&endpoint, &config).await {
            Ok(connection) => {
                let has_computed = Arc::new(AtomicBool::new(false));
                let (report, computed) = (Arc::clone(&report), Arc::clone(&has_computed));
                let report = move |event| {
                    if matches!(event, LinkEvent::BatchComputed(..)) {
                        computed.store(true, Relaxed);
                    }
                    report(event);
                };
                let error = connection.serve(config.batch_time, &http, report).await;
                // A handshake alone proves nothing: the worker may end every connection at its first batch.
                if has_computed.load(Relaxed) {
                    back_off = BACK_OFF_MIN;
                }
                error
            }
            Err(error) => error,
        };
        report(LinkEvent::Down(error.to_string()));
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

async fn open(endpoint: &Endpoint, config: &LinkConfig) -> Result<Connection, ConnectionError> {
    let ip = endpoint.address.ip().to_canonical();
    let local_path = endpoint.local_path.as_ref();
    if let Some(path) = local_path.filter(|_| config.shared_memory && is_of_this_machine(ip)) {
        match open_locally(path, endpoint, config).await {
            Ok(connection) => return Ok(connection),
            Err(error) => {
                tracing::info!(path, %error, "a worker of this host is reached by TCP instead");
            }
        }
    }
    // Without a secret anyone at the address could take the requests and make up the answers.
    if config.secret.is_none() && !ip.is_loopback() {
        return Err(ConnectionError::NoSecret(endpoint.address));
    }
    let stream = timeout(OPEN_TIME, connect(endpoint.address))
        .await
        .map_err(|_| ConnectionError::ConnectTimeout(OPEN_TIME))??;
    let handshake = handshake(endpoint, config, Features::RESIDENCY);
    // What does not leave the machine needs no encryption.
    let tls = config.tls.as_deref().filter(|_| !is_of_this_machine(ip));
    let tls = tls.map(current);
    let opened = timeout(OPEN_TIME, async {
        let stream = match &tls {
            None => NetworkStream::Left(stream),
            Some(tls) => {
                let config = Arc::clone(&tls.config);
                NetworkStream::Right(secure(stream, endpoint.address, config).await?)
            }
        };
        Connection::open(stream, handshake, &limits(endpoint, config)).await
    });
    match (opened.await, tls) {
        (Err(_), _) => Err(ConnectionError::HandshakeTimeout(OPEN_TIME)),
        (Ok(Err(ConnectionError::Io(error))), Some(tls)) => {
            Err(ConnectionError::of_tls(error, &tls.authorities))
        }
        (Ok(opened), _) => opened,
    }
}

/// Connects to a worker on this host, and shares memory with it.
async fn open_locally(
    path: &str,
    endpoint: &Endpoint,
    config: &LinkConfig,
) -> Result<Connection, ConnectionError> {
    let opened = timeout(OPEN_TIME, async {
        let stream = connect_locally(path, config.worker_user).await?;
        let features = Features::SHARED_MEMORY.with(Features::RESIDENCY);
        let handshake = handshake(endpoint, config, features);
        let limits = limits(endpoint, config);
        Connection::open_locally(stream, handshake, &limits, &endpoint.inputs).await
    });
    opened
        .await
        .map_err(|_| ConnectionError::HandshakeTimeout(OPEN_TIME))?
}

fn handshake(endpoint: &Endpoint, config: &LinkConfig, features: Features) -> ClientHandshake {
    let hello = Hello::new(features, rand::random());
    ClientHandshake::new(config.secret.clone(), hello, endpoint.identity)
}

fn limits(endpoint: &Endpoint, config: &LinkConfig) -> ConnectionLimits {
    let in_flight = endpoint.in_flight;
    ConnectionLimits {
        program: Arc::clone(&endpoint.program),
        payload: config.payload_limit,
        in_flight: in_flight.unwrap_or(ReplicaParameters::LEAST_CREDITS),
    }
}

/// Returns what the files say now; they may have changed since the last connection.
fn current(tls: &Reloaded<ClientTls>) -> Arc<ClientTls> {
    if let Refresh::Broken(error) = tls.refresh() {
        tracing::error!(%error, "the certificate for workers cannot be replaced; the former one stays in use");
    }
    tls.get()
}
