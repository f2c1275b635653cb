//! The error of the estimate of `goodput` against the simulator, over a grid of random plans.

use std::{fmt::Write as _, fs};

use anyhow::Context as _;
use packhorse_cluster::{DeviceIndex, ModelIndex, PlannedReplica, RequestsPerSecond};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_placement::estimate;
use packhorse_simulator::{Rate, Scenario};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    runner::{Runner, simulate_plan},
    setting::root,
    sweep::Sweep,
};

pub(crate) struct Estimate;

/// The utilisations of the busiest device or replica of a plan.
const UTILISATIONS: [f64; 8] = [0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3];
/// The number of plans per utilisation.
const PLANS_EACH: usize = 24;
/// The largest mean absolute error of the share in time, up to a utilisation of [`BUSY`].
const MAX_MEAN_ERROR: f64 = 0.03;
/// The largest utilisation at which [`MAX_MEAN_ERROR`] holds.
const BUSY: f64 = 0.9;
/// The largest difference of an estimated share and the simulated one.
const MAX_OVERESTIMATE: f64 = 0.10;
/// The largest part of the SLO that the computation of a planned batch takes.
const MAX_COMPUTE_PART: f64 = 0.75;
/// The coefficients of variation of the gaps between requests.
const VARIATIONS: [f64; 3] = [1.0, 2.0, 4.0];
/// The counted time of a run, in seconds. Bursts need a long time: with 20 requests/s and a coefficient of variation of 2, the share in
/// time of eight seconds varies by about five percentage points.
const WINDOW: u32 = 60;
/// The real time of inference over the profile's, which the planner knows.
const LATENCY_SCALE: f64 = 1.22;

/// The models, with the bytes of a request's input.
const MODELS: [(&str, u32); 6] = [
    ("densenet121", 602_112),
    ("efficientnet_b7", 602_112),
    ("resnet50", 602_112),
    ("vgg19", 602_112),
    ("mobilenet_v2", 602_112),
    ("bert", 4_096),
];

/// A linear congruential generator, with which the grid is the same in every run.
struct Random(u64);

impl Random {
    fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        values[(self.0 >> 33) as usize % values.len()]
    }
}

fn scenario(
    devices: usize,
    models: &[(&str, u32)],
    slo_ms: u32,
    cv: f64,
) -> anyhow::Result<Scenario> {
    let mut text = format!(
        "name = \"grid\"\nprofiles = [\"v100-thesis.csv\"]\n[simulation]\nwindow_s = {WINDOW}\nlatency_scale = {LATENCY_SCALE}\narrivals = {{ gamma_cv = {cv:?} }}\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    for (name, bytes) in models {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = 1\nslo_ms = {slo_ms}\npayload_bytes = {bytes}"
        )
        .expect("writing to a string cannot fail");
    }
    let mut load = |name: &str| {
        fs::read_to_string(root().join("profiles").join(name)).map_err(|e| e.to_string())
    };
    Scenario::parse(&text, &mut load).context("the scenario of a plan of the grid")
}

/// Returns the seconds and the SM utilisation of a full batch.
fn full_batch(scenario: &Scenario, replica: &PlannedReplica) -> (f64, f64) {
    let profile = scenario
        .problem
        .profile(replica.model, replica.device)
        .expect("the thesis has profiles of all models");
    let seconds = profile.latency(replica.batch_size).as_secs_f64() * LATENCY_SCALE;
    let used = profile
        .sm_utilization(replica.batch_size)
        .expect("the thesis' profiles have the SM utilisation");
    (seconds, used.get() / 100.0)
}

/// Returns a random plan, and a scenario with rates at which the plan's busiest device or replica has the target utilisation with full
/// batches.
fn random_plan(
    random: &mut Random,
    target: f64,
) -> anyhow::Result<(Scenario, Vec<PlannedReplica>)> {
    let devices = random.choose(&[1, 2]);
    let first = random.choose(&[0, 1, 2, 3, 4, 5]);
    let count = random.choose(&[1, 2, 3]);
    let models: Vec<(&str, u32)> = (0..count)
        .map(|i| MODELS[(first + i) % MODELS.len()])
        .collect();
    let mut scenario = scenario(
        devices,
        &models,
        random.choose(&[100, 150, 200, 300, 400]),
        random.choose(&VARIATIONS),
    )?;
    let mut plan: Vec<PlannedReplica> = (0..count.max(devices) + random.choose(&[0, 1, 2]))
        .map(|i| {
            PlannedReplica::new(
                ModelIndex(i % count),
                DeviceIndex(i % devices),
                random.choose(&[1, 2, 4, 8, 16, 32]),
            )
        })
        .collect();
    for replica in &mut plan {
        // No policy plans batches that cannot be in time.
        let slo = scenario.problem.models[replica.model.0].slo.as_secs_f64();
        while replica.batch_size > 1 && full_batch(&scenario, replica).0 > MAX_COMPUTE_PART * slo {
            replica.batch_size /= 2;
        }
    }
    plan.sort_by_key(|replica| (replica.model, replica.device));
    let mut capacity = vec![0.0; count];
    let mut busy = vec![0.0; devices];
    for replica in &plan {
        let (seconds, used) = full_batch(&scenario, replica);
        capacity[replica.model.0] += f64::from(replica.batch_size) / seconds;
        busy[replica.device.0] += used;
    }
    let busiest = busy.into_iter().fold(1.0, f64::max);
    for (model, capacity) in scenario.problem.models.iter_mut().zip(capacity) {
        model.rate = RequestsPerSecond::new(capacity * target / busiest)?;
    }
    for (workload, model) in scenario.workloads.iter_mut().zip(&scenario.problem.models) {
        workload.rate = Rate::constant(model.rate);
    }
    Ok((scenario, plan))
}

