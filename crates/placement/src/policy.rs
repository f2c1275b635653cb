//! The seam of the policies, and the table of them.

use packhorse_cluster::{Plan, Problem, ProblemError};

use crate::{
    Budget, PolicyOptions, Predictor, exclusive, first_fit, goodput, gpulet, gslice, igniter, milp,
    nexus, usher,
};

/// A placement policy.
pub trait Policy: Sync {
    /// Answers a problem that is valid ([`Problem::validate`]) with a plan that has no violations. The plan depends on the problem
    /// and the options alone; the budget decides only whether there is one,
    /// and for a policy that searches (`goodput`) how long it does. What cannot be served is left out, and its forecast says why.
    fn place(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError>;

    /// The policy's own model of how long batches take, where it has one.
    fn predictor(&self) -> Option<&dyn Predictor> {
        None
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The problem contradicts itself.
    #[error("this is no placement problem")]
    Invalid(#[source] ProblemError),
    /// The budget's steps are used up.
    #[error("no plan was found within the step limit")]
    OutOfSteps,
    /// A solver could not do its work.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// The caller said stop.
    #[error("planning was stopped")]
    Stopped,
}

/// A policy as it is offered.
pub struct PolicyEntry {
    /// Its name in configuration and reports.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What it takes for granted.
    pub assumes: &'static str,
    policy: &'static dyn Policy,
}

impl PolicyEntry {
    /// Plans by this policy as it is.
    ///
    /// # Errors
    /// If the problem is not valid, or the budget does not suffice.
    pub fn place(&self, problem: &Problem, budget: &mut Budget<'_>) -> Result<Plan, PlaceError> {
        self.place_with(problem, &PolicyOptions::default(), budget)
    }

    /// Plans by this policy with a caller's choices.
    ///
    /// # Errors
    /// If the problem is not valid, or the budget does not suffice.
    pub fn place_with(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        problem.validate().map_err(PlaceError::Invalid)?;
        let plan = self.policy.place(problem, options, budget)?;
        debug_assert_eq!(plan.policy, self.name);
        debug_assert_eq!(plan.violations(problem), []);
        Ok(plan)
    }

    /// The policy's own model of how long batches take, where it has one.
    pub fn predictor(&self) -> Option<&'static dyn Predictor> {
        self.policy.predictor()
    }
}

/// All policies.
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
        summary: "Packs models onto devices by memory and by time, first fit, and moves as little as it can.",
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
        assumes: "the highest achieved occupancy is what a replica takes; no interference while its sum is within 100 %",
        policy: &usher::USHER,
    },
    PolicyEntry {
        name: usher::WAO_USHER.name,
        summary: "Usher, with the mean achieved occupancy as compute need.",
        source: "Elvinger's thesis, section 5.3.1",
        assumes: "the mean achieved occupancy is what a replica takes; no interference while its sum is within 100 %",
        policy: &usher::WAO_USHER,
    },
    PolicyEntry {
        name: milp::AO_MILP.name,
        summary: "The most goodput in Usher's terms, by mixed integer linear programming.",
        source: "Elvinger's thesis, section 5.4.3",
        assumes: "the highest achieved occupancy is what a replica takes; no interference while its sum is within 100 %",
        policy: &milp::AO_MILP,
    },
    PolicyEntry {
        name: milp::WSM_MILP.name,
        summary: "The same program, with the utilisation of the multiprocessors as compute need.",
        source: "Elvinger's thesis, sections 5.3.2 and 5.4.3",
        assumes: "the mean utilisation is what a replica takes; no interference while its sum is within 100 %",
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
        name: goodput::NAME,
        summary: "The most requests within their SLO by an estimate of queueing, batching, transmission and interference.",
        source: "this project; the estimate's and the search's sources stand with them",
        assumes: "what the profiles and the conditions say; neighbours are active independently of each other",
        policy: &goodput::Goodput,
    },
];

/// The policy that is used where nobody names one.
pub const DEFAULT_POLICY: &str = goodput::NAME;

/// The policy that plans where another one finds no plan within its time: it takes next to none.
pub const FALLBACK_POLICY: &str = first_fit::NAME;

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {given:?}: expected one of {}", POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownPolicy {
    given: String,
}

/// The policy of a name.
///
/// # Errors
/// If there is none; the message lists the names there are.
pub fn policy(name: &str) -> Result<&'static PolicyEntry, UnknownPolicy> {
    // What came from outside is quoted, but never at length.
    let unknown = || UnknownPolicy {
        given: name.chars().take(64).collect(),
    };
    POLICIES
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(unknown)
}
