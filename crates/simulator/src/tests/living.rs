//! A cluster that lives: the gateway and agents die, nodes are drained, models come and go.

use packhorse_placement::{Budget, PlanningOptions, estimate, policy};

use super::*;

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}

fn fault(kind: FaultKind, from: f64, seconds: f64) -> Fault {
    Fault {
        at: at(from),
        duration: Duration::from_secs_f64(seconds),
        kind,
    }
}

/// A scenario of twenty seconds on two nodes with two devices each, and the plan of `goodput` for it.
fn two_nodes(faults: &[Fault]) -> (Scenario, Vec<PlannedReplica>) {
    let mut scenario = vision(4, 120.0, 500);
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_secs(20);
    scenario.simulation.faults = faults.to_vec();
    for (i, device) in scenario.problem.devices.iter_mut().enumerate() {
        device.node = format!("node{}", i / 2).parse().unwrap();
    }
    for model in &mut scenario.problem.models {
        model.load_time = Duration::from_millis(300);
    }
    let replicas = place(&scenario.problem_at_start()).unwrap().replicas;
    (scenario, replicas)
}

fn place(problem: &packhorse_cluster::Problem) -> Option<packhorse_cluster::Plan> {
    let mut budget = Budget::new(1_000_000, &|| false);
    let goodput = policy("goodput").unwrap();
    goodput
        .place_with(problem, &PlanningOptions::default(), &mut budget)
        .ok()
}

/// Runs the scenario with the gateway's control plane; the report and the timeline as CSV.
fn run_living(scenario: &Scenario, replicas: &[PlannedReplica]) -> (Report, String) {
    let plan = PlanReport::from_replicas(scenario, replicas);
    let mut timeline = Timeline::default();
    let mut policy = place;
    let options = RunOptions {
        replanning: Some(Replanning::at_changes(estimate, &mut policy)),
        timeline: Some(&mut timeline),
        ..RunOptions::default()
    };
    let report = simulate_with(scenario, plan, replicas, 1, options, &mut |_| {}).unwrap();
    (report, timeline.to_csv(scenario))
}

/// The rows of a timeline: second, model, and the numbers offered, within the SLO, late, dropped and lost.
fn rows(csv: &str) -> Vec<(u64, String, [u64; 5])> {
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("t_s,model,offered,within_slo,late,dropped,lost")
    );
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let count = |i: usize| cells[i].parse().unwrap();
        let counts = [2, 3, 4, 5, 6].map(count);
        (count(0), cells[1].to_owned(), counts)
    };
    lines.map(row).collect()
}

#[test]
fn the_seconds_of_a_timeline_add_up_to_the_report() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::NodeLost(0), 5.0, 7.0)]);
    let (report, csv) = run_living(&scenario, &replicas);
    let rows = rows(&csv);
    for model in &report.models {
        let sum = |i: usize| -> u64 {
            let of_model = rows.iter().filter(|row| row.1 == model.name);
            of_model.map(|row| row.2[i]).sum()
        };
        assert_eq!(sum(0), sum(1) + sum(2) + sum(3) + sum(4));
        let counted = |rps: f64| (rps * 20.0).round() as u64;
        assert_eq!(sum(0), counted(model.offered_rps));
        assert_eq!(sum(1), counted(model.goodput_rps));
        assert_eq!((sum(3), sum(4)), (model.dropped, model.lost));
    }
    let missed = |second: u64| -> u64 {
        let of_second = rows.iter().filter(|row| row.0 == second);
        of_second.map(|row| row.2[0] - row.2[1]).sum()
    };
    assert_eq!(missed(3), 0, "before the node is lost");
    assert!(missed(6) > 0, "before the lease has ended");
    assert_eq!(missed(18), 0, "after a new plan");
}

