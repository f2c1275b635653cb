//! A node: an agent with the real reconciler, and worker processes that outlive it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, Capacity, ClusterId, DeviceId, DeviceReport, ModelId, NodeName,
    Profile, ProfileProgress, ProfileTable, ReplicaId, ReplicaStatus, Time, Verification,
    WantedProfile, WantedReplica,
};
use packhorse_contention::{ComputeDemand, Interference, SharedDevice};
use packhorse_control::{LeaseClaim, NodeReport};
use packhorse_reconcile::{
    Action, AlsoListening, Event, ExitCause, Fence, Limits, Reconciler, ServedReplicas, Task,
    TaskId, WorkerReport,
};

/// The time limits of workers.
pub const LIMITS: Limits = Limits {
    drain: Duration::from_secs(5),
    load: Duration::from_mins(1),
    measure_grace: Duration::from_mins(1),
    inspect: Duration::from_mins(1),
    former_cluster: Duration::from_mins(15),
};

/// The way in which a model fails to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// The worker dies, and is started again.
    Dies,
    /// The worker says that the program can never be served.
    Permanent,
}

/// The behaviour of the workers of a node.
#[derive(Clone, Debug)]
pub struct WorkerBehaviour {
    /// The time to load a model that is not in `load_times`.
    pub load: Duration,
    /// The times to load these models.
    pub load_times: BTreeMap<ModelId, Duration>,
    /// True while models are in memory already, so that they load in no time.
    pub warm: bool,
    /// The time of a measurement.
    pub measure: Duration,
    /// The real batch times, alone on a device; 5 ms and 1 ms per row for a model without any.
    pub compute: Arc<ProfileTable>,
    /// The factors of real batch times over those of `compute`.
    pub scales: BTreeMap<ModelId, f64>,
    /// The number of batches that workers say they take; none if they say nothing.
    pub in_flight: Option<u32>,
    /// The part of the multiprocessors that measurements find a batch to use, in percent; none if they do not find out.
    pub sm_utilization: Option<u8>,
    /// True while the models throw on every batch here.
    pub throws: bool,
    /// The models that cannot load on a device, by its name within the node.
    pub failures: BTreeMap<(ModelId, String), LoadFailure>,
    /// The operators that a worker which measures or inspects reports, as JSON, and the time after which it does.
    pub operators: Option<(Duration, String)>,
    /// False for an agent that makes no inspections.
    pub inspects: bool,
    /// The version of libtorch that the agent says; none if it says none.
    pub libtorch: Option<String>,
    /// The comparison of their answers that workers report.
    pub verification: Option<Verification>,
}

impl Default for WorkerBehaviour {
    /// Returns the behaviour of workers that load in 0.8 s, and measure in 3 s.
    fn default() -> Self {
        Self {
            load: Duration::from_millis(800),
            load_times: BTreeMap::new(),
            warm: false,
            measure: Duration::from_secs(3),
            compute: Arc::default(),
            scales: BTreeMap::new(),
            in_flight: None,
            sm_utilization: Some(50),
            throws: false,
            failures: BTreeMap::new(),
            operators: None,
            inspects: true,
            libtorch: None,
            verification: None,
        }
    }
}

/// A worker process.
#[derive(Debug)]
pub struct Process {
    /// The work that it was started for.
    pub task: Task,
    /// Its number on the node.
    pub pid: u32,
    /// The state that it reports.
    pub report: WorkerReport,
    /// The place of a serving process at its device.
    pub(crate) place: Option<Place>,
}

/// The place of a worker process at a device of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: u32,
    pub(crate) lane: u32,
}

/// A device of a node.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) shared: SharedDevice<HeldBatch>,
    lanes: Vec<Lane>,
    /// The time at which its link has transmitted what was handed to it.
    pub(crate) link_free: Time,
    /// The time at which the weights are there that it was asked to copy from the node's memory.
    pub(crate) copied: Time,
    /// The same of those that come from the node's disk.
    pub(crate) read: Time,
    /// The number of faults that keep workers from running.
    pub(crate) broken: u32,
}

