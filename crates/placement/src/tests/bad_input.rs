//! Whatever is wrong with a problem, every policy answers with a typed error or with a plan that says what it leaves out and why.

use super::*;
use crate::{IgniterCoefficients, PolicyOptions};

const KIND: &str = "V100-SXM2-16GB";
const COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");

/// The victim is alexnet; resnet50 is what must not suffer.
const ROWS: &str = "
alexnet,V100-SXM2-16GB,4,,2,,300,40,20,30
alexnet,V100-SXM2-16GB,32,,5,,500,45,25,35
resnet50,V100-SXM2-16GB,4,,7,,300,40,20,30
resnet50,V100-SXM2-16GB,32,,20,,500,45,25,35
";

fn sound() -> Problem {
    Problem {
        devices: vec![device(KIND, 16_384); 2],
        models: vec![model("alexnet", 100.0, 200), model("resnet50", 100.0, 200)],
        profiles: profiles(ROWS),
        ..Problem::default()
    }
}

fn answer(entry: &crate::PolicyEntry, problem: &Problem) -> Result<Plan, PlaceError> {
    let options = PolicyOptions {
        igniter_coefficients: Some(IgniterCoefficients::from_csv(COEFFICIENTS).unwrap()),
        ..PolicyOptions::default()
    };
    let plan = entry.place_with(problem, &options, &mut Budget::unlimited())?;
    assert_eq!(plan.violations(problem), [], "{}", entry.name);
    Ok(plan)
}

/// `reasons`: what is said of alexnet by which policies, by the beginning of their names; those that none speaks of serve it.
/// resnet50 is served in full if the others are told to.
#[track_caller]
fn check(what: &str, spoil: fn(&mut Problem), reasons: &[(&str, &str)], others: bool) {
    let mut problem = sound();
    spoil(&mut problem);
    for entry in POLICIES {
        let name = entry.name;
        let plan = answer(entry, &problem).unwrap();
        let expected = reasons
            .iter()
            .find(|(policies, _)| policies.split(' ').any(|policy| policy == name))
            .or_else(|| reasons.iter().find(|(policies, _)| *policies == "all"));
        match expected {
            Some((_, reason)) => {
                assert!(devices_of(&plan, 0).is_empty(), "{what}: {name} places it");
                assert_eq!(
                    plan.models[0].goodput,
                    RequestsPerSecond::ZERO,
                    "{what}: {name}"
                );
                let said = shortfall(&plan, 0);
                assert!(said.contains(reason), "{what}: {name} says {said:?}");
            }
            None => assert_eq!(shortfall(&plan, 0), "none", "{what}: {name}"),
        }
        if others {
            assert_eq!(
                shortfall(&plan, 1),
                "none",
                "{what}: {name}, of the other model"
            );
        }
    }
}

fn without(column: usize, problem: &mut Problem) {
    let mut text = String::new();
    for row in ROWS.trim_start().lines() {
        let mut cells: Vec<&str> = row.split(',').collect();
        if cells[0] == "alexnet" {
            cells[column] = "";
        }
        writeln!(text, "{}", cells.join(",")).unwrap();
    }
    problem.profiles = profiles(&text);
}

#[test]
fn a_sound_problem_is_served_by_all() {
    check("sound", |_| (), &[], true);
}

#[test]
fn profiles_of_models_and_kinds_that_nobody_has_change_nothing() {
    let mut problem = sound();
    problem.profiles = profiles(&format!(
        "{}unheard-of,{KIND},1,,1,,1,1,1,1\nalexnet,Z9,1,,1,,1,1,1,1\n",
        ROWS.trim_start()
    ));
    for entry in POLICIES {
        assert_eq!(
            answer(entry, &problem),
            answer(entry, &sound()),
            "{}",
            entry.name
        );
    }
}

#[test]
fn a_model_without_a_profile_is_named() {
    check(
        "no profile of the model",
        |problem| problem.models[0].id = "unheard-of".parse().unwrap(),
        &[("all", "no profile on V100-SXM2-16GB")],
        true,
    );
    check(
        "no profile on the kind",
        |problem| problem.devices = vec![device("Z9", 16_384)],
        &[("all", "no profile on Z9")],
        false,
    );
}

#[test]
fn a_metric_that_a_policy_needs_and_misses_is_named() {
    let achieved = "its profiles have no achieved_occupancy_pct";
    check(
        "no achieved occupancy",
        |problem| without(7, problem),
        &[("usher ao-milp", achieved)],
        true,
    );
    check(
        "no mean occupancy",
        |problem| without(8, problem),
        &[("wao-usher", "its profiles have no mean_occupancy_pct")],
        true,
    );
    check(
        "no utilisation",
        |problem| without(9, problem),
        &[("wsm-milp", "its profiles have no sm_utilization_pct")],
        true,
    );
    check(
        "no memory",
        |problem| without(6, problem),
        &[
            (
                "usher wao-usher ao-milp wsm-milp",
                "its profiles have no memory_mib",
            ),
            (
                "first-fit goodput",
                "its profiles do not say how much memory it needs",
            ),
        ],
        true,
    );
}

#[test]
fn an_slo_that_nothing_meets_is_said_with_the_fastest_batch() {
    check(
        "SLO below every latency",
        |problem| problem.models[0].slo = Duration::from_micros(1_500),
        &[(
            "all",
            "no batch size meets the SLO of 1.5ms: a batch of 4 takes 2ms on V100-SXM2-16GB",
        )],
        true,
    );
    // Those that keep half of it for waiting have nothing that fits; a batch of 1 takes 1.68 ms as the profile goes on. iGniter's
    // coefficients are of a faster alexnet.
    check(
        "SLO below twice every latency",
        |problem| problem.models[0].slo = Duration::from_micros(2_500),
        &[
            (
                "nexus",
                "that leaves a request the time to wait for another one",
            ),
            ("gpulet", "no batch takes less than half of its SLO"),
            ("gslice", "takes less than half of the SLO of 2.5ms"),
            ("goodput", "with the way there and back a request takes 3."),
        ],
        true,
    );
}

