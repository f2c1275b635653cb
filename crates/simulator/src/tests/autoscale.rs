//! Runs whose devices come and go.

use packhorse_placement::{Budget, PlanningOptions, devices_needed, policy};
use proptest::prelude::*;

use super::*;

/// bert on a device at the start and up to four, with nodes that take 30 s. A device serves 122 requests/s.
fn scenario(rate: &str) -> Scenario {
    let text = format!(
        "name = \"autoscale\"\nprofiles = [\"thesis\"]\n[simulation]\nwarmup_s = 0\nwindow_s = 1300\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 1\n\
         [autoscale]\nkind = \"V100-SXM2-16GB\"\nmin = 1\nmax = 4\nstart_s = 30\n\
         [[models]]\nname = \"bert\"\nslo_ms = 300\npayload_bytes = 4096\nload_ms = 2000\n{rate}\n"
    );
    Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap()
}

fn place(problem: &packhorse_cluster::Problem) -> Option<packhorse_cluster::Plan> {
    let first_fit = policy("first-fit").unwrap();
    let options = PlanningOptions::default();
    first_fit
        .place_with(problem, &options, &mut Budget::unlimited())
        .ok()
}

fn search(problem: &packhorse_cluster::Problem, last: &DevicesByKind) -> Option<DevicesByKind> {
    let first_fit = policy("first-fit").unwrap();
    let options = PlanningOptions::default();
    devices_needed(first_fit, problem, last, &options, &mut Budget::unlimited()).ok()
}

/// Runs a scenario with an autoscaler that follows the number of this function or, without one, Kubernetes' rule. Returns the report and the
/// timeline as CSV.
fn run_autoscaled(scenario: &Scenario, search: Option<&mut ClusterSearch<'_>>) -> (Report, String) {
    let rule = match search {
        Some(search) => ScalingRule::DevicesNeeded(search),
        None => ScalingRule::Utilization(0.7, Duration::from_mins(5)),
    };
    let replicas = place(&scenario.problem_at_start()).unwrap().replicas;
    let plan = PlanReport::from_replicas(scenario, &replicas);
    let mut timeline = Timeline::default();
    let mut policy = place;
    let replanning = Replanning::at_changes(packhorse_placement::estimate, &mut policy);
    let options = RunOptions {
        replanning: Some(replanning.autoscaling(rule)),
        timeline: Some(&mut timeline),
        ..RunOptions::default()
    };
    let report = simulate_with(scenario, plan, &replicas, 1, options, &mut |_| {}).unwrap();
    (report, timeline.to_csv(scenario))
}

/// 60 requests/s need one device, 200 need two. They come from second 100 to 160: the second device is asked for soon after, joins 30 s later,
/// and is given up when its need is 15 minutes old.
#[test]
fn a_device_comes_for_a_ramp_and_goes_a_quarter_of_an_hour_after_it() {
    let scenario = scenario("rate_rps = 60\nrate_steps = [[100, 200], [160, 60]]");
    let (report, csv) = run_autoscaled(&scenario, Some(&mut search));
    let autoscale = report.autoscale.unwrap();
    let over_time = &autoscale.over_time;
    let first = |found: &dyn Fn(&DeviceCounts) -> bool| {
        let counts = over_time.iter().find(|counts| found(counts));
        counts.unwrap_or_else(|| panic!("{over_time:?}")).t_s
    };
    assert_eq!((over_time[0].have, over_time[0].needed), (1, None));
    let asked = first(&|counts| counts.starting > 0);
    assert!((100.0..=145.0).contains(&asked), "{asked}");
    let joined = first(&|counts| counts.have > 1);
    assert!((joined - asked - 30.0).abs() < 1e-9, "{joined}");
    let drained = first(&|counts| counts.draining > 0);
    let gone = first(&|counts| counts.t_s > drained && counts.draining == 0);
    assert!((1060.0..=1120.0).contains(&drained), "{drained}");
    assert!(gone <= drained + 15.0, "{gone}");
    let last = over_time.last().unwrap();
    assert_eq!((last.have, last.starting, last.draining), (1, 0, 0));
    assert_eq!(report.totals.lost, 0);
    // The first device for 1300 s, and those that came.
    let most = over_time.iter().map(|counts| counts.have).max().unwrap() as f64;
    let hours = 1300.0 + (most - 1.0) * (gone - asked);
    assert!(autoscale.device_hours > 1300.0 / 3600.0);
    assert!(autoscale.device_hours <= hours / 3600.0 + 1e-9);

    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("t_s,model,offered,within_slo,late,dropped,lost,devices,devices_needed")
    );
    assert!(
        lines.next().unwrap().ends_with(",1,"),
        "none is known at first"
    );
    let in_ramp = lines.find(|line| line.starts_with(&format!("{},", joined as u64)));
    assert!(in_ramp.unwrap().ends_with(",2,2"), "{in_ramp:?}");
}

