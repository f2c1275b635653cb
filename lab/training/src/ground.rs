//! The settings in which the trained policy is compared with others, in the simulator.

use std::{fs, path::Path, time::Duration};

use anyhow::Context as _;
use packhorse_cluster::{BatchStep, Discipline, Plan, PolicyOptions};
use packhorse_placement::{
    Budget, IgniterCoefficients, PlanningOptions, batches_within_half_slo,
    inss::{Network, place_by},
    policy,
};
use packhorse_simulator::{PlanReport, Scenario, simulate};

/// The seeds of the arrivals.
const SEEDS: [u64; 3] = [1, 2, 3];
/// The steps of the search of `goodput`.
const SEARCH_STEPS: u64 = 50_000;

/// Where a plan comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planner {
    /// The trained actor.
    Actor,
    /// A policy with its own batch sizes.
    Policy(&'static str),
    /// A policy with the largest batches within half of the SLO.
    HalfSlo(&'static str),
    /// A policy with batch sizes by BDA.
    Bda(&'static str),
}

impl Planner {
    pub(crate) fn label(self) -> String {
        match self {
            Self::Actor => "inss".to_owned(),
            Self::Policy(name) => name.to_owned(),
            Self::HalfSlo(name) => format!("{name}, batches within SLO / 2"),
            Self::Bda(name) => format!("{name}, bda"),
        }
    }

    fn plan(self, actor: &Network, scenario: &Scenario) -> anyhow::Result<Plan> {
        let problem = scenario.problem_at_start();
        let coefficients = scenario.igniter_coefficients.as_deref();
        let mut options = PlanningOptions {
            igniter_coefficients: coefficients
                .map(IgniterCoefficients::from_csv)
                .transpose()?,
            policy: PolicyOptions::default(),
        };
        let never = || false;
        let mut budget = Budget::new(SEARCH_STEPS, &never);
        Ok(match self {
            Self::Actor => place_by(actor, &problem, &options, &mut budget)?,
            Self::Policy(name) => policy(name)?.place_with(&problem, &options, &mut budget)?,
            Self::HalfSlo(name) => {
                let mut plan = policy(name)?.place_with(&problem, &options, &mut budget)?;
                batches_within_half_slo(&problem, &options, &mut plan);
                plan
            }
            Self::Bda(name) => {
                options.policy.batch_step = BatchStep::Bda;
                policy(name)?.place_with(&problem, &options, &mut budget)?
            }
        })
    }

    /// Returns the requests per second in time and those offered, the means over the seeds.
    pub(crate) fn run(
        self,
        actor: &Network,
        scenario: &Scenario,
        discipline: Discipline,
    ) -> anyhow::Result<Outcome> {
        let plan = self.plan(actor, scenario)?;
        let mut outcome = Outcome::default();
        for seed in SEEDS {
            let report = PlanReport::new(scenario, &plan, 0.0);
            let report = simulate(
                scenario,
                report,
                &plan.replicas,
                discipline,
                seed,
                &mut |_| {},
            )?;
            outcome.goodput += report.totals.goodput_rps / SEEDS.len() as f64;
            outcome.offered += report.totals.offered_rps / SEEDS.len() as f64;
        }
        Ok(outcome)
    }
}

/// The result of simulations, in requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Those answered within the SLO.
    pub(crate) goodput: f64,
    /// Those sent.
    pub(crate) offered: f64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.goodput += other.goodput;
        self.offered += other.offered;
    }
}

/// Returns the setting of a scenario file with a number of GPUs and multiples of its rates.
pub(crate) fn setting(root: &Path, file: &str, gpus: i64, rates: f64) -> anyhow::Result<Scenario> {
    let path = root.join("scenarios").join(file);
    let context = || path.display().to_string();
    let mut table: toml::Table = fs::read_to_string(&path)
        .with_context(context)?
        .parse()
        .with_context(context)?;
    for device in tables(&mut table, "devices") {
        device.insert("count".to_owned(), gpus.into());
    }
    for model in tables(&mut table, "models") {
        let rate = model.get("rate_rps").and_then(|rate| {
            let whole = rate.as_integer().map(|rate| rate as f64);
            whole.or_else(|| rate.as_float())
        });
        let rate = rate.with_context(|| format!("{}: expected rates", context()))?;
        model.insert("rate_rps".to_owned(), (rate * rates).into());
    }
    let folder = path.parent().unwrap_or(root);
    let mut load = |name: &str| fs::read_to_string(folder.join(name)).map_err(|e| e.to_string());
    Scenario::parse(&table.to_string(), &mut load).with_context(context)
}

fn tables<'t>(table: &'t mut toml::Table, key: &str) -> impl Iterator<Item = &'t mut toml::Table> {
    let values = table.get_mut(key).and_then(toml::Value::as_array_mut);
    let values = values.into_iter().flatten();
    values.filter_map(toml::Value::as_table_mut)
}

/// Returns the setting with a longest wait for a batch of half of the SLO, which all models share.
pub(crate) fn waiting_half_the_slo(mut scenario: Scenario) -> Scenario {
    let slos = scenario.problem.models.iter().map(|model| model.slo);
    let half = slos.min().unwrap_or(Duration::ZERO) / 2;
    scenario.max_batch_wait = half;
    scenario.problem.conditions.max_batch_wait = half;
    scenario
}
