//! Estimated profiles: models that serve before they are measured, and what the measurement changes.

use std::time::Duration;

use packhorse_cluster::{ModelId, ModelState, NodeName, ProfileSource};
use packhorse_control::{Command, Notice, PlanNotice};
use packhorse_reconcile::Task;
use packhorse_virtual::LoadFailure;

use crate::virtual_cluster::{Settings, VirtualCluster, name};

const KIND: &str = "T4";
/// The operations per second of a T4 that a large product reaches.
const OPERATIONS_PER_S: f64 = 9e12;

/// Returns the operators, as JSON, of a program that takes this memory and this time for each row on a T4. A measurement finds 1 GiB, and
/// 5 ms and 1 ms for each row.
pub(crate) fn operators(memory_mib: u64, ms_per_row: f64) -> String {
    let bytes = memory_mib << 20;
    let operations = (ms_per_row * 1e-3 * OPERATIONS_PER_S) as u64;
    format!(
        r#"{{"parameters":{},"parameter_bytes":{bytes},"activation_bytes":[0,4000],"operators":[{{"name":"addmm","count":1,
        "operations":[0,{operations}],"parameter_bytes":{bytes},"read_bytes":[0,4000],"written_bytes":[0,4000],"elements":[0,10000000]}}]}}"#,
        bytes / 4,
    )
}

/// Returns a cluster with a node for each memory, in MiB, whose workers find these operators half a second after their start and measure
/// for this long.
fn cluster(devices: &[u64], measure: Duration, operators: &str) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        measure,
        ..Settings::default()
    });
    for (number, memory) in devices.iter().enumerate() {
        let name = format!("n{number}");
        cluster.add_node(&name, KIND, 1, *memory);
        let behaviour = &mut cluster.node(&name).behaviour;
        behaviour.operators = Some((Duration::from_millis(500), operators.to_owned()));
    }
    cluster
}

fn source(cluster: &VirtualCluster, model: &str) -> Option<ProfileSource> {
    let id: ModelId = model.parse().unwrap();
    let profile = cluster.controller().profiles();
    Some(profile.get(&id, &KIND.parse().unwrap())?.source())
}

/// Returns the node that measures a model.
fn measuring(cluster: &VirtualCluster, model: &str) -> Option<NodeName> {
    let id: ModelId = model.parse().unwrap();
    let mut nodes = cluster.nodes.iter();
    let found = nodes.find(|machine| {
        let mut processes = machine.processes.values();
        processes.any(|p| matches!(&p.task, Task::Measure(w) if w.program.model == id))
    });
    found.map(|machine| machine.name.clone())
}

fn serves(cluster: &VirtualCluster, model: &str) -> bool {
    !cluster.serving(model).is_empty()
}

fn reason_of_plan(cluster: &VirtualCluster) -> String {
    cluster.controller().plan().unwrap().reason.clone()
}

const MINUTE: Duration = Duration::from_mins(1);
const SECONDS_5: Duration = Duration::from_secs(5);

#[test]
fn a_model_serves_with_its_estimate_before_it_is_measured_and_the_measurement_replaces_it() {
    let mut cluster = cluster(&[8192, 8192], MINUTE, &operators(900, 1.0));
    cluster.register("a:1", 30.0);
    cluster.run_until("a serves", SECONDS_5, |c| serves(c, "a:1"));
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Estimated));
    assert_eq!(
        reason_of_plan(&cluster),
        "the profiles of model a:1 were estimated"
    );
    // Its replica does not disturb the measurement.
    assert_ne!(Some(cluster.node_of("a:1")), measuring(&cluster, "a:1"));
    assert_eq!(cluster.controller().measurements(), (1, 0));
    cluster.interruptions.insert("a:1".parse().unwrap(), 0);
    cluster.run_for(MINUTE + SECONDS_5);
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Measured));
    assert_eq!(cluster.controller().measurements(), (0, 0));
    let plan = cluster.controller().plan().unwrap();
    let memory = plan.replicas[0].spec.memory.unwrap();
    let (id, _) = cluster.serving("a:1")[0];
    let planned = cluster.controller().replica(id).unwrap();
    // What is planned is the measured memory, whether or not the replica is another one.
    assert_eq!(planned.spec.memory.unwrap().as_u64(), 1 << 30, "{memory}");
    assert!(cluster.is_healthy());
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_single_device_serves_and_measures_if_it_has_memory_for_both() {
    let mut both = cluster(&[4096], MINUTE, &operators(900, 1.0));
    both.register("a:1", 30.0);
    both.run_until("a serves", SECONDS_5, |c| serves(c, "a:1"));
    assert_eq!(both.controller().measurements(), (1, 0));

    let mut one = cluster(&[1500], MINUTE, &operators(900, 1.0));
    one.register("a:1", 30.0);
    one.run_for(MINUTE / 2);
    assert_eq!(source(&one, "a:1"), Some(ProfileSource::Estimated));
    assert_eq!(one.state("a:1").0, ModelState::Profiling);
    one.run_until("a serves", MINUTE, |c| serves(c, "a:1"));
    assert_eq!(source(&one, "a:1"), Some(ProfileSource::Measured));
}

