//! Requirements of all policies, and plans of single ones, on small clusters.

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{
    ByteCount, ComputeShare, DemandedModel, Device, DeviceIndex, MinReplicas, ModelIndex, Plan,
    PlannedReplica, Priority, Problem, ProfileTable, RequestsPerSecond, Shortfall,
};

use crate::{Budget, POLICIES, PlaceError, PlanningOptions, policy};

mod bad_input;
mod explain;
mod goodput;
mod gpulet;
mod gslice;
mod igniter;
mod interference;
mod milp;
mod monotone;
mod nexus;
mod optimum;
pub(crate) mod oracle;
mod own_policy;
mod pool;
pub(crate) mod properties;
pub(crate) mod random_problems;
mod remedies;
mod round_robin;
mod smallest_cluster;
mod thesis;
mod usher;

/// Profile rows of a V100 with 16 GiB, where latency is batch / throughput. Source: a part of table A.1 of Elvinger's thesis.
const V100: &str = "
alexnet,V100,4,,1.4277,,272.0,69.17,18.68,47.07
alexnet,V100,32,,5.3418,,458.8,89.94,36.71,96.24
alexnet,V100,128,,18.2240,,1048.6,93.02,45.96,99.00
bert,V100,4,,34.0890,,568.5,85.89,31.83,96.82
bert,V100,8,,65.8272,,665.2,88.46,32.63,98.92
bert,V100,16,,128.1230,,860.2,91.29,33.72,99.51
densenet121,V100,8,,16.9234,,152.4,87.28,12.37,21.26
densenet121,V100,32,,33.5143,,465.3,93.61,49.97,86.92
";

/// The policies that use profiled batch sizes only and place every model that fits.
const BASELINES: [&str; 2] = ["exclusive", "first-fit"];

/// The policies that keep current replicas in place.
const STAYING: [&str; 3] = ["exclusive", "first-fit", "nexus"];

/// Returns the profiles of CSV rows without a header.
pub(crate) fn profiles(rows: &str) -> ProfileTable {
    ProfileTable::from_csv(&format!(
        "{}\n{}",
        ProfileTable::CSV_HEADER,
        rows.trim_start()
    ))
    .unwrap()
}

pub(crate) fn device(kind: &str, mib: u64) -> Device {
    Device {
        kind: kind.parse().unwrap(),
        memory: ByteCount::from_mib(mib).unwrap(),
        multiprocessors: None,
        node: "n".parse().unwrap(),
        cost_per_hour: None,
        pool: None,
    }
}

pub(crate) fn model(name: &str, rate: f64, slo_ms: u64) -> DemandedModel {
    DemandedModel {
        id: name.parse().unwrap(),
        rate: RequestsPerSecond::new(rate).unwrap(),
        need: None,
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        slo: Duration::from_millis(slo_ms),
        max_batch_size: 128,
        payload: ByteCount::new(602_112),
        load_time: Duration::ZERO,
        latency_scale: 1.0,
        weights: None,
    }
}

/// Returns a problem with equal devices, and with models given by name, rate and SLO in ms.
pub(crate) fn equal_devices(
    device: Device,
    count: usize,
    models: &[(&str, f64, u64)],
    profiles: ProfileTable,
) -> Problem {
    Problem {
        devices: vec![device; count],
        models: models
            .iter()
            .map(|&(name, rate, slo)| model(name, rate, slo))
            .collect(),
        profiles,
        ..Problem::default()
    }
}

fn v100s(count: usize, models: &[(&str, f64, u64)]) -> Problem {
    equal_devices(device("V100", 16_384), count, models, profiles(V100))
}

fn replica(model: usize, device: usize, batch_size: u32) -> PlannedReplica {
    PlannedReplica::new(ModelIndex(model), DeviceIndex(device), batch_size)
}

fn place(name: &str, problem: &Problem) -> Plan {
    place_with(name, problem, PlanningOptions::default())
}

