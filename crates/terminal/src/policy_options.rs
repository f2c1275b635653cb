//! The flags that choose how a placement policy decides.

use packhorse_cluster::{
    BatchStep, ComputeMetric, ComputeShareMode, Effort, LatencyModel, Objective, PolicyOptions,
};

/// The options of a placement policy.
#[derive(clap::Args, Clone, Debug)]
pub struct PolicyOptionArgs {
    /// Measurement that counts as a replica's compute requirement: achieved, mean or sm [default: the policy's own]
    #[arg(long, value_name = "METRIC")]
    pub creq: Option<ComputeMetric>,
    /// Quantity that an optimising policy maximises: goodput, max-min or blend [default: goodput]
    #[arg(long, value_name = "OBJECTIVE")]
    objective: Option<Objective>,
    /// Let `nexus` calculate like its published code, in which a batch of b waits (b-1)/rate
    #[arg(long)]
    nexus_published: bool,
    /// Choice of the MILP policies among equally good plans [default: the first that they find]
    #[arg(long, value_name = "PREFERENCE", value_parser = ["small-batch"])]
    prefer: Option<String>,
    /// Limit replicas of `goodput` to a share of their GPU, which requires MPS: never, or auto for where it raises goodput
    /// [default: never]
    #[arg(long, value_name = "WHEN")]
    compute_shares: Option<ComputeShareMode>,
    /// Search steps of `goodput`, as a multiple of the usual number, 1 to 1000 [default: 1]
    #[arg(long, value_name = "TIMES")]
    effort: Option<Effort>,
    /// Choice of the batch sizes: own for the policy's, or bda for InSS' bisection under SLO, memory and rate [default: own]
    #[arg(long, value_name = "STEP")]
    batch_step: Option<BatchStep>,
    /// Times of batches under compute shares in `gpulet`, `gslice` and the batch step bda: profile, or inss for InSS' model
    /// [default: profile]
    #[arg(long, value_name = "MODEL")]
    latency_model: Option<LatencyModel>,
    /// Let `herd` form its groups by a heuristic instead of an integer program
    #[arg(long)]
    herd_greedy: bool,
}

impl PolicyOptionArgs {
    /// Returns the options, with defaults for those that are not given.
    pub fn options(&self) -> PolicyOptions {
        PolicyOptions {
            compute_metric: self.creq,
            objective: self.objective.unwrap_or_default(),
            prefer_small_batch: self.prefer.is_some(),
            nexus_published: self.nexus_published,
            compute_shares: self.compute_shares.unwrap_or_default(),
            effort: self.effort.unwrap_or_default(),
            batch_step: self.batch_step.unwrap_or_default(),
            latency_model: self.latency_model.unwrap_or_default(),
            herd_greedy: self.herd_greedy,
        }
    }

    /// Returns the options if at least one is given.
    pub fn given(&self) -> Option<PolicyOptions> {
        let is_given = self.creq.is_some()
            || self.objective.is_some()
            || self.nexus_published
            || self.prefer.is_some()
            || self.compute_shares.is_some()
            || self.effort.is_some()
            || self.batch_step.is_some()
            || self.latency_model.is_some()
            || self.herd_greedy;
        is_given.then(|| self.options())
    }
}
