//! The trace of a run.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{DeviceIndex, Discipline, Time};
use serde_json::Value;

use super::{plan, vision};
use crate::{Fault, FaultKind, PlanReport, Report, RunOptions, RunTrace, Scenario, simulate_with};

/// Runs a scenario with `alexnet` on two devices; the report and the events of its trace.
fn traced(scenario: &Scenario, from: Time, to: Time) -> (Report, Vec<Value>) {
    let replicas = plan(scenario, &[("alexnet", 0, 16), ("alexnet", 1, 16)]);
    let mut trace = RunTrace::new(from, to);
    let options = RunOptions {
        dispatch: Discipline::Deadline.into(),
        trace: Some(&mut trace),
        ..RunOptions::default()
    };
    let first = PlanReport::from_replicas(scenario, &replicas);
    let report = simulate_with(scenario, first, &replicas, 1, options, &mut |_| {}).unwrap();
    let mut text = Vec::new();
    trace.write(scenario, |piece| {
        text.extend_from_slice(&piece);
        true
    });
    let mut whole: Value = serde_json::from_slice(&text).unwrap();
    let Value::Array(events) = whole["traceEvents"].take() else {
        panic!("a trace has events");
    };
    (report, events)
}

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}

/// The slices of requests or of batches, which name themselves in their arguments.
fn slices<'a>(events: &'a [Value], what: &str) -> Vec<&'a Value> {
    let is_it = |event: &&Value| event["ph"] == "X" && event["args"].get(what).is_some();
    let is_own = |event: &&Value| what != "batch" || event["args"].get("request").is_none();
    events.iter().filter(is_it).filter(is_own).collect()
}

#[test]
fn a_trace_has_every_request_once_and_in_its_batch() {
    let mut scenario = vision(2, 400.0, 200);
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_secs(4);
    let end = at(4.0);
    let (report, events) = traced(&scenario, Time::ZERO, end);
    let requests = slices(&events, "request");
    let offered = report.totals.offered_rps * 4.0;
    assert!((requests.len() as f64 - offered).abs() < 0.5, "{offered}");
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    for request in &requests {
        *outcomes
            .entry(request["name"].as_str().unwrap())
            .or_default() += 1;
    }
    let answered = f64::from(outcomes["answered"]);
    assert!(
        (answered / 4.0 - report.totals.goodput_rps).abs() < 1e-6,
        "{outcomes:?}"
    );
    // The models without a replica.
    assert!(outcomes["refused"] > 1000, "{outcomes:?}");

    let batches = slices(&events, "batch");
    let rows: BTreeMap<u64, u64> = batches
        .iter()
        .map(|batch| {
            (
                batch["args"]["batch"].as_u64().unwrap(),
                batch["args"]["rows"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(rows.len(), batches.len());
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    for request in &requests {
        if let Some(batch) = request["args"]["batch"].as_u64() {
            *found.entry(batch).or_default() += 1;
        }
    }
    // Requests of the window may be in batches that were sent after it.
    let complete = found.iter().filter(|(batch, _)| rows.contains_key(batch));
    assert!(complete.clone().count() > 50);
    assert!(complete.clone().all(|(batch, count)| rows[batch] == *count));
    let devices: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert_eq!(
        devices[..2],
        ["node0/0 (V100-SXM2-16GB)", "node0/1 (V100-SXM2-16GB)"]
    );
}

#[test]
fn a_trace_keeps_what_arrives_in_its_time() {
    let mut scenario = vision(2, 400.0, 200);
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_secs(4);
    let (_, events) = traced(&scenario, at(1.0), at(1.5));
    let requests = slices(&events, "request");
    assert!((850..1150).contains(&requests.len()), "{}", requests.len());
    for request in requests {
        let micros = request["ts"].as_f64().unwrap();
        assert!((0.0..0.5e6).contains(&micros), "{micros}");
    }
}

#[test]
fn batches_of_a_worker_that_dies_are_failed() {
    let mut scenario = vision(2, 800.0, 200);
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_secs(2);
    scenario.simulation.faults = vec![Fault {
        at: at(1.0),
        duration: Duration::from_millis(300),
        kind: FaultKind::WorkerDies(DeviceIndex(0)),
    }];
    let (_, events) = traced(&scenario, Time::ZERO, at(2.0));
    let failed = slices(&events, "batch");
    let failed = failed
        .iter()
        .filter(|batch| batch["args"]["failed"] == true);
    let ends = failed.map(|batch| batch["ts"].as_f64().unwrap() + batch["dur"].as_f64().unwrap());
    let ends: Vec<f64> = ends.collect();
    assert!(!ends.is_empty());
    assert!(ends.iter().all(|end| (end - 1e6).abs() < 1.0), "{ends:?}");
}