/// The estimated and the simulated share in time of a model of the grid.
struct GridModel {
    /// The utilisation of the plan's busiest device or replica.
    utilisation: f64,
    /// The coefficient of variation of the gaps between requests.
    cv: f64,
    /// The model's name, its rate, and the plan's number in the grid.
    description: String,
    /// The estimated share of the requests in time.
    estimated: f64,
    /// The simulated share of the requests in time.
    simulated: f64,
}

impl GridModel {
    fn overestimate(&self) -> f64 {
        self.estimated - self.simulated
    }
}

/// Simulates every plan of the grid with each seed, and returns their models.
fn simulate_grid(seeds: &[u64]) -> anyhow::Result<Vec<GridModel>> {
    let mut random = Random(7);
    let mut points = Vec::new();
    for utilisation in UTILISATIONS {
        for _ in 0..PLANS_EACH {
            points.push((utilisation, random_plan(&mut random, utilisation)?));
        }
    }
    let simulated = points
        .par_iter()
        .enumerate()
        .map(|(i, (utilisation, (scenario, plan)))| {
            let mut shares = vec![0.0; scenario.problem.models.len()];
            for &seed in seeds {
                let report = simulate_plan(scenario, plan, seed)?;
                for (share, model) in shares.iter_mut().zip(&report.models) {
                    *share += model.goodput_rps / model.offered_rps / seeds.len() as f64;
                }
            }
            let forecasts = estimate(&scenario.problem, plan);
            let models = scenario.problem.models.iter().zip(forecasts).zip(shares);
            let models = models.map(|((model, forecast), simulated)| GridModel {
                utilisation: *utilisation,
                cv: scenario.problem.conditions.burstiness,
                description: format!("{} at {:.1} in plan {}", model.id, model.rate.get(), i + 1),
                estimated: forecast.goodput.get() / model.rate.get(),
                simulated,
            });
            Ok(models.collect::<Vec<GridModel>>())
        });
    let models = simulated.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(models.into_iter().flatten().collect())
}

fn mean_error(models: &[&GridModel]) -> f64 {
    models
        .iter()
        .map(|model| model.overestimate().abs())
        .sum::<f64>()
        / models.len() as f64
}

fn up_to_busy<'a>(models: &[&'a GridModel]) -> Vec<&'a GridModel> {
    let is_up_to_busy = |model: &&&GridModel| model.utilisation <= BUSY;
    models.iter().filter(is_up_to_busy).copied().collect()
}

fn most_overestimated<'a>(models: &[&'a GridModel]) -> Option<&'a GridModel> {
    let order = |a: &&&GridModel, b: &&&GridModel| a.overestimate().total_cmp(&b.overestimate());
    models.iter().max_by(order).copied()
}

fn targets(models: &[&GridModel]) -> Vec<Claim> {
    let busy = up_to_busy(models);
    let error = mean_error(&busy);
    let mut claims = vec![Claim::new(
        format!(
            "up to a utilisation of {BUSY} the mean absolute error is at most {MAX_MEAN_ERROR}"
        ),
        format!("{error:.4} over {} models", busy.len()),
        error <= MAX_MEAN_ERROR,
    )];
    claims.extend(most_overestimated(models).map(|model| {
        Claim::new(
            format!("nowhere is {MAX_OVERESTIMATE:.2} more promised than comes true"),
            format!(
                "{:+.3} at most: {}",
                model.overestimate(),
                model.description
            ),
            model.overestimate() <= MAX_OVERESTIMATE,
        )
    }));
    claims
}

