//! Families: who answers a request, and what the report says of it.

use packhorse_cluster::Problem;
use packhorse_placement::{Budget, PlanningOptions, policy};

use super::*;

/// One GPU with two models of a family: one takes 50 ms for a request, the other 5 ms.
const SCENARIO: &str = "
name = \"family\"
profiles = [\"p\"]
[simulation]
window_s = 20.0
[[devices]]
kind = \"V100-SXM2-16GB\"
count = 2
[[models]]
name = \"good\"
rate_rps = 10
slo_ms = 120
payload_bytes = 4096
family = \"f\"
accuracy = 90
[[models]]
name = \"cheap\"
rate_rps = 40
slo_ms = 120
payload_bytes = 4096
family = \"f\"
accuracy = 60
";
const PROFILES: &str = "\
model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
good,V100-SXM2-16GB,1,,50,,1000,,,100
cheap,V100-SXM2-16GB,1,,5,,1000,,,100
";

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, &mut |_| Ok(PROFILES.to_owned())).unwrap()
}

/// Runs one replica of each model on a device of its own.
fn run_both(scenario: &Scenario) -> Report {
    let replicas = [0, 1].map(|i| PlannedReplica::new(ModelIndex(i), DeviceIndex(i), 1));
    run(scenario, &replicas, Discipline::Deadline, 1)
}

#[test]
fn a_family_uses_its_accurate_model_fully_and_answers_the_rest_with_the_cheap_one() {
    let report = run_both(&scenario(SCENARIO));
    let [family] = &report.families[..] else {
        panic!("one family");
    };
    assert_eq!(report.totals.dropped, 0);
    assert!((family.goodput_rps - family.offered_rps).abs() < 1e-9);
    let [good, cheap] = [0, 1].map(|i| report.models[i].goodput_rps);
    // The replica computes at most 20 requests/s, twice of what was asked of it.
    assert!((17.0..=20.5).contains(&good), "{good}");
    let accurate = (90.0 * good + 60.0 * cheap) / 100.0;
    assert!((family.accurate_goodput_rps - accurate).abs() < 1e-9);
    let accuracy = family.accuracy_pct.unwrap();
    assert!((accuracy - 100.0 * accurate / (good + cheap)).abs() < 1e-9);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["families"][0]["name"], "f");
}

#[test]
fn without_a_family_each_model_answers_its_own_requests() {
    let text = SCENARIO.replace("family = \"f\"\n", "");
    let report = run_both(&scenario(&text));
    assert!(report.families.is_empty());
    assert!((8.0..12.0).contains(&report.models[0].goodput_rps));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json.get("families"), None);
}

#[test]
fn a_family_answers_after_its_gateway_was_away() {
    let text = SCENARIO.replace(
        "window_s = 20.0",
        "window_s = 20.0\nfaults = [{ at_s = 5, kind = \"gateway-dies\", for_s = 1 }]",
    );
    let report = run_both(&scenario(&text));
    let good = report.models[0].goodput_rps;
    assert!((15.0..=20.0).contains(&good), "{good}");
}

#[test]
fn a_discipline_for_all_models_of_a_device_knows_no_families() {
    let scenario = scenario(SCENARIO);
    let replicas = [PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 1)];
    let plan = PlanReport::from_replicas(&scenario, &replicas);
    let refused = simulate(&scenario, plan, &replicas, Discipline::Flex, 1, &mut |_| {});
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the discipline flex knows no families"
    );
}

#[test]
fn replanning_has_the_rate_of_a_family_for_its_most_accurate_model_where_that_can_carry_it() {
    let text = SCENARIO
        .replace("rate_rps = 10", "rate_rps = 5")
        .replace("rate_rps = 40", "rate_rps = 3");
    let rates = |text: &str| {
        let scenario = scenario(text);
        // The rates of the cheap and of the good model, for each call of the policy.
        let mut rates: Vec<Vec<f64>> = Vec::new();
        let mut place = |problem: &Problem| {
            let called = problem.models.iter().map(|model| model.rate.get());
            rates.push(called.collect());
            let first_fit = policy("first-fit").unwrap();
            let options = PlanningOptions::default();
            first_fit
                .place_with(problem, &options, &mut Budget::unlimited())
                .ok()
        };
        let replanning = Replanning::new(Duration::from_secs(1), None, &mut place);
        let replicas = [0, 1].map(|i| PlannedReplica::new(ModelIndex(i), DeviceIndex(i), 1));
        let plan = PlanReport::from_replicas(&scenario, &replicas);
        let (discipline, progress) = (Discipline::Deadline, &mut |_: Time| {});
        let report = simulate_replanning(
            &scenario, plan, &replicas, discipline, 1, replanning, progress,
        );
        (rates, report.unwrap())
    };
    let (together, report) = rates(&text);
    let is_accurate = |rates: &Vec<f64>| rates[1] > 6.0 && rates[0] < 0.1;
    let mut tried = together.iter();
    assert!(tried.any(is_accurate), "{together:?}");
    let accuracy = report.families[0].accuracy_pct.unwrap();
    assert!(accuracy > 85.0, "{accuracy}");
    let (apart, _) = rates(&text.replace("family = \"f\"\n", ""));
    assert!(!apart.iter().any(is_accurate), "{apart:?}");
}