#[test]
fn a_rate_of_zero_is_no_reason_to_serve_nothing() {
    let mut problem = sound();
    for model in &mut problem.models {
        model.rate = RequestsPerSecond::ZERO;
    }
    for entry in POLICIES {
        let plan = answer(entry, &problem).unwrap();
        for model in 0..2 {
            assert_eq!(devices_of(&plan, model).len(), 1, "{}", entry.name);
            assert_eq!(plan.models[model].goodput, RequestsPerSecond::ZERO);
            assert_eq!(shortfall(&plan, model), "none", "{}", entry.name);
        }
    }
}

#[test]
fn no_device_and_no_model_are_no_reason_to_fail() {
    check(
        "no device",
        |problem| problem.devices.clear(),
        &[("all", "there is no device")],
        false,
    );
    let problem = Problem {
        models: Vec::new(),
        ..sound()
    };
    for entry in POLICIES {
        assert_eq!(
            answer(entry, &problem).unwrap().replicas,
            [],
            "{}",
            entry.name
        );
    }
}

#[test]
fn memory_that_no_device_has_is_said() {
    for mib in [0, 100] {
        let mut problem = sound();
        for device in &mut problem.devices {
            device.memory = ByteCount::from_mib(mib).unwrap();
        }
        for entry in POLICIES {
            let plan = answer(entry, &problem).unwrap();
            assert_eq!(plan.replicas, [], "{}", entry.name);
            let said = shortfall(&plan, 0);
            assert!(said.contains("memory"), "{} says {said:?}", entry.name);
        }
    }
}

#[test]
fn what_is_no_problem_is_an_error_that_names_the_field() {
    type Spoil = fn(&mut Problem);
    let rows: [(Spoil, &str); 8] = [
        (
            |p| p.models[1].id = p.models[0].id.clone(),
            "model alexnet:1 is given twice",
        ),
        (
            |p| p.models[0].slo = Duration::ZERO,
            "model alexnet:1 has an SLO of zero",
        ),
        (
            |p| p.models[0].max_batch_size = 0,
            "model alexnet:1 has a max_batch_size of 0, which must be at least 1",
        ),
        (
            |p| p.models[0].latency_scale = f64::NAN,
            "latency_scale of model alexnet:1 is NaN, which must be a number above 0",
        ),
        (
            |p| p.devices[1].cost_per_hour = Some(-1.0),
            "cost_per_hour of device 1 is -1, which must be a number of at least 0",
        ),
        (
            |p| p.network.bytes_per_second = 0.0,
            "bytes_per_second of the network is 0, which must be a number above 0",
        ),
        (
            |p| p.conditions.burstiness = f64::INFINITY,
            "the burstiness of arrivals is inf, which must be a number of at least 0",
        ),
        (
            |p| p.conditions.mps_exponent = -1.6,
            "the MPS exponent is -1.6, which must be a number of at least 0",
        ),
    ];
    for (spoil, expected) in rows {
        let mut problem = sound();
        spoil(&mut problem);
        for entry in POLICIES {
            let Err(PlaceError::Invalid(error)) = answer(entry, &problem) else {
                panic!("{} accepts that {expected}", entry.name);
            };
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn numbers_that_are_none_never_become_a_profile_or_a_rate() {
    for bad in ["-1", "NaN", "inf"] {
        for column in 2..10 {
            let mut cells = "alexnet,V100,4,100,2,3,300,40,20,30"
                .split(',')
                .collect::<Vec<_>>();
            cells[column] = bad;
            let text = format!("{}\n{}\n", ProfileTable::CSV_HEADER, cells.join(","));
            let error = ProfileTable::from_csv(&text).unwrap_err().to_string();
            let name = ProfileTable::CSV_HEADER.split(',').nth(column).unwrap();
            assert!(
                error.starts_with("line 2: ") && error.contains(name),
                "{bad}: {error}"
            );
        }
        let rate: f64 = bad.parse().unwrap();
        assert!(RequestsPerSecond::new(rate).is_err());
    }
}

#[test]
fn the_largest_numbers_there_are_are_no_reason_to_panic() {
    type Spoil = fn(&mut Problem);
    let largest = |problem: &mut Problem| {
        problem.models[0].rate = RequestsPerSecond::new(f64::MAX)
            .or_else(|_| RequestsPerSecond::new(1e9))
            .unwrap();
    };
    let rows: [Spoil; 7] = [
        largest,
        |p| p.models[0].rate = RequestsPerSecond::new(f64::MIN_POSITIVE).unwrap(),
        |p| p.models[0].slo = Duration::MAX,
        |p| {
            p.models[0].slo = Duration::MAX;
            p.models[0].rate = RequestsPerSecond::new(f64::MIN_POSITIVE).unwrap();
        },
        |p| p.models[0].payload = ByteCount::new(u64::MAX),
        |p| p.models[0].max_batch_size = u32::MAX,
        |p| p.devices[0].memory = ByteCount::new(u64::MAX),
    ];
    for (row, spoil) in rows.into_iter().enumerate() {
        let mut problem = sound();
        spoil(&mut problem);
        for entry in POLICIES {
            let plan = answer(entry, &problem);
            let plan = plan.unwrap_or_else(|e| panic!("{} fails on row {row}: {e}", entry.name));
            let promised = plan.models[0].goodput;
            assert!(promised <= problem.models[0].rate, "{}", entry.name);
        }
    }
}
