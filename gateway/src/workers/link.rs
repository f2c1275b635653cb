//! A replica's link: connects, serves the connection until it is lost, waits, and connects again.

use std::{net::SocketAddr, time::Duration};

use packhorse_serving::ReplicaSpec;
use packhorse_wire::{ClientHandshake, LinkSecret, WorkerIdentity};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    LinkEvent,
    connection::{Connection, ConnectionError},
    socket::connect,
};

/// The shortest wait before connecting again.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// The longest.
const BACK_OFF_MAX: Duration = Duration::from_secs(2);
/// How long the connection may take to be made, and again the handshake.
const OPEN_TIME: Duration = Duration::from_secs(5);

/// What links have in common.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    /// Shared with the workers.
    pub(crate) secret: LinkSecret,
    /// The most bytes of one result.
    pub(crate) payload_limit: u64,
    /// A worker that has a batch for longer is given up.
    pub(crate) batch_time: Duration,
}

/// Where a worker is, and who it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Who it should be.
    pub(crate) identity: WorkerIdentity,
    /// Batches that it takes before it has answered one, where it says so.
    pub(crate) in_flight: Option<u32>,
}

/// A link. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Link {
    task: JoinHandle<()>,
}

impl Link {
    /// Connects, and keeps connected, in a task of its own.
    pub(crate) fn open(
        endpoint: Endpoint,
        config: LinkConfig,
        report: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> Self {
        Self {
            task: tokio::spawn(run(endpoint, config, report)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(endpoint: Endpoint, config: LinkConfig, report: impl Fn(LinkEvent) + Send + Sync) {
    let mut back_off = BACK_OFF_MIN;
    loop {
        let error = match open(endpoint, &config).await {
            Ok(connection) => {
                back_off = BACK_OFF_MIN;
                let (sender, batches) = mpsc::unbounded_channel();
                report(LinkEvent::Up(sender));
                connection.serve(batches, config.batch_time, &report).await
            }
            Err(error) => error,
        };
        report(LinkEvent::Down(error.to_string()));
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

async fn open(endpoint: Endpoint, config: &LinkConfig) -> Result<Connection, ConnectionError> {
    let stream = timeout(OPEN_TIME, connect(endpoint.address))
        .await
        .map_err(|_| ConnectionError::ConnectTime(OPEN_TIME))??;
    let handshake = ClientHandshake::new(config.secret.clone(), rand::random(), endpoint.identity);
    timeout(
        OPEN_TIME,
        Connection::open(
            stream,
            handshake,
            config.payload_limit,
            endpoint.in_flight.unwrap_or(ReplicaSpec::DEFAULT_CREDITS),
        ),
    )
    .await
    .map_err(|_| ConnectionError::HandshakeTime(OPEN_TIME))?
}
