//! The evaluation of an actor on problems that it was not trained on: by our estimate, and by the simulator.

use anyhow::Context as _;
use packhorse_cluster::{Discipline, Plan, PlannedReplica, Problem};
use packhorse_placement::{
    Budget, PlanningOptions, estimate,
    inss::{Network, place_by},
    policy,
};
use packhorse_simulator::{PlanReport, Scenario, simulate};
use serde::{Deserialize, Serialize};

use crate::{environment::Pool, random::Random};

/// The held-out problems.
const PROBLEMS: usize = 48;
/// Those that are simulated, the first ones.
const SIMULATED: usize = 12;
/// The seed of the problems, which no training should have.
const SEED: u64 = 0x005e_ed0f_4e1d_0001;
/// The seed of the simulations' arrivals.
const SIMULATION_SEED: u64 = 1;
/// The policies with which the actor is compared.
pub(crate) const OTHERS: [&str; 3] = ["gpulet", "gslice", "goodput"];
/// The steps of the search of `goodput`.
const SEARCH_STEPS: u64 = 20_000;

/// The problems, and how other policies do on them.
pub(crate) struct Evaluation {
    problems: Vec<Problem>,
    scenarios: Vec<Scenario>,
}

/// The means over the held-out problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Score {
    /// The mean over problems of the part of all requests that is in time, by the estimate.
    pub(crate) in_time: f64,
    /// The mean over models of the part of the requests that is late, by the estimate: `v` of the reward.
    pub(crate) late: f64,
    /// The same as `in_time` by the simulator, over the problems that are simulated.
    pub(crate) simulated: f64,
}

impl Evaluation {
    pub(crate) fn new(pool: &Pool) -> anyhow::Result<Self> {
        let mut random = Random::new(SEED);
        let problems: anyhow::Result<Vec<Problem>> =
            (0..PROBLEMS).map(|_| pool.draw(&mut random)).collect();
        let problems = problems?;
        let scenarios: anyhow::Result<Vec<Scenario>> =
            problems[..SIMULATED].iter().map(scenario).collect();
        Ok(Self {
            scenarios: scenarios?,
            problems,
        })
    }

    /// Scores an actor.
    pub(crate) fn of_actor(&self, actor: &Network) -> anyhow::Result<Score> {
        self.score(|problem| {
            let options = PlanningOptions::default();
            Ok(place_by(
                actor,
                problem,
                &options,
                &mut Budget::unlimited(),
            )?)
        })
    }

    /// Scores a policy.
    pub(crate) fn of_policy(&self, name: &str) -> anyhow::Result<Score> {
        let policy = policy(name)?;
        self.score(|problem| {
            let never = || false;
            let mut budget = Budget::new(SEARCH_STEPS, &never);
            Ok(policy.place(problem, &mut budget)?)
        })
    }

    fn score(&self, plan: impl Fn(&Problem) -> anyhow::Result<Plan>) -> anyhow::Result<Score> {
        let mut score = Score::default();
        let mut models = 0.0;
        for (index, problem) in self.problems.iter().enumerate() {
            let plan = plan(problem)?;
            let forecasts = estimate(problem, &plan.replicas);
            let (mut served, mut offered) = (0.0, 0.0);
            for (model, forecast) in problem.models.iter().zip(forecasts) {
                let (rate, goodput) = (model.rate.get(), forecast.goodput.get());
                served += goodput;
                offered += rate;
                score.late += 1.0 - goodput / rate;
                models += 1.0;
            }
            score.in_time += served / offered / PROBLEMS as f64;
            if let Some(scenario) = self.scenarios.get(index) {
                score.simulated += simulated(scenario, &plan.replicas)? / SIMULATED as f64;
            }
        }
        score.late /= models;
        Ok(score)
    }
}

/// Returns the part of the requests in time in the simulator.
fn simulated(scenario: &Scenario, replicas: &[PlannedReplica]) -> anyhow::Result<f64> {
    let report = PlanReport::from_replicas(scenario, replicas);
    let report = simulate(
        scenario,
        report,
        replicas,
        Discipline::Deadline,
        SIMULATION_SEED,
        &mut |_| {},
    )?;
    Ok(report.totals.goodput_rps / report.totals.offered_rps)
}

/// Returns the scenario of a problem.
fn scenario(problem: &Problem) -> anyhow::Result<Scenario> {
    use std::fmt::Write as _;
    let kind = &problem.devices[0].kind;
    let mut text = format!(
        "name = \"held out\"\nprofiles = [\"profiles.csv\"]\n[simulation]\nwarmup_s = 1.0\nwindow_s = 4.0\n\
         [[devices]]\nkind = \"{kind}\"\ncount = {}\ngpus_per_node = {}\n",
        problem.devices.len(),
        problem.devices.len(),
    );
    for model in &problem.models {
        writeln!(
            text,
            "[[models]]\nname = \"{}\"\nrate_rps = {:.3}\nslo_ms = {:.3}\npayload_bytes = {}",
            model.id.name,
            model.rate.get(),
            model.slo.as_secs_f64() * 1e3,
            model.payload.as_u64(),
        )?;
    }
    let profiles = problem.profiles.to_csv();
    Scenario::parse(&text, &mut |_| Ok(profiles.clone())).context("a scenario of a drawn problem")
}
