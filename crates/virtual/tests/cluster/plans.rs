//! Plans: judged, rolled out with new replicas before old ones are broken, and planned around what does not start.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::{
    Discipline, DroppedRewriting, ModelId, ModelState, NodeName, ProfileTable, ReplicaId,
    Scheduling, Time, Verification,
};
use packhorse_control::{
    Command, DeviceNotice, Drift, Finding, ModelSpecChange, Notice, PlanNotice, Problem, Severity,
    Subject, record,
};
use packhorse_virtual::LoadFailure;

use crate::virtual_cluster::{PolicyFault, Settings, VirtualCluster, name};

/// Returns a cluster with these devices of one node each, in MiB, whose models serve.
fn serving_cluster(devices: &[u64], models: &[(&str, f64)]) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    for (number, memory) in devices.iter().enumerate() {
        cluster.add_node(&format!("n{number}"), "T4", 1, *memory);
    }
    for (model, rate) in models {
        cluster.register(model, *rate);
    }
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    cluster.run_for(Duration::from_secs(20));
    for (model, _) in models {
        cluster.interruptions.insert(model.parse().unwrap(), 0);
    }
    cluster
}

fn is_plan(notice: &Notice, which: PlanNotice) -> bool {
    matches!(notice, Notice::Plan(_, now, _) if *now == which)
}

fn texts(cluster: &VirtualCluster, since: Time, which: PlanNotice) -> Vec<String> {
    let notices = cluster
        .environment
        .notices
        .iter()
        .filter(|(at, _)| *at >= since);
    notices
        .filter_map(|(_, notice)| match notice {
            Notice::Plan(_, now, text) if *now == which => Some(text.clone()),
            _ => None,
        })
        .collect()
}

/// Has a model replaced by replicas with smaller batches.
fn tighten(cluster: &mut VirtualCluster, model: &str) {
    let change = ModelSpecChange {
        slo: Some(Duration::from_millis(20)),
        ..ModelSpecChange::default()
    };
    let change = Command::ChangeModel(name(model), None, change);
    cluster.command_and_wait(change).unwrap();
}

#[test]
fn a_replica_is_replaced_by_one_with_another_batch_size_before_it_ends() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 300.0)]);
    let before = cluster.serving("a:1");
    tighten(&mut cluster, "a");
    cluster.run_for(Duration::from_secs(20));
    let after = cluster.serving("a:1");
    assert!(cluster.is_healthy());
    assert_ne!(before, after);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn where_memory_does_not_hold_both_the_old_replica_ends_first_and_it_is_said() {
    let mut cluster = serving_cluster(&[1500], &[("a:1", 300.0)]);
    let since = cluster.now;
    let before = cluster.serving("a:1");
    tighten(&mut cluster, "a");
    cluster.run_for(Duration::from_secs(20));
    assert!(cluster.is_healthy());
    assert_ne!(before, cluster.serving("a:1"));
    let id: ModelId = "a:1".parse().unwrap();
    assert_eq!(cluster.interruptions[&id], 1);
    let said = texts(&cluster, since, PlanNotice::Degraded);
    assert!(
        said.iter()
            .any(|text| text.contains("does not hold the old and the new replicas")),
        "{said:?}"
    );
}