fn place_with(name: &str, problem: &Problem, options: impl Into<PlanningOptions>) -> Plan {
    let plan = policy(name)
        .unwrap()
        .place_with(problem, &options.into(), &mut Budget::unlimited())
        .unwrap();
    assert_eq!(plan.violations(problem), []);
    plan
}

/// Returns the plan as a text for snapshots.
fn picture(problem: &Problem, plan: &Plan) -> String {
    let mut text = String::new();
    for (device, kind) in problem.devices() {
        write!(text, "device {} ({}):", device.0, kind.kind).unwrap();
        for replica in plan
            .replicas
            .iter()
            .filter(|replica| replica.device == device)
        {
            write!(
                text,
                " {} x{}",
                problem.models[replica.model.0].id, replica.batch_size
            )
            .unwrap();
        }
        text.push('\n');
    }
    for (model, forecast) in problem.models.iter().zip(&plan.models) {
        write!(
            text,
            "{}: {:.1} of {} requests/s",
            model.id,
            forecast.goodput.get(),
            model.rate
        )
        .unwrap();
        forecast
            .latency
            .iter()
            .for_each(|latency| write!(text, " within {latency:?}").unwrap());
        forecast
            .shortfall
            .iter()
            .for_each(|shortfall| write!(text, "; {shortfall}").unwrap());
        text.push('\n');
    }
    text
}

/// Returns the replicas of a model.
fn replicas_of(plan: &Plan, model: usize) -> impl Iterator<Item = &PlannedReplica> {
    let replicas = plan.replicas.iter();
    replicas.filter(move |replica| replica.model.0 == model)
}

/// Returns the devices of a model's replicas.
fn devices_of(plan: &Plan, model: usize) -> Vec<usize> {
    let replicas = replicas_of(plan, model);
    replicas.map(|replica| replica.device.0).collect()
}

/// Returns the batch sizes of all replicas.
fn batch_sizes(plan: &Plan) -> Vec<u32> {
    let replicas = plan.replicas.iter();
    replicas.map(|replica| replica.batch_size).collect()
}

/// Returns the compute share of a replica in percent; 100 without a limit.
fn share(replica: &PlannedReplica) -> f64 {
    replica.compute_share.map_or(100.0, ComputeShare::get)
}

fn shortfall(plan: &Plan, model: usize) -> Option<&Shortfall> {
    plan.models[model].shortfall.as_ref()
}

#[test]
fn exclusive_gives_devices_in_order_of_registration() {
    let problem = v100s(
        4,
        &[
            ("alexnet", 9_000.0, 200),
            ("densenet121", 500.0, 200),
            ("bert", 200.0, 200),
            ("bert:2", 1.0, 200),
        ],
    );
    insta::assert_snapshot!(picture(&problem, &place("exclusive", &problem)));
}

#[test]
fn first_fit_packs_by_memory_and_time() {
    let problem = v100s(
        3,
        &[
            ("alexnet", 800.0, 200),
            ("densenet121", 500.0, 200),
            ("bert", 200.0, 200),
            ("bert:2", 1.0, 200),
        ],
    );
    insta::assert_snapshot!(picture(&problem, &place("first-fit", &problem)));
}

#[test]
fn two_models_share_the_only_device() {
    let problem = v100s(1, &[("alexnet", 50.0, 200), ("densenet121", 50.0, 200)]);
    let shared = place("first-fit", &problem);
    assert_eq!(
        (devices_of(&shared, 0), devices_of(&shared, 1)),
        (vec![0], vec![0])
    );
    assert_eq!((shortfall(&shared, 0), shortfall(&shared, 1)), (None, None));
    let exclusive = place("exclusive", &problem);
    assert_eq!(
        (devices_of(&exclusive, 0), devices_of(&exclusive, 1)),
        (vec![0], vec![])
    );
    assert_eq!(
        shortfall(&exclusive, 1),
        Some(&Shortfall::NoDeviceWithMemoryLeft)
    );
}

