//! The table of the policies.

use std::time::Duration;

use packhorse_cluster::{PlannedReplica, Problem};

use crate::{
    PlanningOptions, PolicyEntry, PredictError, exclusive, first_fit, goodput, gpulet, gslice,
    herd, igniter, inss, milp, nexus, usher,
};

/// The table of all policies.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: exclusive::NAME,
        summary: "A replica has its device to itself; first come, first served.",
        source: "the usual baseline: one model per device",
        assumes: "full batches, no waiting",
        policy: &exclusive::Exclusive,
    },
    PolicyEntry {
        name: first_fit::NAME,
        summary: "Packs models onto devices by memory and by time, first fit, and moves as few replicas as it can.",
        source: "Johnson et al., \"Worst-case performance bounds for simple one-dimensional packing algorithms\", 1974, \
                 with two resources",
        assumes: "full batches when it matters; replicas of a device share its time without loss",
        policy: &first_fit::FirstFit,
    },
    PolicyEntry {
        name: nexus::NAME,
        summary: "Shares devices in time: squishy bin packing into duty cycles; models stay where they are.",
        source: "Shen et al., \"Nexus\", SOSP 2019, algorithm 1; locality of Nexus-on-Blox",
        assumes: "even arrivals; the replicas of a device take turns and do not slow each other",
        policy: &nexus::Nexus,
    },
    PolicyEntry {
        name: usher::USHER.name,
        summary: "Groups models by complementary needs of compute and memory, and places each group greedily.",
        source: "Shubha et al., \"USHER\", OSDI 2024, section 3.3, as Elvinger's thesis reads it, section 5.2",
        assumes: "a replica takes its highest achieved occupancy of a device; no interference while its sum is within 100 %",
        policy: &usher::USHER,
    },
    PolicyEntry {
        name: usher::WAO_USHER.name,
        summary: "Usher, with the mean achieved occupancy as compute need.",
        source: "Elvinger's thesis, section 5.3.1",
        assumes: "a replica takes its mean achieved occupancy of a device; no interference while its sum is within 100 %",
        policy: &usher::WAO_USHER,
    },
    PolicyEntry {
        name: milp::AO_MILP.name,
        summary: "The most goodput in Usher's terms, by mixed integer linear programming.",
        source: "Elvinger's thesis, section 5.4.3",
        assumes: "a replica takes its highest achieved occupancy of a device; no interference while its sum is within 100 %",
        policy: &milp::AO_MILP,
    },
    PolicyEntry {
        name: milp::WSM_MILP.name,
        summary: "The same program, with the utilisation of the multiprocessors as compute need.",
        source: "Elvinger's thesis, sections 5.3.2 and 5.4.3",
        assumes: "a replica takes its mean utilisation of a device; no interference while its sum is within 100 %",
        policy: &milp::WSM_MILP,
    },
    PolicyEntry {
        name: igniter::NAME,
        summary: "Batch sizes and compute shares from an analytical model of interference, on as few devices as it can.",
        source: "Xu et al., \"iGniter\", TPDS 2023; best effort on a fixed cluster as in Elvinger's thesis, section 5.1.5",
        assumes: "coefficients of every model; half of an SLO is for filling a batch; a constant rate",
        policy: &igniter::Igniter,
    },
    PolicyEntry {
        name: gpulet::NAME,
        summary: "Cuts devices into at most two partitions where a model's throughput grows most, and shares them in time where \
                  none is left.",
        source: "Choi et al., \"Serving Heterogeneous Machine Learning Models on Multi-GPU Servers with Spatio-Temporal \
                 Sharing\", ATC 2022, section 4, and its published code",
        assumes: "even arrivals; a batch under a compute share takes what the profile or the rule of contention says; \
                  partitions of a device do not slow each other",
        policy: &gpulet::Gpulet,
    },
    PolicyEntry {
        name: gslice::NAME,
        summary: "Tunes every model's batch size and compute share until there is little slack; max-min fair where devices are short.",
        source: "Dhakal et al., \"GSLICE\", SoCC 2020, as reimplemented in the published code of iGniter (the loop) and GPUlet (the \
                 fair split)",
        assumes: "half of an SLO is for filling a batch; a batch under a compute share takes what the profile or the rule of \
                  contention says; no interference",
        policy: &gslice::Gslice,
    },
    PolicyEntry {
        name: inss::NAME,
        summary: "A network trained by reinforcement learning chooses devices and compute shares, and a bisection the batch sizes.",
        source: "\"InSS: An Intelligent Scheduling Orchestrator for Multi-GPU Inference with Spatio-Temporal Sharing\", section 5",
        assumes: "problems like those of its training; a batch under a compute share takes what the profile or the rule of contention \
                  says; half of an SLO is for waiting",
        policy: &inss::Inss,
    },
    PolicyEntry {
        name: herd::NAME,
        summary: "Forms groups of devices that serve the same models, such that the rate of each model may grow by the same large factor.",
        source: "Zhang et al., \"SHEPHERD: Serving DNNs in the Wild\", NSDI 2023, the planner Herd, from published reading notes",
        assumes: "a device computes one batch at a time; a group's devices are interchangeable; any model may burst",
        policy: &herd::Herd,
    },
    PolicyEntry {
        name: goodput::NAME,
        summary: "The most requests within their SLO by an estimate of queueing, batching, transmission and interference.",
        source: "this project; the documentation of its modules names the sources of the estimate and the search",
        assumes: "the profiles and the conditions are right; neighbours are active independently of each other",
        policy: &goodput::Goodput,
    },
];

