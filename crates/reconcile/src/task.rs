//! The tasks of worker processes.

use packhorse_cluster::{DeviceKind, ModelId, Program, ReplicaId, WantedProfile, WantedReplica};

/// The task of one worker process.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Serve a replica.
    Serve(WantedReplica),
    /// Make a measurement.
    Measure(WantedProfile),
}

/// The identity of a task. At most one process per task runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskId {
    /// Serving this replica.
    Replica(ReplicaId),
    /// Measuring this model on this kind of device.
    Measurement(ModelId, DeviceKind),
}

impl Task {
    /// Returns the identity of the task.
    pub fn id(&self) -> TaskId {
        match self {
            Self::Serve(replica) => TaskId::Replica(replica.id),
            Self::Measure(profile) => {
                TaskId::Measurement(profile.program.model.clone(), profile.device_kind.clone())
            }
        }
    }

    /// Returns the program that the worker runs.
    pub fn program(&self) -> &Program {
        match self {
            Self::Serve(replica) => &replica.program,
            Self::Measure(profile) => &profile.program,
        }
    }

    /// Returns the device, by its name within the node.
    pub fn device(&self) -> &str {
        match self {
            Self::Serve(replica) => &replica.device,
            Self::Measure(profile) => &profile.device,
        }
    }

    /// Returns true if a process with this task can do the other task unchanged.
    pub(crate) fn runs_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Serve(one), Self::Serve(other)) => one.runs_as(other),
            (Self::Measure(one), Self::Measure(other)) => one.runs_as(other),
            _ => false,
        }
    }

    /// Returns the number of restarts that the gateway has asked for.
    pub(crate) fn attempt(&self) -> u32 {
        match self {
            Self::Serve(replica) => replica.attempt,
            Self::Measure(_) => 0,
        }
    }

    /// Sets the number of restarts that the gateway has asked for.
    pub(crate) fn set_attempt(&mut self, attempt: u32) {
        if let Self::Serve(replica) = self {
            replica.attempt = attempt;
        }
    }

    /// Returns true if the task is a measurement.
    pub(crate) fn measures(&self) -> bool {
        matches!(self, Self::Measure(_))
    }
}