/// A batch at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBatch {
    pub(crate) number: u64,
    pub(crate) lane: u32,
}

/// A worker process, as its device has it.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The worker; `None` once it has ended.
    pub(crate) worker: Option<(TaskId, u32)>,
    /// The time alone on the whole device and the compute demand of each batch; entry `i` is a batch of `i + 1` rows.
    pub(crate) costs: Vec<(Duration, ComputeDemand)>,
    /// The number of batches that it has.
    pub(crate) held: usize,
    /// The end of a stop (SIGSTOP).
    pub(crate) stopped_until: Option<Time>,
}

/// A node with its agent.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The devices that its agent reports.
    pub devices: Vec<DeviceReport>,
    /// The devices as they are, in the same order.
    pub(crate) hardware: Vec<Device>,
    /// The number in the cluster of its first device.
    pub(crate) first_device: usize,
    interference: Interference,
    /// The behaviour of its workers.
    pub behaviour: WorkerBehaviour,
    /// The time that agents and workers take for what they do.
    times: Times,
    /// The worker processes.
    pub processes: BTreeMap<TaskId, Process>,
    /// The processes of the replicas.
    serving: BTreeMap<ReplicaId, TaskId>,
    /// The agent; none while it does not run.
    pub(crate) agent: Option<Agent>,
    /// The number of the agent's starts, which outdates what was scheduled for an earlier one.
    pub(crate) starts: u64,
    /// False while the network to the gateway is cut. [`Cluster::change_network`](crate::Cluster::change_network) changes it, as the three below.
    pub reachable: bool,
    /// True while nothing that the gateway sends arrives.
    pub is_deaf: bool,
    /// True while nothing that the node sends arrives.
    pub is_mute: bool,
    /// The longest time that a message takes.
    pub delay: Duration,
    /// The workers that were told to end, and whose gateways do not know it yet.
    pub(crate) draining: Vec<TaskId>,
    /// The agent's state folder.
    folder: StateFolder,
    /// The replicas whose workers have ended, until the cluster has taken note.
    pub(crate) ended: Vec<ReplicaId>,
    /// The replicas whose workers have started, likewise.
    pub(crate) started: Vec<ReplicaId>,
    /// The artifacts on disk.
    artifacts: BTreeSet<ArtifactDigest>,
    next_pid: u32,
    /// The number of worker processes that were started to serve.
    pub served_starts: usize,
    /// The models that were inspected without being measured.
    pub inspected: Vec<ModelId>,
}

/// The times that agents and workers take for what they do.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The longest time that a message takes to another machine.
    pub message: Duration,
    /// The time to fetch an artifact.
    pub fetch: Duration,
    /// The time from telling a worker to end until it has.
    pub termination: Duration,
    /// The time after which a worker that cannot load ends.
    pub failure: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            message: Duration::from_millis(1),
            fetch: Duration::from_millis(20),
            termination: Duration::from_millis(100),
            failure: Duration::from_millis(200),
        }
    }
}

#[derive(Clone, Debug)]
struct StateFolder {
    instance: String,
    fence: Fence,
}

/// A running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) reconciler: Reconciler,
    /// The time at which it asks for its lease, or at which it did last while it waits.
    pub(crate) renews_at: Time,
    /// True while it tries again and again, because it does not reach a gateway.
    pub(crate) waits: bool,
    /// The next time at which it wants to act, if that is scheduled.
    pub(crate) wakes_at: Option<Time>,
    /// The epoch of the last grant; none before the first.
    pub(crate) granted: Option<u64>,
    /// The last report that was sent.
    pub(crate) sent: Option<NodeReport>,
}

/// A later event at a node.
#[derive(Clone, Debug)]
pub(crate) enum Later {
    Fetched(ArtifactDigest),
    /// The worker with this process identity has loaded, or measured.
    WorkerDone(TaskId, u32),
    /// The worker with this process identity has found these operators.
    Inspected(TaskId, u32, String),
    WorkerExits(TaskId, u32, ExitCause),
}

