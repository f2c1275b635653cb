//! Devices with pools, which decide among all their models.

use super::*;

const ZOO: &str = include_str!("../../../../scenarios/zoo/zoo.csv");

/// A scenario of this repository, with another number of devices.
fn scenario(text: &str, devices: u32, pool: &str) -> Scenario {
    let text = text.replace("count = 6", &format!("count = {devices}"));
    let text = text.replace("count = 4", &format!("count = {devices}"));
    let text = text.replace("pool = \"auto\"\n", "");
    let text = format!("pool = \"{pool}\"\n{text}");
    Scenario::parse(&text, &mut |_| Ok(ZOO.to_owned())).unwrap()
}

fn thirty(devices: u32, pool: &str) -> Scenario {
    let text = include_str!("../../../../scenarios/crowd/thirty.toml");
    scenario(text, devices, pool)
}

fn planned(scenario: &Scenario) -> Vec<PlannedReplica> {
    let policy = packhorse_placement::policy("first-fit").unwrap();
    let mut budget = packhorse_placement::Budget::unlimited();
    let plan = policy.place(&scenario.problem, &mut budget).unwrap();
    plan.replicas
}

fn percent(report: &Report) -> f64 {
    100.0 * report.totals.goodput_rps / report.totals.offered_rps
}

#[test]
fn thirty_models_are_served_by_six_devices() {
    let scenario = thirty(6, "auto");
    let plan = planned(&scenario);
    assert!(plan.iter().all(|replica| replica.pool.is_some()));
    let report = run(&scenario, &plan, Discipline::Deadline, 1);
    assert!(percent(&report) >= 99.0, "{:.2} %", percent(&report));
    let pools = report.totals.pools.expect("the devices have pools");
    assert_eq!(
        (pools.loads, pools.cold_requests),
        (0, 0),
        "all weights are there"
    );
    for model in &report.models {
        let share = model.goodput_rps / model.offered_rps;
        assert!(share > 0.9, "{}: {share:.2} in time", model.name);
    }
}

#[test]
fn a_thousand_models_are_served_by_devices_that_hold_half_of_them() {
    let text = include_str!("../../../../scenarios/zoo/memory-short.toml");
    let scenario = scenario(text, 4, "auto");
    let report = run(&scenario, &planned(&scenario), Discipline::Deadline, 1);
    assert!(percent(&report) >= 88.0, "{:.2} %", percent(&report));
    let pools = report.totals.pools.expect("the devices have pools");
    assert!(pools.loads >= pools.evictions && pools.evictions > 0);
    assert!(pools.cold_requests > 0);
    let again = run(&scenario, &planned(&scenario), Discipline::Deadline, 1);
    assert_eq!(report, again, "a run depends on its seed alone");
}

#[test]
fn weights_that_come_after_the_run_keep_nobody() {
    let text = include_str!("../../../../scenarios/crowd/thirty.toml");
    let text = text.replace("host_link_bytes_per_s = 12e9", "host_link_bytes_per_s = 1");
    // Not all weights fit, so that some are copied, for years.
    let text = text.replace("memory_mib = 16384", "memory_mib = 900");
    let scenario = scenario(&text, 2, "auto");
    let report = run(&scenario, &planned(&scenario), Discipline::Deadline, 1);
    let pools = report.totals.pools.expect("the devices have pools");
    assert!(pools.loads > 0 && report.totals.dropped > 0);
}

#[test]
fn the_json_of_a_run_has_the_moves_of_weights_only_where_there_are_pools() {
    let keys = ["loads", "evictions", "cold_requests"];
    for (pool, has) in [("auto", true), ("off", false)] {
        let scenario = thirty(6, pool);
        let report = run(&scenario, &planned(&scenario), Discipline::Deadline, 1);
        let json = serde_json::to_value(&report).unwrap();
        let totals = json["totals"].as_object().or(json["total"].as_object());
        let totals = totals.expect("a run has sums");
        assert_eq!(keys.map(|key| totals.contains_key(key)), [has; 3], "{pool}");
    }
}

#[test]
fn plans_with_pools_stay() {
    let scenario = thirty(6, "auto");
    let plan = planned(&scenario);
    let report = PlanReport::from_replicas(&scenario, &plan);
    let mut none = |_: &packhorse_cluster::Problem| None;
    let replanning = Replanning::new(Duration::from_secs(1), None, &mut none);
    let refused = simulate_replanning(
        &scenario,
        report.clone(),
        &plan,
        Discipline::Deadline,
        1,
        replanning,
        &mut |_| {},
    );
    assert_eq!(refused, Err(SimulateError::NoPlansForPools));
    let read = scenario.replicas(&report.replicas);
    let message = read.unwrap_err().to_string();
    assert!(message.starts_with("replicas[0].worker: "), "{message}");
}

#[test]
fn a_pool_of_hundreds_of_models_dies_and_comes_back() {
    let text = include_str!("../../../../scenarios/zoo/memory-short.toml");
    let death = "faults = [{ at_s = 1, kind = \"worker-dies\", device = 0, for_s = 1 }]";
    let scenario = scenario(&format!("{text}\n[simulation]\n{death}\n"), 2, "auto");
    assert_eq!(scenario.simulation.faults.len(), 1);
    let plan = planned(&scenario);
    let members = |device| { plan.iter() }.filter(move |replica| replica.device.0 == device);
    assert!(members(0).count() >= 450, "all of them die at once");
    let report = run(&scenario, &plan, Discipline::Deadline, 1);
    // Without the death, 63.4 % are in time.
    assert!(percent(&report) >= 58.0, "{:.2} %", percent(&report));
}
