//! The agent's main loop: it passes events to the reconciler and carries out its actions.

use std::{io, path::PathBuf, time::Duration};

use packhorse_api::agent::{LeaseRequest, ProtocolRange};
use packhorse_cluster::ByteCount;
use packhorse_cluster::Time;
use packhorse_reconcile::{Action, Event, Limits, Reconciler};
use packhorse_service::{LIBTORCH_VERSION, Supervisor};
use packhorse_wire::LinkSecret;
use packhorse_worker_agent::devices::{Backend, Device, DiscoverError};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    artifact_cache::ArtifactCache,
    config::{MpsMode, Settings},
    gateway::{ClientError, GatewayClient},
    gpus::Gpus,
    mps::Mps,
    session::{NodeStatus, Session},
    state_folder::{OpenStateError, StateFolder},
    worker_user::{UnusableUser, WorkerNeeds},
    workers::Workers,
};

/// The time from a worker's start until it must be ready. A worker that hangs while it loads reports that itself after five minutes; one
/// that does not even report that is killed.
const LOAD_LIMIT: Duration = Duration::from_mins(6);
/// The time that a measurement may take beyond its time limit, for loading and for the last batch size that was begun; and 20 s in which it
/// looks for the operators.
const MEASURE_GRACE: Duration = Duration::from_secs(80);
/// The time that an inspection may take. Its process gives way to all others.
const INSPECT_LIMIT: Duration = Duration::from_mins(1);
/// The time for which the workers of a former cluster serve on, in which a person can restore its state.
const FORMER_CLUSTER_GRACE: Duration = Duration::from_mins(15);
/// The time that a worker has to end, beyond the time limit of a batch.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// The capacity of the event queue. Senders wait while it is full.
const EVENT_QUEUE: usize = 64;

/// The least memory of a CPU: libtorch alone takes 185 MiB of a process.
const LEAST_CPU_MEMORY: ByteCount = ByteCount::new(256 << 20);

