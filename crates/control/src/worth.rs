//! The judgement whether a new plan is worth the cost of moving to it.
//!
//! The gain is the goodput of the new plan above that of the current replicas, by the same estimate under the same problem, over a
//! horizon. The cost is the goodput lost while moving: that of replicas which must be broken before their successors can start, for
//! the time that a start takes, and a small part for every start, which disturbs the replicas beside it.
//!
//! Where models have different priorities, the gain is that of the highest priority whose models gain or lose anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, DeviceId, ModelForecast, ModelId, Objective, Priority, Problem,
};

use crate::{
    event::{Comparison, total},
    rollout::{PlacedReplica, Rollout},
};

/// The time over which a gain is counted. A plan that pays only later is not worth it, because demand may change before.
const HORIZON: Duration = Duration::from_mins(1);
/// The part of the current goodput below which a gain is within the error of the estimate.
const LEAST_GAIN: f64 = 0.01;
/// The part of a replica's goodput that is lost beside a start, for the time of the start.
const DISTURBANCE: f64 = 0.05;
/// The gain of the worst-served model, as a part of its rate, below which it is within the error of the estimate.
const LEAST_SHARE_GAIN: f64 = 0.01;

/// The gain and the cost of a new plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judgement {
    /// The gain of the models that decide, in requests per second within the SLO.
    gain: f64,
    /// The cost, in requests.
    cost: f64,
    /// The number of replicas that would start.
    starts: usize,
    /// True if the plan is worth its cost.
    pub(crate) is_worth_it: bool,
}

impl Judgement {
    /// Judges a plan of these replicas, which have identities, against those of the rollout.
    pub(crate) fn new(
        problem: &Problem,
        comparison: &Comparison,
        objective: Objective,
        next: &[PlacedReplica],
        rollout: &Rollout,
        memory: impl Fn(&DeviceId) -> ByteCount,
    ) -> Self {
        let gain = gain(problem, comparison);
        let starts = || {
            next.iter()
                .filter(|replica| rollout.get(replica.id).is_none())
        };
        let loss_per_replica = losses(problem, &comparison.current, rollout);
        let loss = |model: &ModelId| loss_per_replica.get(model).copied().unwrap_or_default();
        let disturbed = starts().map(|replica| DISTURBANCE * loss(&replica.spec.model.model));
        let broken = broken(next, rollout, memory);
        let broken = broken.iter().map(|replica| loss(&replica.spec.model.model));
        let cost: f64 = disturbed.chain(broken).sum();
        let least = LEAST_GAIN * total(&comparison.current);
        let pays = gain > least && gain * HORIZON.as_secs_f64() > cost;
        let worst = |forecasts| worst_served(problem, forecasts);
        let worst_gains = worst(&comparison.proposed) - worst(&comparison.current);
        let is_worth_it = gives_homes(comparison)
            || match objective {
                _ if has_priorities(problem) => pays,
                Objective::Goodput => pays,
                Objective::Blend => pays || worst_gains > LEAST_SHARE_GAIN,
                Objective::MaxMin => {
                    worst_gains > LEAST_SHARE_GAIN || (pays && worst_gains >= -LEAST_SHARE_GAIN)
                }
            };
        Self {
            gain,
            cost,
            starts: starts().count(),
            is_worth_it,
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gain, cost, starts, ..
        } = self;
        write!(
            f,
            "it gains {gain:.1} requests/s, and starting {starts} replicas costs {cost:.0} requests"
        )
    }
}

/// Returns true if models have different priorities.
fn has_priorities(problem: &Problem) -> bool {
    let mut priorities = problem.models.iter().map(|model| model.priority);
    let first = priorities.next();
    priorities.any(|priority| Some(priority) != first)
}

/// Returns the gain in goodput of the models with the highest priority that gain or lose more than the error of the estimate; of all
/// models if there are none.
fn gain(problem: &Problem, comparison: &Comparison) -> f64 {
    let least = LEAST_GAIN * total(&comparison.current);
    let mut gains: BTreeMap<Priority, f64> = BTreeMap::new();
    let forecasts = comparison.proposed.iter().zip(&comparison.current);
    for (model, (proposed, current)) in problem.models.iter().zip(forecasts) {
        let gain = proposed.goodput.get() - current.goodput.get();
        *gains.entry(model.priority).or_default() += gain;
    }
    let decides = gains.values().rev().find(|gain| gain.abs() > least);
    decides.copied().unwrap_or_else(|| gains.values().sum())
}