#[test]
fn a_model_on_two_full_devices_is_replaced_one_after_the_other() {
    let mut cluster = serving_cluster(&[1500, 1500], &[("a:1", 1200.0)]);
    assert_eq!(cluster.serving("a:1").len(), 2);
    tighten(&mut cluster, "a");
    let limit = Duration::from_secs(30);
    cluster.run_until("both are replaced", limit, |cluster| {
        let serving = cluster.serving("a:1");
        let is_new = |(id, _): &(ReplicaId, _)| id.generation.0 > 2;
        cluster.is_healthy() && serving.len() == 2 && serving.iter().all(is_new)
    });
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_model_that_dies_on_one_device_is_planned_elsewhere_and_tried_again_with_back_off() {
    let mut cluster = serving_cluster(&[8192, 8192], &[("a:1", 20.0)]);
    let id: ModelId = "b:1".parse().unwrap();
    // It can be measured, but its replicas die where the policy would place them first.
    let csv = packhorse_virtual::profile_csv(&id, "T4", 1024);
    cluster.register("b:1", 20.0);
    let profiles = packhorse_cluster::ProfileTable::from_csv(&csv).unwrap();
    cluster
        .command_and_wait(Command::ImportProfiles(profiles))
        .unwrap();
    let limit = Duration::from_mins(1);
    cluster.run_until("b serves", limit, |c| !c.serving("b:1").is_empty());
    let first = cluster.node_of("b:1");
    let key = (id.clone(), "sim0".to_owned());
    let machine = cluster.node(first.as_str());
    machine
        .behaviour
        .failures
        .insert(key.clone(), LoadFailure::Dies);
    let since = cluster.now;
    let pid = {
        let processes = &cluster.node(first.as_str()).processes;
        processes
            .values()
            .position(|p| p.task.program().model == id)
            .unwrap()
    };
    cluster.kill_worker(&first, pid);
    let limit = Duration::from_secs(1);
    cluster.run_until("it ends", limit, |c| c.serving("b:1").is_empty());
    cluster.run_until("b serves elsewhere", Duration::from_mins(1), |c| {
        !c.serving("b:1").is_empty()
    });
    assert_ne!(cluster.node_of("b:1"), first);
    let failed = |notice: &Notice| matches!(notice, Notice::Device(_, DeviceNotice::Failed, _));
    assert_eq!(cluster.count_notices(since, failed), 1);
    assert_eq!(texts(&cluster, since, PlanNotice::Degraded).len(), 1);
    cluster.run_for(Duration::from_secs(10));
    let cannot = |c: &VirtualCluster| {
        let findings = c.controller().findings();
        findings.iter().any(|f| f.problem == Problem::CannotStart)
    };
    assert!(cannot(&cluster));
    // After the back-off it may be planned there again.
    cluster.run_for(Duration::from_secs(40));
    assert!(!cannot(&cluster));
    let tried = |notice: &Notice| matches!(notice, Notice::Device(_, DeviceNotice::Ready, _));
    assert_eq!(cluster.count_notices(since, tried), 1);
    assert!(cluster.is_healthy());
}

#[test]
fn a_replica_that_cannot_start_and_has_no_other_place_is_a_finding_until_it_starts() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 20.0)]);
    let id: ModelId = "a:1".parse().unwrap();
    let key = (id.clone(), "sim0".to_owned());
    let failures = &mut cluster.node("n0").behaviour.failures;
    failures.insert(key.clone(), LoadFailure::Dies);
    let node: NodeName = "n0".parse().unwrap();
    cluster.kill_worker(&node, 0);
    let cannot = |c: &VirtualCluster| {
        let findings = c.controller().findings();
        let mut findings = findings.iter();
        findings.any(|f| f.problem == Problem::CannotStart && f.cause.is_some())
    };
    cluster.run_until("the finding", Duration::from_mins(1), cannot);
    cluster.node("n0").behaviour.failures.remove(&key);
    let limit = Duration::from_mins(1);
    cluster.run_until("it serves", limit, VirtualCluster::is_healthy);
    cluster.run_for(Duration::from_secs(10));
    assert!(!cannot(&cluster));
}

#[test]
fn a_model_that_waits_for_its_measurement_is_no_finding_and_one_without_a_device_is() {
    let mut cluster = VirtualCluster::new(Settings {
        measure: Duration::from_mins(1),
        ..Settings::default()
    });
    cluster.add_node("n0", "T4", 1, 8192);
    let not_served = |c: &VirtualCluster| {
        let findings = c.controller().findings();
        let mut found = findings.iter();
        let found = found.find(|found| found.problem == Problem::ModelNotServed);
        found.and_then(|found| found.cause.clone())
    };
    // One is measured, the other waits for the device.
    for model in ["a:1", "b:1"] {
        cluster.register(model, 20.0);
    }
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(cluster.state("a:1").0, ModelState::Profiling);
    assert_eq!(not_served(&cluster), None);
    let limit = Duration::from_mins(4);
    cluster.run_until("both serve", limit, VirtualCluster::is_healthy);
    let cordon = Command::ScheduleNode("n0".parse().unwrap(), Scheduling::Cordoned, None);
    cluster.command_and_wait(cordon).unwrap();
    cluster.register("c:1", 20.0);
    cluster.run_for(Duration::from_secs(10));
    let cause = not_served(&cluster);
    assert_eq!(cause.as_deref(), Some("no device accepts replicas"));
}

