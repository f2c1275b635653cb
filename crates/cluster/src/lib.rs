//! The nouns of a Packhorse cluster, shared by everything that decides, simulates or serves.
//!
//! A [`Model`] is demanded at a rate and within an SLO; a [`Profile`] says how long its batches take on a [`DeviceKind`]; a
//! [`Problem`] gathers what a placement policy may know; a [`Plan`] is its answer, judged by [`Plan::violations`].
//!
//! Pure: no clock, no file system, no randomness, and ordered maps only, so that equal input gives equal output.

mod device;
mod discipline;
mod explanation;
mod id;
mod model;
mod observation;
mod plan;
mod problem;
mod profile;
mod replica;
mod tensor;
mod units;

pub use device::{Device, DeviceIndex, known_cost_per_hour, known_kind};
pub use discipline::{Discipline, UnknownDiscipline};
pub use explanation::{Bound, Change, Explanation, Remedy};
pub use id::{
    ArtifactDigest, DeviceId, DeviceKind, Generation, IdError, ModelId, ModelName, ModelVersion,
    NodeName, ReplicaId,
};
pub use model::{ModelSpec, ModelSpecError, Program};
pub use observation::{DeviceObservation, ReplicaObservation};
pub use plan::{ModelForecast, Plan, PlannedReplica, Violation};
pub use problem::{Conditions, DemandedModel, ModelIndex, NetworkModel, Problem, ProblemError};
pub use profile::{Profile, ProfileError, ProfileRow, ProfileTable};
pub use replica::{
    Capacity, ProfileProgress, ReplicaState, ReplicaStatus, WantedProfile, WantedReplica,
    WantedState,
};
pub use tensor::{Datatype, Dim, Padding, Shape, ShapeError, TensorSpec, UnknownDatatype};
pub use units::{ByteCount, ComputeShare, Percent, RequestsPerSecond, Time, UnitError};
