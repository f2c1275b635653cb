//! A node: an agent with the real reconciler, and worker processes that outlive it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, ClusterId, DeviceReport, ModelId, NodeName, ProfileProgress,
    ProfileTable, ReplicaId, ReplicaStatus, Time, Verification, WantedProfile,
};
use packhorse_control::{LeaseClaim, NodeReport};
use packhorse_reconcile::{
    Action, AlsoListening, Event, ExitCause, Fence, Limits, Reconciler, Task, TaskId, WorkerReport,
};
use packhorse_serving::BatchKey;

use crate::data_plane::{Connection, Tag};

/// The longest time that a message takes between two machines.
const DELAY: Duration = Duration::from_millis(1);
/// The time limits of workers.
pub(crate) const LIMITS: Limits = Limits {
    drain: Duration::from_secs(5),
    load: Duration::from_mins(1),
    measure_grace: Duration::from_mins(1),
    inspect: Duration::from_mins(1),
    former_cluster: Duration::from_mins(15),
};
/// The time to fetch an artifact.
const FETCH: Duration = Duration::from_millis(20);
/// The time from telling a worker to end until it has.
const TERMINATION: Duration = Duration::from_millis(100);
/// The time after which a worker that cannot load ends.
const FAILURE: Duration = Duration::from_millis(200);

/// The way in which a model fails to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFailure {
    /// The worker dies, and is started again.
    Dies,
    /// The worker says that the program can never be served.
    Permanent,
}

/// The behaviour of the workers of a node.
#[derive(Clone, Debug)]
pub(crate) struct WorkerBehaviour {
    pub(crate) load: Duration,
    pub(crate) measure: Duration,
    /// True while the models throw on every batch here.
    pub(crate) throws: bool,
    /// The models that cannot load on a device, by its name within the node.
    pub(crate) failures: BTreeMap<(ModelId, String), LoadFailure>,
    /// The operators that a worker which measures or inspects reports, as JSON, and the time after which it does.
    pub(crate) operators: Option<(Duration, String)>,
    /// False for an agent that makes no inspections.
    pub(crate) inspects: bool,
    /// The comparison of their answers that workers report.
    pub(crate) verification: Option<Verification>,
}

/// A worker process.
pub(crate) struct Process {
    pub(crate) task: Task,
    pub(crate) pid: u32,
    pub(crate) report: WorkerReport,
    /// The batches that it has, the one that it computes first.
    pub(crate) batches: VecDeque<WorkerBatch>,
    /// The end of a stop (SIGSTOP).
    pub(crate) stopped_until: Option<Time>,
}

/// A batch at a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerBatch {
    pub(crate) connection: Connection,
    pub(crate) batch: BatchKey,
    pub(crate) tags: Vec<Tag>,
}

/// A node with its agent.
pub(crate) struct Machine {
    pub(crate) name: NodeName,
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) behaviour: WorkerBehaviour,
    pub(crate) processes: BTreeMap<TaskId, Process>,
    /// The agent; none while it does not run.
    pub(crate) agent: Option<Agent>,
    /// The number of the agent's starts, which outdates what was scheduled for an earlier one.
    pub(crate) starts: u64,
    /// False while the network to the gateway is cut.
    pub(crate) reachable: bool,
    /// True while nothing that the gateway sends arrives.
    pub(crate) is_deaf: bool,
    /// True while nothing that the node sends arrives.
    pub(crate) is_mute: bool,
    /// The longest time that a message takes.
    pub(crate) delay: Duration,
    /// The workers that were told to end, and whose gateways do not know it yet.
    pub(crate) draining: Vec<TaskId>,
    /// The agent's state folder.
    folder: StateFolder,
    /// The artifacts on disk.
    artifacts: BTreeSet<ArtifactDigest>,
    next_pid: u32,
    /// The number of worker processes that were started to serve.
    pub(crate) served_starts: usize,
    /// The models that were inspected without being measured.
    pub(crate) inspected: Vec<ModelId>,
}

#[derive(Clone, Debug)]
struct StateFolder {
    instance: String,
    fence: Fence,
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) reconciler: Reconciler,
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

