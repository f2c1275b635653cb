//! Measured interference: predictions for pairs of models by the slowdown model learned from other pairs, and by iGniter's formula
//! fitted to the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use packhorse_cluster::{DeviceKind, ModelId, Percent};
use packhorse_contention::{ColocatedReplica, ComputeDemand, MeasuredSlowdown, SlowdownModel};

use super::*;
use crate::{IgniterCoefficients, PlanningOptions};

const V100_SOLO: &str = include_str!("../../../../profiles/interference/v100-solo.csv");
const V100_PAIRS: &str = include_str!("../../../../scenarios/igniter/pairs.csv");
const V100_COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");
const V100_PROFILES: &str = include_str!("../../../../profiles/v100-igniter.csv");
const GPULET_SOLO: &str = include_str!("../../../../profiles/interference/gpulet-solo.csv");
const GPULET_PAIRS: &str = include_str!("../../../../profiles/interference/gpulet-pairs.csv");
/// The number of batches that a measured mean counts as.
const BATCHES: u64 = 100;

/// A model with a batch size on a share of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    model: ModelId,
    batch_size: u32,
    /// The share in percent.
    share: u32,
}

/// A load measured alone.
#[derive(Clone, Copy)]
struct Solo {
    latency_ms: f64,
    l2: Percent,
    dram: Percent,
}

/// A load measured beside another.
struct Row {
    load: Load,
    neighbour: Load,
    solo: Solo,
    neighbour_solo: Solo,
    latency_ms: f64,
}

impl Row {
    fn pair(&self) -> (&ModelId, &ModelId) {
        let (a, b) = (&self.load.model, &self.neighbour.model);
        (a.min(b), a.max(b))
    }
}

type Cells<'a> = Vec<&'a str>;

fn lines(text: &str) -> impl Iterator<Item = Cells<'_>> {
    text.lines().skip(1).map(|line| line.split(',').collect())
}

fn load(cells: &Cells<'_>, model: usize, batch_size: usize, share: usize) -> Load {
    Load {
        model: cells[model].parse().unwrap(),
        batch_size: cells[batch_size].parse().unwrap(),
        share: cells[share].parse().unwrap(),
    }
}

/// Reads loads measured alone, with known use of the memory.
fn solo(text: &str) -> BTreeMap<Load, Solo> {
    let number = |cell: &str| cell.parse::<f64>().ok();
    let percent = |cell: &str| Percent::new(number(cell)?).ok();
    let solo = |cells: Cells<'_>| {
        let solo = Solo {
            latency_ms: number(cells[3])?,
            l2: percent(cells[4])?,
            dram: percent(cells[5])?,
        };
        Some((load(&cells, 0, 1, 2), solo))
    };
    lines(text).filter_map(solo).collect()
}

fn row(solo: &BTreeMap<Load, Solo>, load: Load, neighbour: Load, latency_ms: &str) -> Row {
    Row {
        solo: solo[&load],
        neighbour_solo: solo[&neighbour],
        load,
        neighbour,
        latency_ms: latency_ms.parse().unwrap(),
    }
}

fn v100() -> Vec<Row> {
    let solo = solo(V100_SOLO);
    let rows = lines(V100_PAIRS).flat_map(|cells| {
        let (a, b) = (load(&cells, 0, 2, 4), load(&cells, 1, 3, 5));
        let of_a = row(&solo, a.clone(), b.clone(), cells[6]);
        [of_a, row(&solo, b, a, cells[7])]
    });
    rows.collect()
}

fn gpulet() -> Vec<Row> {
    let solo = solo(GPULET_SOLO);
    let rows = lines(GPULET_PAIRS).map(|cells| {
        let subject = load(&cells, 0, 2, 4);
        let mut neighbour = load(&cells, 1, 3, 4);
        neighbour.share = 100 - subject.share;
        row(&solo, subject, neighbour, cells[5])
    });
    rows.collect()
}

/// A function from a row to its predicted latency in ms.
type Predictor = Box<dyn Fn(&Row) -> f64>;
type Method = fn(&[&Row]) -> Predictor;

fn colocated(load: &Load, demand: ComputeDemand) -> ColocatedReplica<'_> {
    ColocatedReplica {
        model: &load.model,
        demand,
        rows: load.batch_size,
        busy: 1.0,
    }
}

/// Ours, on one measure of how much the neighbour uses.
fn learned(rows: &[&Row], utilization: fn(&Solo) -> Percent) -> Predictor {
    let kind: DeviceKind = "gpu".parse().unwrap();
    let mut learned = SlowdownModel::without_forgetting();
    let demands = move |row: &Row| {
        let demand = |load: &Load, solo: &Solo| ComputeDemand {
            sm_utilization: utilization(solo),
            compute_share: ComputeShare::new(f64::from(load.share)).ok(),
        };
        let own = demand(&row.load, &row.solo);
        (own, demand(&row.neighbour, &row.neighbour_solo))
    };
    for row in rows {
        let (own, other) = demands(row);
        let measured = MeasuredSlowdown {
            batches: BATCHES,
            slowdown: row.latency_ms / row.solo.latency_ms,
        };
        // The slowdown of the neighbour is not part of this row.
        let present = MeasuredSlowdown {
            batches: 0,
            slowdown: 1.0,
        };
        let device = [
            (colocated(&row.load, own), measured),
            (colocated(&row.neighbour, other), present),
        ];
        learned.update(&kind, &device);
    }
    Box::new(move |row| {
        let (own, other) = demands(row);
        let subject = colocated(&row.load, own);
        let slowdown = learned.predict(&kind, &subject, &[colocated(&row.neighbour, other)]);
        row.solo.latency_ms * slowdown.mean
    })
}

