//! What `goodput` estimates of a plan, against what the simulator makes of it, over a grid of random plans.

use std::{fmt::Write as _, fs};

use anyhow::Context as _;
use packhorse_cluster::{DeviceIndex, ModelIndex, PlannedReplica, RequestsPerSecond};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_placement::estimate;
use packhorse_simulator::{Rate, Scenario};
use rayon::prelude::*;

use super::{Experiment, page};
use crate::{
    lab::{Lab, try_plan},
    page::{Claim, Page},
    setting::root,
    sweep::Sweep,
};

pub(crate) struct Estimate;

/// How busy the busiest device, or replica, of a plan is.
const UTILISATIONS: [f64; 8] = [0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3];
const PLANS_EACH: usize = 24;
/// Mean absolute error of the share in time up to [`BUSY`], at most.
const MEAN_ERROR: f64 = 0.03;
const BUSY: f64 = 0.9;
/// By how much more than comes true is promised, at most.
const TOO_BRIGHT: f64 = 0.10;
/// The part of the SLO in which a batch of a plan is computed, at most.
const COMPUTED: f64 = 0.75;
const VARIATIONS: [f64; 3] = [1.0, 2.0, 4.0];
/// Seconds that a run counts. Bursts come and go: of 20 requests/s with a coefficient of variation of 2, eight seconds tell
/// the share in time only to within five points or so.
const WINDOW: u32 = 60;
/// Inference takes so much longer than the profiles say, and the planner is told.
const LATENCY_SCALE: f64 = 1.22;

const MODELS: [(&str, u32); 6] = [
    ("densenet121", 602_112),
    ("efficientnet_b7", 602_112),
    ("resnet50", 602_112),
    ("vgg19", 602_112),
    ("mobilenet_v2", 602_112),
    ("bert", 4_096),
];

/// A linear congruential generator: the grid is the same in every run.
struct Choice(u64);

impl Choice {
    fn of<T: Copy>(&mut self, among: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        among[(self.0 >> 33) as usize % among.len()]
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
        .expect("a string takes everything");
    }
    let mut load = |name: &str| {
        fs::read_to_string(root().join("profiles").join(name)).map_err(|e| e.to_string())
    };
    Scenario::parse(&text, &mut load).context("the scenario of a plan of the grid")
}

/// Seconds and utilisation of a full batch.
fn full(scenario: &Scenario, replica: &PlannedReplica) -> (f64, f64) {
    let profile = scenario
        .problem
        .profile(replica.model, replica.device)
        .expect("the thesis profiled all of them");
    let seconds = profile.latency(replica.batch_size).as_secs_f64() * LATENCY_SCALE;
    let used = profile
        .sm_utilization(replica.batch_size)
        .expect("the thesis measured it");
    (seconds, used.get() / 100.0)
}

/// A random plan and rates with which its busiest device, or replica, is busy for `target` of the time in full batches.
fn point(choice: &mut Choice, target: f64) -> anyhow::Result<(Scenario, Vec<PlannedReplica>)> {
    let devices = choice.of(&[1, 2]);
    let first = choice.of(&[0, 1, 2, 3, 4, 5]);
    let count = choice.of(&[1, 2, 3]);
    let models: Vec<(&str, u32)> = (0..count)
        .map(|i| MODELS[(first + i) % MODELS.len()])
        .collect();
    let mut scenario = scenario(
        devices,
        &models,
        choice.of(&[100, 150, 200, 300, 400]),
        choice.of(&VARIATIONS),
    )?;
    let mut plan: Vec<PlannedReplica> = (0..count.max(devices) + choice.of(&[0, 1, 2]))
        .map(|i| PlannedReplica {
            model: ModelIndex(i % count),
            device: DeviceIndex(i % devices),
            batch_size: choice.of(&[1, 2, 4, 8, 16, 32]),
            compute_share: None,
            duty_cycle: None,
        })
        .collect();
    for replica in &mut plan {
        // Nobody plans batches that cannot be in time.
        let slo = scenario.problem.models[replica.model.0].slo.as_secs_f64();
        while replica.batch_size > 1 && full(&scenario, replica).0 > COMPUTED * slo {
            replica.batch_size /= 2;
        }
    }
    plan.sort_by_key(|replica| (replica.model, replica.device));
    let mut carried = vec![0.0; count];
    let mut busy = vec![0.0; devices];
    for replica in &plan {
        let (seconds, used) = full(&scenario, replica);
        carried[replica.model.0] += f64::from(replica.batch_size) / seconds;
        busy[replica.device.0] += used;
    }
    let most = busy.into_iter().fold(1.0, f64::max);
    for (model, carried) in scenario.problem.models.iter_mut().zip(carried) {
        model.rate = RequestsPerSecond::new(carried * target / most)?;
    }
    for (workload, model) in scenario.workloads.iter_mut().zip(&scenario.problem.models) {
        workload.rate = Rate::constant(model.rate);
    }
    Ok((scenario, plan))
}