impl Node {
    pub(crate) fn new(
        name: NodeName,
        devices: Vec<DeviceReport>,
        first_device: usize,
        behaviour: WorkerBehaviour,
        times: Times,
        interference: Interference,
    ) -> Self {
        let folder = format!("folder of {name}");
        Self {
            name,
            devices,
            hardware: Vec::new(),
            first_device,
            interference,
            behaviour,
            times,
            processes: BTreeMap::new(),
            serving: BTreeMap::new(),
            agent: None,
            starts: 0,
            reachable: true,
            is_deaf: false,
            is_mute: false,
            delay: times.message,
            draining: Vec::new(),
            folder: StateFolder {
                instance: folder,
                fence: Fence::default(),
            },
            ended: Vec::new(),
            started: Vec::new(),
            artifacts: BTreeSet::new(),
            next_pid: 1,
            served_starts: 0,
            inspected: Vec::new(),
        }
    }

    /// Returns the identities of its devices.
    pub(crate) fn device_ids(&self) -> impl Iterator<Item = DeviceId> {
        let devices = self.devices.iter();
        devices.filter_map(|device| DeviceId::new(self.name.clone(), &device.name).ok())
    }

    /// Returns true if its agent runs.
    pub fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// Returns true if what the gateway sends arrives.
    pub(crate) fn hears(&self) -> bool {
        self.reachable && !self.is_deaf
    }

    /// Returns true if what the node sends arrives.
    pub(crate) fn speaks(&self) -> bool {
        self.reachable && !self.is_mute
    }

    /// Returns a worker process, if it still runs.
    fn process(&mut self, (id, pid): &(TaskId, u32)) -> Option<&mut Process> {
        self.processes.get_mut(id).filter(|p| p.pid == *pid)
    }

    pub(crate) fn hardware(&self, place: Place) -> &Device {
        &self.hardware[place.device as usize]
    }

    pub(crate) fn hardware_mut(&mut self, place: Place) -> &mut Device {
        &mut self.hardware[place.device as usize]
    }

    /// Returns the number in the cluster of a device.
    pub(crate) fn number_of(&self, place: Place) -> usize {
        self.first_device + place.device as usize
    }

    pub(crate) fn lane(&self, place: Place) -> &Lane {
        &self.hardware[place.device as usize].lanes[place.lane as usize]
    }

    pub(crate) fn lane_mut(&mut self, place: Place) -> &mut Lane {
        &mut self.hardware[place.device as usize].lanes[place.lane as usize]
    }

    /// Gives a worker process a place at its device; `None` if there is no such device.
    fn enter_device(
        &mut self,
        now: Time,
        replicas: &ServedReplicas,
        worker: (TaskId, u32),
    ) -> Option<Place> {
        let first = replicas.first();
        let device = self.devices.iter().position(|d| d.name == first.device)?;
        let kind = &self.devices[device].kind;
        let largest = replicas.iter().map(|replica| replica.batch_size).max();
        let scale = self.behaviour.scales.get(&first.program.model).copied();
        let known = self
            .behaviour
            .compute
            .get_shared(&first.program.model, kind);
        let profile = &*known.unwrap_or_else(|| Arc::new(measured_profile()));
        let cost = |rows| {
            let alone = profile.latency(rows);
            let demand = ComputeDemand::new(profile, rows, first.compute_share_pct);
            (scale.map_or(alone, |scale| alone.mul_f64(scale)), demand)
        };
        let lane = Lane {
            worker: Some(worker),
            costs: (1..=largest.unwrap_or(1)).map(cost).collect(),
            held: 0,
            stopped_until: None,
        };
        self.add_hardware(now, device);
        let hardware = &mut self.hardware[device];
        hardware.shared.add_replica();
        hardware.lanes.push(lane);
        Some(Place {
            device: u32::try_from(device).expect("devices are few"),
            lane: u32::try_from(hardware.lanes.len() - 1).expect("workers are few"),
        })
    }

