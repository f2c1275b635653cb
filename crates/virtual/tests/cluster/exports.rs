//! The scenario that is exported of a cluster: it has everything that a plan is made of, whatever has happened to the cluster.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    MinReplicas, ModelSpec, Percent, PolicyOptions, Priority, ProfileSource, RateMode,
    RequestsPerSecond, VariantOf,
};
use packhorse_control::{Command, PlanReason, PlanningInput, SolveError, record};
use packhorse_scenario::export_toml;
use packhorse_simulator::{PlanReport, Scenario};
use proptest::strategy::ValueTree as _;

use crate::{
    histories::{History, Step, number, steps},
    solver,
    virtual_cluster::{VirtualCluster, WEIGHTS, name, spec},
};

/// The number of histories if nothing else is asked for.
const HISTORIES: u64 = 100;
/// The policies of clusters, which take turns.
const POLICIES: [&str; 4] = ["first-fit", "nexus", "usher", "gpulet"];
/// The number of histories of which one has its last plan compared by the policy `goodput`, which takes longer.
const SEARCHED: u64 = 4;

/// Reads an exported scenario as the command does.
fn read(text: &str) -> (Scenario, PlanningInput) {
    let mut none = |path: &str| Err(format!("an export names no file, but {path}"));
    let scenario = Scenario::parse(text, &mut none);
    let scenario = scenario.unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let context = &scenario.context;
    let input = scenario.planning_input(
        context.policy.clone().unwrap(),
        context.options.unwrap(),
        context.discipline.unwrap(),
    );
    (scenario, input)
}

/// Returns the plan for an input as `packhorse plan --json` prints it, or why there is none.
fn report(scenario: &Scenario, input: &PlanningInput) -> Result<String, SolveError> {
    let solution = solver::solve(input, 0.0)?;
    let planned = Scenario {
        problem: input.at(solution.mix).problem,
        ..scenario.clone()
    };
    let report = PlanReport::new(&planned, &solution.plan, 0.0);
    Ok(serde_json::to_string(&report).unwrap())
}

/// Returns the parts of an input that only some clusters have.
fn parts(input: &PlanningInput) -> impl Iterator<Item = &'static str> {
    let problem = &input.problem;
    let replicas = || problem.current.iter();
    let known = input.devices.iter().zip(&problem.devices);
    let parts = [
        (
            "a model without devices",
            problem.devices.is_empty() && !problem.models.is_empty(),
        ),
        ("no model", problem.models.is_empty()),
        ("a current plan", !problem.current.is_empty()),
        (
            "a shared worker",
            replicas().any(|replica| replica.backbone.is_some()),
        ),
        (
            "a member of a pool",
            replicas().any(|replica| replica.pool.is_some()),
        ),
        (
            "a duty cycle",
            replicas().any(|replica| replica.duty_cycle.is_some()),
        ),
        (
            "a compute share",
            replicas().any(|replica| replica.compute_share.is_some()),
        ),
        ("an observation", !problem.observations.is_empty()),
        ("a backbone", !input.backbones.is_empty()),
        (
            "a family",
            input
                .families
                .iter()
                .any(|family| family.variants.len() > 1),
        ),
        ("a pinned replica", !input.pinned.is_empty()),
        ("a retained replica", !input.retained.is_empty()),
        (
            "an estimate",
            problem
                .profiles
                .iter()
                .any(|(.., p)| p.source() == ProfileSource::Estimated),
        ),
        (
            "a need",
            problem
                .models
                .iter()
                .any(|model| model.need.is_some_and(|need| need.get() > 0.0)),
        ),
        (
            "a least number of replicas",
            problem
                .models
                .iter()
                .any(|model| model.min_replicas.get() > 1),
        ),
        (
            "a device without a model",
            known
                .clone()
                .any(|(id, device)| input.kinds[id] != device.kind),
        ),
        (
            "a rate that pinned replicas serve",
            problem
                .models
                .iter()
                .any(|model| model.rate != input.rates[&model.id]),
        ),
    ];
    parts
        .into_iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(part, _)| part)
}

/// The parts of inputs that occur in the histories.
const PARTS: usize = 17;