/// What a model was promised and what it got, as shares of its requests.
struct Found {
    utilisation: f64,
    /// Coefficient of variation of the gaps between requests.
    cv: f64,
    /// In words: the model, its rate and the plan's number in the grid.
    what: String,
    promised: f64,
    got: f64,
}

impl Found {
    fn too_bright(&self) -> f64 {
        self.promised - self.got
    }
}

/// Every model of every plan of the grid, simulated with each seed.
fn grid(seeds: &[u64]) -> anyhow::Result<Vec<Found>> {
    let mut choice = Choice(7);
    let mut points = Vec::new();
    for utilisation in UTILISATIONS {
        for _ in 0..PLANS_EACH {
            points.push((utilisation, point(&mut choice, utilisation)?));
        }
    }
    let tried = points
        .par_iter()
        .enumerate()
        .map(|(i, (utilisation, (scenario, plan)))| {
            let mut shares = vec![0.0; scenario.problem.models.len()];
            for &seed in seeds {
                let report = try_plan(scenario, plan, seed)?;
                for (got, model) in shares.iter_mut().zip(&report.models) {
                    *got += model.goodput_rps / model.offered_rps / seeds.len() as f64;
                }
            }
            let forecasts = estimate(&scenario.problem, plan);
            let models = scenario.problem.models.iter().zip(forecasts).zip(shares);
            let found = models.map(|((model, forecast), got)| Found {
                utilisation: *utilisation,
                cv: scenario.problem.conditions.burstiness,
                what: format!("{} at {:.1} in plan {}", model.id, model.rate.get(), i + 1),
                promised: forecast.goodput.get() / model.rate.get(),
                got,
            });
            Ok(found.collect::<Vec<Found>>())
        });
    let found = tried.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(found.into_iter().flatten().collect())
}

fn mean_error(found: &[&Found]) -> f64 {
    found
        .iter()
        .map(|model| model.too_bright().abs())
        .sum::<f64>()
        / found.len() as f64
}

fn up_to_busy<'a>(found: &[&'a Found]) -> Vec<&'a Found> {
    let is_busy = |model: &&&Found| model.utilisation <= BUSY;
    found.iter().filter(is_busy).copied().collect()
}

fn brightest<'a>(found: &[&'a Found]) -> Option<&'a Found> {
    let by = |a: &&&Found, b: &&&Found| a.too_bright().total_cmp(&b.too_bright());
    found.iter().max_by(by).copied()
}

fn targets(found: &[&Found]) -> Vec<Claim> {
    let busy = up_to_busy(found);
    let error = mean_error(&busy);
    let mut claims = vec![Claim::new(
        format!("up to a utilisation of {BUSY} the mean absolute error is at most {MEAN_ERROR}"),
        format!("{error:.4} over {} models", busy.len()),
        error <= MEAN_ERROR,
    )];
    claims.extend(brightest(found).map(|model| {
        Claim::new(
            format!("nowhere is {TOO_BRIGHT:.2} more promised than comes true"),
            format!("{:+.3} at most: {}", model.too_bright(), model.what),
            model.too_bright() <= TOO_BRIGHT,
        )
    }));
    claims
}