#[test]
fn one_inspection_gives_an_estimate_for_every_kind_of_device_that_is_or_comes() {
    let mut cluster = cluster(&[8192], MINUTE, &operators(900, 1.0));
    cluster.add_node("cpu", "cpu-x", 1, 8192);
    cluster.add_node("v100", "V100-SXM2-16GB", 1, 16_384);
    cluster.register("a:1", 30.0);
    cluster.run_for(SECONDS_5);
    cluster.add_node("l4", "L4", 1, 16_384);
    cluster.run_for(SECONDS_5);
    let id: ModelId = "a:1".parse().unwrap();
    let kinds = cluster.controller().profiles().of_model(&id);
    let kinds: Vec<_> = kinds.map(|(kind, _)| kind.to_string()).collect();
    assert_eq!(kinds, ["L4", "T4", "V100-SXM2-16GB"]);
    cluster.run_for(MINUTE + SECONDS_5);
    let mut all = cluster.controller().profiles().of_model(&id);
    assert!(all.all(|(_, profile)| profile.source() == ProfileSource::Measured));
    assert!(cluster.is_healthy());
}

#[test]
fn estimates_that_are_wrong_are_mended_by_the_measurement() {
    // Too slow for the SLO, too large for the device, and so small that all three models seem to fit beside each other.
    for (operators, early) in [
        (operators(900, 300.0), false),
        (operators(9000, 1.0), false),
        (operators(300, 0.1), true),
    ] {
        let mut cluster = cluster(&[2600, 2600, 2600], MINUTE, &operators);
        let models = ["a:1", "b:1", "c:1"];
        for model in models {
            cluster.register(model, 30.0);
        }
        cluster.run_for(MINUTE / 2);
        let serve = models
            .iter()
            .filter(|model| serves(&cluster, model))
            .count();
        assert_eq!(serve, if early { 3 } else { 0 }, "{operators}");
        cluster.run_for(MINUTE);
        assert!(cluster.is_healthy());
        for model in models {
            assert!(serves(&cluster, model));
            assert_eq!(source(&cluster, model), Some(ProfileSource::Measured));
        }
    }
}

#[test]
fn a_restart_of_the_gateway_interrupts_no_model_that_is_only_estimated() {
    let mut cluster = cluster(&[8192, 8192], MINUTE, &operators(900, 1.0));
    cluster.register("a:1", 30.0);
    cluster.run_until("a serves", SECONDS_5, |c| serves(c, "a:1"));
    cluster.run_for(SECONDS_5);
    let starts = cluster.worker_starts();
    let before = cluster.serving("a:1");
    cluster.kill_gateway(false);
    cluster.start_gateway();
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Estimated));
    cluster.run_until("a serves again", SECONDS_5, |c| serves(c, "a:1"));
    cluster.run_for(SECONDS_5);
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Estimated));
    assert_eq!(
        (cluster.worker_starts(), cluster.serving("a:1")),
        (starts, before)
    );
    cluster.run_for(MINUTE * 2);
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Measured));
}

/// Has a model fail where it is measured, for which its workers there need 200 ms.
fn fail_where_measured(cluster: &mut VirtualCluster, model: &str, on: &[&str]) {
    let key = (model.parse().unwrap(), "sim0".to_owned());
    for node in on {
        let failures = &mut cluster.node(node).behaviour.failures;
        failures.insert(key.clone(), LoadFailure::Dies);
    }
}

#[test]
fn a_model_that_serves_on_its_estimate_stays_where_measuring_it_fails() {
    let mut cluster = cluster(&[8192, 8192], MINUTE, &operators(900, 1.0));
    cluster.register("a:1", 30.0);
    cluster.run_until("a serves", SECONDS_5, |c| serves(c, "a:1"));
    let node = measuring(&cluster, "a:1").unwrap();
    fail_where_measured(&mut cluster, "a:1", &[node.as_str()]);
    cluster.run_for(MINUTE * 2);
    assert!(serves(&cluster, "a:1"));
    assert_eq!(cluster.state("a:1").0, ModelState::Ready);
    assert_eq!(source(&cluster, "a:1"), Some(ProfileSource::Estimated));
    assert_eq!(cluster.controller().measurements(), (0, 0));
    let id = "a:1".parse().unwrap();
    let failed = cluster.controller().measuring_failed_on(&id);
    assert_eq!(failed.count(), 1);
    let told = |notice: &Notice| matches!(notice, Notice::Plan(_, PlanNotice::Degraded, text) if text.contains("estimated profile"));
    assert_eq!(
        cluster.count_notices(packhorse_cluster::Time::ZERO, told),
        1
    );
}