/// Returns the requests that each model loses while one of its replicas is away for the time of a start.
fn losses(
    problem: &Problem,
    current: &[ModelForecast],
    rollout: &Rollout,
) -> BTreeMap<ModelId, f64> {
    let models = problem.models.iter().zip(current);
    models
        .map(|(model, forecast)| {
            let replicas = rollout.of_model(&model.id).count().max(1) as f64;
            let loss = forecast.goodput.get() / replicas * model.load_time.as_secs_f64();
            (model.id.clone(), loss)
        })
        .collect()
}

/// Returns the replicas that the new plan does not have, on the devices whose memory does not hold them beside the new ones.
fn broken<'a>(
    next: &'a [PlacedReplica],
    rollout: &'a Rollout,
    memory: impl Fn(&DeviceId) -> ByteCount,
) -> Vec<&'a PlacedReplica> {
    let mut held: BTreeMap<&DeviceId, ByteCount> = BTreeMap::new();
    let kept: BTreeSet<_> = next.iter().map(|replica| replica.id).collect();
    let left = || rollout.iter().filter(|replica| !kept.contains(&replica.id));
    for replica in next.iter().chain(left()) {
        let sum = held.entry(&replica.spec.device).or_default();
        *sum = sum.saturating_add(replica.spec.memory.unwrap_or_default());
    }
    let is_full = |device: &DeviceId| held.get(device).is_some_and(|sum| *sum > memory(device));
    left()
        .filter(|replica| is_full(&replica.spec.device))
        .collect()
}

/// Returns true if the new plan serves models that the current replicas do not serve, and leaves none.
fn gives_homes(comparison: &Comparison) -> bool {
    let models = comparison.current.iter().zip(&comparison.proposed);
    let is_served = |forecast: &ModelForecast| forecast.goodput.get() > 0.0;
    let changes = models.filter(|(now, then)| is_served(now) != is_served(then));
    let mut gains = changes.map(|(_, then)| is_served(then)).peekable();
    gains.peek().is_some() && gains.all(|gains| gains)
}

/// Returns the smallest goodput of a model as a part of its rate; 1 without models.
fn worst_served(problem: &Problem, forecasts: &[ModelForecast]) -> f64 {
    let models = problem.models.iter().zip(forecasts);
    let shares = models
        .filter(|(model, _)| model.rate.get() > 0.0)
        .map(|(model, forecast)| forecast.goodput.get() / model.rate.get());
    shares.fold(1.0, f64::min)
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{DemandedModel, MinReplicas, RequestsPerSecond};

    use super::*;

    fn forecasts(goodputs: &[f64]) -> Vec<ModelForecast> {
        let forecast = |goodput: &f64| ModelForecast {
            goodput: RequestsPerSecond::new(*goodput).unwrap(),
            latency: None,
            shortfall: None,
        };
        goodputs.iter().map(forecast).collect()
    }

    #[test]
    fn the_highest_priority_that_gains_or_loses_decides() {
        let model = |priority: u32| DemandedModel {
            id: format!("m{priority}").parse().unwrap(),
            rate: RequestsPerSecond::new(100.0).unwrap(),
            need: None,
            priority: Priority::new(priority).unwrap(),
            min_replicas: MinReplicas::default(),
            slo: Duration::from_millis(100),
            max_batch_size: 1,
            payload: ByteCount::ZERO,
            load_time: Duration::ZERO,
            latency_scale: 1.0,
            weights: None,
        };
        let problem = Problem {
            models: vec![model(3), model(7)],
            ..Problem::default()
        };
        let gain = |current: &[f64], proposed: &[f64]| {
            gain(
                &problem,
                &Comparison {
                    proposed: forecasts(proposed),
                    current: forecasts(current),
                },
            )
        };
        assert!((gain(&[90.0, 10.0], &[10.0, 30.0]) - 20.0).abs() < 1e-9);
        assert!((gain(&[10.0, 90.0], &[90.0, 80.0]) + 10.0).abs() < 1e-9);
        assert!((gain(&[50.0, 50.0], &[60.0, 49.5]) - 10.0).abs() < 1e-9);
        assert!((gain(&[50.0, 50.0], &[49.5, 50.5]) - 0.0).abs() < 1e-9);
        assert!(has_priorities(&problem));
        assert!(!has_priorities(&Problem {
            models: vec![model(3), model(3)],
            ..Problem::default()
        }));
    }

    #[test]
    fn a_plan_gives_homes_if_it_serves_more_models_and_leaves_none() {
        let gives = |current: &[f64], proposed: &[f64]| {
            gives_homes(&Comparison {
                proposed: forecasts(proposed),
                current: forecasts(current),
            })
        };
        assert!(gives(&[9.0, 0.0], &[2.0, 1.0]));
        assert!(!gives(&[9.0, 0.0], &[0.0, 9.0]), "one for another");
        assert!(!gives(&[9.0, 0.0], &[10.0, 0.0]), "no model more");
        assert!(!gives(&[9.0], &[9.0]));
    }
}