/// The policy that is used if none is named.
pub const DEFAULT_POLICY: &str = goodput::NAME;

/// The policy that plans if another one finds no plan within its time limit. It takes almost no time.
pub const FALLBACK_POLICY: &str = first_fit::NAME;

/// The error for a name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {given:?}: expected one of {}", POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownPolicy {
    given: String,
}

/// Returns the policy of a name.
///
/// # Errors
/// If there is none; the message lists the names.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use packhorse_cluster::{ByteCount, DemandedModel, Device, MinReplicas, Priority, Problem, ProfileTable, RequestsPerSecond};
/// use packhorse_placement::{Budget, policy};
///
/// // Batches of 8 rows take 50 ms, so that one device serves 160 requests/s.
/// let rows = "resnet,T4,8,,50,,1000,,,\n";
/// let problem = Problem {
///     devices: vec![Device {
///         kind: "T4".parse()?,
///         memory: ByteCount::from_mib(15_360).unwrap(),
///         multiprocessors: None,
///         node: "a".parse()?,
///         cost_per_hour: None,
///         pool: None,
///     }],
///     models: vec![DemandedModel {
///         id: "resnet".parse()?,
///         rate: RequestsPerSecond::new(100.0)?,
///         need: None,
///         priority: Priority::default(),
///         min_replicas: MinReplicas::default(),
///         slo: Duration::from_millis(200),
///         max_batch_size: 8,
///         payload: ByteCount::new(602_112),
///         load_time: Duration::ZERO,
///         latency_scale: 1.0,
///         weights: None,
///     }],
///     profiles: ProfileTable::from_csv(&format!("{}\n{rows}", ProfileTable::CSV_HEADER))?,
///     ..Problem::default()
/// };
/// let plan = policy("first-fit")?.place(&problem, &mut Budget::unlimited())?;
/// assert_eq!(plan.replicas[0].batch_size, 8);
/// assert_eq!(plan.models[0].goodput.get(), 100.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn policy(name: &str) -> Result<&'static PolicyEntry, UnknownPolicy> {
    // The length of quoted input is limited.
    let unknown = || UnknownPolicy {
        given: name.chars().take(64).collect(),
    };
    POLICIES
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(unknown)
}

impl PolicyEntry {
    /// Predicts the time of a full batch of each replica beside its neighbours by this policy's model, in the order of the replicas.
    ///
    /// # Errors
    /// If the policy has no such model or lacks data for it, or a replica names a model or device that the problem does not have.
    pub fn predict(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let predictor = self.predictor().ok_or_else(|| PredictError::NoPredictor {
            policy: self.name,
            expected: predictors(),
        })?;
        problem.validate().map_err(PredictError::Invalid)?;
        let dangling = |replica: &PlannedReplica| {
            replica.model.0 >= problem.models.len() || replica.device.0 >= problem.devices.len()
        };
        if let Some(replica) = replicas.iter().position(dangling) {
            return Err(PredictError::Dangling { replica });
        }
        predictor.latencies(problem, options, replicas)
    }
}

/// Returns the names of the policies that have a model of batch times.
fn predictors() -> Vec<&'static str> {
    let with = POLICIES
        .iter()
        .filter(|entry| entry.predictor().is_some())
        .map(|entry| entry.name);
    with.collect()
}
