//! Measurements: for the sizes of the inputs that come, and of programs that are known.

use std::time::Duration;

use packhorse_cluster::{
    Dim, InputShapes, ModelId, ModelSpec, Profile, ProfileSource, ProfileTable, ReplicaId, Time,
    TypicalShapes,
};
use packhorse_control::{Command, Drift, Notice, Problem};

use crate::virtual_cluster::{Settings, VirtualCluster, name, spec};

const KIND: &str = "T4";
const MINUTE: Duration = Duration::from_mins(1);

/// Returns a cluster with a node whose workers have libtorch.
fn cluster() -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n", KIND, 1, 8192);
    let node = cluster.node("n");
    node.behaviour.libtorch = Some("2.11.0".to_owned());
    cluster
}

/// Returns the specification of a model whose inputs have any length.
fn of_any_length(model: &str, program: &str) -> ModelSpec {
    let mut spec = named(model, program);
    spec.program.inputs[0].shape[1] = Dim::Any;
    spec
}

/// Returns the specification of a model with the program that a model of the name `program` has.
fn named(model: &str, program: &str) -> ModelSpec {
    let mut renamed = spec(program, 20.0);
    renamed.program.model = model.parse().unwrap();
    renamed
}

fn register(cluster: &mut VirtualCluster, spec: ModelSpec) {
    let register = Command::Register(Box::new(spec), 1 << 20);
    cluster.command_and_wait(register).unwrap();
}

fn profile<'a>(cluster: &'a VirtualCluster, model: &str) -> Option<&'a Profile> {
    let id: ModelId = model.parse().unwrap();
    let profiles = cluster.controller().profiles();
    profiles.get(&id, &KIND.parse().unwrap())
}

fn shapes(cluster: &VirtualCluster, model: &str) -> Option<String> {
    let shapes = profile(cluster, model)?.input_shapes()?;
    Some(shapes.to_string())
}

fn wait_until_served(cluster: &mut VirtualCluster, model: &str) -> Duration {
    cluster.run_until("the model serves", MINUTE, |c| !c.serving(model).is_empty())
}

/// Sends requests of a length to a model from now on.
fn send(cluster: &mut VirtualCluster, model: &str, length: u64) {
    let id: ModelId = model.parse().unwrap();
    cluster.counted.rates.insert(id.clone(), 20.0);
    cluster.counted.input_sizes.insert(id, vec![length]);
}

fn learned(cluster: &VirtualCluster, since: Time) -> usize {
    let is_learned = |notice: &Notice| matches!(notice, Notice::Drift(_, Drift::InputShapes, _));
    cluster.count_notices(since, is_learned)
}

#[test]
fn a_model_is_measured_again_for_the_length_of_its_requests_and_serves_meanwhile() {
    let mut cluster = cluster();
    register(&mut cluster, of_any_length("a:1", "a:1"));
    wait_until_served(&mut cluster, "a:1");
    assert_eq!(shapes(&cluster, "a:1").unwrap(), "-1x16");
    let (id, before): (ModelId, ReplicaId) = ("a:1".parse().unwrap(), cluster.serving("a:1")[0].0);
    cluster.interruptions.insert(id, 0);
    let since = cluster.now;
    send(&mut cluster, "a:1", 128);
    let took = cluster.run_until("it is measured with 128", MINUTE, |c| {
        shapes(c, "a:1").unwrap() == "-1x128"
    });
    assert!(took <= Duration::from_secs(30), "{took:?}");
    let generation = cluster.controller().plan().unwrap().generation;
    cluster.run_for(10 * MINUTE);
    assert_eq!(learned(&cluster, since), 1);
    assert!(cluster.is_healthy());
    assert!(cluster.interruptions.values().all(|count| *count == 0));
    assert_eq!(cluster.serving("a:1")[0].0, before, "{generation:?}");
    // A worker that starts from now on warms up with that length.
    let gateway = cluster.gateway.as_ref().unwrap();
    let replicas = gateway.wanted.values().flat_map(|state| &state.replicas);
    let warm: Vec<String> = replicas
        .map(|replica| InputShapes::tried(&replica.program).to_string())
        .collect();
    assert_eq!(warm, ["-1x128"]);

    // After a restart it is not measured again, and neither is a node of the same kind.
    cluster.kill_gateway(false);
    cluster.start_gateway();
    cluster.counted.input_sizes.clear();
    wait_until_served(&mut cluster, "a:1");
    assert_eq!(shapes(&cluster, "a:1").unwrap(), "-1x128");
    assert_eq!(cluster.controller().measurements(), (0, 0));
    let other = "V100";
    cluster.add_node("m", other, 1, 8192);
    cluster.run_until("it is measured on another kind", MINUTE, |c| {
        let id: ModelId = "a:1".parse().unwrap();
        let profile = c.controller().profiles().get(&id, &other.parse().unwrap());
        profile.is_some_and(|p| p.input_shapes().unwrap().to_string() == "-1x128")
    });
}

#[test]
fn what_the_registration_or_an_import_says_is_not_measured_again() {
    let mut cluster = cluster();
    let mut said = of_any_length("a:1", "a:1");
    said.program.inputs[0].typical_shape = Some(TypicalShapes::one(vec![Dim::Any, Dim::Fixed(32)]));
    register(&mut cluster, said);
    register(&mut cluster, of_any_length("b:1", "b:1"));
    let csv = packhorse_virtual::profile_csv(&"b:1".parse().unwrap(), KIND, 1024);
    let imported = ProfileTable::from_csv(&csv).unwrap();
    cluster
        .command_and_wait(Command::ImportProfiles(imported))
        .unwrap();
    for model in ["a:1", "b:1"] {
        wait_until_served(&mut cluster, model);
        send(&mut cluster, model, 512);
    }
    let since = cluster.now;
    cluster.run_for(10 * MINUTE);
    assert_eq!(learned(&cluster, since), 0);
    assert_eq!(shapes(&cluster, "a:1").unwrap(), "-1x32");
    assert_eq!(shapes(&cluster, "b:1"), None);
}

