//! The events that the controller handles.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ModelForecast, ModelId, Plan, PoolPlace, ReplicaId, RequestsPerSecond, VariantMix,
};

use crate::{
    command::{Command, WriteError},
    keys::{Receipt, RequestKey, SolveKey},
    missed_requests::MissedRequests,
    shape_counts::ShapeCounts,
};

/// An event. [`Controller::handle`](crate::Controller::handle) takes them in the order in which they happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A command arrived. The answer is an [`Effect::Acknowledge`](crate::Effect::Acknowledge).
    Requested(RequestKey, Command),
    /// The data plane's link to a replica changed; none if the data plane no longer has the replica.
    LinkChanged(ReplicaId, Option<LinkState>),
    /// The data plane answered an [`Effect::Sample`](crate::Effect::Sample).
    Sampled(Sample),
    /// A policy answered an [`Effect::Solve`](crate::Effect::Solve).
    Solved(SolveKey, Result<Solution, SolveError>),
    /// The store carried out an [`Effect::Store`](crate::Effect::Store), or could not.
    Stored(Receipt, Result<(), WriteError>),
}

/// The state of the data plane's link to a replica that it was told to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The connection is being made, or was lost and is being made again.
    Connecting {
        /// The last error, for people.
        reason: Option<String>,
    },
    /// The replica gets batches.
    Serving,
    /// Batches failed on the replica while others computed theirs: it gets none but probes until one is computed.
    Ejected {
        /// The last error, for people.
        reason: String,
    },
    /// The replica gets no further batches, but still computes.
    Draining,
    /// The replica has answered everything and gets no further batches.
    Drained,
}

/// The counts of the data plane. All of them only grow; if one is lower than before, it has begun again from zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The requests of every model.
    pub models: BTreeMap<ModelId, RequestCounts>,
    /// The missed requests of every model with some.
    pub misses: BTreeMap<ModelId, MissedRequests>,
    /// The shapes of the batches of every model with variable inputs that got some.
    pub shapes: BTreeMap<ModelId, ShapeCounts>,
    /// The work of every served replica.
    pub work: BTreeMap<ReplicaId, ComputedWork>,
    /// The tenants of every model whose requests ended its workers of late, as text for people.
    pub paused_tenants: BTreeMap<ModelId, Vec<String>>,
    /// The replicas whose weights are larger than what their device has for the weights of all its models, with both.
    pub without_room: BTreeMap<ReplicaId, PoolPlace>,
}

/// The requests of a model, and their rows. Rates, plans and what is predicted for them are of rows: a request of 32 rows is as much work as
/// 32 requests of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// The number of requests that arrived.
    pub arrived: u64,
    /// The number of requests that were answered within the SLO.
    pub within_slo: u64,
    /// The number of requests that ended otherwise, those aside whose clients did not wait.
    pub missed: u64,
    /// The rows of the requests that arrived.
    pub rows_arrived: u64,
    /// The rows of the requests that were answered within the SLO.
    pub rows_within_slo: u64,
    /// The rows of the requests that arrived for the model's family, and not for this variant alone.
    pub rows_for_family: u64,
    /// The number of requests that the cache of predictions answered, which are in none of the others: no device has to compute them, but their version is in use.
    pub hits: u64,
}

/// The work that a replica has computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputedWork {
    /// The number of batches that it answered.
    pub batches: u64,
    /// The rows of these batches.
    pub rows: u64,
    /// The compute time of these batches, as its worker measured it.
    pub compute: Duration,
    /// The compute time by the profile, alone on the device at the replica's share.
    pub alone: Duration,
}

/// The plan of a policy, and the estimates that it is judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The plan.
    pub plan: Plan,
    /// The spread of the families' requests that it was made for: it is a plan for [`PlanningInput::at`](crate::PlanningInput::at) this mix.
    pub mix: VariantMix,
    /// The time that planning took, in milliseconds.
    pub solve_ms: f64,
    /// The reason why the fallback policy made the plan, as text for people; none if the requested one did.
    pub fallback: Option<String>,
    /// The goodput of plan and current replicas by one neutral estimate; none if the driver made none.
    pub comparison: Option<Comparison>,
}

/// The goodput of a new plan and of the current replicas under the same problem, by the same estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The forecast of each model of the problem with the new plan.
    pub proposed: Vec<ModelForecast>,
    /// The forecast of each model of the problem with the current replicas.
    pub current: Vec<ModelForecast>,
}

/// The reason why a policy made no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SolveError {
    /// The policy found no plan.
    #[error("policy {policy} found no plan: {error}")]
    NoPlan {
        /// The name of the policy.
        policy: String,
        /// The policy's error, as text for people.
        error: String,
    },
    /// The policy panicked.
    #[error("policy {policy} failed: {error}")]
    Panicked {
        /// The name of the policy.
        policy: String,
        /// The message of the panic.
        error: String,
    },
}

impl ComputedWork {
    /// Adds a batch that was answered.
    pub fn add_batch(&mut self, rows: u32, compute: Duration, alone: Duration) {
        self.batches += 1;
        self.rows += u64::from(rows);
        self.compute = self.compute.saturating_add(compute);
        self.alone = self.alone.saturating_add(alone);
    }

    /// Returns the work since an earlier reading. If a count is lower than before, counting has begun again, and all of it is new.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let since = || {
            Some(Self {
                batches: self.batches.checked_sub(before.batches)?,
                rows: self.rows.checked_sub(before.rows)?,
                compute: self.compute.checked_sub(before.compute)?,
                alone: self.alone.checked_sub(before.alone)?,
            })
        };
        since().unwrap_or(self)
    }
}

impl RequestCounts {
    /// Counts requests that arrived, with as many rows each.
    pub fn arrive(&mut self, requests: u64, rows: u64) {
        self.arrived += requests;
        self.rows_arrived += requests * rows;
    }

    /// Counts requests that were answered within the SLO, with as many rows each.
    pub fn answer(&mut self, requests: u64, rows: u64) {
        self.within_slo += requests;
        self.rows_within_slo += requests * rows;
    }

    /// Adds the counts of another source of the same model's requests.
    pub fn add(&mut self, other: Self) {
        self.arrived += other.arrived;
        self.within_slo += other.within_slo;
        self.missed += other.missed;
        self.rows_arrived += other.rows_arrived;
        self.rows_within_slo += other.rows_within_slo;
        self.rows_for_family += other.rows_for_family;
        self.hits += other.hits;
    }

    /// Returns the counts since an earlier reading, like [`ComputedWork::since`].
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let since = || {
            Some(Self {
                arrived: self.arrived.checked_sub(before.arrived)?,
                within_slo: self.within_slo.checked_sub(before.within_slo)?,
                missed: self.missed.checked_sub(before.missed)?,
                rows_arrived: self.rows_arrived.checked_sub(before.rows_arrived)?,
                rows_within_slo: self.rows_within_slo.checked_sub(before.rows_within_slo)?,
                rows_for_family: self.rows_for_family.checked_sub(before.rows_for_family)?,
                hits: self.hits.checked_sub(before.hits)?,
            })
        };
        since().unwrap_or(self)
    }
}

/// Returns the sum of the forecast goodput.
pub(crate) fn total(forecasts: &[ModelForecast]) -> f64 {
    forecasts
        .iter()
        .map(|forecast| RequestsPerSecond::get(forecast.goodput))
        .sum()
}