fn learned_on_l2(rows: &[&Row]) -> Predictor {
    learned(rows, |solo| solo.l2)
}

fn learned_on_dram(rows: &[&Row]) -> Predictor {
    learned(rows, |solo| solo.dram)
}

/// iGniter's formula for two workloads (equations 1, 5 and 8): `solo + schedule + solo · α · c`, with the measured solo time and `c`
/// the neighbour's use of L2. `schedule` and `α` are constants of a model, here those with the least squares of the relative error.
fn igniter_form(rows: &[&Row]) -> Predictor {
    let mut sums: BTreeMap<ModelId, [f64; 5]> = BTreeMap::new();
    for row in rows {
        let sums = sums.entry(row.load.model.clone()).or_default();
        let (x, y) = (
            [1.0, row.solo.latency_ms * row.neighbour_solo.l2.get()].map(|x| x / row.latency_ms),
            1.0 - row.solo.latency_ms / row.latency_ms,
        );
        let terms = [x[0] * x[0], x[0] * x[1], x[1] * x[1], x[0] * y, x[1] * y];
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += term;
        }
    }
    let coefficients = |[a, b, d, e, f]: [f64; 5]| {
        let determinant = a * d - b * b;
        [(d * e - b * f) / determinant, (a * f - b * e) / determinant]
    };
    let fitted: BTreeMap<ModelId, [f64; 2]> = sums
        .into_iter()
        .map(|(model, sums)| (model, coefficients(sums)))
        .collect();
    let mean_alpha = fitted.values().map(|[_, alpha]| alpha).sum::<f64>() / fitted.len() as f64;
    Box::new(move |row| {
        let of_model = fitted.get(&row.load.model).copied();
        // A model that was never measured beside another gets the mean of the others.
        let [schedule, alpha] = of_model.unwrap_or([0.0, mean_alpha]);
        row.solo.latency_ms * (1.0 + alpha * row.neighbour_solo.l2.get()) + schedule
    })
}

/// iGniter with its published coefficients, which are fitted to batches alone and to pairs of equal workloads.
fn igniter_as_published(_: &[&Row]) -> Predictor {
    let coefficients = IgniterCoefficients::from_csv(V100_COEFFICIENTS).unwrap();
    let options = PlanningOptions {
        igniter_coefficients: Some(coefficients),
        ..PlanningOptions::default()
    };
    let profiles = ProfileTable::from_csv(V100_PROFILES).unwrap();
    Box::new(move |row| {
        let loads = [&row.load, &row.neighbour];
        let problem = Problem {
            devices: vec![device("V100-SXM2-16GB", 16_384)],
            models: loads
                .map(|load| model(&load.model.to_string(), 1.0, 100))
                .to_vec(),
            profiles: profiles.clone(),
            ..Problem::default()
        };
        let replica = |(i, load): (usize, &&Load)| PlannedReplica {
            model: ModelIndex(i),
            device: DeviceIndex(0),
            batch_size: load.batch_size,
            compute_share: ComputeShare::new(f64::from(load.share)).ok(),
            duty_cycle: None,
            memory: None,
        };
        let replicas: Vec<PlannedReplica> = loads.iter().enumerate().map(replica).collect();
        let igniter = policy("igniter").unwrap();
        let latencies = igniter.predict(&problem, &options, &replicas).unwrap();
        latencies[0].as_secs_f64() * 1e3
    })
}

fn no_interference(_: &[&Row]) -> Predictor {
    Box::new(|row| row.solo.latency_ms)
}

/// The errors of predictions.
#[derive(Clone, Copy)]
struct Errors {
    /// The mean absolute relative error in percent.
    mape: f64,
    /// The 95th percentile of the absolute relative error in percent.
    p95: f64,
    /// The mean absolute error in ms.
    mae: f64,
}

impl Errors {
    fn from_predictions(predictions: &[(f64, f64)]) -> Self {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let absolute: Vec<f64> = predictions.iter().map(|(p, m)| (p - m).abs()).collect();
        let mut relative: Vec<f64> = predictions
            .iter()
            .map(|(p, m)| 100.0 * (p - m).abs() / m)
            .collect();
        relative.sort_by(f64::total_cmp);
        Self {
            mape: mean(&relative),
            p95: relative[relative.len() * 95 / 100],
            mae: mean(&absolute),
        }
    }
}

/// A division of rows into those to learn from and those to predict.
struct Split<'a> {
    training: Vec<&'a Row>,
    held_out: Vec<&'a Row>,
}

