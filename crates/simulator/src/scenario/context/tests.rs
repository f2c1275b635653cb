use super::*;

use crate::{Scenario, scenario::tests::with_sources};

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, &mut |path| Err(format!("no file {path}")))
}

fn error(text: &str) -> String {
    with_sources(&parse(text).unwrap_err())
}

/// The keys of an export, of which each test changes one.
const EXPORTED: &str = include_str!("exported.toml");

#[test]
fn what_plans_depend_on_is_read_from_an_exported_scenario() {
    let scenario = parse(EXPORTED).unwrap();
    let problem = &scenario.problem;
    let [a, b] = &problem.models[..] else {
        panic!("{:?}", problem.models);
    };
    assert_eq!((a.slo.as_nanos(), u32::from(a.priority)), (123_456_789, 7));
    assert_eq!(a.need.map(RequestsPerSecond::get), Some(12.5));
    assert_eq!((b.need, u32::from(b.priority)), (None, 5));
    let [.., excepted] = &problem.devices[..] else {
        panic!("{:?}", problem.devices);
    };
    let (of_a, of_b) = (
        problem.profile(ModelIndex(0), DeviceIndex(2)),
        problem.profile(ModelIndex(1), DeviceIndex(2)),
    );
    assert!(of_a.is_none() && of_b.is_some());
    assert_eq!(
        (excepted.multiprocessors, excepted.cost_per_hour),
        (None, None)
    );
    assert_eq!(problem.current.len(), 1);
    assert_eq!(problem.observations[0].replicas.len(), 2);
    let context = &scenario.context;
    let policy = context.policy.clone().unwrap();
    let discipline = context.discipline.unwrap();
    let input = scenario.planning_input(policy, PolicyOptions::default(), discipline);
    assert_eq!(input.problem.discipline, Discipline::FixedWait);
    assert_eq!((input.pinned.len(), input.retained.len()), (1, 1));
    assert_eq!(input.rates[&b.id].get().to_string(), "350");
    assert_eq!(input.rates.len(), 3);
    let kinds = input.kinds.values().map(DeviceKind::as_str);
    assert!(kinds.eq(["T4"; 5]));
    // It is written as it was read.
    let text = packhorse_scenario::export_toml("live", &input).unwrap();
    let again = parse(&text).unwrap();
    let again = again.planning_input(
        input.policy.clone(),
        PolicyOptions::default(),
        Discipline::FixedWait,
    );
    assert_eq!(again, input, "{text}");
}

#[test]
fn a_scenario_may_have_no_devices_and_no_models() {
    let scenario = parse("name = \"empty\"\ndevices = []\nmodels = []").unwrap();
    assert_eq!(scenario.problem.devices, []);
    assert_eq!(scenario.problem.models, []);
}

#[test]
fn bad_parts_of_an_export_are_refused_with_field_and_range() {
    for (from, to, expected) in [
        (
            "names = [\"sim0\", \"sim1\"]",
            "names = [\"sim0\"]",
            "devices[0].names: expected 2 names, one for each device, not 1",
        ),
        (
            "names = [\"sim0\", \"sim1\"]",
            "names = [\"sim0\", \"sim0\"]",
            "devices[0].names[1]: device n/sim0 is given twice",
        ),
        (
            "node = \"n\"",
            "node = \"n\"\ngpus_per_node = 1",
            "devices[0].gpus_per_node: expected no number beside a node",
        ),
        ("sm_count = 80", "sm_count = \"many\"", "or \"unknown\""),
        (
            "max_batch_size = 8",
            "max_batch_size = 0",
            "models[0].max_batch_size: expected between 1 and",
        ),
        ("priority = 7", "priority = 10", "priority"),
        (
            "device = \"n/sim1\"",
            "device = \"n/sim2\"",
            "replicas[0].device: the scenario has no device n/sim2",
        ),
        (
            "model = \"a:1\"",
            "model = \"z:1\"",
            "replicas[0].model: the scenario has no model z:1",
        ),
        (
            "batch_size = 4",
            "batch_size = 0",
            "replicas[0].batch_size: expected between 1 and",
        ),
        (
            "batch_size = 4",
            "batch_size = 4\nbackbone = \"12\"",
            "replicas[0].backbone",
        ),
        (
            "kept = \"unless-placed\"\ndevice_kind = \"T4\"",
            "kept = \"unless-placed\"",
            "replicas[2].device_kind: required",
        ),
        (
            "0,T4,b:2,50,100,8",
            "0,V100,b:2,50,100,8",
            "learned.observations: line 3: device_kind",
        ),
        (
            "0,T4,b:2,50,100,8",
            "0,T4,b:2,500,100,8",
            "learned.observations: line 3",
        ),
        ("b:2,T4,8,100,18", "b:2,T4,0,100,18", "learned.profiles"),
    ] {
        assert!(EXPORTED.contains(from), "{from}");
        let found = error(&EXPORTED.replacen(from, to, 1));
        assert!(found.contains(expected), "{found}\nlacks {expected}");
    }
}
