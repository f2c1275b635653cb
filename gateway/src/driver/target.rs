//! The target that the control plane sets, and the states that the data plane reports.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use packhorse_cluster::{
    Capacity, ComputeShare, DeviceId, Discipline, ModelId, ModelSpec, Profile, ReplicaId,
};

/// The models and replicas that shall be served now. A later target replaces an earlier one; replicas that are equal in both are not touched.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The registered models.
    pub models: BTreeMap<ModelId, Arc<ModelSpec>>,
    /// The replicas whose workers are ready.
    pub replicas: BTreeMap<ReplicaId, TargetReplica>,
    /// The discipline by which requests become batches.
    pub discipline: Discipline,
}

/// A replica whose worker listens.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetReplica {
    /// The model that it serves; one of [`Target::models`].
    pub model: ModelId,
    /// The address that its worker listens on.
    pub address: SocketAddr,
    /// The planned batch size, in rows.
    pub batch_size: u32,
    /// The capacity that its worker reported, if it did.
    pub capacity: Option<Capacity>,
    /// The share of the multiprocessors that it may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The device that it computes on.
    pub device: DeviceId,
    /// True if it shares the device in time with other such replicas: one batch of theirs computes there at a time, in turn. If
    /// false, it computes whenever it has a batch.
    pub time_shared: bool,
    /// The profile of its model on the device.
    pub profile: Arc<Profile>,
    /// True if it gets no further batch. Once it has answered its last one, it is [`LinkState::Drained`].
    pub draining: bool,
}

/// The state of the data plane's link to a replica of the target.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkState {
    /// The connection is being made, or was lost and is being made again.
    Connecting {
        /// The last error, for people.
        reason: Option<String>,
    },
    /// The replica gets batches.
    Serving,
    /// Batches failed on the replica while others computed theirs: it gets one now and then, until it computes one.
    Ejected {
        /// The last failure, for people.
        reason: String,
    },
    /// The replica gets no further batches, but still computes.
    Draining,
    /// The replica has answered everything and gets no further batches.
    Drained,
}