/// An agent that cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] OpenStateError),
    /// The memory of a device cannot be what the flag says.
    #[error("--device-memory {name}={memory}: {reason}")]
    DeviceMemory {
        /// The device's name.
        name: String,
        /// The memory.
        memory: ByteCount,
        /// The reason.
        reason: String,
    },
    /// The devices cannot be found.
    #[error(transparent)]
    Devices(#[from] DiscoverError),
    /// Workers cannot run as the given user.
    #[error(transparent)]
    WorkerUser(#[from] UnusableUser),
    /// The operating system refuses.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The client of the gateway cannot be created.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Returns the devices of this node, with the memory that they offer.
fn discover(settings: &Settings) -> Result<Vec<Device>, AgentError> {
    let mut devices = settings.devices.discover(&settings.profiles)?;
    for (place, (name, memory)) in settings.device_memory.iter().enumerate() {
        let mut before = settings.device_memory[..place].iter();
        if before.any(|(other, _)| other == name) {
            return Err(AgentError::DeviceMemory {
                name: name.clone(),
                memory: *memory,
                reason: "the memory of this device is given twice".to_owned(),
            });
        }
        limit_memory(&mut devices, name, *memory)?;
    }
    Ok(devices)
}

/// Has a device offer less memory than it has.
fn limit_memory(devices: &mut [Device], name: &str, memory: ByteCount) -> Result<(), AgentError> {
    let error = |reason| AgentError::DeviceMemory {
        name: name.to_owned(),
        memory,
        reason,
    };
    let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
    let names = names.join(", ");
    let device = devices.iter_mut().find(|device| device.name == name);
    let device =
        device.ok_or_else(|| error(format!("this node has no such device; it has {names}")))?;
    if memory > device.memory {
        return Err(error(format!("the device has {}", device.memory)));
    }
    if device.backend == Backend::Cpu && memory < LEAST_CPU_MEMORY {
        let reason = format!(
            "a process with libtorch takes that without any model: expected at least {LEAST_CPU_MEMORY}"
        );
        return Err(error(reason));
    }
    device.memory = memory;
    Ok(())
}

/// Returns the version of libtorch of the workers; `None` if devices are simulated, as what these take is not measured.
fn libtorch_version(devices: &[Device]) -> Option<String> {
    let simulated = |device: &Device| device.backend == Backend::Simulated;
    (!devices.iter().any(simulated)).then(|| LIBTORCH_VERSION.to_owned())
}

/// Runs the agent until SIGINT or SIGTERM, or until its supervisor is gone. Workers are left to the next agent, or stopped if the settings say so.
///
/// # Errors
/// If the agent cannot start. Once it runs, only a signal ends it.
pub(super) async fn run(settings: Settings, supervisor: Supervisor) -> Result<(), AgentError> {
    let system = |operation| move |source| AgentError::System { operation, source };
    let interrupt = signal(SignalKind::interrupt()).map_err(system("waiting for SIGINT"))?;
    let terminate = signal(SignalKind::terminate()).map_err(system("waiting for SIGTERM"))?;
    let mut folder = StateFolder::open(&settings.state_dir)?;
    let devices = discover(&settings)?;
    share_with_workers(&mut folder, &settings, &devices)?;
    for device in &devices {
        tracing::info!(device.name, device.kind = %device.kind, device.memory = %device.memory, "device found");
    }
    if settings.link_tls.is_none() && !settings.listen_address.is_loopback() {
        tracing::warn!(address = %settings.listen_address, "workers take batches in clear text from other machines; give them a certificate with --link-tls");
    }
    let gateway = GatewayClient::new(&settings)?;
    let request = LeaseRequest {
        instance: folder.instance().map_err(OpenStateError::from)?,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch: libtorch_version(&devices),
        devices: { devices.iter() }
            .map(|device| device.report(settings.own_workers, settings.gpu_pools))
            .collect(),
        protocol: ProtocolRange::SUPPORTED,
        cluster_id: None,
        highest_epoch: 0,
        nonce: None,
    };
    let fence_file = folder.fence_file().map_err(OpenStateError::from)?;
    let link_secret = link_secret(&settings).map_err(system("reading --link-secret-file"))?;
    let limits = Limits {
        drain: settings.batch_limit + DRAIN_GRACE,
        load: LOAD_LIMIT,
        measure_grace: MEASURE_GRACE,
        inspect: INSPECT_LIMIT,
        former_cluster: FORMER_CLUSTER_GRACE,
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
                &folder.mps(),
                folder.worker_user(),
                &event_sender,
            )
            .await
        }
        MpsMode::Off => Mps::default(),
    };
    let gpus = Gpus::new(&devices, &mps);
    // The artifact of a simulated program need not be one.
    let simulated = |device: &Device| device.backend == Backend::Simulated;
    let inspects = !devices.iter().all(simulated);
    let cache = ArtifactCache::new(folder.artifacts(), folder.worker_user().clone());
    let stop_workers_on_exit = settings.stop_workers_on_exit;
    let mut node = Node {
        reconciler,
        inspects,
        start: Instant::now(),
        workers: Workers::new(settings, folder, devices, mps, event_sender.clone()),
        cache,
        gateway: gateway.clone(),
        fetches: JoinSet::new(),
        events,
        event_sender: event_sender.clone(),
        status: status_sender,
        signals: [interrupt, terminate],
        supervisor,
    };
    // Nothing older than what an earlier agent of this folder has seen is obeyed.
    node.handle(Event::Leased {
        epoch: fence_file.fence().highest_epoch,
    });
    node.adopt()
        .map_err(system("looking for the workers of an earlier agent"))?;
    // The first report must already contain the adopted workers: the gateway gives up replicas that are not reported.
    node.reconcile();
    let session = tokio::spawn(
        Session::new(
            gateway,
            request,
            event_sender,
            status,
            gpus,
            (link_secret, fence_file),
        )
        .run(),
    );
    node.run_until_signalled().await;
    if stop_workers_on_exit {
        node.stop_workers().await;
    }
    session.abort();
    Ok(())
}

/// Reads the secret that the gateway shows to workers; none without a file.
fn link_secret(settings: &Settings) -> io::Result<LinkSecret> {
    let content = settings.link_secret_file.as_ref().map(std::fs::read);
    Ok(content
        .transpose()?
        .map_or_else(LinkSecret::none, |content| {
            LinkSecret::from_file_content(&content)
        }))
}

/// Finds out which user workers run as, and shares the state folder with it.
fn share_with_workers(
    folder: &mut StateFolder,
    settings: &Settings,
    devices: &[Device],
) -> Result<(), AgentError> {
    let tls = settings.link_tls.iter();
    let tls_files = tls.flat_map(|tls| {
        let identity = &tls.files.identity;
        let authorities = tls.files.client_authorities.iter();
        let own = [&identity.certificate, &identity.key];
        own.into_iter().chain(authorities)
    });
    let needs = WorkerNeeds {
        program: &settings.worker,
        libtorch: settings.libtorch.as_ref(),
        tls_files: tls_files.map(PathBuf::as_path).collect(),
    };
    let choice = settings.worker_user.clone();
    let user = choice.usable(&needs, folder.path())?;
    let names = devices.iter().map(|device| device.name.as_str());
    let shared = folder.share_with(&user, names);
    shared.map_err(|source| AgentError::System {
        operation: "sharing the state folder with workers",
        source,
    })
}

