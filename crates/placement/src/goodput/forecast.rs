//! What a plan promises each model, and why it is not more.

use std::time::Duration;

use packhorse_cluster::{
    ModelForecast, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond,
};

use super::{NAME, search::sizes};
use crate::{candidates::Candidates, classes::classes, estimate::Fate};

/// The estimate is good for about this much: who lacks less, lacks nothing.
const NOTHING: f64 = 1e-3;

/// The plan of these replicas, with which the models fare so.
pub(super) fn plan(
    problem: &Problem,
    candidates: &Candidates<'_>,
    replicas: Vec<PlannedReplica>,
    fates: &[Fate],
) -> Plan {
    let mut counts = vec![0; problem.models.len()];
    for replica in &replicas {
        counts[replica.model.0] += 1;
    }
    let models = fates.iter().zip(counts).enumerate();
    let forecasts =
        models.map(|(model, (fate, count))| forecast(problem, candidates, model, *fate, count));
    Plan {
        policy: NAME,
        models: forecasts.collect(),
        replicas,
    }
}

fn forecast(
    problem: &Problem,
    candidates: &Candidates<'_>,
    model: usize,
    fate: Fate,
    count: usize,
) -> ModelForecast {
    let rate = problem.models[model].rate;
    let served = count > 0 && fate.fraction >= 1.0 - NOTHING;
    let fraction = if served { 1.0 } else { fate.fraction };
    let goodput = RequestsPerSecond::new(rate.get() * fraction).expect("a part of a rate");
    let shortfall = if count == 0 {
        let unfit = candidates.unfit(ModelIndex(model));
        Some(unfit.unwrap_or_else(|| why_nowhere(problem, candidates, model)))
    } else if served || rate.get() <= 0.0 {
        None
    } else if fate.too_slow > 1.0 - fate.fraction - fate.too_slow {
        Some(format!(
            "batches of its {count} replicas take too long for its SLO"
        ))
    } else {
        Some(format!(
            "its {count} replicas carry {:.1} requests/s beside their neighbours, and {:.1} of {rate} are in time",
            fate.capacity,
            goodput.get()
        ))
    };
    ModelForecast {
        goodput,
        latency: (fate.latency > 0.0).then(|| Duration::from_secs_f64(fate.latency)),
        shortfall,
    }
}

/// Why a model that could run has no replica.
fn why_nowhere(problem: &Problem, candidates: &Candidates<'_>, model: usize) -> String {
    let devices = || classes(problem).into_iter().map(|class| class.devices[0]);
    if devices().all(|device| sizes(candidates, model, device.0).next().is_none()) {
        return "its profiles do not say how much memory it needs".to_owned();
    }
    let demanded = &problem.models[model];
    let conditions = &problem.conditions;
    let fastest = devices()
        .filter_map(|device| problem.profile(ModelIndex(model), device))
        .map(|profile| profile.latency(1));
    let computing = fastest
        .min()
        .unwrap_or_default()
        .mul_f64(demanded.latency_scale);
    let bytes = demanded.payload.as_u64() as f64 / problem.network.bytes_per_second;
    let way = conditions.router_overhead + problem.network.base + conditions.return_time;
    let least = (computing + way).as_secs_f64() + bytes;
    let slo = demanded.slo;
    if least > slo.as_secs_f64() {
        return format!(
            "with the way there and back a request takes {:.3} ms, over the SLO of {slo:?}",
            least * 1e3
        );
    }
    "no device has the memory or the time for it, or others would lose more".to_owned()
}
