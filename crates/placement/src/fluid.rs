//! The forecasts of Usher and its successors: every replica computes full batches all the time.

use packhorse_cluster::{ModelForecast, Plan, PlannedReplica, Problem, Shortfall};

use crate::forecast::forecast;

/// Returns the plan of these replicas, with a forecast of `min(rate, Σ batch / latency)` for each model. `shortfalls` has the reason for
/// each model without a replica.
pub(crate) fn plan_with_forecasts(
    policy: &'static str,
    problem: &Problem,
    replicas: Vec<PlannedReplica>,
    shortfalls: Vec<Option<Shortfall>>,
) -> Plan {
    let mut throughputs = vec![(0, 0.0); problem.models.len()];
    for replica in &replicas {
        let (count, throughput) = &mut throughputs[replica.model.0];
        *count += 1;
        *throughput += full_batch_throughput(problem, replica);
    }
    let models = problem.models.iter().zip(throughputs).zip(shortfalls);
    let models = models.map(
        |((model, (replicas, carried)), shortfall)| -> ModelForecast {
            let rate = model.rate;
            forecast(
                rate,
                replicas,
                carried,
                || shortfall.expect("a policy gives a reason for each model without a replica"),
                |goodput| Shortfall::Throughput {
                    replicas,
                    goodput,
                    rate,
                },
            )
        },
    );
    Plan {
        policy,
        models: models.collect(),
        replicas,
    }
}

/// Returns the requests per second of full batches; zero without a profile.
fn full_batch_throughput(problem: &Problem, replica: &PlannedReplica) -> f64 {
    let profile = problem.profile(replica.model, replica.device);
    profile.map_or(0.0, |profile| {
        f64::from(replica.batch_size) / profile.latency(replica.batch_size).as_secs_f64()
    })
}