impl Machine {
    pub(crate) fn new(name: &str, devices: Vec<DeviceReport>, behaviour: WorkerBehaviour) -> Self {
        Self {
            name: name.parse().unwrap(),
            devices,
            behaviour,
            processes: BTreeMap::new(),
            agent: None,
            starts: 0,
            reachable: true,
            is_deaf: false,
            is_mute: false,
            delay: DELAY,
            draining: Vec::new(),
            folder: StateFolder {
                instance: format!("folder of {name}"),
                fence: Fence::default(),
            },
            artifacts: BTreeSet::new(),
            next_pid: 1,
            served_starts: 0,
            inspected: Vec::new(),
        }
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
    pub(crate) fn process(&mut self, (id, pid): &(TaskId, u32)) -> Option<&mut Process> {
        self.processes.get_mut(id).filter(|p| p.pid == *pid)
    }

    /// Starts the agent, which adopts the workers that run.
    pub(crate) fn start_agent(&mut self, now: Time) {
        self.starts += 1;
        let devices = self.devices.iter().map(|device| device.name.clone());
        let mut reconciler = Reconciler::new(devices, LIMITS);
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
            granted: None,
            sent: None,
        });
    }

    /// Loses the state folder, while the agent does not run. The workers of before are not found again and end.
    pub(crate) fn wipe(&mut self) {
        assert!(self.agent.is_none(), "the folder is in use");
        self.folder.instance.push_str(" wiped");
        self.folder.fence = Fence::default();
        self.artifacts.clear();
        self.processes.clear();
    }

    pub(crate) fn claim(&self) -> LeaseClaim {
        LeaseClaim {
            instance: self.folder.instance.clone(),
            agent_version: "1".to_owned(),
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
    pub(crate) fn report(&self) -> Option<NodeReport> {
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
            Action::Fetch(digest) => later.push((FETCH, Later::Fetched(digest))),
            Action::Evict(digest) => {
                self.artifacts.remove(&digest);
            }
            Action::Start(task) => self.start_process(now, task, later),
            Action::Terminate(id) => {
                if let Some(process) = self.processes.get_mut(&id) {
                    let exit = Later::WorkerExits(id.clone(), process.pid, ExitCause::Ended);
                    later.push((TERMINATION, exit));
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
        let failures = &self.behaviour.failures;
        let fails = key(&task).is_some_and(|key| failures.contains_key(&key));
        let operators = self.behaviour.operators.as_ref();
        let after = match (&task, fails) {
            (_, true) => FAILURE,
            (Task::Inspect(_), _) => operators.map_or(FAILURE, |(after, _)| *after),
            (Task::Serve(_), false) => self.behaviour.load,
            (Task::Measure(_), false) => self.behaviour.measure,
        };
        self.served_starts += usize::from(matches!(task, Task::Serve(_)));
        if let Task::Inspect(program) = &task {
            self.inspected.push(program.model.clone());
        }
        later.push((after, Later::WorkerDone(id.clone(), pid)));
        if let (Task::Measure(wanted), Some((after, operators))) =
            (&task, &self.behaviour.operators)
            && wanted.inspect
        {
            let inspected = Later::Inspected(id.clone(), pid, operators.clone());
            later.push((*after, inspected));
        }
        let report = WorkerReport::Loading;
        let process = Process {
            task,
            pid,
            report: report.clone(),
            batches: VecDeque::new(),
            stopped_until: None,
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
                let process = self.processes.get(&id);
                let works = process.is_some_and(|p| p.pid == pid && !p.batches.is_empty());
                if works && cause == ExitCause::Ended {
                    return Some((TERMINATION, Later::WorkerExits(id, pid, cause)));
                }
                if self.processes.get(&id).is_some_and(|p| p.pid == pid) {
                    self.processes.remove(&id);
                    self.tell(now, Event::Exited(id, cause));
                }
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
                    capacity: None,
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
                    csv: measured(wanted),
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
    ) -> Option<(TaskId, u32)> {
        let runs = |task: &Task| match task {
            Task::Serve(replicas) => replicas.iter().any(|running| running.id == replica),
            Task::Measure(_) | Task::Inspect(_) => false,
        };
        let mut processes = self.processes.iter();
        let (id, process) = processes.find(|(_, process)| runs(&process.task))?;
        let ready =
            matches!(&process.report, WorkerReport::Ready { address, .. } if *address == at);
        let stopped = process.stopped_until.is_some_and(|until| until > now);
        (ready && !stopped).then(|| (id.clone(), process.pid))
    }

    /// Returns the memory that the serving processes of each device have.
    pub(crate) fn used_memory(&self) -> BTreeMap<&str, ByteCount> {
        let mut used: BTreeMap<&str, ByteCount> = BTreeMap::new();
        for process in self.processes.values() {
            if let Task::Serve(replicas) = &process.task {
                let device = process.task.device().expect("replicas have one");
                let sum = used.entry(device).or_default();
                *sum = sum.saturating_add(replicas.memory().unwrap_or_default());
            }
        }
        used
    }
}

/// Returns the key of a task's failure; `None` for one without a device.
fn key(task: &Task) -> Option<(ModelId, String)> {
    Some((task.program().model.clone(), task.device()?.to_owned()))
}

fn address(pid: u32) -> SocketAddr {
    let port = 1024 + u16::try_from(pid % 60_000).unwrap();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Returns the profile that a measurement gives: 1 GiB, and 5 ms and 1 ms per row.
fn measured(wanted: &WantedProfile) -> String {
    profile_csv(&wanted.program.model, wanted.device_kind.as_str(), 1024)
}

/// Returns the profile of a model that takes this memory.
pub(crate) fn profile_csv(model: &ModelId, kind: &str, memory_mib: u64) -> String {
    let rows: String = [1, 4, 16]
        .map(|size| format!("\n{model},{kind},{size},,{},,{memory_mib},,,50", 5 + size))
        .concat();
    format!("{}{rows}\n", ProfileTable::CSV_HEADER)
}