/// A row for each value of something.
fn table(what: &str, values: &[f64], found: &[&Found], of: impl Fn(&Found) -> f64) -> String {
    let mut text = format!(
        "| {what} | models | mean share found | mean absolute error | too bright by at most | too dark by at most |\n\
         |---|---:|---:|---:|---:|---:|\n"
    );
    for value in values {
        let is_here = |model: &&&Found| (of(model) - value).abs() < 1e-9;
        let here: Vec<&Found> = found.iter().filter(is_here).copied().collect();
        let share = here.iter().map(|model| model.got).sum::<f64>() / here.len() as f64;
        let most = |sign: f64| {
            here.iter()
                .map(|model| sign * model.too_bright())
                .fold(0.0, f64::max)
        };
        writeln!(
            text,
            "| {value} | {} | {share:.3} | {:.4} | {:.3} | {:.3} |",
            here.len(),
            mean_error(&here),
            most(1.0),
            most(-1.0)
        )
        .expect("a string takes everything");
    }
    text
}

/// What was found over what was promised, a dot for each model.
fn figure(found: &[&Found]) -> Figure {
    let names = ["as promised", "0.10 less"].map(str::to_owned);
    let names: Vec<String> = VARIATIONS
        .iter()
        .map(|cv| format!("CV {cv}"))
        .chain(names)
        .collect();
    let panel = |title: String, is_here: &dyn Fn(f64) -> bool| {
        let dots = VARIATIONS.iter().enumerate().map(|(series, cv)| {
            let here = found
                .iter()
                .filter(|model| is_here(model.utilisation) && (model.cv - cv).abs() < 1e-9);
            Curve {
                series,
                stroke: Stroke::Dots,
                points: here
                    .map(|model| (100.0 * model.promised, 100.0 * model.got))
                    .collect(),
            }
        });
        let line = |(i, less): (usize, f64)| Curve {
            series: VARIATIONS.len() + i,
            stroke: Stroke::Line,
            points: vec![(100.0 * less, 0.0), (100.0, 100.0 * (1.0 - less))],
        };
        let lines = [0.0, TOO_BRIGHT].into_iter().enumerate().map(line);
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
        "What `goodput` estimates, and what comes true"
    }

    fn run(&self, lab: &Lab) -> anyhow::Result<(Page, Option<Sweep>)> {
        let found = grid(&lab.seeds)?;
        let mut page = page(self);
        page.paragraph(&format!(
            "The share of each model's requests that is answered in time, as the estimate of `goodput` promises it and as the simulator finds it, for {} random plans: \
             one to three models on one or two V100s, SLOs of 100 to 400 ms, batches of 1 to 32 that take at most {:.0} % of the SLO, gaps between requests with a coefficient of variation of 1, 2 or 4, with rates at which the busiest device or replica computes for \
             the part of the time that is named, in full batches; {WINDOW} seconds of each run count. Inference takes {LATENCY_SCALE} times as long as profiled, and the estimate is told. Dispatched by `deadline`, \
             seeds {:?}.",
            UTILISATIONS.len() * PLANS_EACH,
            100.0 * COMPUTED,
            lab.seeds
        ));
        let found: Vec<&Found> = found.iter().collect();
        page.targets(&targets(&found));
        page.figure("shares", &figure(&found));
        page.heading("By utilisation");
        page.table(&table("utilisation", &UTILISATIONS, &found, |model| {
            model.utilisation
        }));
        page.heading("By burstiness");
        page.paragraph(&format!("Up to a utilisation of {BUSY}:"));
        let busy = up_to_busy(&found);
        page.table(&table("CV", &VARIATIONS, &busy, |model| model.cv));
        Ok((page, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_close_at_utilisations_up_to_0_9_and_nowhere_far_too_bright() {
        let found = grid(&[1]).expect("files of the repository");
        let found: Vec<&Found> = found.iter().collect();
        let busy = up_to_busy(&found);
        let error = mean_error(&busy);
        assert!(error <= MEAN_ERROR, "{error:.4} over {} models", busy.len());
        let model = brightest(&found).expect("a grid of some plans");
        assert!(
            model.too_bright() <= TOO_BRIGHT,
            "{}: {:.3} promised, {:.3} found",
            model.what,
            model.promised,
            model.got
        );
    }
}
