//! The error of profiles that are estimated from operators, on families of models that were left out of the fit, and the goodput of plans
//! that are made with them.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Context as _;
use packhorse_cluster::{DeviceKind, Discipline, ModelId, ProfileTable};
use packhorse_estimator::{
    Coefficients, DeviceSheet, Latency,
    dataset::{LeftOut, MeasuredModel, Prediction, graphs, leave_one_family_out, measured_models},
};
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use packhorse_simulator::{DispatchOptions, Scenario};
use rayon::prelude::*;

use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    plan_cache::PlanCache,
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::Sweep,
    thesis::GOODPUT,
};

pub(crate) struct Estimator;

/// The kind of device of the thesis' profiles.
const THESIS_KIND: &str = "V100-SXM2-16GB";
/// The kind of device of the profiles of Clockwork's zoo, a V100 of which no more is published.
const CLOCKWORK_KIND: &str = "V100";
/// The number of models of the zoo's appendix.
const ZOO: usize = 64;
/// The host's time per operator from which the fit to Clockwork's measurements starts, in microseconds: TVM's host does little.
const TVM_HOST_CALL_US: f64 = 0.5;
/// The batch sizes of an estimated profile that is planned with: those of the thesis.
const BATCH_SIZES: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// The largest loss of goodput by placing on estimates, in percentage points of the requests.
const MAX_LOSS: f64 = 3.0;

/// Returns the models of a set of profiles whose operators are known.
fn models(operators: &str, profiles: &str, kind: &str) -> anyhow::Result<Vec<MeasuredModel>> {
    let read = |name: String| {
        let path = root().join("profiles").join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let sheet = sheet()?;
    Ok(measured_models(
        &graphs(&read(format!("operators/{operators}.jsonl"))?)?,
        &ProfileTable::from_csv(&read(format!("{profiles}.csv"))?)?,
        &kind.parse()?,
        &sheet,
    ))
}

fn sheet() -> anyhow::Result<DeviceSheet> {
    DeviceSheet::of(&THESIS_KIND.parse::<DeviceKind>()?).context("a built-in kind")
}

/// Returns a quantile of the sizes of relative errors, in percent.
fn quantile<'a>(predictions: impl Iterator<Item = &'a Prediction>, part: f64) -> f64 {
    let mut errors: Vec<f64> = predictions.map(|p| 100.0 * p.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let index = (errors.len().saturating_sub(1) as f64 * part).round() as usize;
    errors.get(index).copied().unwrap_or(f64::NAN)
}

/// Returns the median of the sizes of absolute errors.
fn median_difference(predictions: &[Prediction]) -> f64 {
    let difference = |p: &Prediction| (p.predicted - p.measured).abs();
    let mut differences: Vec<f64> = predictions.iter().map(difference).collect();
    differences.sort_by(f64::total_cmp);
    differences[differences.len() / 2]
}

fn families(predictions: &[Prediction]) -> BTreeMap<&'static str, Vec<&Prediction>> {
    let mut families: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for prediction in predictions {
        families
            .entry(prediction.family)
            .or_default()
            .push(prediction);
    }
    families
}

