//! The goodput of plans that are made with profiles estimated from operators, in place of measured ones.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Context as _;
use packhorse_cluster::{
    ByteCount, DeviceKind, Discipline, ModelId, Percent, Profile, ProfileRow, ProfileTable,
    known_kind,
};
use packhorse_estimator::{
    DeviceSheet, Latency,
    dataset::{graphs, leave_one_family_out, measured_models},
};
use packhorse_simulator::{DispatchOptions, Scenario};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    intervals::Interval,
    page::{Claim, Page},
    plan_cache::PlanCache,
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::{GOODPUT, gpu_settings},
};

pub(crate) struct Estimates;

/// The kind of device of the thesis' profiles.
const KIND: &str = "V100-SXM2-16GB";
/// The largest loss of goodput by placing on estimates, in percentage points of the requests.
const MAX_LOSS: f64 = 3.0;
/// The percent of the requests in time above which a plan has enough GPUs.
const SERVED: f64 = 99.5;

/// The profiles that are planned with.
#[derive(Clone, Copy, PartialEq)]
struct Planned {
    label: &'static str,
    /// The factor of the estimated latency; none for the measured latency.
    latency: Option<f64>,
    /// The factor of the estimated memory; none for the measured memory.
    memory: Option<f64>,
    /// The factor of the estimated utilisation of multiprocessors and occupancy; none for the measured ones.
    utilization: Option<f64>,
}

impl Planned {
    const fn new(label: &'static str) -> Self {
        Self {
            label,
            latency: None,
            memory: None,
            utilization: None,
        }
    }

    const fn estimated(label: &'static str, latency: f64, utilization: f64) -> Self {
        Self {
            label,
            latency: Some(latency),
            memory: Some(1.0),
            utilization: Some(utilization),
        }
    }

    /// Returns a row of a profile that is planned with.
    fn row(self, measured: &ProfileRow, estimated: &ProfileRow) -> ProfileRow {
        let used = |measured: Option<Percent>, estimated: Option<Percent>| match self.utilization {
            Some(factor) => estimated.map(|percent| Percent::clamped(percent.get() * factor)),
            None => measured,
        };
        let scaled = |memory: ByteCount, factor: f64| {
            ByteCount::new((memory.as_u64() as f64 * factor) as u64)
        };
        ProfileRow {
            latency: self
                .latency
                .map_or(measured.latency, |factor| estimated.latency.mul_f64(factor)),
            memory: match self.memory {
                Some(factor) => estimated.memory.map(|memory| scaled(memory, factor)),
                None => measured.memory,
            },
            achieved_occupancy: used(measured.achieved_occupancy, estimated.achieved_occupancy),
            mean_occupancy: used(measured.mean_occupancy, estimated.mean_occupancy),
            sm_utilization: used(measured.sm_utilization, estimated.sm_utilization),
            ..*measured
        }
    }
}

/// The measurements, all estimates, the estimate of one quantity each, and all estimates with one of them larger or smaller.
const PLANNED: [Planned; 8] = [
    Planned::new("measured"),
    Planned::estimated("estimated", 1.0, 1.0),
    Planned {
        latency: Some(1.0),
        ..Planned::new("latency only")
    },
    Planned {
        memory: Some(1.0),
        ..Planned::new("memory only")
    },
    Planned {
        utilization: Some(1.0),
        ..Planned::new("utilisation only")
    },
    Planned::estimated("latency + 15 %", 1.15, 1.0),
    Planned::estimated("latency − 10 %", 0.9, 1.0),
    Planned::estimated("utilisation − 15 %", 1.0, 0.85),
];

/// Returns the estimated profiles of the thesis' models at the measured batch sizes, each from models of other families.
fn estimated_profiles(measured: &ProfileTable) -> anyhow::Result<ProfileTable> {
    let kind: DeviceKind = KIND.parse()?;
    let sheet = DeviceSheet::of(&kind).context("a built-in kind")?;
    let path = root().join("profiles/operators/thesis.jsonl");
    let lines = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let models = measured_models(&graphs(&lines)?, measured, &kind, &sheet);
    let fitted = leave_one_family_out(&Latency::default(), &models).coefficients;
    let mut table = ProfileTable::default();
    for model in &models {
        let sizes: Vec<u32> = model
            .batches
            .iter()
            .map(|(row, _)| row.batch_size)
            .collect();
        let coefficients = &fitted[model.family];
        // All sizes are estimated, so that a row can be put together from both.
        let ample = ByteCount::new(u64::MAX);
        let profile = coefficients.profile(&model.graph, &sheet, ample, &sizes);
        let profile = profile.with_context(|| model.name.clone())?;
        table.insert(model.name.parse()?, kind.clone(), profile);
    }
    Ok(table)
}

