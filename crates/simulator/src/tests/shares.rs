//! The goodput of plans with the compute shares that the policy `goodput` sets.

use packhorse_cluster::{ComputeShareMode, Objective, PolicyOptions};
use packhorse_placement::{Budget, policy};

use super::*;

/// A camera whose frames have an SLO of 30 ms and take 20, and reports with a long SLO that use the whole of the only GPU.
const SCENARIO: &str = "
name = \"camera\"
profiles = [\"p\"]
[simulation]
window_s = 100.0
[[devices]]
kind = \"V100-SXM2-16GB\"
count = 1
[[models]]
name = \"camera\"
rate_rps = 5
slo_ms = 30
payload_bytes = 4096
[[models]]
name = \"report\"
rate_rps = 4
slo_ms = 2000
payload_bytes = 4096
";
const PROFILES: &str = "\
model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
camera,V100-SXM2-16GB,1,,20,,1000,,,60
report,V100-SXM2-16GB,1,,100,,1000,,,100
report,V100-SXM2-16GB,2,,190,,1000,,,100
";

/// Returns the plan, and the goodput of each model over its offered rate, in the mean over seeds.
fn plan_and_simulate(
    scenario: &Scenario,
    objective: Objective,
    compute_shares: ComputeShareMode,
) -> (Vec<PlannedReplica>, [f64; 2]) {
    let options = PolicyOptions {
        objective,
        compute_shares,
        ..PolicyOptions::default()
    };
    let plan = policy("goodput")
        .unwrap()
        .place_with(&scenario.problem, &options.into(), &mut Budget::unlimited())
        .unwrap();
    let mut ratios = [0.0; 2];
    for seed in 1..=5 {
        let report = run(scenario, &plan.replicas, Discipline::Deadline, seed);
        for (ratio, model) in ratios.iter_mut().zip(&report.models) {
            *ratio += model.goodput_rps / model.offered_rps / 5.0;
        }
    }
    (plan.replicas, ratios)
}

#[test]
fn a_compute_share_on_the_model_with_a_long_slo_protects_the_one_with_a_short_slo() {
    let scenario = Scenario::parse(SCENARIO, &mut |_| Ok(PROFILES.to_owned())).unwrap();
    for objective in [Objective::Goodput, Objective::MaxMin] {
        let (without, [camera, _]) =
            plan_and_simulate(&scenario, objective, ComputeShareMode::Never);
        assert!(
            without
                .iter()
                .all(|replica| replica.compute_share.is_none())
        );
        let (with, [protected, report]) =
            plan_and_simulate(&scenario, objective, ComputeShareMode::Auto);
        let confined = |replica: &PlannedReplica| replica.compute_share.is_some();
        let reports = |replica: &PlannedReplica| {
            scenario.problem.models[replica.model.0].id.name.as_str() == "report"
        };
        assert!(
            with.iter()
                .all(|replica| confined(replica) == reports(replica)),
            "{with:?}"
        );
        assert!(
            protected > camera + 0.2 && report > 0.95,
            "{camera} to {protected}, {report}"
        );
    }
}