/// Returns a table with a row for each value of a parameter.
fn table(
    parameter: &str,
    values: &[f64],
    models: &[&GridModel],
    value_of: impl Fn(&GridModel) -> f64,
) -> String {
    let mut text = format!(
        "| {parameter} | models | mean share found | mean absolute error | too bright by at most | too dark by at most |\n\
         |---|---:|---:|---:|---:|---:|\n"
    );
    for value in values {
        let has_value = |model: &&&GridModel| (value_of(model) - value).abs() < 1e-9;
        let row: Vec<&GridModel> = models.iter().filter(has_value).copied().collect();
        let share = row.iter().map(|model| model.simulated).sum::<f64>() / row.len() as f64;
        let largest = |sign: f64| {
            row.iter()
                .map(|model| sign * model.overestimate())
                .fold(0.0, f64::max)
        };
        writeln!(
            text,
            "| {value} | {} | {share:.3} | {:.4} | {:.3} | {:.3} |",
            row.len(),
            mean_error(&row),
            largest(1.0),
            largest(-1.0)
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Returns a figure of the simulated over the estimated share, with a dot for each model.
fn figure(models: &[&GridModel]) -> Figure {
    let names = ["as promised", "0.10 less"].map(str::to_owned);
    let names: Vec<String> = VARIATIONS
        .iter()
        .map(|cv| format!("CV {cv}"))
        .chain(names)
        .collect();
    let panel = |title: String, is_shown: &dyn Fn(f64) -> bool| {
        let dots = VARIATIONS.iter().enumerate().map(|(series, cv)| {
            let shown = models
                .iter()
                .filter(|model| is_shown(model.utilisation) && (model.cv - cv).abs() < 1e-9);
            Curve {
                series,
                stroke: Stroke::Dots,
                points: shown
                    .map(|model| (100.0 * model.estimated, 100.0 * model.simulated))
                    .collect(),
            }
        });
        let line = |(i, less): (usize, f64)| Curve {
            series: VARIATIONS.len() + i,
            stroke: Stroke::Line,
            points: vec![(100.0 * less, 0.0), (100.0, 100.0 * (1.0 - less))],
        };
        let lines = [0.0, MAX_OVERESTIMATE].into_iter().enumerate().map(line);
        Panel::Lines(LineChart {
            title,
            x_axis: "% promised".to_owned(),
            y_axis: "% found".to_owned(),
            x_end: Some(100.0),
            y_end: Some(100.0),
            series: Series::from_labels(names.iter().map(String::as_str)),
            curves: lines.chain(dots).collect(),
            reference_lines: Vec::new(),
        })
    };
    Figure {
        title: "Requests in time: promised and found".to_owned(),
        notes: vec!["A dot for each model of the grid.".to_owned()],
        columns: 2,
        panels: vec![
            panel(format!("utilisation up to {BUSY}"), &|busy| busy <= BUSY),
            panel(format!("above {BUSY}"), &|busy| busy > BUSY),
        ],
    }
}

impl Experiment for Estimate {
    fn name(&self) -> &'static str {
        "estimate"
    }

    fn title(&self) -> &'static str {
        "The estimate of `goodput` and the simulated result"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let models = simulate_grid(&runner.seeds)?;
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The share of each model's requests that is answered in time, by the estimate of `goodput` and in the simulation, for {} random plans. The plans have one \
            to three models on one or two V100s, SLOs of 100 to 400 ms, batches of 1 to 32 that take at most {:.0} % of the SLO, and gaps between requests with a \
            coefficient of variation of 1, 2 or 4. Their rates are such that the busiest device or replica has the given utilisation with full batches. {WINDOW} seconds \
            of each run are counted. Inference takes {LATENCY_SCALE} times as long as profiled, which the estimate takes into account. Dispatched by `deadline`, seeds \
            {:?}.",
            UTILISATIONS.len() * PLANS_EACH,
            100.0 * MAX_COMPUTE_PART,
            runner.seeds
        ));
        let models: Vec<&GridModel> = models.iter().collect();
        page.targets(&targets(&models));
        page.figure("shares", &figure(&models));
        page.heading("By utilisation");
        page.table(&table("utilisation", &UTILISATIONS, &models, |model| {
            model.utilisation
        }));
        page.heading("By burstiness");
        page.paragraph(&format!("Up to a utilisation of {BUSY}:"));
        let busy = up_to_busy(&models);
        page.table(&table("CV", &VARIATIONS, &busy, |model| model.cv));
        Ok((page, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_close_up_to_a_utilisation_of_0_9_and_never_far_too_high() {
        let models = simulate_grid(&[1]).expect("files of the repository");
        let models: Vec<&GridModel> = models.iter().collect();
        let busy = up_to_busy(&models);
        let error = mean_error(&busy);
        assert!(
            error <= MAX_MEAN_ERROR,
            "{error:.4} over {} models",
            busy.len()
        );
        let model = most_overestimated(&models).expect("the grid is not empty");
        assert!(
            model.overestimate() <= MAX_OVERESTIMATE,
            "{}: {:.3} estimated, {:.3} simulated",
            model.description,
            model.estimated,
            model.simulated
        );
    }
}
