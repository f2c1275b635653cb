//! Improvement of a plan by simulation: a search with the simulator in the loop.
//!
//! In each round a function of the caller offers changed plans, each is simulated with the same training seeds, and the best one replaces the
//! plan if it answers more requests in time in nearly every run. The training load is not the load that a report is about: it has
//! other seeds, gaps of the mean variation in place of a recorded trace, the rates that the policy plans for, and nothing that no planner
//! knows of (faults, the extra slowdown).
//!
//! Source: Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving", OSDI 2023, section 4.2, and its
//! published code (alpa-projects/mms), whose score is the goodput. Deviation: a change must pass a test over several seeds, since the best of
//! many plans in a single run is likely one with luck.

use packhorse_cluster::PlannedReplica;
use packhorse_contention::Interference;

use crate::{
    Arrivals, DispatchOptions, PlanReport, Rate, Scenario, SimulateError, scenario::Workload,
    simulate,
};

/// The first training seed. Reports use small ones.
const FIRST_SEED: u64 = 1_000_001;

/// The number of training seeds.
const SEEDS: u64 = 6;

/// The number of seeds after which a plan that was worse with each of them is given up.
const TRIED_SEEDS: usize = 2;

/// The most rounds.
const ROUNDS: usize = 20;

/// The least mean gain of a round, as a fraction of the requests.
const LEAST_GAIN: f64 = 5e-4;

/// The mean gain of a round over its standard error: the 97.5 % quantile of Student's t distribution with five degrees of freedom.
const LEAST_T: f64 = 2.571;

/// A plan improved by simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct PolishedPlan {
    /// The replicas of the improved plan.
    pub replicas: Vec<PlannedReplica>,
    /// The number of changes.
    pub changes: usize,
    /// The number of plans that were simulated.
    pub simulated: usize,
}

/// Improves the replicas of a plan by simulation. `neighbours` returns the changed plans that are tried for given replicas. The result depends
/// on the arguments alone.
///
/// # Errors
/// If the replicas do not fit the scenario.
pub fn polish(
    scenario: &Scenario,
    dispatch: impl Into<DispatchOptions>,
    replicas: &[PlannedReplica],
    neighbours: &mut dyn FnMut(&[PlannedReplica]) -> Vec<Vec<PlannedReplica>>,
) -> Result<PolishedPlan, SimulateError> {
    let (training, dispatch) = (training_scenario(scenario), dispatch.into());
    let mut best = PolishedPlan {
        replicas: replicas.to_vec(),
        changes: 0,
        simulated: 1,
    };
    let mut shares: Vec<f64> = seeds()
        .map(|seed| simulated_share(&training, dispatch, replicas, seed))
        .collect::<Result<_, _>>()?;
    for _ in 0..ROUNDS {
        if shares.iter().all(|share| *share > 1.0 - LEAST_GAIN) {
            break;
        }
        let mut found: Option<(f64, Vec<PlannedReplica>, Vec<f64>)> = None;
        for candidate in neighbours(&best.replicas) {
            best.simulated += 1;
            let candidate_shares = race(&training, dispatch, &candidate, &shares)?;
            if let Some(candidate_shares) = candidate_shares
                && let Some(gain) = certain_gain(&shares, &candidate_shares)
                && found.as_ref().is_none_or(|(most, ..)| gain > *most)
            {
                found = Some((gain, candidate, candidate_shares));
            }
        }
        let Some((_, replicas, better)) = found else {
            break;
        };
        (best.replicas, shares) = (replicas, better);
        best.changes += 1;
    }
    Ok(best)
}

/// Returns the scenario with the load and the conditions that a planner knows.
fn training_scenario(scenario: &Scenario) -> Scenario {
    let mut training = scenario.clone();
    let settings = &mut training.simulation;
    settings.faults.clear();
    settings.interference = Interference::new(settings.interference.mps_exponent(), 0.0)
        .expect("the exponent is that of a valid interference");
    if !matches!(settings.arrivals, Arrivals::Poisson) {
        // A deterministic trace has a variation of 0, for which there is no gamma distribution.
        let variation = scenario.problem.conditions.burstiness.max(0.1);
        settings.arrivals = Arrivals::Gamma(variation);
    }
    for (workload, model) in training.workloads.iter_mut().zip(&scenario.problem.models) {
        *workload = Workload {
            rate: Rate::constant(model.rate),
            ..workload.clone()
        };
    }
    training
}

fn seeds() -> impl Iterator<Item = u64> {
    FIRST_SEED..FIRST_SEED + SEEDS
}

/// Returns the shares of a changed plan by seed; `None` once it is worse with each of the first [`TRIED_SEEDS`] seeds.
fn race(
    training: &Scenario,
    dispatch: DispatchOptions,
    replicas: &[PlannedReplica],
    before: &[f64],
) -> Result<Option<Vec<f64>>, SimulateError> {
    let mut shares = Vec::new();
    for seed in seeds() {
        shares.push(simulated_share(training, dispatch, replicas, seed)?);
        let is_worse = |(after, before): (&f64, &f64)| after <= before;
        if shares.len() == TRIED_SEEDS && shares.iter().zip(before).all(is_worse) {
            return Ok(None);
        }
    }
    Ok(Some(shares))
}

/// Returns the share of the requests within their SLO in a training run.
fn simulated_share(
    training: &Scenario,
    dispatch: DispatchOptions,
    replicas: &[PlannedReplica],
    seed: u64,
) -> Result<f64, SimulateError> {
    let plan = PlanReport::from_replicas(training, replicas);
    let run = simulate(training, plan, replicas, dispatch, seed, &mut |_| {})?;
    Ok(run.totals.goodput_rps / run.totals.offered_rps.max(f64::MIN_POSITIVE))
}

/// Returns the mean gain over the seeds; `None` if it is small, or as likely chance.
fn certain_gain(before: &[f64], after: &[f64]) -> Option<f64> {
    let gains: Vec<f64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
    let count = gains.len() as f64;
    let mean = gains.iter().sum::<f64>() / count;
    let squares = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>();
    let standard_error = (squares / (count - 1.0) / count).sqrt();
    (mean >= LEAST_GAIN && mean >= LEAST_T * standard_error).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_must_be_larger_than_chance() {
        let before = [0.5; 6];
        // Mean 0.01, standard error 0.
        assert_eq!(
            certain_gain(&before, &[0.51; 6]).map(|gain| (gain * 1e3).round()),
            Some(10.0)
        );
        assert_eq!(certain_gain(&before, &before), None);
        // Mean 0.01, but it comes from a single seed: standard error 0.01.
        assert_eq!(
            certain_gain(&before, &[0.56, 0.5, 0.5, 0.5, 0.5, 0.5]),
            None
        );
        assert_eq!(certain_gain(&before, &[0.5001; 6]), None);
    }
}