    /// Has there be a device of this number.
    pub(crate) fn add_hardware(&mut self, now: Time, device: usize) {
        while self.hardware.len() <= device {
            self.hardware.push(Device {
                shared: SharedDevice::new(self.interference),
                lanes: Vec::new(),
                link_free: now,
                copied: now,
                read: now,
                broken: 0,
            });
        }
    }

    /// Runs a worker that no agent has started, whose model is loaded, unless it runs or its device is broken. Returns its address.
    pub(crate) fn run_worker(&mut self, now: Time, wanted: WantedReplica) -> Option<SocketAddr> {
        let task = Task::Serve(wanted.into());
        let id = task.id();
        if self.processes.contains_key(&id) {
            return None;
        }
        let mut later = Vec::new();
        self.start_process(now, task, &mut later);
        for (_, event) in later {
            self.happen(now, event);
        }
        Some(address(self.processes.get(&id)?.pid))
    }

    fn load_time(&self, replicas: &ServedReplicas) -> Duration {
        if self.behaviour.warm {
            return Duration::ZERO;
        }
        let model = &replicas.first().program.model;
        let known = self.behaviour.load_times.get(model);
        known.copied().unwrap_or(self.behaviour.load)
    }

    /// Ends a worker process, and what it computes.
    pub(crate) fn end_process(&mut self, now: Time, id: &TaskId) {
        let Some(process) = self.processes.remove(id) else {
            return;
        };
        if let Task::Serve(replicas) = &process.task {
            for replica in replicas.iter() {
                self.serving.remove(&replica.id);
                self.ended.push(replica.id);
            }
        }
        if let Some(Place { device, lane }) = process.place {
            let hardware = &mut self.hardware[device as usize];
            hardware.shared.clear_replica(now, lane as usize);
            let lane = &mut hardware.lanes[lane as usize];
            (lane.worker, lane.held) = (None, 0);
            lane.costs = Vec::new();
        }
    }

    /// Ends all worker processes.
    pub(crate) fn end_all(&mut self, now: Time) {
        let ids: Vec<TaskId> = self.processes.keys().cloned().collect();
        for id in ids {
            self.end_process(now, &id);
        }
    }

    /// Starts the agent, which adopts the workers that run.
    pub(crate) fn start_agent(&mut self, now: Time, limits: Limits) {
        self.starts += 1;
        let devices = self.devices.iter().map(|device| device.name.clone());
        let mut reconciler = Reconciler::new(devices, limits);
        let epoch = self.folder.fence.highest_epoch;
        reconciler.handle(now, Event::Leased { epoch });
        for digest in &self.artifacts {
            reconciler.handle(now, Event::Fetched(*digest));
        }
        for (id, process) in &self.processes {
            reconciler.handle(now, Event::Found(process.task.clone(), process.pid));
            reconciler.handle(now, Event::Reported(id.clone(), process.report.clone()));
        }
        self.agent = Some(Agent {
            reconciler,
            renews_at: now,
            waits: false,
            wakes_at: None,
            granted: None,
            sent: None,
        });
    }

    /// Loses the state folder, while the agent does not run. The workers of before are not found again and end.
    pub(crate) fn wipe(&mut self, now: Time) {
        assert!(self.agent.is_none(), "the folder is in use");
        self.folder.instance.push_str(" wiped");
        self.folder.fence = Fence::default();
        self.artifacts.clear();
        self.end_all(now);
    }

    pub(crate) fn claim(&self) -> LeaseClaim {
        LeaseClaim {
            instance: self.folder.instance.clone(),
            agent_version: "1".to_owned(),
            libtorch: self.behaviour.libtorch.clone(),
            devices: self.devices.clone(),
            cluster_id: self.folder.fence.cluster_id.clone(),
            highest_epoch: self.folder.fence.highest_epoch,
        }
    }