#[test]
fn the_rule_of_kubernetes_follows_the_utilization() {
    let scenario = scenario("rate_rps = 20\nrate_steps = [[100, 200], [400, 20]]");
    let (report, _) = run_autoscaled(&scenario, None);
    let over_time = report.autoscale.unwrap().over_time;
    let have = |second: f64| {
        let until = over_time.partition_point(|counts| counts.t_s <= second);
        over_time[until - 1].have
    };
    assert!(have(300.0) > 1, "{over_time:?}");
    assert_eq!(have(1200.0), 1, "{over_time:?}");
    assert_eq!(report.totals.lost, 0);
}

#[test]
fn an_autoscaler_needs_a_run_that_plans_anew() {
    let scenario = scenario("rate_rps = 60");
    let replicas = place(&scenario.problem_at_start()).unwrap().replicas;
    let simulate_plan = |replicas: &[PlannedReplica]| {
        let plan = PlanReport::from_replicas(&scenario, replicas);
        let deadline = Discipline::Deadline;
        simulate(&scenario, plan, replicas, deadline, 1, &mut |_| {})
    };
    assert_eq!(
        simulate_plan(&replicas).unwrap_err(),
        SimulateError::NoAutoscaler
    );
    let later = PlannedReplica::new(ModelIndex(0), DeviceIndex(1), 4);
    assert_eq!(
        simulate_plan(&[later]).unwrap_err(),
        SimulateError::DeviceAddedLater(0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The simulation itself asserts that every request ends once and that no replica is stopped while it serves.
    #[test]
    fn whatever_is_needed_the_limits_hold_and_no_request_is_lost(
        needs in proptest::collection::vec((0_usize..7, 1_u64..1_500), 1..8),
        min in 1_usize..3,
        start_s in 0_u64..200,
        load_ms in 0_u64..20_000,
    ) {
        let mut scenario = scenario("rate_rps = 8");
        scenario.simulation.window = Duration::from_hours(1);
        scenario.problem.models[0].load_time = Duration::from_millis(load_ms);
        let autoscale = scenario.autoscale.as_mut().unwrap();
        (autoscale.min, autoscale.node_start) = (min, Duration::from_secs(start_s));
        let kind = autoscale.kind.clone();
        let run = || {
            let mut step = 0;
            let mut scripted = |_: &packhorse_cluster::Problem, _: &DevicesByKind| {
                step += 1;
                let mut second = 0;
                let need = needs.iter().find(|(_, lasts)| {
                    second += lasts;
                    15 * step <= second
                });
                need.map(|(count, _)| DevicesByKind::from([(kind.clone(), *count)]))
            };
            run_autoscaled(&scenario, Some(&mut scripted))
        };
        let (report, csv) = run();
        prop_assert_eq!((&report, &csv), (&run().0, &run().1));
        let autoscale = report.autoscale.unwrap();
        for counts in &autoscale.over_time {
            let all = counts.have + counts.starting + counts.draining;
            prop_assert!(all <= 4, "{:?}", counts);
            // It begins with one device, and nothing is known before the first decision.
            prop_assert!(counts.needed.is_none() || counts.have + counts.starting >= min, "{:?}", counts);
        }
        prop_assert_eq!(report.totals.lost, 0);
        let ended: u64 = csv.lines().skip(1).map(|line| -> u64 {
            let cells: Vec<u64> = line.split(',').skip(3).take(4).map(|cell| cell.parse().unwrap()).collect();
            cells.iter().sum()
        }).sum();
        let offered = (report.totals.offered_rps * 3600.0).round() as u64;
        prop_assert_eq!(ended, offered);
    }
}