#[test]
fn a_batch_is_small_enough_for_a_request_that_just_missed_one() {
    // A batch of 16 of bert takes 128 ms: within the SLO alone, but not after another batch.
    let problem = v100s(1, &[("bert", 10.0, 200)]);
    assert_eq!(place("first-fit", &problem).replicas[0].batch_size, 8);
    assert_eq!(place("exclusive", &problem).replicas[0].batch_size, 16);
    // At 40 ms even the smallest batch is late after another one: the policy takes the fastest.
    let tight = v100s(1, &[("bert", 10.0, 40)]);
    assert_eq!(place("first-fit", &tight).replicas[0].batch_size, 4);
}

#[test]
fn a_model_with_too_much_load_for_one_device_is_divided() {
    // alexnet at 128 gives 7023.7/s; 85 % of that per device is planned.
    let problem = v100s(3, &[("alexnet", 12_000.0, 200)]);
    let plan = place("first-fit", &problem);
    assert_eq!(devices_of(&plan, 0), [0, 1, 2]);
    assert_eq!(shortfall(&plan, 0), None);
    assert_eq!(devices_of(&place("exclusive", &problem), 0), [0, 1]);
}

#[test]
fn every_model_is_served_before_any_gets_a_second_replica() {
    let problem = v100s(
        2,
        &[
            ("alexnet", 60_000.0, 200),
            ("densenet121", 60_000.0, 200),
            ("bert", 100.0, 200),
        ],
    );
    let plan = place("first-fit", &problem);
    for model in 0..3 {
        assert!(
            !devices_of(&plan, model).is_empty(),
            "model {model}: {:?}",
            shortfall(&plan, model)
        );
    }
    assert!(
        matches!(shortfall(&plan, 0), Some(Shortfall::DeviceTime { .. })),
        "{:?}",
        shortfall(&plan, 0)
    );
}

#[test]
fn models_without_requests_get_a_replica_and_no_more() {
    let problem = v100s(2, &[("bert", 0.0, 200), ("alexnet", 10.0, 200)]);
    // Without coefficients iGniter serves no model.
    for entry in POLICIES.iter().filter(|entry| entry.name != "igniter") {
        let plan = place(entry.name, &problem);
        // Herd has every model with requests on all devices of its group.
        let busy = if entry.name == "herd" { 2 } else { 1 };
        assert_eq!(
            (devices_of(&plan, 0).len(), devices_of(&plan, 1).len()),
            (1, busy),
            "{}",
            entry.name
        );
        assert_eq!(
            (plan.models[0].goodput.get(), shortfall(&plan, 0)),
            (0.0, None)
        );
    }
    // If there are too few devices, models with requests have priority.
    let short = v100s(1, &[("bert", 0.0, 200), ("alexnet", 10.0, 200)]);
    assert_eq!(devices_of(&place("exclusive", &short), 1), [0]);
}

#[test]
fn current_replicas_stay_in_place() {
    for name in STAYING {
        let mut problem = v100s(4, &[("alexnet", 10.0, 200), ("bert", 10.0, 200)]);
        problem.current = vec![replica(1, 0, 8)];
        let plan = place(name, &problem);
        assert_eq!(devices_of(&plan, 1), [0], "{name}");
        problem.current[0].device = DeviceIndex(3);
        assert_eq!(devices_of(&place(name, &problem), 1), [3], "{name}");
        // A device that is gone by now causes no panic.
        problem.current[0].device = DeviceIndex(99);
        assert_eq!(devices_of(&place(name, &problem), 1).len(), 1, "{name}");
    }
}

#[test]
fn a_model_without_a_replica_has_a_reason() {
    let check = |problem: &Problem, expected: &Shortfall| {
        for entry in POLICIES {
            let plan = place(entry.name, problem);
            assert!(plan.replicas.is_empty(), "{}", entry.name);
            assert_eq!(shortfall(&plan, 0), Some(expected), "{}", entry.name);
        }
    };
    let no_profile = |kinds: &[&str]| Shortfall::NoProfile {
        kinds: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
    };
    check(&v100s(0, &[("bert", 1.0, 200)]), &Shortfall::NoDevices);
    check(
        &v100s(1, &[("unheard-of", 1.0, 200)]),
        &no_profile(&["V100"]),
    );
    let mut mixed = v100s(2, &[("bert", 1.0, 200)]);
    mixed.devices = vec![
        device("T4", 16_384),
        device("H200", 16_384),
        device("T4", 16_384),
    ];
    check(&mixed, &no_profile(&["T4", "H200"]));
    check(
        &v100s(1, &[("bert", 1.0, 8)]),
        &Shortfall::BatchOverSlo {
            slo: Duration::from_millis(8),
            batch_size: 4,
            latency: Duration::from_micros(34_089),
            kind: "V100".parse().unwrap(),
        },
    );
}