    /// Takes a grant. All gateways here know the link secret, so that each can prove that it may take the node over. Returns false if
    /// it is not obeyed.
    pub(crate) fn granted(&mut self, now: Time, cluster: &ClusterId, epoch: u64) -> bool {
        let Some(agent) = &mut self.agent else {
            return false;
        };
        let grant = self.folder.fence.grant(Some(cluster), epoch, true);
        agent.granted = grant.is_ok().then_some(epoch);
        let Ok((fence, event)) = grant else {
            return false;
        };
        self.folder.fence = fence;
        agent.reconciler.handle(now, event);
        true
    }

    /// Returns the cluster that the agents of this folder obey, and the highest epoch that they have seen there.
    pub(crate) fn fence(&self) -> (&str, &Fence) {
        (&self.folder.instance, &self.folder.fence)
    }

    /// Returns the report that the agent would send now.
    pub fn report(&self) -> Option<NodeReport> {
        let agent = self.agent.as_ref()?;
        let (epoch, revision) = agent.reconciler.applied();
        let replicas: Vec<ReplicaStatus> = agent.reconciler.replicas();
        let profiles: Vec<ProfileProgress> = agent.reconciler.profiles();
        Some(NodeReport {
            instance: self.folder.instance.clone(),
            epoch,
            revision,
            replicas: replicas.into_iter().map(|r| (r.id, r)).collect(),
            profiles,
            inspections: (self.behaviour.inspects).then(|| agent.reconciler.inspections()),
        })
    }