impl<'a> Split<'a> {
    fn new(
        rows: impl IntoIterator<Item = &'a Row>,
        holds_out: impl Fn(usize, &Row) -> bool,
    ) -> Self {
        let (mut training, mut held_out) = (Vec::new(), Vec::new());
        for (i, row) in rows.into_iter().enumerate() {
            let part = if holds_out(i, row) {
                &mut held_out
            } else {
                &mut training
            };
            part.push(row);
        }
        Self { training, held_out }
    }

    /// Holds out every third pair of models in alphabetical order, with all of its measurements.
    fn by_pair(rows: &'a [Row]) -> Self {
        let pairs: BTreeSet<_> = rows.iter().map(Row::pair).collect();
        let held: BTreeSet<_> = pairs.into_iter().skip(2).step_by(3).collect();
        Self::new(rows, |_, row| held.contains(&row.pair()))
    }

    /// Holds out every third measurement.
    fn by_measurement(rows: &'a [Row]) -> Self {
        Self::new(rows, |i, _| i % 3 == 2)
    }

    fn predictions(&self, method: Method) -> Vec<(f64, f64)> {
        let predict = method(&self.training);
        let held_out = self.held_out.iter();
        held_out.map(|row| (predict(row), row.latency_ms)).collect()
    }

    fn errors(&self, method: Method) -> Errors {
        Errors::from_predictions(&self.predictions(method))
    }

    /// Returns the errors for the training part, each pair predicted from its other pairs. Choices are made by these errors.
    fn cross_validated(&self, method: Method) -> Errors {
        let pairs: BTreeSet<_> = self.training.iter().map(|row| row.pair()).collect();
        let fold = |pair| {
            let rows = self.training.iter().copied();
            Split::new(rows, |_, row| row.pair() == pair).predictions(method)
        };
        Errors::from_predictions(&pairs.into_iter().flat_map(fold).collect::<Vec<_>>())
    }
}

const OURS: (&str, Method) = ("learned, on L2", learned_on_l2);
const OTHERS: [(&str, Method); 3] = [
    ("learned, on DRAM", learned_on_dram),
    ("iGniter's form, fitted to the same", igniter_form),
    ("no interference", no_interference),
];
const PUBLISHED: (&str, Method) = ("iGniter as published", igniter_as_published);

fn table(out: &mut String, split: &Split<'_>, methods: &[(&str, Method)], cross_validated: bool) {
    let (held_out, training) = (split.held_out.len(), split.training.len());
    writeln!(
        out,
        "{training} latencies to learn from, {held_out} held out:\n"
    )
    .unwrap();
    writeln!(out, "| | error, held out | 95th percentile | in ms | error, cross-validated |\n|---|--:|--:|--:|--:|").unwrap();
    for (name, method) in methods {
        let Errors { mape, p95, mae } = split.errors(*method);
        let within = if cross_validated {
            format!("{:.2} %", split.cross_validated(*method).mape)
        } else {
            "–".to_owned()
        };
        writeln!(
            out,
            "| {name} | {mape:.2} % | {p95:.2} % | {mae:.3} | {within} |"
        )
        .unwrap();
    }
}

fn report() -> String {
    let mut out = include_str!("interference.md").to_owned();
    let (v100, gpulet) = (v100(), gpulet());
    let of_both: Vec<_> = std::iter::once(OURS).chain(OTHERS).collect();
    let of_v100: Vec<_> = of_both.iter().copied().chain([PUBLISHED]).collect();
    for (name, rows, methods) in [("V100", &v100, &of_v100), ("Gpulet", &gpulet, &of_both)] {
        writeln!(out, "\n## {name}, pairs of models never seen together\n").unwrap();
        table(&mut out, &Split::by_pair(rows), methods, true);
        writeln!(out, "\n## {name}, other batch sizes and shares\n").unwrap();
        table(&mut out, &Split::by_measurement(rows), methods, false);
    }
    out
}

#[test]
fn held_out_pairs_are_predicted_better_than_by_igniter_s_formula() {
    let (v100, gpulet) = (v100(), gpulet());
    assert_eq!((v100.len(), gpulet.len()), (1_050, 2_573));
    for rows in [&v100, &gpulet] {
        for split in [Split::by_pair(rows), Split::by_measurement(rows)] {
            let ours = split.errors(learned_on_l2);
            for rival in [igniter_form as Method, no_interference] {
                let theirs = split.errors(rival);
                assert!(
                    ours.mape < theirs.mape,
                    "{} % against {} %",
                    ours.mape,
                    theirs.mape
                );
                assert!(
                    ours.mae < theirs.mae,
                    "{} ms against {} ms",
                    ours.mae,
                    theirs.mae
                );
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the variable requests that a test rewrites its expectation"
)]
fn blesses() -> bool {
    std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1")
}

/// `PACKHORSE_BLESS=1 cargo test -p packhorse-placement interference` rewrites the file.
#[test]
fn the_checked_in_report_of_the_experiment_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments/interference.md");
    let report = report();
    if blesses() {
        std::fs::write(&file, &report).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == report,
        "docs/experiments/interference.md is stale: run this test again with PACKHORSE_BLESS=1"
    );
}
