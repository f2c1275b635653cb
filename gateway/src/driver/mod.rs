//! The data plane: one task owns the serving engine and drives it with the clock, the workers' links and what clients send.
//!
//! The control plane says what shall be served ([`Target`], level-triggered) and sees what is ([`LinkState`]); HTTP handlers
//! submit requests and wait for their answer. Nothing else crosses.

mod batch;
mod catalog;
mod clock;
mod data_plane;
mod padding;
mod replicas;
mod request;
mod shape_class;
mod task;
mod turns;
mod work;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use packhorse_cluster::{
    Capacity, ComputeShare, DeviceId, Discipline, ModelId, ModelSpec, Profile, ReplicaId,
};

pub(crate) use catalog::{Catalog, NotServed, ServedModel};
pub use clock::Clock;
pub use data_plane::{DataPlane, DataPlaneConfig};
pub(crate) use request::{OutputRows, Submission, Unanswered};
pub use work::Work;

/// Everything that shall be served now. A later one replaces an earlier one; what is equal in both is left alone.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The registered models.
    pub models: BTreeMap<ModelId, Arc<ModelSpec>>,
    /// The replicas whose workers are ready, by identity.
    pub replicas: BTreeMap<ReplicaId, TargetReplica>,
    /// How requests become batches.
    pub discipline: Discipline,
}

/// A replica whose worker listens.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetReplica {
    /// What it serves; one of [`Target::models`].
    pub model: ModelId,
    /// Where its worker listens.
    pub address: SocketAddr,
    /// The most rows of one batch, by the plan.
    pub batch_size: u32,
    /// What its worker is capable of, where it says so.
    pub capacity: Option<Capacity>,
    /// The share of the multiprocessors it may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The device that it computes on.
    pub device: DeviceId,
    /// Whether it shares the device in time with others that do: one batch of theirs computes there at a time, in turn. If not, it
    /// computes whenever it has a batch.
    pub takes_turns: bool,
    /// How long its batches take.
    pub profile: Arc<Profile>,
    /// It gets no further batch; once it has answered what it has, it is [`LinkState::Drained`].
    pub draining: bool,
}

/// How the data plane stands with a replica of the target.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkState {
    /// The connection is being made, or was lost and is being made again.
    Connecting {
        /// What went wrong last, for people.
        reason: Option<String>,
    },
    /// It gets batches.
    Serving,
    /// It is draining and still computes.
    Draining,
    /// It has answered everything and gets nothing more.
    Drained,
}