#[test]
fn a_device_without_the_memory_is_passed_over() {
    let mut problem = v100s(2, &[("bert", 1.0, 200)]);
    problem.devices[0].memory = ByteCount::from_mib(500).unwrap();
    for name in BASELINES {
        assert_eq!(devices_of(&place(name, &problem), 0), [1], "{name}");
    }
    problem.devices.truncate(1);
    assert_eq!(
        shortfall(&place("exclusive", &problem), 0),
        Some(&Shortfall::NoDeviceWithMemoryLeft)
    );
    let packed = place("first-fit", &problem);
    let Some(Shortfall::NoMemoryLeft { needed, left }) = shortfall(&packed, 0) else {
        panic!("{packed:?}");
    };
    assert_eq!(
        (needed.to_string(), left.to_string()),
        ("568.5 MiB".to_owned(), "500.0 MiB".to_owned())
    );
    // 600 MiB suffice for batches of 4 only.
    problem.devices[0].memory = ByteCount::from_mib(600).unwrap();
    for name in BASELINES {
        assert_eq!(place(name, &problem).replicas[0].batch_size, 4, "{name}");
    }
}

#[test]
fn packing_requires_the_memory() {
    let mut problem = v100s(1, &[("m", 1.0, 200)]);
    problem.profiles = profiles("m,V100,1,,10,,,,,");
    assert_eq!(
        shortfall(&place("first-fit", &problem), 0),
        Some(&Shortfall::UnknownMemory)
    );
    assert_eq!(shortfall(&place("exclusive", &problem), 0), None);
}

#[test]
fn the_model_limits_the_batch() {
    let mut problem = v100s(1, &[("alexnet", 1.0, 200)]);
    for (limit, expected) in [(128, 128), (127, 32), (4, 4), (3, 3), (1, 1)] {
        problem.models[0].max_batch_size = limit;
        for name in BASELINES {
            assert_eq!(
                place(name, &problem).replicas[0].batch_size,
                expected,
                "{name}"
            );
        }
    }
}

#[test]
fn contradictions_and_unknown_policies_are_errors() {
    let twice = v100s(1, &[("bert", 1.0, 200), ("bert", 1.0, 200)]);
    for entry in POLICIES {
        let error = entry.place(&twice, &mut Budget::unlimited()).unwrap_err();
        assert!(matches!(error, PlaceError::Invalid(_)), "{error}");
    }
    let unknown = policy("round-robin").err().unwrap().to_string();
    assert_eq!(
        unknown,
        r#"unknown policy "round-robin": expected one of exclusive, first-fit, nexus, usher, wao-usher, ao-milp, wsm-milp, igniter, gpulet, gslice, inss, herd, goodput"#
    );
    assert!(policy(crate::DEFAULT_POLICY).is_ok());
}

#[test]
fn a_budget_ends_the_search_but_changes_no_plan() {
    let problem = v100s(4, &[("alexnet", 9_000.0, 200), ("bert", 200.0, 200)]);
    for entry in POLICIES {
        let result =
            |steps, stop: &dyn Fn() -> bool| entry.place(&problem, &mut Budget::new(steps, stop));
        assert_eq!(result(3, &|| false), Err(PlaceError::OutOfSteps));
        assert_eq!(result(u64::MAX, &|| true), Err(PlaceError::Stopped));
        if entry.name != "goodput" {
            assert_eq!(result(1_000, &|| false), Ok(place(entry.name, &problem)));
        }
    }
}
