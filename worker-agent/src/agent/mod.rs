//! The agent: one per node, it makes what runs here equal what the gateway wants, and is never in the path of a batch.
//!
//! [`Reconciler`] decides; around it [`run`] owns the loop that feeds it with events and does what it says. Beside the loop,
//! [`session`] talks to the gateway and one task per worker watches its process and its status. Without the gateway everything
//! goes on as it was; without the agent the workers do, and the next agent adopts them, as it does with the MPS daemons of GPUs.

mod cache;
mod config;
mod folders;
mod gateway;
mod gpus;
mod log;
mod mps;
mod pipeline;
mod process;
mod session;
mod watching;
mod workers;

use std::{io, time::Duration};

use packhorse_api::agent::LeaseRequest;
use packhorse_cluster::Time;
use packhorse_reconcile::{Action, Event, Limits, Reconciler};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::devices::DiscoverError;
use cache::Cache;
use gateway::Gateway;
use gpus::Gpus;
use mps::Mps;
use session::{NodeStatus, Session};
use workers::Workers;

pub use config::{ConfigError, LogFormat, MpsMode, Options, Settings};
pub use folders::OpenStateError;
pub use pipeline::{PipelineOptions, Streams, Switch};

/// From a worker's start until it must be ready. A worker that hangs while loading says so itself after five minutes; one that
/// does not even manage that is killed.
const LOAD_LIMIT: Duration = Duration::from_mins(6);
/// What a measurement may take beyond its time limit: loading, and the batch size that was begun last.
const MEASURE_GRACE: Duration = Duration::from_mins(1);
/// What a worker gets to end beyond the longest batch.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Events that wait for the loop before whoever has the next one waits too.
const EVENT_QUEUE: usize = 64;

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The state folder.
    #[error(transparent)]
    State(#[from] OpenStateError),
    /// The devices.
    #[error(transparent)]
    Devices(#[from] DiscoverError),
    /// The operating system.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What it says.
        #[source]
        source: io::Error,
    },
    /// The HTTP client.
    #[error("the HTTP client cannot be made: {0}")]
    Http(#[source] reqwest::Error),
}

/// Runs the agent until SIGINT or SIGTERM. Workers are left to the next agent, or stopped if the settings say so.
///
/// # Errors
/// If it cannot start. Once it runs it only ends when told to.
pub async fn run(settings: Settings) -> Result<(), AgentError> {
    let system = |what| move |source| AgentError::System { what, source };
    let interrupt = signal(SignalKind::interrupt()).map_err(system("watching for SIGINT"))?;
    let terminate = signal(SignalKind::terminate()).map_err(system("watching for SIGTERM"))?;
    let folders = folders::open(&settings.state_dir)?;
    let devices = settings.devices.discover(&settings.profiles)?;
    for device in &devices {
        tracing::info!(device.name, device.kind = %device.kind, device.memory = %device.memory, "device");
    }
    let gateway = Gateway::new(&settings).map_err(AgentError::Http)?;
    let request = LeaseRequest {
        instance: folders
            .instance()
            .map_err(system("reading the state folder"))?,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        devices: devices.iter().map(crate::devices::Device::report).collect(),
    };
    let limits = Limits {
        drain: settings.batch_limit + DRAIN_GRACE,
        load: LOAD_LIMIT,
        measure_grace: MEASURE_GRACE,
    };
    let names = devices.iter().map(|device| device.name.clone());
    let reconciler = Reconciler::new(names, limits);
    let (event_sender, events) = mpsc::channel(EVENT_QUEUE);
    let (status_sender, status) = watch::channel(NodeStatus::default());

    let mps = match settings.mps {
        MpsMode::Auto => {
            Mps::start(
                &settings.mps_control,
                &devices,
                &folders.mps(),
                &event_sender,
            )
            .await
        }
        MpsMode::Off => Mps::default(),
    };
    let gpus = Gpus::new(&devices, &mps);
    let cache = Cache::new(folders.artifacts());
    let stop_workers_on_exit = settings.stop_workers_on_exit;
    let mut node = Node {
        reconciler,
        start: Instant::now(),
        workers: Workers::new(settings, folders, devices, mps, event_sender.clone()),
        cache,
        gateway: gateway.clone(),
        fetches: JoinSet::new(),
        events,
        event_sender: event_sender.clone(),
        status: status_sender,
        signals: [interrupt, terminate],
    };
    node.take_over()
        .map_err(system("looking for workers of an earlier agent"))?;
    // The first report must already name what was found: the gateway gives up what a node does not have.
    node.reconcile();
    let session = tokio::spawn(Session::new(gateway, request, event_sender, status, gpus).run());
    node.work_until_signalled().await;
    if stop_workers_on_exit {
        node.stop_workers().await;
    }
    session.abort();
    Ok(())
}

/// The loop around the reconciler.
struct Node {
    reconciler: Reconciler,
    start: Instant,
    workers: Workers,
    cache: Cache,
    gateway: Gateway,
    fetches: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    event_sender: mpsc::Sender<Event>,
    status: watch::Sender<NodeStatus>,
    signals: [Signal; 2],
}

/// What the loop woke up for.
enum Wakeup {
    Event(Box<Event>),
    Timer,
    Signal,
}

impl Node {
    /// Finds what an earlier agent left: artifacts and workers.
    fn take_over(&mut self) -> io::Result<()> {
        for digest in self.cache.scan()? {
            self.handle(Event::Fetched(digest));
        }
        for event in self.workers.adopt()? {
            self.handle(event);
        }
        Ok(())
    }

    async fn work_until_signalled(&mut self) {
        loop {
            self.reconcile();
            match self.wait().await {
                Wakeup::Event(event) => self.handle(*event),
                Wakeup::Timer => {}
                Wakeup::Signal => return,
            }
        }
    }

    /// A second signal ends the wait, and leaves what still runs to the next agent.
    async fn stop_workers(&mut self) {
        tracing::info!("stopping all workers");
        self.handle(Event::StopAll);
        loop {
            self.reconcile();
            if self.reconciler.is_idle() {
                return self.workers.quit_mps().await;
            }
            match self.wait().await {
                Wakeup::Event(event) => self.handle(*event),
                Wakeup::Timer => {}
                Wakeup::Signal => return,
            }
        }
    }

    async fn wait(&mut self) -> Wakeup {
        let wakeup = self.reconciler.wakeup();
        let [interrupt, terminate] = &mut self.signals;
        let timer = async {
            match wakeup {
                Some(time) => sleep_until(self.start + Duration::from_nanos(time.as_nanos())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Wakeup::Signal,
            _ = terminate.recv() => Wakeup::Signal,
            // The loop holds a sender itself: the channel cannot be closed.
            Some(event) = self.events.recv() => Wakeup::Event(Box::new(event)),
            () = timer => Wakeup::Timer,
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    fn handle(&mut self, event: Event) {
        self.reconciler.handle(self.now(), event);
    }

    /// Does what there is to do until nothing is, then says how the node stands.
    fn reconcile(&mut self) {
        loop {
            let actions = self.reconciler.poll(self.now());
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.act(action);
            }
        }
        while self.fetches.try_join_next().is_some() {}
        let (epoch, revision) = self.reconciler.applied();
        let status = NodeStatus {
            epoch,
            revision,
            replicas: self.reconciler.replicas(),
            profiles: self.reconciler.profiles(),
        };
        self.status.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Fetch(digest) => {
                let (cache, gateway) = (self.cache.clone(), self.gateway.clone());
                let events = self.event_sender.clone();
                self.fetches.spawn(async move {
                    let event = match cache.fetch(&gateway, digest).await {
                        Ok(()) => Event::Fetched(digest),
                        Err(e) => {
                            tracing::warn!(artifact = %digest, error = %e, "artifact not fetched");
                            Event::FetchFailed(digest, e.to_string())
                        }
                    };
                    // The receiver lives as long as the process does.
                    let _ = events.send(event).await;
                });
            }
            Action::Evict(digest) => self.cache.evict(digest),
            Action::Start(task) => {
                let event = self.workers.start(&task, &self.cache);
                self.handle(event);
            }
            Action::Terminate(id) => self.workers.terminate(&id),
            Action::Kill(id) => self.workers.kill(&id),
            Action::Forget(id) => self.workers.forget(&id),
        }
    }
}