/// Returns the profiles that are planned with, without the batch sizes for which there is not enough memory.
fn planned_profiles(
    planned: Planned,
    measured: &ProfileTable,
    estimated: &ProfileTable,
) -> anyhow::Result<ProfileTable> {
    let mut table = ProfileTable::default();
    for (model, kind, profile) in measured.iter() {
        let guess = estimated.get(model, kind);
        let guess = guess.with_context(|| format!("{model} has no operators"))?;
        let (memory, _) = known_kind(kind).context("a built-in kind")?;
        let rows = profile.whole().iter().zip(guess.whole());
        let rows = rows.map(|(measured, estimated)| planned.row(measured, estimated));
        let fits = |row: &ProfileRow| row.memory.is_none_or(|needed| needed <= memory);
        if let Ok(profile) = Profile::estimated(rows.take_while(fits).collect()) {
            table.insert(model.clone(), kind.clone(), profile);
        }
    }
    Ok(table)
}

/// The result of a plan.
struct Outcome {
    /// The part of the requests in time with each seed, in percent.
    shares: Vec<f64>,
    /// The number of rules that the plan breaks if the models are as measured.
    violations: usize,
}

/// Plans a setting with profiles, and simulates the plan with the measured ones.
fn outcome(runner: &Runner, setting: &Setting, profiles: &ProfileTable) -> anyhow::Result<Outcome> {
    let scenario = setting.scenario(Calibration::Nominal)?;
    let mut guessed: Scenario = scenario.clone();
    guessed.problem.profiles = profiles.clone();
    let planner = Planner::from_policy(GOODPUT);
    let plan = planner.plan(&guessed, Discipline::Deadline, &PlanCache::default())?;
    let judged = packhorse_cluster::Plan {
        policy: GOODPUT,
        models: packhorse_placement::estimate(&scenario.problem, &plan.replicas),
        replicas: plan.replicas.clone(),
    };
    let mut shares = Vec::new();
    for &seed in &runner.seeds {
        let dispatch = DispatchOptions::from(Discipline::Deadline);
        let report = planner.run(&scenario, &plan, dispatch, seed)?;
        let goodput: f64 = report.models.iter().map(|model| model.goodput_rps).sum();
        let offered: f64 = report.models.iter().map(|model| model.offered_rps).sum();
        shares.push(100.0 * goodput / offered);
    }
    Ok(Outcome {
        shares,
        violations: judged.violations(&scenario.problem).len(),
    })
}

/// Returns the relative errors of the estimated latency of the models of the settings.
fn errors(measured: &ProfileTable, estimated: &ProfileTable) -> BTreeMap<ModelId, f64> {
    let pairs = measured.iter().filter_map(|(model, kind, profile)| {
        let guess = estimated.get(model, kind)?;
        let errors = profile.whole().iter().zip(guess.whole());
        let errors = errors.map(|(m, e)| e.latency.as_secs_f64() / m.latency.as_secs_f64() - 1.0);
        let errors: Vec<f64> = errors.collect();
        Some((
            model.clone(),
            errors.iter().sum::<f64>() / errors.len() as f64,
        ))
    });
    pairs.collect()
}

fn settings() -> Vec<(String, Setting)> {
    let of = |figure: &'static str, most| {
        let settings = gpu_settings(figure, most).into_iter();
        settings.map(move |setting| (format!("{figure}, {}", setting.name()), setting))
    };
    of("6.1", 6).chain(of("6.10", 8)).collect()
}