    /// Executes what the agent wants to do now. Returns what happens later because of it.
    pub(crate) fn act(&mut self, now: Time) -> Vec<(Duration, Later)> {
        let mut later = Vec::new();
        while let Some(agent) = &mut self.agent {
            let actions = agent.reconciler.poll(now);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.execute(now, action, &mut later);
            }
        }
        later
    }

    fn execute(&mut self, now: Time, action: Action, later: &mut Vec<(Duration, Later)>) {
        match action {
            Action::Fetch(digest) => later.push((self.times.fetch, Later::Fetched(digest))),
            Action::Evict(digest) => {
                self.artifacts.remove(&digest);
            }
            Action::Start(task) => self.start_process(now, task, later),
            Action::Terminate(id) => {
                if let Some(process) = self.processes.get_mut(&id) {
                    let exit = Later::WorkerExits(id.clone(), process.pid, ExitCause::Ended);
                    later.push((self.times.termination, exit));
                    if matches!(process.task, Task::Serve(_)) {
                        process.report = WorkerReport::Draining;
                        self.draining.push(id.clone());
                        self.tell(now, Event::Reported(id, WorkerReport::Draining));
                    }
                }
            }
            Action::Kill(id) => {
                if let Some(process) = self.processes.get(&id) {
                    let exit = Later::WorkerExits(id, process.pid, ExitCause::Signal(9));
                    later.push((Duration::from_millis(10), exit));
                }
            }
            Action::Forget(_) => {}
        }
    }

    fn start_process(&mut self, now: Time, task: Task, later: &mut Vec<(Duration, Later)>) {
        let pid = self.next_pid;
        self.next_pid += 1;
        let id = task.id();
        let place = match &task {
            Task::Serve(replicas) => {
                self.started
                    .extend(replicas.iter().map(|replica| replica.id));
                self.enter_device(now, replicas, (id.clone(), pid))
            }
            Task::Measure(_) | Task::Inspect(_) => None,
        };
        let broken = place.is_some_and(|place| self.hardware(place).broken > 0);
        let failures = &self.behaviour.failures;
        let fails = key(&task).is_some_and(|key| failures.contains_key(&key));
        let operators = self.behaviour.operators.as_ref();
        let after = match (&task, fails) {
            (_, true) => self.times.failure,
            (Task::Inspect(_), _) => operators.map_or(self.times.failure, |(after, _)| *after),
            (Task::Serve(replicas), false) => self.load_time(replicas),
            (Task::Measure(_), false) => self.behaviour.measure,
        };
        self.served_starts += usize::from(matches!(task, Task::Serve(_)));
        if let Task::Inspect(program) = &task {
            self.inspected.push(program.model.clone());
        }
        if broken {
            let dies = Later::WorkerExits(id.clone(), pid, ExitCause::Signal(9));
            later.push((Duration::ZERO, dies));
        } else {
            later.push((after, Later::WorkerDone(id.clone(), pid)));
        }
        if let (Task::Measure(wanted), Some((after, operators))) =
            (&task, &self.behaviour.operators)
            && wanted.inspect
        {
            let inspected = Later::Inspected(id.clone(), pid, operators.clone());
            later.push((*after, inspected));
        }
        if let Task::Serve(replicas) = &task {
            let served = replicas.iter().map(|replica| (replica.id, id.clone()));
            self.serving.extend(served);
        }
        let report = WorkerReport::Loading;
        let process = Process {
            task,
            pid,
            report: report.clone(),
            place,
        };
        assert!(
            self.processes.insert(id.clone(), process).is_none(),
            "{} starts {id:?} twice",
            self.name
        );
        self.tell(now, Event::Started(id.clone(), pid));
        self.tell(now, Event::Reported(id, report));
    }

    fn tell(&mut self, now: Time, event: Event) {
        if let Some(agent) = &mut self.agent {
            agent.reconciler.handle(now, event);
        }
    }

    /// Has something happen that was scheduled. Returns what happens later because of it.
    pub(crate) fn happen(&mut self, now: Time, event: Later) -> Option<(Duration, Later)> {
        match event {
            Later::Fetched(digest) => {
                self.artifacts.insert(digest);
                self.tell(now, Event::Fetched(digest));
                None
            }
            Later::WorkerDone(id, pid) => self.worker_done(now, id, pid),
            Later::Inspected(id, pid, operators) => {
                let process = self.process(&(id.clone(), pid))?;
                if process.report == WorkerReport::Loading {
                    process.report = WorkerReport::Measuring {
                        done: 0,
                        total: 0,
                        operators: Some(operators),
                    };
                    let report = process.report.clone();
                    self.tell(now, Event::Reported(id, report));
                }
                None
            }
            Later::WorkerExits(id, pid, cause) => {
                // A worker that was told to end answers first what it has.
                let process = self.processes.get(&id).filter(|p| p.pid == pid)?;
                let place = process.place;
                let works = place.is_some_and(|place| self.lane(place).held > 0);
                if works && cause == ExitCause::Ended {
                    let again = self.times.termination.max(Duration::from_millis(1));
                    return Some((again, Later::WorkerExits(id, pid, cause)));
                }
                self.end_process(now, &id);
                self.tell(now, Event::Exited(id, cause));
                None
            }
        }
    }

    fn worker_done(&mut self, now: Time, id: TaskId, pid: u32) -> Option<(Duration, Later)> {
        let process = self.processes.get_mut(&id)?;
        let operators = match &process.report {
            _ if process.pid != pid => return None,
            WorkerReport::Loading => None,
            WorkerReport::Measuring { operators, .. } => operators.clone(),
            _ => return None,
        };
        let failures = &self.behaviour.failures;
        let failure = key(&process.task).and_then(|key| failures.get(&key));
        let exit = |cause| Some((Duration::ZERO, Later::WorkerExits(id.clone(), pid, cause)));
        let (report, exit) = match (failure, &process.task) {
            (Some(failure), _) => {
                let report = WorkerReport::Failed {
                    reason: "no room for the weights".to_owned(),
                    permanent: *failure == LoadFailure::Permanent,
                };
                let code = 1;
                let cause = ExitCause::Status {
                    code,
                    last_line: None,
                };
                (report, exit(cause))
            }
            (None, Task::Serve(replicas)) => {
                let also = replicas.also().iter().map(|replica| AlsoListening {
                    replica: replica.id,
                    address: address(pid),
                    local_path: None,
                });
                let report = WorkerReport::Ready {
                    address: address(pid),
                    local_path: None,
                    also: also.collect(),
                    memory: None,
                    capacity: self.behaviour.in_flight.map(|in_flight| Capacity {
                        batch_size: replicas.first().batch_size,
                        in_flight,
                        multiprocessors: None,
                    }),
                    verification: self.behaviour.verification.clone(),
                };
                (report, None)
            }
            (None, Task::Inspect(_)) => {
                let found = self.behaviour.operators.clone();
                let report = match found {
                    Some((_, operators)) => WorkerReport::Inspected { operators },
                    None => WorkerReport::Failed {
                        reason: "the program has no operators".to_owned(),
                        permanent: true,
                    },
                };
                (report, exit(ExitCause::Ended))
            }
            (None, Task::Measure(wanted)) => {
                let report = WorkerReport::Measured {
                    done: 3,
                    total: 3,
                    csv: measured(wanted, self.behaviour.sm_utilization),
                    kernels: None,
                    operators,
                };
                (report, exit(ExitCause::Ended))
            }
        };
        process.report = report.clone();
        self.tell(now, Event::Reported(id, report));
        exit
    }

    /// Returns the worker of the replica, if its process listens on the address and answers.
    pub(crate) fn listens(
        &self,
        now: Time,
        replica: ReplicaId,
        at: SocketAddr,
    ) -> Option<(TaskId, u32, Place)> {
        let id = self.serving.get(&replica)?;
        let process = self.processes.get(id)?;
        let ready =
            matches!(&process.report, WorkerReport::Ready { address, .. } if *address == at);
        let place = process.place?;
        let stopped = self.lane(place).stopped_until(now).is_some();
        (ready && !stopped).then(|| (id.clone(), process.pid, place))
    }

    /// Returns the memory that the serving processes of each device have, without the pools': of these the engine decides.
    pub(crate) fn used_memory(&self) -> BTreeMap<&str, ByteCount> {
        let mut used: BTreeMap<&str, ByteCount> = BTreeMap::new();
        for process in self.processes.values() {
            if let Task::Serve(replicas) = &process.task
                && !replicas.first().pooled
            {
                let device = process.task.device().expect("replicas have one");
                let sum = used.entry(device).or_default();
                *sum = sum.saturating_add(replicas.memory().unwrap_or_default());
            }
        }
        used
    }
}