/// Compares what a cluster plans with, and its plan by a policy, with those of the exported scenario. Notes what there was to compare.
fn compare(
    cluster: &VirtualCluster,
    policy: &str,
    plans: bool,
    occurred: &mut BTreeMap<&'static str, usize>,
) {
    if cluster.gateway.is_none() {
        return;
    }
    let controller = cluster.controller();
    let input = controller.planning_input(policy.to_owned(), PlanReason::Preview.into());
    let text = export_toml("live", &input).unwrap();
    let (scenario, found) = read(&text);
    assert_eq!(found, input, "{text}");
    if plans {
        assert_eq!(report(&scenario, &found), report(&scenario, &input));
    }
    for part in parts(&input) {
        *occurred.entry(part).or_default() += 1;
    }
}

/// Returns the policy of the cluster of a seed.
fn policy(seed: u64) -> &'static str {
    POLICIES[usize::try_from(seed % POLICIES.len() as u64).unwrap()]
}

/// Registers models that have something that those of the histories have not: variants, versions, priorities and other rates.
fn register_others(cluster: &mut VirtualCluster, seed: u64) {
    let variant = |model: &str, accuracy: f64, rate: f64| ModelSpec {
        variant: Some(VariantOf {
            family: name("f"),
            accuracy: Percent::new(accuracy).unwrap(),
        }),
        ..spec(model, rate)
    };
    let specs = [
        variant("good:1", 90.7, 33.3 * (seed % 7) as f64),
        variant("cheap:1", 61.3, 0.1),
        ModelSpec {
            priority: Priority::new(u32::try_from(seed % 10).unwrap()).unwrap(),
            slo: Duration::from_nanos(123_456_789),
            rate: RequestsPerSecond::new(0.1 + 0.2 * seed as f64).ok(),
            rate_mode: RateMode::Min,
            ..spec("v:1", 1.0)
        },
        ModelSpec {
            min_replicas: MinReplicas::new(1 + u32::try_from(seed % 3).unwrap()).unwrap(),
            ..spec("v:2", 70.0)
        },
    ];
    for spec in specs {
        cluster.command(Command::Register(Box::new(spec), WEIGHTS / 3));
        cluster.run_for(Duration::from_millis(100));
    }
    cluster.command(Command::ChangeSettings(record::Settings {
        policy: Some(policy(seed).to_owned()),
        options: Some(PolicyOptions {
            nexus_published: seed % 2 == 1,
            ..PolicyOptions::default()
        }),
        discipline: None,
    }));
}

/// Lets a history happen, and compares after some of its steps.
fn happen(seed: u64, steps: &[Step], trace: bool, occurred: &mut BTreeMap<&'static str, usize>) {
    let mut history = History::new(seed);
    history.cluster.trace = trace;
    compare(&history.cluster, policy(seed), true, occurred);
    history.cluster.add_node("a100", "A100", 2, 5000);
    register_others(&mut history.cluster, seed);
    for (number, step) in steps.iter().enumerate() {
        history.cluster.print(|| format!("*** {step:?}"));
        history.take(step);
        let is_last = number + 1 == steps.len();
        let policy = if is_last && seed.is_multiple_of(SEARCHED) {
            "goodput"
        } else {
            policy(seed)
        };
        if is_last || number % 4 == 3 {
            compare(&history.cluster, policy, is_last, occurred);
        }
    }
}

/// The variables `PACKHORSE_SEED` (one seed, with its trace), `PACKHORSE_SEEDS` (how many) and `PACKHORSE_FIRST_SEED` choose the histories.
#[test]
fn the_exported_scenario_of_any_history_has_the_plan_of_the_gateway() {
    let mut occurred = BTreeMap::new();
    if let Some(seed) = number("PACKHORSE_SEED") {
        let seed = seed as u64;
        happen(seed, &steps(seed).current(), true, &mut occurred);
        return;
    }
    let first = number("PACKHORSE_FIRST_SEED").unwrap_or(0.0) as u64;
    let seeds = number("PACKHORSE_SEEDS").unwrap_or(HISTORIES as f64) as u64;
    for seed in first..first + seeds {
        // The last one that is printed is the one that fails.
        println!("PACKHORSE_SEED={seed}");
        happen(seed, &steps(seed).current(), false, &mut occurred);
    }
    println!("{seeds} histories from seed {first} had {occurred:?}");
    assert!(seeds < HISTORIES || occurred.len() >= PARTS, "{occurred:?}");
}
