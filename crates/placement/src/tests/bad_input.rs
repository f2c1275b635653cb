//! Invalid and extreme problems: every policy returns a typed error, or a plan with the reason for each model that it leaves out.

use super::*;
use crate::{IgniterCoefficients, PlanningOptions};

const KIND: &str = "V100-SXM2-16GB";
const COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");

/// The tests spoil alexnet; resnet50 must be served as before.
const ROWS: &str = "
alexnet,V100-SXM2-16GB,4,,2,,300,40,20,30
alexnet,V100-SXM2-16GB,32,,5,,500,45,25,35
resnet50,V100-SXM2-16GB,4,,7,,300,40,20,30
resnet50,V100-SXM2-16GB,32,,20,,500,45,25,35
";

fn valid() -> Problem {
    Problem {
        devices: vec![device(KIND, 16_384); 2],
        models: vec![model("alexnet", 100.0, 200), model("resnet50", 100.0, 200)],
        profiles: profiles(ROWS),
        ..Problem::default()
    }
}

fn plan(entry: &crate::PolicyEntry, problem: &Problem) -> Result<Plan, PlaceError> {
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
    let mut problem = valid();
    spoil(&mut problem);
    for entry in POLICIES {
        let name = entry.name;
        let plan = plan(entry, &problem).unwrap();
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
fn every_policy_serves_a_valid_problem() {
    check("valid", |_| (), &[], true);
}

#[test]
fn profiles_of_unknown_models_and_kinds_change_nothing() {
    let mut problem = valid();
    problem.profiles = profiles(&format!(
        "{}unheard-of,{KIND},1,,1,,1,1,1,1\nalexnet,Z9,1,,1,,1,1,1,1\n",
        ROWS.trim_start()
    ));
    for entry in POLICIES {
        assert_eq!(
            plan(entry, &problem),
            plan(entry, &valid()),
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
fn a_model_without_a_profile_has_that_reason() {
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
fn a_missing_measurement_is_named() {
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
fn the_reason_for_an_slo_below_every_latency_has_the_fastest_batch() {
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
    // Policies that keep half of the SLO for waiting have no batch; a batch of 1 takes 1.68 ms by extrapolation. iGniter's coefficients
    // are those of a faster alexnet.
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
fn models_with_a_rate_of_zero_get_one_replica() {
    let mut problem = valid();
    for model in &mut problem.models {
        model.rate = RequestsPerSecond::ZERO;
    }
    for entry in POLICIES {
        let plan = plan(entry, &problem).unwrap();
        for model in 0..2 {
            assert_eq!(devices_of(&plan, model).len(), 1, "{}", entry.name);
            assert_eq!(plan.models[model].goodput, RequestsPerSecond::ZERO);
            assert_eq!(shortfall(&plan, model), None, "{}", entry.name);
        }
    }
}

#[test]
fn problems_without_devices_or_models_have_a_plan() {
    check(
        "no device",
        |problem| problem.devices.clear(),
        &[("all", &|given| *given == Shortfall::NoDevices)],
        false,
    );
    let problem = Problem {
        models: Vec::new(),
        ..valid()
    };
    for entry in POLICIES {
        assert_eq!(
            plan(entry, &problem).unwrap().replicas,
            [],
            "{}",
            entry.name
        );
    }
}

#[test]
fn the_reason_without_memory_names_the_memory() {
    for mib in [0, 100] {
        let mut problem = valid();
        for device in &mut problem.devices {
            device.memory = ByteCount::from_mib(mib).unwrap();
        }
        for entry in POLICIES {
            let plan = plan(entry, &problem).unwrap();
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
fn the_error_of_an_invalid_problem_names_the_field() {
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
        let mut problem = valid();
        spoil(&mut problem);
        for entry in POLICIES {
            let Err(PlaceError::Invalid(error)) = plan(entry, &problem) else {
                panic!("{} accepts that {expected}", entry.name);
            };
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn invalid_numbers_are_refused_in_profiles_and_rates() {
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
fn extreme_numbers_cause_no_panic() {
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
        let mut problem = valid();
        spoil(&mut problem);
        for entry in POLICIES {
            let plan = plan(entry, &problem);
            let plan = plan.unwrap_or_else(|e| panic!("{} fails on row {row}: {e}", entry.name));
            let goodput = plan.models[0].goodput;
            assert!(goodput <= problem.models[0].rate, "{}", entry.name);
        }
    }
}
