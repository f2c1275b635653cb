//! Whatever is wrong with a problem, every policy answers with a typed error or with a plan that says what it leaves out and why.

use super::*;
use crate::{IgniterCoefficients, PlanningOptions};

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
    let options = PlanningOptions {
        igniter_coefficients: Some(IgniterCoefficients::from_csv(COEFFICIENTS).unwrap()),
        ..PlanningOptions::default()
    };
    let plan = entry.place_with(problem, &options, &mut Budget::unlimited())?;
    assert_eq!(plan.violations(problem), [], "{}", entry.name);
    Ok(plan)
}

/// The names of policies, separated by spaces, or "all", and the reason that they give.
type Reason<'a> = (&'a str, &'a dyn Fn(&Shortfall) -> bool);

/// Checks the `reasons` why alexnet is not served; policies without a reason serve it. If `others` is true, resnet50 is served in full.
#[track_caller]
fn check(what: &str, spoil: fn(&mut Problem), reasons: &[Reason<'_>], others: bool) {
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
                let given = shortfall(&plan, 0).expect("it is not served");
                assert!(reason(given), "{what}: {name} gives {given:?}");
            }
            None => assert_eq!(shortfall(&plan, 0), None, "{what}: {name}"),
        }
        if others {
            assert_eq!(
                shortfall(&plan, 1),
                None,
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

fn no_profile(kind: &str) -> Shortfall {
    Shortfall::NoProfile {
        kinds: vec![kind.parse().unwrap()],
    }
}

#[test]
fn a_model_without_a_profile_is_named() {
    check(
        "no profile of the model",
        |problem| problem.models[0].id = "unheard-of".parse().unwrap(),
        &[("all", &|given| *given == no_profile(KIND))],
        true,
    );
    check(
        "no profile on the kind",
        |problem| problem.devices = vec![device("Z9", 16_384)],
        &[("all", &|given| *given == no_profile("Z9"))],
        false,
    );
}

#[test]
fn a_metric_that_a_policy_needs_and_misses_is_named() {
    fn lacks(column: &'static str) -> impl Fn(&Shortfall) -> bool {
        move |given| *given == Shortfall::MissingColumn { column }
    }
    check(
        "no achieved occupancy",
        |problem| without(7, problem),
        &[("usher ao-milp", &lacks("achieved_occupancy_pct"))],
        true,
    );
    check(
        "no mean occupancy",
        |problem| without(8, problem),
        &[("wao-usher", &lacks("mean_occupancy_pct"))],
        true,
    );
    check(
        "no utilisation",
        |problem| without(9, problem),
        &[("wsm-milp", &lacks("sm_utilization_pct"))],
        true,
    );
    check(
        "no memory",
        |problem| without(6, problem),
        &[
            ("usher wao-usher ao-milp wsm-milp", &lacks("memory_mib")),
            ("first-fit goodput", &|given| {
                *given == Shortfall::UnknownMemory
            }),
        ],
        true,
    );
}

#[test]
fn an_slo_that_nothing_meets_is_said_with_the_fastest_batch() {
    check(
        "SLO below every latency",
        |problem| problem.models[0].slo = Duration::from_micros(1_500),
        &[("all", &|given| {
            let expected = Shortfall::BatchOverSlo {
                slo: Duration::from_micros(1_500),
                batch_size: 4,
                latency: Duration::from_millis(2),
                kind: KIND.parse().unwrap(),
            };
            *given == expected
        })],
        true,
    );
    // Those that keep half of it for waiting have nothing that fits; a batch of 1 takes 1.68 ms as the profile goes on. iGniter's
    // coefficients are of a faster alexnet.
    check(
        "SLO below twice every latency",
        |problem| problem.models[0].slo = Duration::from_micros(2_500),
        &[
            ("nexus", &|given| *given == Shortfall::NoMemoryWithinHalfSlo),
            ("gpulet", &|given| {
                *given == Shortfall::WholeDeviceOverHalfSlo
            }),
            ("gslice", &|given| {
                let slo = Duration::from_micros(2_500);
                *given == Shortfall::NoBatchWithinHalfSlo { slo }
            }),
            ("goodput", &|given| {
                let floor = 3e-3..4e-3;
                matches!(given, Shortfall::RequestOverSlo { latency, .. } if floor.contains(latency))
            }),
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
            assert_eq!(shortfall(&plan, model), None, "{}", entry.name);
        }
    }
}

#[test]
fn no_device_and_no_model_are_no_reason_to_fail() {
    check(
        "no device",
        |problem| problem.devices.clear(),
        &[("all", &|given| *given == Shortfall::NoDevices)],
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
            let given = shortfall(&plan, 0).expect("it is not served");
            assert!(
                given.to_string().contains("memory"),
                "{} gives {given:?}",
                entry.name
            );
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
            "the SLO of model alexnet:1 must be above 0, but is 0",
        ),
        (
            |p| p.models[0].max_batch_size = 0,
            "max_batch_size of model alexnet:1 must be at least 1, but is 0",
        ),
        (
            |p| p.models[0].latency_scale = f64::NAN,
            "latency_scale of model alexnet:1 must be a number above 0, but is NaN",
        ),
        (
            |p| p.devices[1].cost_per_hour = Some(-1.0),
            "cost_per_hour of device 1 must be a number of at least 0, but is -1",
        ),
        (
            |p| p.network.bytes_per_second = 0.0,
            "bytes_per_second of the network must be a number above 0, but is 0",
        ),
        (
            |p| p.conditions.burstiness = f64::INFINITY,
            "the burstiness of arrivals must be a number of at least 0, but is inf",
        ),
        (
            |p| p.conditions.mps_exponent = -1.6,
            "the MPS exponent must be a number of at least 0, but is -1.6",
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