#[test]
fn a_model_that_does_not_serve_leaves_the_plan_where_measuring_it_fails() {
    let mut cluster = cluster(&[8192, 8192], MINUTE / 2, &operators(900, 1.0));
    for node in ["n0", "n1"] {
        cluster.node(node).behaviour.load = Duration::from_secs(50);
    }
    cluster.register("a:1", 30.0);
    cluster.run_for(SECONDS_5);
    assert_eq!(cluster.state("a:1").0, ModelState::Loading);
    let node = measuring(&cluster, "a:1").unwrap();
    fail_where_measured(&mut cluster, "a:1", &[node.as_str()]);
    cluster.run_for(MINUTE);
    let (state, reason) = cluster.state("a:1");
    assert_eq!(state, ModelState::Failed, "{reason}");
    assert_eq!(source(&cluster, "a:1"), None);
    assert!(cluster.is_healthy() && !serves(&cluster, "a:1"));
}

#[test]
fn operators_that_cannot_be_read_change_nothing() {
    for operators in ["", "{", r#"{"parameters":1}"#] {
        let mut cluster = cluster(&[8192, 8192], MINUTE / 6, operators);
        cluster.register("a:1", 30.0);
        cluster.run_for(SECONDS_5);
        assert_eq!(source(&cluster, "a:1"), None);
        cluster.run_until("a serves", MINUTE, |c| serves(c, "a:1"));
    }
}

#[test]
fn where_many_devices_measure_at_once_the_models_wait_for_their_measurements() {
    let mut cluster = cluster(&[8192; 40], MINUTE / 6, &operators(900, 1.0));
    for number in 0..40 {
        cluster.register(&format!("m{number}:1"), 5.0);
    }
    cluster.run_for(SECONDS_5);
    assert_eq!(cluster.controller().measurements(), (40, 0));
    cluster.run_until("all models serve", MINUTE, VirtualCluster::is_healthy);
    assert!(
        cluster
            .controller()
            .profiles()
            .iter()
            .all(|(.., p)| p.source() == ProfileSource::Measured)
    );
}

/// Returns the models that the nodes have inspected without measuring them.
fn inspected(cluster: &VirtualCluster) -> Vec<String> {
    let nodes = cluster.nodes.iter();
    let models = nodes.flat_map(|machine| &machine.inspected);
    models.map(ToString::to_string).collect()
}

const THREE: [&str; 3] = ["a:1", "b:1", "c:1"];

fn all_estimated(cluster: &VirtualCluster) -> bool {
    let estimated = |model: &&str| source(cluster, model) == Some(ProfileSource::Estimated);
    THREE.iter().all(estimated)
}

#[test]
fn models_that_wait_for_their_measurement_are_inspected_meanwhile_and_serve() {
    let mut cluster = cluster(&[8192], MINUTE, &operators(900, 1.0));
    for model in THREE {
        cluster.register(model, 30.0);
    }
    cluster.run_until("all are estimated", SECONDS_5, all_estimated);
    assert_eq!(cluster.controller().measurements(), (1, 2));
    assert_eq!(measuring(&cluster, "a:1"), Some("n0".parse().unwrap()));
    let serve = |c: &VirtualCluster| THREE.iter().all(|model| serves(c, model));
    cluster.run_until("all serve", SECONDS_5, serve);
    cluster.run_for(MINUTE * 3 + SECONDS_5);
    assert!(cluster.is_healthy());
    for model in THREE {
        assert_eq!(source(&cluster, model), Some(ProfileSource::Measured));
    }
    // The first was inspected by its measurement, and nothing twice.
    assert_eq!(inspected(&cluster), ["b:1", "c:1"]);
}