impl Lane {
    /// Returns the end of a stop that lasts.
    pub(crate) fn stopped_until(&self, now: Time) -> Option<Time> {
        self.stopped_until.filter(|until| *until > now)
    }
}

/// Returns the key of a task's failure; `None` for one without a device.
fn key(task: &Task) -> Option<(ModelId, String)> {
    Some((task.program().model.clone(), task.device()?.to_owned()))
}

fn address(pid: u32) -> SocketAddr {
    let port = 1024 + u16::try_from(pid % 60_000).expect("below 60,000");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Returns the profile, as CSV, that a measurement gives: 1 GiB, and 5 ms and 1 ms per row, on this part of the multiprocessors.
fn measured(wanted: &WantedProfile, sm_utilization: Option<u8>) -> String {
    let csv = profile_csv(&wanted.program.model, wanted.device_kind.as_str(), 1024);
    let found = sm_utilization.map_or_else(String::new, |part| part.to_string());
    csv.replace(",,,50\n", &format!(",,,{found}\n"))
}

/// Returns the profile that a measurement gives.
fn measured_profile() -> Profile {
    let (model, kind) = ("model:1", "kind");
    let csv = profile_csv(&model.parse().expect("a model"), kind, 1024);
    let table = ProfileTable::from_csv(&csv).expect("a valid profile");
    let (_, _, profile) = table.iter().next().expect("one profile");
    profile.clone()
}

/// Returns the profile, as CSV, of a model that takes this memory, and 5 ms and 1 ms per row.
pub fn profile_csv(model: &ModelId, kind: &str, memory_mib: u64) -> String {
    let rows: String = [1, 4, 16]
        .map(|size| format!("\n{model},{kind},{size},,{},,{memory_mib},,,50", 5 + size))
        .concat();
    format!("{}{rows}\n", ProfileTable::CSV_HEADER)
}