impl Experiment for Estimates {
    fn name(&self) -> &'static str {
        "estimates"
    }

    fn title(&self) -> &'static str {
        "Placing on estimated profiles"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let settings = settings();
        let measured: Vec<ProfileTable> = settings
            .iter()
            .map(|(_, setting)| Ok(setting.scenario(Calibration::Nominal)?.problem.profiles))
            .collect::<anyhow::Result<_>>()?;
        let all = measured.iter().flat_map(ProfileTable::iter);
        let mut union = ProfileTable::default();
        for (model, kind, profile) in all {
            union.insert(model.clone(), kind.clone(), profile.clone());
        }
        let estimated = estimated_profiles(&union)?;
        let cells: Vec<(usize, Planned)> = (0..settings.len())
            .flat_map(|setting| PLANNED.map(|planned| (setting, planned)))
            .collect();
        let outcomes = cells.into_par_iter().map(|(index, planned)| {
            let profiles = planned_profiles(planned, &measured[index], &estimated)?;
            let (name, setting) = &settings[index];
            outcome(runner, setting, &profiles)
                .with_context(|| format!("{name}, {}", planned.label))
        });
        let outcomes: Vec<Outcome> = outcomes.collect::<anyhow::Result<_>>()?;
        let rows: Vec<&[Outcome]> = outcomes.chunks(PLANNED.len()).collect();
        let mut page = new_page(self);
        page.paragraph(&format!(
            "A model is placed by a profile that is estimated from its operators until it is measured. Below are percent of the requests within the SLO of plans that `{GOODPUT}` makes with \
             measured profiles, with estimated ones, with the estimate of one quantity beside the measurements of the others, and with larger and smaller estimates. Every plan is simulated \
             with the measured profiles, which the dispatcher (`deadline`) knows, in the nominal world with seeds {:?}. Each family of models is estimated by coefficients that were fitted \
             to all other families ([Profiles estimated from operators](estimator.md)). A plan that needs more memory than there is, or a batch that takes longer than the SLO, \
             is simulated as if it could run; *broken rules* counts these.",
            runner.seeds
        ));
        let losses: Vec<f64> = differences(&rows, 1)
            .iter()
            .map(|difference| -difference)
            .collect();
        let measured_shares = rows.iter().map(|row| Interval::new(&row[0].shares).mean);
        let scarce: Vec<f64> = measured_shares
            .zip(&losses)
            .filter_map(|(share, loss)| (share < SERVED).then_some(*loss))
            .collect();
        let claim = |which: &str, loss: f64| {
            Claim::new(
                format!(
                    "placing on estimates costs at most {MAX_LOSS} points of the requests, in the mean of {which}"
                ),
                format!("{loss:.1} points"),
                loss <= MAX_LOSS,
            )
        };
        page.targets(&[
            claim("all settings", mean(&losses)),
            claim("those with too few GPUs for all requests", mean(&scarce)),
        ]);
        page.paragraph("Percent of the requests within the SLO; in brackets the broken rules.");
        page.table(&share_table(&settings, &rows)?);
        page.heading("What it shows");
        page.paragraph(
            "Where there are GPUs enough, nothing is lost. Where there are not, a plan serves some models and leaves others out, and errors of a tenth to a fifth change which. \
             The estimated memory costs nothing here, and the latency at most a point. In 6.1 it is the utilisation on one GPU, and on two GPUs latency and utilisation together, of \
             which each costs less than 3 points alone. A safety margin of latency does not mend that; in the mean it makes it worse. Therefore the gateway plans with the estimates as they are.",
        );
        page.paragraph(
            "In a cluster the loss lasts until the model is measured, which takes about a second for each batch size once a device has begun; the alternative is not to serve the model in that \
             time. There the dispatcher begins with the estimate, too, and learns the true times of batches; here it knows them from the begin.",
        );
        page.heading("The errors of the estimated latency");
        let mut table = "| model | mean error of its batches |\n|---|---:|\n".to_owned();
        for (model, error) in errors(&union, &estimated) {
            writeln!(table, "| {} | {:+.1} % |", model.name, 100.0 * error)?;
        }
        page.table(&table);
        Ok((page, None))
    }
}

/// Returns the difference between the requests in time of the plans in a column and of those for measured profiles, in points.
fn differences(rows: &[&[Outcome]], column: usize) -> Vec<f64> {
    let mean = |outcome: &Outcome| Interval::new(&outcome.shares).mean;
    rows.iter()
        .map(|row| mean(&row[column]) - mean(&row[0]))
        .collect()
}

/// Returns the table of the requests in time.
fn share_table(settings: &[(String, Setting)], rows: &[&[Outcome]]) -> anyhow::Result<String> {
    let labels = PLANNED.map(|planned| planned.label);
    let mut table = format!(
        "| setting | {} |\n|---|{}\n",
        labels.join(" | "),
        "---:|".repeat(labels.len())
    );
    for ((name, _), row) in settings.iter().zip(rows) {
        let cells = row.iter().map(|outcome| {
            let share = Interval::new(&outcome.shares).mean;
            match outcome.violations {
                0 => format!("{share:.1}"),
                broken => format!("{share:.1} ({broken})"),
            }
        });
        let cells: Vec<String> = cells.collect();
        writeln!(table, "| {name} | {} |", cells.join(" | "))?;
    }
    let means =
        (0..PLANNED.len()).map(|column| format!("{:+.1}", mean(&differences(rows, column))));
    let means: Vec<String> = means.collect();
    writeln!(table, "| *mean difference* | {} |", means.join(" | "))?;
    let worst = (0..PLANNED.len()).map(|column| {
        let least = differences(rows, column)
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        format!("{least:+.1}")
    });
    let worst: Vec<String> = worst.collect();
    writeln!(table, "| *worst difference* | {} |", worst.join(" | "))?;
    Ok(table)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
