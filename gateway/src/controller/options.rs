//! An admin's choices about how a policy decides: from the API's words, and back.

use packhorse_api as api;
use packhorse_placement::{
    Effort, EffortError, PolicyOptions, UnknownComputeMetric, UnknownComputeShares,
    UnknownObjective,
};

/// Why choices are refused.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// There is no such metric.
    #[error("options.compute_metric: {0}")]
    ComputeMetric(#[from] UnknownComputeMetric),
    /// There is no such objective.
    #[error("options.objective: {0}")]
    Objective(#[from] UnknownObjective),
    /// There is no such choice.
    #[error("options.compute_shares: {0}")]
    ComputeShares(#[from] UnknownComputeShares),
    /// It is out of range.
    #[error("options.effort: {0}")]
    Effort(#[from] EffortError),
}

pub(super) fn options(given: &api::PolicyOptions) -> Result<PolicyOptions, OptionsError> {
    let compute_metric = given.compute_metric.as_deref().map(str::parse);
    let objective = given.objective.as_deref().map(str::parse);
    let compute_shares = given.compute_shares.as_deref().map(str::parse);
    let effort = given.effort.map(Effort::new);
    Ok(PolicyOptions {
        compute_metric: compute_metric.transpose()?,
        objective: objective.transpose()?.unwrap_or_default(),
        prefer_small_batch: given.prefer_small_batch,
        nexus_published: given.nexus_published,
        compute_shares: compute_shares.transpose()?.unwrap_or_default(),
        effort: effort.transpose()?.unwrap_or_default(),
        ..PolicyOptions::default()
    })
}

pub(super) fn options_view(options: &PolicyOptions) -> api::PolicyOptions {
    api::PolicyOptions {
        compute_metric: options.compute_metric.map(|metric| metric.to_string()),
        objective: Some(options.objective.to_string()),
        prefer_small_batch: options.prefer_small_batch,
        nexus_published: options.nexus_published,
        compute_shares: Some(options.compute_shares.to_string()),
        effort: Some(options.effort.get()),
    }
}

/// The choices that were stored; none where this version does not know them.
pub(super) fn stored_options(stored: Option<&api::PolicyOptions>) -> PolicyOptions {
    let Some(stored) = stored else {
        return PolicyOptions::default();
    };
    options(stored).unwrap_or_else(|e| {
        tracing::warn!(error = %e, "this version does not know the stored choices; the policy's own take their place");
        PolicyOptions::default()
    })
}