#[test]
fn a_rewriting_that_a_worker_dropped_is_a_finding_of_its_model_and_no_more() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 20.0)]);
    let dropped = |c: &VirtualCluster| -> Vec<Finding> {
        let findings = c.controller().findings();
        let is_dropped = |f: &&Finding| f.problem == Problem::RewritingDropped;
        findings.iter().filter(is_dropped).cloned().collect()
    };
    assert_eq!(dropped(&cluster), []);
    cluster.node("n0").behaviour.verification = Some(Verification {
        compared: 6,
        not_compared: None,
        dropped: vec![DroppedRewriting {
            rewriting: "oneDNN's aten::add".to_owned(),
            reason: "its answers differ by up to 5.00e-1".to_owned(),
        }],
    });
    cluster.register("b:1", 20.0);
    cluster.run_until("b serves", Duration::from_mins(1), |c| {
        !c.serving("b:1").is_empty() && c.is_healthy()
    });
    let is_told = |c: &VirtualCluster| !dropped(c).is_empty();
    cluster.run_until("the finding", Duration::from_mins(1), is_told);
    let [finding] = &dropped(&cluster)[..] else {
        panic!("{:?}", dropped(&cluster));
    };
    assert_eq!(finding.subject, Subject::Model("b:1".parse().unwrap()));
    assert_eq!(finding.severity, Severity::Notice);
    assert_eq!(finding.text, "model b:1 runs without oneDNN's aten::add");
    let cause = finding.cause.as_deref();
    assert_eq!(cause, Some("its answers differ by up to 5.00e-1"));
}

#[test]
fn a_model_that_dies_on_every_device_says_why_and_serves_once_it_can() {
    let mut cluster = serving_cluster(&[8192, 8192], &[("a:1", 20.0)]);
    let id: ModelId = "b:1".parse().unwrap();
    for node in ["n0", "n1"] {
        let key = (id.clone(), "sim0".to_owned());
        let failures = &mut cluster.node(node).behaviour.failures;
        failures.insert(key, LoadFailure::Dies);
    }
    let csv = packhorse_virtual::profile_csv(&id, "T4", 1024);
    let profiles = packhorse_cluster::ProfileTable::from_csv(&csv).unwrap();
    cluster.register("b:1", 20.0);
    cluster
        .command_and_wait(Command::ImportProfiles(profiles))
        .unwrap();
    cluster.run_for(Duration::from_mins(2));
    let (state, reason) = cluster.state("b:1");
    assert_ne!(state, ModelState::Ready);
    assert!(
        reason.contains("no room for the weights"),
        "{state:?}: {reason}"
    );
    assert!(!cluster.serving("a:1").is_empty());
    for node in ["n0", "n1"] {
        cluster.node(node).behaviour.failures.clear();
    }
    let limit = Duration::from_mins(31);
    cluster.run_until("b serves", limit, |c| !c.serving("b:1").is_empty());
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_new_version_of_a_plan_that_cannot_load_takes_no_old_replica_down() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 300.0)]);
    let id: ModelId = "a:1".parse().unwrap();
    let key = (id.clone(), "sim0".to_owned());
    let failures = &mut cluster.node("n0").behaviour.failures;
    failures.insert(key, LoadFailure::Dies);
    tighten(&mut cluster, "a");
    cluster.run_for(Duration::from_mins(3));
    assert_eq!(cluster.interruptions[&id], 0);
    cluster.node("n0").behaviour.failures.clear();
    let limit = Duration::from_mins(31);
    cluster.run_until("it is replaced", limit, VirtualCluster::is_healthy);
    assert_eq!(cluster.interruptions[&id], 0);
}

#[test]
fn the_worker_of_an_ejected_replica_is_restarted_at_most_once_a_minute() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 20.0)]);
    let (id, first) = cluster.serving("a:1")[0];
    let starts = cluster.worker_starts();
    cluster.eject(id);
    let limit = Duration::from_secs(20);
    cluster.run_until("another worker serves", limit, |cluster| {
        let serving = cluster.serving("a:1");
        serving
            .first()
            .is_some_and(|(now, at)| *now == id && *at != first)
    });
    assert_eq!(cluster.worker_starts(), starts + 1);
    // The new worker is no better. It is not restarted at once, but after a minute.
    cluster.eject(id);
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(cluster.worker_starts(), starts + 1);
    let notice = |notice: &Notice| {
        matches!(
            notice,
            Notice::Replica(_, _, packhorse_control::ReplicaNotice::Ejected, _)
        )
    };
    assert_eq!(cluster.count_notices(Time::ZERO, notice), 2);
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(cluster.worker_starts(), starts + 2);
    assert!(cluster.is_healthy() && !cluster.serving("a:1").is_empty());
}