/// Returns a table with a row for each family.
fn family_table(predictions: &[Prediction]) -> String {
    let mut text =
        "| family | models | batches | median error | largest error | mean, with its sign |\n\
                    |---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (family, members) in families(predictions) {
        let names: BTreeMap<&str, ()> = members.iter().map(|p| (p.model.as_str(), ())).collect();
        let mean = members.iter().map(|p| 100.0 * p.error()).sum::<f64>() / members.len() as f64;
        writeln!(
            text,
            "| {family} | {} | {} | {:.1} % | {:.1} % | {mean:+.1} % |",
            names.len(),
            members.len(),
            quantile(members.iter().copied(), 0.5),
            quantile(members.iter().copied(), 1.0),
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Returns a figure of the estimated over the measured times, with a dot for each batch.
fn figure(sets: &[(&str, &LeftOut)]) -> Figure {
    let panel = |(title, left_out): &(&str, &LeftOut)| {
        let families = families(&left_out.latency_ms);
        let end = left_out
            .latency_ms
            .iter()
            .map(|p| p.measured)
            .fold(1.0, f64::max)
            .log10();
        let dots = families
            .values()
            .enumerate()
            .map(|(series, members)| Curve {
                series,
                stroke: Stroke::Dots,
                points: members
                    .iter()
                    .map(|p| (p.measured.log10().max(0.0), p.predicted.log10().max(0.0)))
                    .collect(),
            });
        let line = Curve {
            series: families.len(),
            stroke: Stroke::Line,
            points: vec![(0.0, 0.0), (end, end)],
        };
        let names = families.keys().copied().chain(["as measured"]);
        Panel::Lines(LineChart {
            title: (*title).to_owned(),
            x_axis: "log10 of ms measured".to_owned(),
            y_axis: "log10 of ms estimated".to_owned(),
            x_end: Some(end),
            y_end: Some(end),
            series: Series::from_labels(names),
            curves: std::iter::once(line).chain(dots).collect(),
            reference_lines: Vec::new(),
        })
    };
    Figure {
        title: "Times of batches: measured, and estimated from other families".to_owned(),
        notes: vec!["A dot for each model and batch size of at least 1 ms.".to_owned()],
        columns: 2,
        panels: sets.iter().map(panel).collect(),
    }
}

/// Returns the estimated profiles of the thesis' models, each from models of other families.
fn estimated_profiles(
    models: &[MeasuredModel],
    coefficients: &BTreeMap<&'static str, Coefficients>,
) -> anyhow::Result<ProfileTable> {
    let kind: DeviceKind = THESIS_KIND.parse()?;
    let (memory, _) = packhorse_cluster::known_kind(&kind).context("a built-in kind")?;
    let sheet = sheet()?;
    let mut table = ProfileTable::default();
    for model in models {
        let coefficients = &coefficients[model.family];
        let profile = coefficients.profile(&model.graph, &sheet, memory, &BATCH_SIZES);
        let id: ModelId = model.name.parse()?;
        table.insert(
            id,
            kind.clone(),
            profile.with_context(|| model.name.clone())?,
        );
    }
    Ok(table)
}

/// The shares of requests in time in a setting, in percent.
struct Placed {
    setting: String,
    measured: f64,
    estimated: f64,
}

/// Plans each setting with measured and with estimated profiles, and simulates both plans with the measured ones.
fn place(runner: &Runner, estimated: &ProfileTable) -> anyhow::Result<Vec<Placed>> {
    let settings = [("6.1", 2..=4), ("6.10", 3..=6)]
        .into_iter()
        .flat_map(|(figure, gpus)| {
            gpus.map(move |gpus| {
                (
                    format!("{figure}, {gpus} GPUs"),
                    Setting::with_gpus(figure, gpus),
                )
            })
        });
    let settings: Vec<(String, Setting)> = settings.collect();
    let placed = settings.into_par_iter().map(|(name, setting)| {
        let scenario = setting.scenario(Calibration::Nominal)?;
        let mut guessed = scenario.clone();
        guessed.problem.profiles = estimated.clone();
        let share = |planned_for: &Scenario| -> anyhow::Result<f64> {
            let planner = Planner::from_policy(GOODPUT);
            let plan = planner.plan(planned_for, Discipline::Deadline, &PlanCache::default())?;
            let mut share = 0.0;
            for &seed in &runner.seeds {
                let dispatch = DispatchOptions::from(Discipline::Deadline);
                let report = planner.run(&scenario, &plan, dispatch, seed)?;
                let goodput: f64 = report.models.iter().map(|model| model.goodput_rps).sum();
                let offered: f64 = report.models.iter().map(|model| model.offered_rps).sum();
                share += 100.0 * goodput / offered / runner.seeds.len() as f64;
            }
            Ok(share)
        };
        Ok(Placed {
            measured: share(&scenario)?,
            estimated: share(&guessed)?,
            setting: name,
        })
    });
    placed.collect()
}

fn placement_table(placed: &[Placed]) -> String {
    let mut text = "| setting | planned on measurements | planned on estimates | difference |\n|---|---:|---:|---:|\n".to_owned();
    for row in placed {
        writeln!(
            text,
            "| {} | {:.1} % | {:.1} % | {:+.1} |",
            row.setting,
            row.measured,
            row.estimated,
            row.estimated - row.measured
        )
        .expect("writing to a string cannot fail");
    }
    text
}

fn targets(thesis: &LeftOut, clockwork: &LeftOut, placed: &[Placed]) -> Vec<Claim> {
    let at_most = |what: &str, limit: f64, found: f64| {
        Claim::new(
            format!("{what} at most {limit} %"),
            format!("{found:.1} %"),
            found <= limit,
        )
    };
    let both = || thesis.latency_ms.iter().chain(&clockwork.latency_ms);
    let mean =
        |value: fn(&Placed) -> f64| placed.iter().map(value).sum::<f64>() / placed.len() as f64;
    let loss = mean(|row| row.measured) - mean(|row| row.estimated);
    vec![
        at_most(
            "latency, both sets: median error",
            15.0,
            quantile(both(), 0.5),
        ),
        at_most(
            "latency, both sets: 90th percentile",
            35.0,
            quantile(both(), 0.9),
        ),
        at_most(
            "latency, thesis: median error",
            15.0,
            quantile(thesis.latency_ms.iter(), 0.5),
        ),
        at_most(
            "latency, thesis: 90th percentile",
            35.0,
            quantile(thesis.latency_ms.iter(), 0.9),
        ),
        at_most(
            "memory, thesis: median error",
            10.0,
            quantile(thesis.memory_mib.iter(), 0.5),
        ),
        Claim::new(
            format!(
                "placing on estimates costs at most {MAX_LOSS} points of the requests, in the mean"
            ),
            format!("{loss:.1} points"),
            loss <= MAX_LOSS,
        ),
    ]
}

/// Returns a table of the coefficients that serve, beside the guesses from which the fit starts.
fn coefficient_table() -> String {
    let guesses = Coefficients::default().to_csv();
    let fitted = Coefficients::libtorch().to_csv();
    let mut text = "| coefficient | guess | fitted |\n|---|---:|---:|\n".to_owned();
    for (guess, fitted) in guesses.lines().zip(fitted.lines()).skip(1) {
        if let (Some((name, guess)), Some((_, fitted))) =
            (guess.split_once(','), fitted.split_once(','))
        {
            writeln!(text, "| `{name}` | {guess} | {fitted} |")
                .expect("writing to a string cannot fail");
        }
    }
    text
}

impl Experiment for Estimator {
    fn name(&self) -> &'static str {
        "estimator"
    }

    fn title(&self) -> &'static str {
        "Profiles estimated from operators"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let thesis = models("thesis", "v100-thesis", THESIS_KIND)?;
        let clockwork = models("clockwork", "v100-clockwork", CLOCKWORK_KIND)?;
        let tvm = Latency::default().with_host_call(TVM_HOST_CALL_US);
        let of_thesis = leave_one_family_out(&Latency::default(), &thesis);
        let of_clockwork = leave_one_family_out(&tvm, &clockwork);
        let placed = place(
            runner,
            &estimated_profiles(&thesis, &of_thesis.coefficients)?,
        )?;
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The time, memory and utilisation of a model from its operators (kinds, floating-point operations, bytes), its batch and the device's data sheet, without \
            running it, after the GK-Estimator of Usher (OSDI 2024, section 3.2). Each family of models is predicted by coefficients that were fitted to all other \
            families. Two sets of measurements, each with its own coefficients, because the programs that ran the models differ: the {} models of the thesis \
            ({} batches, PyTorch in FP32), and {} of the {ZOO} models of Clockwork's zoo ({} batches, TVM). The operators are those that `packhorse-worker inspect` finds in \
            the architectures rebuilt by `profiles/operators/export.py`.",
            thesis.len(),
            of_thesis.latency_ms.len(),
            clockwork.len(),
            of_clockwork.latency_ms.len(),
        ));
        page.targets(&targets(&of_thesis, &of_clockwork, &placed));
        page.paragraph(
            "The form, the guesses and the weight of the guesses were chosen with these measurements in view; only the coefficients are free of the family that is left \
            out. The thesis' `xlnet` is the model that the form does not describe: its published throughput falls from 37 to 25 requests/s as its batches grow, while its \
            operators grow in proportion. The error counts linearly from 25 % on (Huber's loss), so that it does not decide for the others. Memory is what PyTorch's \
            allocator reserved at most: the blocks between its tensors and the workspaces of cuDNN depend on the order of the sizes, and are no property of the operators. \
            At 16 rows memory beside the parameters is between once (`bert`) and five times (`alexnet`) what lives at the same time.",
        );
        page.figure(
            "latency",
            &figure(&[("thesis", &of_thesis), ("Clockwork's zoo", &of_clockwork)]),
        );
        page.heading("Latency, thesis");
        page.table(&family_table(&of_thesis.latency_ms));
        page.heading("Latency, Clockwork's zoo");
        page.paragraph(&format!(
            "Median error {:.1} %, 90th percentile {:.1} %. Left out of the {ZOO} are the three `tuned` networks, whose architectures are not published; the four \
            `winograd` ones, which are other programs of networks that are here; `dla34`, and the four `mobile_pose` networks.",
            quantile(of_clockwork.latency_ms.iter(), 0.5),
            quantile(of_clockwork.latency_ms.iter(), 0.9),
        ));
        page.table(&family_table(&of_clockwork.latency_ms));
        page.heading("Memory, thesis");
        page.table(&family_table(&of_thesis.memory_mib));
        page.heading("Utilisation, thesis");
        page.paragraph(&format!(
            "The median difference is {:.1} percentage points for the utilisation of the multiprocessors, and {:.1} for the mean occupancy.",
            median_difference(&of_thesis.sm_utilization_pct),
            median_difference(&of_thesis.mean_occupancy_pct),
        ));
        page.heading("Placing on estimates");
        page.paragraph(&format!(
            "The requests in time of plans of `{GOODPUT}` for estimated and for measured profiles. Both plans are simulated with the measured profiles, which the dispatcher \
            knows, dispatched by `deadline`, seeds {:?}, in the nominal world.",
            runner.seeds
        ));
        page.table(&placement_table(&placed));
        page.heading("The coefficients");
        page.paragraph(
            "Fitted to all models of the thesis; `crates/estimator/src/libtorch.csv`, written by `PACKHORSE_BLESS=1 cargo test -p packhorse-estimator coefficients`. Parts are of \
            the sheet's FP32 operations and bytes per second; saturations are in thousands of results per multiprocessor.",
        );
        page.table(&coefficient_table());
        Ok((page, None))
    }
}