#[test]
fn an_imported_estimate_is_measured_all_the_same_and_replaces_no_measurement() {
    let mut cluster = cluster();
    let id: ModelId = "a:1".parse().unwrap();
    let csv = packhorse_virtual::profile_csv(&id, KIND, 1024);
    let measured = ProfileTable::from_csv(&csv).unwrap();
    let mut estimates = ProfileTable::default();
    for (id, kind, profile) in measured.iter() {
        let estimate = Profile::estimated(profile.rows().to_vec()).unwrap();
        estimates.insert(id.clone(), kind.clone(), estimate);
    }
    let import = |cluster: &mut VirtualCluster| {
        let command = Command::ImportProfiles(estimates.clone());
        cluster.command_and_wait(command).unwrap();
        profile(cluster, "a:1").unwrap().source()
    };
    assert_eq!(import(&mut cluster), ProfileSource::Estimated);
    register(&mut cluster, named("a:1", "a:1"));
    cluster.run_until("it is measured", MINUTE, |c| {
        profile(c, "a:1").unwrap().source() == ProfileSource::Measured
    });
    assert_eq!(import(&mut cluster), ProfileSource::Measured);
}

#[test]
fn a_known_program_is_not_measured_under_another_name_or_after_its_removal_or_a_restart() {
    let mut cluster = cluster();
    register(&mut cluster, of_any_length("a:1", "a:1"));
    let first = wait_until_served(&mut cluster, "a:1");
    let measured = profile(&cluster, "a:1").unwrap().clone();
    let known = |cluster: &mut VirtualCluster, model: &str| {
        register(cluster, of_any_length(model, "a:1"));
        assert_eq!(profile(cluster, model), Some(&measured), "{model}");
        assert_eq!(cluster.controller().measurements(), (0, 0), "{model}");
    };
    known(&mut cluster, "b:1");
    known(&mut cluster, "a:2");
    let again = wait_until_served(&mut cluster, "b:1");
    assert!(again < first, "{again:?}");
    for model in ["a", "b"] {
        let remove = Command::RemoveModel(name(model), None);
        cluster.command_and_wait(remove).unwrap();
    }
    known(&mut cluster, "c:1");
    cluster.run_for(MINUTE);
    cluster.kill_gateway(false);
    cluster.start_gateway();
    cluster.run_for(MINUTE / 2);
    known(&mut cluster, "d:1");

    // Another program, or another signature of the same one, is measured.
    register(&mut cluster, of_any_length("e:1", "e:1"));
    register(&mut cluster, named("f:1", "a:1"));
    assert!(profile(&cluster, "e:1").is_none() && profile(&cluster, "f:1").is_none());
}

#[test]
fn a_known_length_is_not_measured_twice() {
    let mut cluster = cluster();
    register(&mut cluster, of_any_length("a:1", "a:1"));
    wait_until_served(&mut cluster, "a:1");
    send(&mut cluster, "a:1", 128);
    let is_long = |model: &'static str| {
        move |c: &VirtualCluster| shapes(c, model).as_deref() == Some("-1x128")
    };
    cluster.run_until("it is measured with 128", MINUTE, is_long("a:1"));
    register(&mut cluster, of_any_length("b:1", "a:1"));
    wait_until_served(&mut cluster, "b:1");
    send(&mut cluster, "b:1", 128);
    let starts = cluster.worker_starts();
    cluster.run_until("it is known with 128", MINUTE, is_long("b:1"));
    assert_eq!(cluster.worker_starts(), starts);
    assert_eq!(cluster.controller().measurements(), (0, 0));
}

#[test]
fn a_measurement_that_batches_contradict_is_made_again_for_a_registration_in_its_place() {
    let mut cluster = cluster();
    register(&mut cluster, named("a:1", "a:1"));
    wait_until_served(&mut cluster, "a:1");
    let id: ModelId = "a:1".parse().unwrap();
    cluster.counted.rates.insert(id.clone(), 100.0);
    cluster.slowdowns.insert(id.clone(), 1.6);
    let since = cluster.now;
    cluster.run_for(2 * MINUTE);
    let is_contradicted = |notice: &Notice| matches!(notice, Notice::Finding(_, finding) if finding.problem == Problem::ProfileContradicted);
    assert_eq!(cluster.count_notices(since, is_contradicted), 1);
    let replace = Command::Replace(Box::new(named("a:1", "a:1")), 1 << 20);
    cluster.command_and_wait(replace).unwrap();
    assert!(profile(&cluster, "a:1").is_none());
    cluster.run_until("it is measured again", MINUTE, |c| {
        profile(c, "a:1").is_some()
    });
}

#[test]
fn a_model_that_is_registered_again_with_the_same_program_is_served_again() {
    let mut cluster = cluster();
    register(&mut cluster, named("a:1", "a:1"));
    wait_until_served(&mut cluster, "a:1");
    let starts = cluster.worker_starts();
    for _ in 0..3 {
        let replace = Command::Replace(Box::new(named("a:1", "a:1")), 1 << 20);
        cluster.command_and_wait(replace).unwrap();
        wait_until_served(&mut cluster, "a:1");
    }
    // Its worker has the program already.
    assert_eq!(cluster.worker_starts(), starts);
}
