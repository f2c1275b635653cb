//! The tasks of worker processes.

use packhorse_cluster::{
    ArtifactDigest, ByteCount, DeviceKind, ModelId, Program, ReplicaId, WantedProfile,
    WantedReplica,
};

/// The task of one worker process.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Serve replicas.
    Serve(ServedReplicas),
    /// Make a measurement.
    Measure(WantedProfile),
    /// Find the operators of a program, for which no device is needed.
    Inspect(Program),
}

/// The replicas of one worker: usually one, and several on the same device if their programs share a backbone.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedReplicas {
    first: WantedReplica,
    also: Vec<WantedReplica>,
}

/// The identity of a task. At most one process per task runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskId {
    /// Serving the replicas of this worker.
    Replica(ReplicaId),
    /// Measuring this model on this kind of device.
    Measurement(ModelId, DeviceKind),
    /// Inspecting the program of this model.
    Inspection(ModelId),
}

impl From<WantedReplica> for ServedReplicas {
    fn from(first: WantedReplica) -> Self {
        let also = Vec::new();
        Self { first, also }
    }
}

impl ServedReplicas {
    /// Returns the replicas of each worker. Those that share one must be on one device, and those on another than the first are left out.
    pub(crate) fn by_worker(replicas: impl IntoIterator<Item = WantedReplica>) -> Vec<Self> {
        let mut workers: Vec<Self> = Vec::new();
        let mut sorted: Vec<WantedReplica> = replicas.into_iter().collect();
        sorted.sort_by_key(|replica| (replica.worker(), replica.id));
        for replica in sorted {
            match workers.last_mut() {
                Some(worker) if worker.id() == replica.worker() => {
                    if worker.device() == replica.device {
                        worker.also.push(replica);
                    }
                }
                _ => workers.push(replica.into()),
            }
        }
        workers
    }

    /// Creates the task of a worker from its replicas; `None` without any.
    pub fn new(replicas: impl IntoIterator<Item = WantedReplica>) -> Option<Self> {
        let mut replicas = replicas.into_iter();
        let first = replicas.next()?;
        let also = replicas.collect();
        Some(Self { first, also })
    }

    /// Returns the identity of the worker.
    pub fn id(&self) -> ReplicaId {
        self.first.worker()
    }

    /// Returns the first replica, by identity.
    pub fn first(&self) -> &WantedReplica {
        &self.first
    }

    /// Returns the replicas after the first.
    pub fn also(&self) -> &[WantedReplica] {
        &self.also
    }

    /// Returns all replicas, by identity.
    pub fn iter(&self) -> impl Iterator<Item = &WantedReplica> {
        std::iter::once(&self.first).chain(&self.also)
    }

    /// Returns the memory that the plan sets aside for all replicas; `None` if it is unknown.
    pub fn memory(&self) -> Option<ByteCount> {
        let known = self.iter().filter_map(|replica| replica.memory_bytes);
        known.reduce(ByteCount::saturating_add)
    }

    fn device(&self) -> &str {
        &self.first.device
    }

    /// Returns true if a worker of the other replicas can serve these unchanged, perhaps beside some that are no longer wanted.
    pub(crate) fn runs_as(&self, other: &Self) -> bool {
        self.iter()
            .all(|replica| other.iter().any(|running| replica.runs_as(running)))
    }

    /// Returns the number of restarts that the gateway has asked for: an attempt of any replica concerns the whole worker.
    fn attempt(&self) -> u64 {
        self.iter().map(|replica| u64::from(replica.attempt)).sum()
    }

    /// Takes over the numbers of restarts that the gateway has asked for.
    pub(crate) fn take_attempts(&mut self, wanted: &Self) {
        for replica in std::iter::once(&mut self.first).chain(&mut self.also) {
            if let Some(wanted) = wanted.iter().find(|wanted| wanted.id == replica.id) {
                replica.attempt = wanted.attempt;
            }
        }
    }
}

impl Task {
    /// Returns the identity of the task.
    pub fn id(&self) -> TaskId {
        match self {
            Self::Serve(replicas) => TaskId::Replica(replicas.id()),
            Self::Measure(profile) => {
                TaskId::Measurement(profile.program.model.clone(), profile.device_kind.clone())
            }
            Self::Inspect(program) => TaskId::Inspection(program.model.clone()),
        }
    }

    /// Returns the program that the worker runs, or the first of several.
    pub fn program(&self) -> &Program {
        match self {
            Self::Serve(replicas) => &replicas.first.program,
            Self::Measure(profile) => &profile.program,
            Self::Inspect(program) => program,
        }
    }

    /// Returns the artifacts of the programs that the worker runs.
    pub fn artifacts(&self) -> Vec<ArtifactDigest> {
        match self {
            Self::Serve(replicas) => {
                let programs = replicas.iter().map(|replica| &replica.program);
                programs.map(|program| program.artifact).collect()
            }
            Self::Measure(_) | Self::Inspect(_) => vec![self.program().artifact],
        }
    }

    /// Returns the device, by its name within the node; `None` for an inspection.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Serve(replicas) => Some(replicas.device()),
            Self::Measure(profile) => Some(&profile.device),
            Self::Inspect(_) => None,
        }
    }

    /// Returns true if a process with the other task can do this one unchanged.
    pub(crate) fn runs_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Serve(one), Self::Serve(other)) => one.runs_as(other),
            (Self::Measure(one), Self::Measure(other)) => one.runs_as(other),
            (Self::Inspect(one), Self::Inspect(other)) => one == other,
            _ => false,
        }
    }

    /// Returns the number of restarts that the gateway has asked for.
    pub(crate) fn attempt(&self) -> u64 {
        match self {
            Self::Serve(replicas) => replicas.attempt(),
            Self::Measure(_) | Self::Inspect(_) => 0,
        }
    }

    /// Takes over the number of restarts that the gateway has asked for.
    pub(crate) fn take_attempts(&mut self, wanted: &Self) {
        if let (Self::Serve(replicas), Self::Serve(wanted)) = (self, wanted) {
            replicas.take_attempts(wanted);
        }
    }

    /// Returns true if the task ends with a result: a measurement, of which a device makes one at a time, or an inspection, of which a node
    /// does. Neither is repeated when it fails.
    pub fn has_result(&self) -> bool {
        matches!(self, Self::Measure(_) | Self::Inspect(_))
    }
}