#[test]
fn requests_outlive_a_gateway_that_is_back_before_their_deadlines() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::GatewayDies, 5.0, 0.2)]);
    let (report, csv) = run_living(&scenario, &replicas);
    assert_eq!(report.totals.lost, 0);
    let served = report.totals.goodput_rps / report.totals.offered_rps;
    assert!(served > 0.98, "{served}");
    // The same plan goes on.
    assert_eq!(report.replanning.unwrap().started, 0);
    for (second, model, [offered, within_slo, ..]) in rows(&csv) {
        assert!(
            second == 4 || second == 5 || offered == within_slo,
            "{model} at {second}"
        );
    }
    // Without a control plane, too.
    let report = run(&scenario, &replicas, Discipline::Deadline, 1);
    assert_eq!(report.totals.lost, 0);
}

#[test]
fn requests_whose_deadlines_pass_without_a_gateway_are_lost_and_no_others() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::GatewayDies, 5.0, 2.0)]);
    let (report, csv) = run_living(&scenario, &replicas);
    let lost: u64 = rows(&csv).iter().map(|row| row.2[4]).sum();
    assert_eq!(lost, report.totals.lost);
    // Those that came due in the first 1.5 of the two seconds, and few that were in a queue.
    let due = 1.5 * report.totals.offered_rps;
    assert!((0.9 * due..1.15 * due).contains(&(lost as f64)), "{lost}");
    assert!(
        rows(&csv)
            .iter()
            .all(|row| row.2[4] == 0 || (4..7).contains(&row.0))
    );
}

#[test]
fn workers_go_on_without_their_agent() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::AgentDies(0), 5.0, 3.0)]);
    let (with_fault, _) = run_living(&scenario, &replicas);
    let (scenario, _) = two_nodes(&[]);
    let (without, _) = run_living(&scenario, &replicas);
    assert_eq!(with_fault, without);
}

#[test]
fn a_drain_moves_a_nodes_models_and_loses_no_request() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::NodeDrained(0), 5.0, 30.0)]);
    assert!(replicas.iter().any(|replica| replica.device.0 < 2));
    let (report, _) = run_living(&scenario, &replicas);
    let replanning = report.replanning.unwrap();
    assert!(
        replanning.changed >= 1 && replanning.stopped >= 1,
        "{replanning:?}"
    );
    assert_eq!((report.totals.dropped, report.totals.lost), (0, 0));
}

#[test]
fn a_model_gets_requests_from_when_it_serves_until_its_clients_end() {
    let last = ModelIndex(MODELS.len() - 1);
    let (scenario, replicas) = two_nodes(&[
        fault(FaultKind::ModelAdded(last), 4.0, 0.0),
        fault(FaultKind::ModelRemoved(ModelIndex(0)), 12.0, 0.5),
    ]);
    assert!(replicas.iter().all(|replica| replica.model != last));
    let (report, csv) = run_living(&scenario, &replicas);
    let seconds = |name: &str| {
        let rows = rows(&csv).into_iter().filter(|row| row.1 == name);
        let seconds: Vec<u64> = rows.map(|row| row.0).collect();
        (seconds[0], *seconds.last().unwrap())
    };
    let (first, _) = seconds(MODELS[last.0]);
    assert!((4..7).contains(&first), "{first}");
    assert_eq!(seconds(MODELS[0]), (0, 11));
    assert_eq!((report.totals.dropped, report.totals.lost), (0, 0));
    let stopped = report.replanning.unwrap().stopped;
    assert!(stopped >= 1, "the replicas of the removed model stop");
}

#[test]
fn what_admins_do_requires_a_control_plane() {
    let (scenario, replicas) = two_nodes(&[fault(FaultKind::NodeDrained(1), 5.0, 3.0)]);
    let plan = PlanReport::from_replicas(&scenario, &replicas);
    let result = simulate(
        &scenario,
        plan,
        &replicas,
        Discipline::Deadline,
        1,
        &mut |_| {},
    );
    let message = result.unwrap_err().to_string();
    assert!(message.starts_with("simulation.faults[0]:"), "{message}");
}