/// The state of the main loop.
struct Node {
    reconciler: Reconciler,
    /// True if the node makes inspections.
    inspects: bool,
    start: Instant,
    workers: Workers,
    cache: ArtifactCache,
    gateway: GatewayClient,
    fetches: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    event_sender: mpsc::Sender<Event>,
    status: watch::Sender<NodeStatus>,
    signals: [Signal; 2],
    supervisor: Supervisor,
}

/// The cause of an iteration of the main loop.
enum Wakeup {
    Event(Box<Event>),
    Timer,
    Signal,
}

impl Node {
    /// Adopts the artifacts and workers of an earlier agent.
    fn adopt(&mut self) -> io::Result<()> {
        for digest in self.cache.scan()? {
            self.handle(Event::Fetched(digest));
        }
        for event in self.workers.adopt()? {
            self.handle(event);
        }
        Ok(())
    }

    async fn run_until_signalled(&mut self) {
        loop {
            self.reconcile();
            match self.wait().await {
                Wakeup::Event(event) => self.handle_all(*event),
                Wakeup::Timer => {}
                Wakeup::Signal => return,
            }
        }
    }

    /// Stops all workers. A second signal ends the wait and leaves the workers that still run to the next agent.
    async fn stop_workers(&mut self) {
        tracing::info!("stopping all workers");
        self.handle(Event::StopAll);
        loop {
            self.reconcile();
            if self.reconciler.is_idle() {
                return self.workers.quit_mps().await;
            }
            match self.wait().await {
                Wakeup::Event(event) => self.handle_all(*event),
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
            () = self.supervisor.gone() => Wakeup::Signal,
            // This struct holds a sender, so that the channel cannot be closed.
            Some(event) = self.events.recv() => Wakeup::Event(Box::new(event)),
            () = timer => Wakeup::Timer,
        }
    }

    /// Handles an event, and those that have come meanwhile: to reconcile takes time in proportion to the tasks.
    fn handle_all(&mut self, first: Event) {
        self.handle(first);
        while let Ok(event) = self.events.try_recv() {
            self.handle(event);
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    fn handle(&mut self, event: Event) {
        self.reconciler.handle(self.now(), event);
    }

    /// Carries out actions until there are none left, then publishes the node's status.
    fn reconcile(&mut self) {
        loop {
            let actions = self.reconciler.poll(self.now());
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.execute(action);
            }
        }
        while self.fetches.try_join_next().is_some() {}
        let (epoch, revision) = self.reconciler.applied();
        let mut replicas = self.reconciler.replicas();
        for replica in &mut replicas {
            replica.worker = self.workers.kind(replica.id);
        }
        let status = NodeStatus {
            epoch,
            revision,
            replicas,
            profiles: self.reconciler.profiles(),
            inspections: (self.inspects).then(|| self.reconciler.inspections()),
        };
        self.status.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
    }

    fn execute(&mut self, action: Action) {
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
                    // The receiver lives as long as the process.
                    let _ = events.send(event).await;
                });
            }
            Action::Evict(digest) => self.cache.evict(digest),
            Action::Start(task) => {
                let mut artifacts = task.artifacts().into_iter();
                let gone = artifacts.find(|digest| !self.cache.has(*digest));
                let event = match gone {
                    Some(digest) => {
                        tracing::warn!(artifact = %digest, "the artifact is not in the cache any more");
                        Event::ArtifactGone(task.id(), digest)
                    }
                    None => self.workers.start(&task, &self.cache),
                };
                self.handle(event);
            }
            Action::Terminate(id) => self.workers.terminate(&id),
            Action::Kill(id) => self.workers.kill(&id),
            Action::Forget(id) => self.workers.forget(&id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_offers_no_more_than_it_has_and_a_cpu_what_a_process_needs() {
        let gib = |count: u64| ByteCount::new(count << 30);
        let device = |name: &str, backend| Device {
            name: name.to_owned(),
            kind: "T4".parse().unwrap(),
            memory: gib(16),
            multiprocessors: None,
            description: String::new(),
            backend,
        };
        let mut devices = [
            device("cpu0", Backend::Cpu),
            device("sim0", Backend::Simulated),
        ];
        let mut offered = |name: &str, memory| {
            let limited = limit_memory(&mut devices, name, memory);
            let found = devices.iter().find(|device| device.name == name);
            limited.map(|()| found.unwrap().memory)
        };
        let least = ByteCount::new(256 << 20);
        assert_eq!(offered("cpu0", least).unwrap(), least);
        let little = ByteCount::new(1 << 20);
        assert_eq!(offered("sim0", little).unwrap(), little);
        for (name, memory, reason) in [
            ("cpu0", little, "expected at least"),
            ("cpu0", gib(1), "the device has"),
            ("gpu7", gib(1), "no such device; it has cpu0, sim0"),
        ] {
            let error = offered(name, memory).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
