//! The basic types of a Packhorse cluster, shared by placement, simulator, data plane and control plane.
//!
//! A [`ModelSpec`] has an expected request rate and an SLO. A [`Profile`] contains the measured batch times of a model on a
//! [`DeviceKind`]. A [`Problem`] is the input of a placement policy, and a [`Plan`] is its output, checked by [`Plan::violations`].
//!
//! The crate is pure: it has no clock, file system or randomness and uses ordered maps only, so that equal input gives equal output.

mod check_processing;
mod check_text;
mod device;
mod dim_names;
mod discipline;
mod explanation;
mod family;
mod id;
mod input_shapes;
mod min_replicas;
mod model;
mod model_state;
mod node_state;
mod observation;
mod plan;
mod policy_options;
mod postprocess;
mod preprocess;
mod priority;
mod problem;
mod profile;
mod replica;
mod shape;
mod shortfall;
mod small_number;
mod split;
mod tensor;
mod text;
mod typical_shapes;
mod units;

pub use device::{Device, DeviceIndex, DevicePool, known_cost_per_hour, known_kind};
pub use dim_names::UnequalDims;
pub use discipline::{Discipline, NotLive, UnknownDiscipline};
pub use explanation::{Bound, Change, Explanation, Remedy};
pub use family::{Mixed, VariantMix, VariantOf, by_accuracy};
pub use id::{
    ArtifactDigest, BackboneId, ClusterId, DeviceId, DeviceKind, Generation, IdError, ModelId,
    ModelName, ModelVersion, NodeName, ReplicaId,
};
pub use input_shapes::{InputShapes, InputShapesError};
pub use min_replicas::{MinReplicas, MinReplicasError};
pub use model::{ModelIndex, ModelSpec, ModelSpecError, Program, RateMode, UnknownRateMode};
pub use model_state::ModelState;
pub use node_state::{
    Capacity, DeviceReport, DroppedRewriting, InspectionResult, NodeState, ProfileProgress,
    ReplicaState, ReplicaStatus, Scheduling, Verification, WantedProfile, WantedReplica,
    WantedState, WorkerKind,
};
pub use observation::{DeviceObservation, ReplicaObservation};
pub use plan::{ModelForecast, Plan, Violation};
pub use policy_options::{
    BatchStep, ComputeMetric, ComputeShareMode, Effort, EffortError, LatencyModel, Objective,
    PolicyOptions, UnknownOptionValue,
};
pub use postprocess::{Classes, Embedding, Pool, Postprocess};
pub use preprocess::{
    Channels, CropRounding, ImageFilter, ImageLayout, ImagePreprocess, Preprocess, Processing,
    Resize,
};
pub use priority::{Priority, PriorityError};
pub use problem::{Conditions, DemandedModel, NetworkModel, Problem, ProblemError};
pub use profile::{Profile, ProfileError, ProfileRow, ProfileSource, ProfileTable};
pub use replica::{PlannedReplica, PoolPlace, Replica, ReplicaPhase, ReplicaSpec, Residency};
pub use shape::{Dim, Shape, ShapeError};
pub use shortfall::Shortfall;
pub use split::{Split, SplitError, Sticky, UnknownSticky};
pub use tensor::{Datatype, OversizedDim, Padding, TensorSpec, UndersizedDim, UnknownDatatype};
pub use text::{TextPreprocess, TokenTensor, TokenizerFile};
pub use typical_shapes::{TypicalShapes, WeightedShape};
pub use units::{ByteCount, ComputeShare, Percent, RequestsPerSecond, Time, UnitError};
