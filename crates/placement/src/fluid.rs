//! The estimate that Usher and its successors share: every replica has full batches all the time.

use packhorse_cluster::{ModelForecast, Plan, PlannedReplica, Problem, RequestsPerSecond};

/// Rates are quotients of rounded times: a rate is carried if this much of it is.
const CARRIED: f64 = 1.0 - 1e-9;

/// A plan that promises each model `min(rate, Σ batch / latency)`. `shortfalls`: what is known of those left out.
pub(crate) fn plan(
    policy: &'static str,
    problem: &Problem,
    replicas: Vec<PlannedReplica>,
    shortfalls: Vec<Option<String>>,
) -> Plan {
    let mut carried = vec![(0, 0.0); problem.models.len()];
    for replica in &replicas {
        let of_model = &mut carried[replica.model.0];
        of_model.0 += 1;
        of_model.1 += throughput(problem, replica);
    }
    let forecast = |((model, (count, carried)), shortfall)| {
        let model: &packhorse_cluster::DemandedModel = model;
        let rate = model.rate;
        let shortfall: Option<String> = shortfall;
        let short = count > 0 && carried < rate.get() * CARRIED;
        let said =
            short.then(|| format!("its {count} replicas carry {carried:.1} of {rate} requests/s"));
        let goodput = RequestsPerSecond::new(f64::min(carried, rate.get()));
        ModelForecast {
            goodput: goodput.expect("between zero and a rate"),
            latency: None,
            shortfall: shortfall.or(said),
        }
    };
    let models = problem.models.iter().zip(carried).zip(shortfalls);
    Plan {
        policy,
        models: models.map(forecast).collect(),
        replicas,
    }
}

/// Requests per second of full batches; zero without a profile.
fn throughput(problem: &Problem, replica: &PlannedReplica) -> f64 {
    let profile = problem.profile(replica.model, replica.device);
    profile.map_or(0.0, |profile| {
        f64::from(replica.batch_size) / profile.latency(replica.batch_size).as_secs_f64()
    })
}