#[test]
fn an_inspection_that_fails_is_not_repeated_and_the_measurement_looks_again() {
    for operators_found in [None, Some("{")] {
        let mut cluster = cluster(&[8192], MINUTE, "");
        let found = operators_found.map(|text| (Duration::from_millis(500), text.to_owned()));
        cluster.node("n0").behaviour.operators = found;
        for model in THREE {
            cluster.register(model, 30.0);
        }
        cluster.run_for(MINUTE / 2);
        assert_eq!(inspected(&cluster), ["b:1", "c:1"]);
        // A model that is removed and registered again may have another program.
        let removal = Command::RemoveModel(name("c"), None);
        cluster.command_and_wait(removal).unwrap();
        cluster.register("c:1", 30.0);
        cluster.run_for(SECONDS_5);
        assert_eq!(inspected(&cluster), ["b:1", "c:1", "c:1"]);
        let known = (Duration::from_millis(500), operators(900, 1.0));
        cluster.node("n0").behaviour.operators = Some(known);
        cluster.run_until("b is measured", MINUTE, |c| measuring(c, "b:1").is_some());
        cluster.run_until("b is estimated", SECONDS_5, |c| {
            source(c, "b:1") == Some(ProfileSource::Estimated)
        });
        assert_eq!(inspected(&cluster).len(), 3);
    }
}

#[test]
fn an_inspection_survives_restarts_and_moves_to_another_node_if_its_node_is_lost() {
    let mut cluster = cluster(&[8192], MINUTE, &operators(900, 1.0));
    cluster.add_node("cpu", "cpu-x", 1, 8192);
    let slow = (Duration::from_secs(2), operators(900, 1.0));
    cluster.node("cpu").behaviour.operators = Some(slow);
    for model in THREE {
        cluster.register(model, 30.0);
    }
    cluster.run_for(Duration::from_millis(100));
    assert_eq!(inspected(&cluster).len(), 2, "on both nodes at once");
    for node in ["n0", "cpu"] {
        let name = node.parse().unwrap();
        cluster.kill_agent(&name);
        cluster.start_agent(&name);
    }
    cluster.kill_gateway(false);
    cluster.start_gateway();
    cluster.run_until("all are estimated", SECONDS_5 * 2, all_estimated);

    cluster.register("d:1", 30.0);
    cluster.register("e:1", 30.0);
    cluster.run_for(Duration::from_millis(100));
    cluster.switch_off(&"cpu".parse().unwrap());
    let estimated = |c: &VirtualCluster| {
        let known = |model| source(c, model) == Some(ProfileSource::Estimated);
        known("d:1") && known("e:1")
    };
    cluster.run_until("both are estimated", MINUTE / 2, estimated);
}

#[test]
fn a_model_that_waits_says_why_it_has_no_estimate() {
    let mut unreadable = cluster(&[8192], MINUTE / 6, "{");
    let mut failed = cluster(&[8192], MINUTE / 6, "{");
    failed.node("n0").behaviour.operators = None;
    for (cluster, why) in [
        (&mut unreadable, "cannot be read"),
        (&mut failed, "the program has no operators"),
    ] {
        cluster.register("a:1", 30.0);
        cluster.register("b:1", 30.0);
        cluster.run_for(SECONDS_5);
        let (state, reason) = cluster.state("b:1");
        assert_eq!(state, ModelState::Profiling, "{reason}");
        assert!(reason.contains("no estimate meanwhile: "), "{reason}");
        assert!(reason.contains(why), "{reason}");
        cluster.run_until("both serve", MINUTE, VirtualCluster::is_healthy);
    }
}

#[test]
fn nothing_is_inspected_where_no_agent_does_it_or_no_estimate_follows() {
    let mut older = cluster(&[8192], MINUTE / 6, &operators(900, 1.0));
    older.node("n0").behaviour.inspects = false;
    let mut cpu = VirtualCluster::new(Settings::default());
    cpu.add_node("n0", "cpu-x", 1, 8192);
    for cluster in [&mut older, &mut cpu] {
        for model in THREE {
            cluster.register(model, 30.0);
        }
        cluster.run_for(MINUTE);
        assert!(cluster.is_healthy());
        assert!(inspected(cluster).is_empty());
        let mut all = cluster.controller().profiles().iter();
        assert!(all.all(|(.., profile)| profile.source() == ProfileSource::Measured));
    }
}

#[test]
fn a_model_that_waits_is_measured_first_where_its_only_device_has_no_memory_for_both() {
    let mut cluster = cluster(&[3000], MINUTE, &operators(1800, 1.0));
    for model in ["a:1", "b:1"] {
        cluster.register(model, 30.0);
    }
    cluster.run_for(MINUTE / 2);
    assert_eq!(source(&cluster, "b:1"), Some(ProfileSource::Estimated));
    let (state, reason) = cluster.state("b:1");
    assert_eq!(state, ModelState::Profiling, "{reason}");
    assert!(reason.contains("measuring another model"), "{reason}");
    cluster.run_for(MINUTE * 2);
    for model in ["a:1", "b:1"] {
        assert!(serves(&cluster, model));
    }
}