#[test]
fn a_plan_that_is_not_worth_its_cost_is_not_executed_and_the_event_says_so() {
    let mut cluster = serving_cluster(&[8192, 8192], &[("a:1", 100.0)]);
    let since = cluster.now;
    let starts = cluster.worker_starts();
    cluster.environment.policy_fault = PolicyFault::Moves;
    cluster.counted.rates.insert("a:1".parse().unwrap(), 180.0);
    cluster.run_for(Duration::from_mins(2));
    assert_eq!(cluster.worker_starts(), starts);
    let said = texts(&cluster, since, PlanNotice::Rejected);
    assert!(!said.is_empty());
    for text in said {
        assert!(
            text.starts_with("the current plan stays: it gains"),
            "{text}"
        );
        assert!(text.contains("requests/s"), "{text}");
    }
    // The change of an admin is carried out whatever it gains.
    let discipline = record::Settings {
        discipline: Some(Discipline::FixedWait),
        ..record::Settings::default()
    };
    cluster
        .command_and_wait(Command::ChangeSettings(discipline))
        .unwrap();
    cluster.run_for(Duration::from_secs(20));
    assert_eq!(cluster.worker_starts(), starts + 1);
    assert!(cluster.count_notices(since, |n| is_plan(n, PlanNotice::Adopted)) > 0);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn requests_that_are_late_and_batches_that_are_slow_are_reasons_to_plan_again() {
    for (drift, in_time, slowdown) in [(Drift::Latency, 0.5, 1.0), (Drift::Slowdown, 1.0, 1.6)] {
        let mut cluster = serving_cluster(&[8192], &[("a:1", 100.0)]);
        let id: ModelId = "a:1".parse().unwrap();
        cluster.counted.rates.insert(id.clone(), 100.0);
        cluster.run_for(Duration::from_secs(20));
        let (since, plans) = (cluster.now, cluster.gateway.as_ref().unwrap().plans_made);
        let told = |cluster: &VirtualCluster| {
            cluster.count_notices(
                since,
                |n| matches!(n, Notice::Drift(_, now, _) if *now == drift),
            )
        };
        cluster.counted.in_time.insert(id.clone(), in_time);
        cluster.slowdowns.insert(id.clone(), slowdown);
        cluster.run_for(Duration::from_secs(21));
        assert_eq!(told(&cluster), 1, "{drift:?}");
        assert!(cluster.gateway.as_ref().unwrap().plans_made > plans);
        // It is said once.
        cluster.run_for(Duration::from_mins(1));
        assert_eq!(told(&cluster), 1, "{drift:?}");
        let goodput = cluster.controller().predicted_goodput(&id).unwrap();
        assert!((goodput.observed_rps / goodput.predicted_rps - in_time).abs() < 0.01);
        let bias = goodput.bias.unwrap();
        assert_eq!(bias < -0.1, in_time < 1.0, "{bias}");
    }
}

#[test]
fn a_rate_that_rises_gets_more_replicas_and_the_event_names_it() {
    let mut cluster = serving_cluster(&[1500, 1500], &[("a:1", 100.0)]);
    assert_eq!(cluster.serving("a:1").len(), 1);
    let since = cluster.now;
    cluster.counted.rates.insert("a:1".parse().unwrap(), 1100.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("two serve", limit, |c| c.serving("a:1").len() == 2);
    let drifts = |notice: &Notice| matches!(notice, Notice::Drift(..));
    assert!(cluster.count_notices(since, drifts) > 0);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn requests_with_several_rows_are_planned_for_as_many_as_they_have_rows() {
    let mut cluster = serving_cluster(&[1500, 1500], &[("a:1", 50.0)]);
    let id: ModelId = "a:1".parse().unwrap();
    cluster.counted.rates.insert(id.clone(), 40.0);
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(cluster.serving("a:1").len(), 1);
    // As many requests, of 28 rows each.
    cluster.counted.rows.insert(id.clone(), 28);
    let limit = Duration::from_mins(1);
    cluster.run_until("two serve", limit, |c| c.serving("a:1").len() == 2);
    cluster.run_for(Duration::from_mins(2));
    let measured = cluster.controller().measured_rate(&id).unwrap();
    assert!(
        (1000.0..=1200.0).contains(&measured.rate.get()),
        "{measured:?}"
    );
    let rows = cluster.controller().rows_per_request(&id).unwrap();
    assert!((10.0..28.0).contains(&rows), "{rows}");
    let goodput = cluster.controller().predicted_goodput(&id).unwrap();
    assert!((goodput.observed_rps - 1120.0).abs() < 12.0, "{goodput:?}");
}

#[test]
fn a_replaced_plan_keeps_what_was_observed_while_it_was_current() {
    let mut cluster = serving_cluster(&[8192], &[("a:1", 100.0)]);
    let id: ModelId = "a:1".parse().unwrap();
    cluster.counted.rates.insert(id.clone(), 100.0);
    cluster.counted.in_time.insert(id, 0.75);
    cluster.run_for(Duration::from_mins(10));
    let plan = |cluster: &VirtualCluster| cluster.controller().plan().unwrap().generation;
    let first = plan(&cluster);
    let outcome = cluster.controller().plan_outcome();
    assert!((590.0..=640.0).contains(&outcome.seconds), "{outcome:?}");
    let answered = outcome.observed / outcome.arrived;
    assert!((answered - 0.75).abs() < 0.01, "{outcome:?}");
    assert!(outcome.predicted > 0.98 * outcome.arrived, "{outcome:?}");

    cluster.register("b:1", 10.0);
    let limit = Duration::from_mins(2);
    cluster.run_until("another plan", limit, |c| plan(c) > first);
    cluster.run_for(Duration::from_secs(5));
    let stored = cluster.store.outcomes[&first];
    assert!(stored.seconds >= outcome.seconds, "{stored:?}");
    assert!((stored.observed / stored.arrived - 0.75).abs() < 0.01);
    assert!(cluster.controller().plan_outcome().seconds < stored.seconds);
}

#[test]
fn batches_that_are_slower_than_profiled_are_learned_and_found() {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n0", "T4", 1, 4000);
    cluster.register("m:1", 50.0);
    let id: ModelId = "m:1".parse().unwrap();
    // What was measured was twice as fast as what serves.
    let rows = "m:1,T4,1,,12,,700,,,50\nm:1,T4,16,,42,,1000,,,50\n";
    let csv = format!("{}\n{rows}", ProfileTable::CSV_HEADER);
    let compute = ProfileTable::from_csv(&csv).unwrap();
    cluster.node("n0").behaviour.compute = Arc::new(compute);
    cluster.run_until("the model serves", Duration::from_mins(1), |c| {
        !c.serving("m:1").is_empty()
    });
    let found = |c: &VirtualCluster| -> Option<Finding> {
        let mut findings = c.controller().findings().iter();
        let found = findings.find(|f| f.problem == Problem::ProfileContradicted);
        found.cloned()
    };
    assert_eq!(found(&cluster), None);
    cluster.set_clients("m:1", 50.0);
    cluster.run_until("it is found", Duration::from_mins(1), |c| {
        found(c).is_some()
    });
    let finding = found(&cluster).unwrap();
    assert_eq!(finding.severity, Severity::Notice);
    assert!(
        finding.text.starts_with("batches of model m:1 take "),
        "{finding:?}"
    );
    // It has the device for itself, and its inputs have one size.
    let cause = finding.cause.unwrap();
    assert!(cause.starts_with("a slower device"), "{cause}");
    let times = cluster.controller().batch_times(&id);
    let contradicts: Vec<_> = times
        .iter()
        .filter(|time| time.contradicts_profile())
        .collect();
    assert!(!contradicts.is_empty(), "{times:?}");
    for time in contradicts {
        let learned = time.learned.unwrap();
        assert!((1.7..2.3).contains(&learned.ratio), "{learned:?}");
        assert_eq!(learned.alone, Some(learned.ratio));
        assert!(learned.age <= Duration::from_secs(5), "{learned:?}");
    }
}
