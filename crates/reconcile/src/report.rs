//! The state that a worker process reports.

use std::net::SocketAddr;

use packhorse_cluster::{ByteCount, Capacity, ReplicaId, Verification};
use serde::{Deserialize, Serialize};

/// The place where a worker listens for another of its replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlsoListening {
    /// The replica.
    pub replica: ReplicaId,
    /// The address on which the worker listens for it.
    pub address: SocketAddr,
    /// The path of the Unix socket on which it also listens; none if it does not.
    #[serde(default)]
    pub local_path: Option<String>,
}

/// The state that a worker process reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum WorkerReport {
    /// The replica waits until its process has loaded the programs of others. Only pool workers report this.
    Waiting,
    /// The worker loads the program and warms up.
    Loading,
    /// The worker takes batches. Only workers that serve report this.
    Ready {
        /// The address on which the worker listens.
        address: SocketAddr,
        /// The path of the Unix socket on which it also listens; none if it does not.
        #[serde(default)]
        local_path: Option<String>,
        /// The addresses of the other replicas that the worker runs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<AlsoListening>,
        /// The memory that the worker needs; none if unknown.
        memory: Option<ByteCount>,
        /// The limits that the worker found; none if it does not report them yet.
        #[serde(default)]
        capacity: Option<Capacity>,
        /// The comparison of the answers with those of the program as it is in its file; none if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verification: Option<Verification>,
    },
    /// The worker answers the batches that it has and then ends. Only workers that serve report this.
    Draining,
    /// The replica has ended, and its process goes on with others. Only pool workers report this.
    Ended,
    /// The worker measures. Only workers that measure report this.
    Measuring {
        /// The number of batch sizes measured so far.
        done: u32,
        /// The number of batch sizes to measure; 0 before it is known.
        total: u32,
        /// The operators of the program, as JSON; none if they are not known.
        #[serde(default)]
        operators: Option<String>,
    },
    /// The worker has finished its measurement and ends. Only workers that measure report this.
    Measured {
        /// The number of batch sizes measured.
        done: u32,
        /// The number of batch sizes to measure; more than `done` if the time limit was reached.
        total: u32,
        /// The profile, in the CSV format of profiles.
        csv: String,
        /// The recorded kernels, as CSV; none on a device without kernels.
        #[serde(default)]
        kernels: Option<String>,
        /// The operators of the program, as JSON; none if they are not known.
        #[serde(default)]
        operators: Option<String>,
    },
    /// The worker has found the operators of its program and ends. Only workers that inspect report this.
    Inspected {
        /// The operators, as JSON.
        operators: String,
    },
    /// The worker cannot go on and ends.
    Failed {
        /// The reason as text for people, without paths.
        reason: String,
        /// True if a restart with the same task would fail again, because the program cannot be served as it is registered.
        permanent: bool,
    },
}

impl WorkerReport {
    /// Returns true for the last report on a task: its process has no more to say of it.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Ended | Self::Failed { .. } | Self::Measured { .. } | Self::Inspected { .. }
        )
    }
}
