//! The forecasts of a plan, and the reasons why models are not fully served.

use std::time::Duration;

use packhorse_cluster::{
    DemandedModel, ModelForecast, ModelIndex, PlannedReplica, Problem, RequestsPerSecond, Shortfall,
};

use super::batch_sizes::batch_sizes;
use crate::{candidates::Candidates, device_classes::device_classes, estimate::ModelEstimate};

/// The error of the estimate: a model that lacks less counts as fully served.
const TOLERANCE: f64 = 1e-3;

/// Returns the forecast of each model for these replicas and their estimates.
pub(super) fn forecasts(
    problem: &Problem,
    candidates: &Candidates<'_>,
    replicas: &[PlannedReplica],
    estimates: &[ModelEstimate],
) -> Vec<ModelForecast> {
    let mut by_model = vec![Vec::new(); problem.models.len()];
    for replica in replicas {
        by_model[replica.model.0].push(replica);
    }
    let models = estimates.iter().zip(&by_model).enumerate();
    models
        .map(|(model, (estimate, replicas))| {
            forecast(problem, candidates, model, *estimate, replicas)
        })
        .collect()
}

fn forecast(
    problem: &Problem,
    candidates: &Candidates<'_>,
    model: usize,
    estimate: ModelEstimate,
    replicas: &[&PlannedReplica],
) -> ModelForecast {
    let count = replicas.len();
    let rate = problem.models[model].rate;
    let is_served = count > 0 && estimate.in_time >= 1.0 - TOLERANCE;
    let fraction = if is_served { 1.0 } else { estimate.in_time };
    let goodput = RequestsPerSecond::new(rate.get() * fraction).expect("a part of a rate");
    let shortfall = if count == 0 {
        let infeasible = candidates.infeasible(ModelIndex(model));
        Some(infeasible.unwrap_or_else(|| reason_for_no_replica(problem, candidates, model)))
    } else if is_served || rate.get() <= 0.0 {
        None
    } else if estimate.is_limited_by_batch_time() {
        Some(if is_within_slo_alone(problem, model, replicas) {
            Shortfall::BatchTimeBesideNeighbours {
                replicas: count,
                goodput,
                rate,
            }
        } else {
            Shortfall::BatchTime { replicas: count }
        })
    } else {
        Some(Shortfall::Goodput {
            replicas: count,
            capacity: estimate.capacity,
            goodput,
            rate,
        })
    };
    ModelForecast {
        goodput,
        latency: (estimate.latency > 0.0).then(|| Duration::from_secs_f64(estimate.latency)),
        shortfall,
    }
}

/// Returns true if a full batch of each replica that has its device to itself is within the SLO, with the way there and back.
fn is_within_slo_alone(problem: &Problem, model: usize, replicas: &[&PlannedReplica]) -> bool {
    let demanded = &problem.models[model];
    replicas.iter().all(|replica| {
        let profile = problem.profile(replica.model, replica.device);
        profile.is_some_and(|profile| {
            let rows = replica.batch_size;
            let batch = profile.latency(rows).mul_f64(demanded.latency_scale);
            batch.as_secs_f64() + network_time(problem, demanded, rows)
                <= demanded.slo.as_secs_f64()
        })
    })
}

/// Returns the seconds that so many rows are on their way there and back.
fn network_time(problem: &Problem, model: &DemandedModel, rows: u32) -> f64 {
    let conditions = &problem.conditions;
    let once = conditions.router_overhead + problem.network.base + conditions.return_time;
    let bytes = model.payload.as_u64() as f64 * f64::from(rows);
    once.as_secs_f64() + bytes / problem.network.bytes_per_second
}

/// Returns the reason why a model that could run has no replica.
fn reason_for_no_replica(
    problem: &Problem,
    candidates: &Candidates<'_>,
    model: usize,
) -> Shortfall {
    let devices = || {
        device_classes(problem)
            .into_iter()
            .map(|class| class.devices[0])
    };
    if devices().all(|device| batch_sizes(candidates, model, device.0).next().is_none()) {
        return Shortfall::UnknownMemory;
    }
    let demanded = &problem.models[model];
    let fastest = devices()
        .filter_map(|device| problem.profile(ModelIndex(model), device))
        .map(|profile| profile.latency(1));
    let computing = fastest
        .min()
        .unwrap_or_default()
        .mul_f64(demanded.latency_scale);
    let least = computing.as_secs_f64() + network_time(problem, demanded, 1);
    let slo = demanded.slo;
    if least > slo.as_secs_f64() {
        return Shortfall::RequestOverSlo {
            latency: least,
            slo,
        };
    }
    Shortfall::NoReplicaPays
}
