//! Measured interference: predictions for pairs of models by the slowdown model learned from other pairs, and by iGniter's formula
//! fitted to the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use packhorse_cluster::{DeviceKind, ModelId, Percent};
use packhorse_contention::{
    ColocatedReplica, ComputeDemand, LocalRegression, MeasuredSlowdown, RegressionPoint,
    SlowdownModel,
};

use super::*;
use crate::{IgniterCoefficients, PlanningOptions, igniter::least_squares::fit_line};

const V100_SOLO: &str = include_str!("../../../../profiles/interference/v100-solo.csv");
const V100_PAIRS: &str = include_str!("../../../../scenarios/igniter/pairs.csv");
const V100_COEFFICIENTS: &str = include_str!("../../../../scenarios/igniter/coefficients.csv");
const V100_PROFILES: &str = include_str!("../../../../profiles/v100-igniter.csv");
const GPULET_SOLO: &str = include_str!("../../../../profiles/interference/gpulet-solo.csv");
const GPULET_PAIRS: &str = include_str!("../../../../profiles/interference/gpulet-pairs.csv");
const INSS_LATENCIES: &str = include_str!("../../../../profiles/interference/inss-latency.csv");
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
    cache_form(
        rows,
        |row| row.solo.latency_ms,
        |row| row.neighbour_solo.l2.get(),
    )
}

/// A formula like iGniter's, from functions of a row to the time alone and to the neighbour's use of the cache.
fn cache_form(
    rows: &[&Row],
    solo_ms: impl Fn(&Row) -> f64 + 'static,
    cache: impl Fn(&Row) -> f64 + 'static,
) -> Predictor {
    let mut sums: BTreeMap<ModelId, [f64; 5]> = BTreeMap::new();
    for row in rows {
        let sums = sums.entry(row.load.model.clone()).or_default();
        let (x, y) = (
            [1.0, solo_ms(row) * cache(row)].map(|x| x / row.latency_ms),
            1.0 - solo_ms(row) / row.latency_ms,
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
        solo_ms(row) * (1.0 + alpha * cache(row)) + schedule
    })
}

/// The shares at which InSS measures a model alone, in percent; the batch sizes are four as well, [`is_inss_measurement`].
const INSS_SHARES: [u32; 4] = [20, 40, 60, 80];

/// Returns true for the 16 measurements of a model alone that InSS takes (section 4.1): four batch sizes, the largest one among them,
/// at four shares.
fn is_inss_measurement(load: &Load, largest: u32) -> bool {
    INSS_SHARES.contains(&load.share) && [1, 4, 16, largest].contains(&load.batch_size)
}

/// The parameters that InSS fits to the 16 measurements of a model alone.
struct InssAlone {
    running: LocalRegression,
    /// The use of L2 in percent: slope by share, and intercept.
    cache: [f64; 2],
}

fn inss_alone(text: &str, largest: u32) -> BTreeMap<ModelId, InssAlone> {
    let mut measured: BTreeMap<ModelId, Vec<(Load, Solo)>> = BTreeMap::new();
    for (load, solo) in solo(text) {
        if is_inss_measurement(&load, largest) {
            let of_model = measured.entry(load.model.clone()).or_default();
            of_model.push((load, solo));
        }
    }
    let fit = |rows: Vec<(Load, Solo)>| {
        assert_eq!(rows.len(), 16);
        let points = rows.iter().map(|(load, solo)| RegressionPoint {
            batch: load.batch_size,
            share: f64::from(load.share),
            seconds: solo.latency_ms / 1e3,
        });
        let used = rows
            .iter()
            .map(|(load, solo)| (f64::from(load.share), solo.l2.get()));
        InssAlone {
            running: LocalRegression::new(points.collect()).unwrap(),
            cache: fit_line(used).unwrap(),
        }
    };
    let fitted = measured.into_iter();
    fitted.map(|(model, rows)| (model, fit(rows))).collect()
}

/// InSS' model (section 4.1), fitted to 16 measurements of each model alone and to the rows: the regression gives the time alone, a line
/// over the neighbour's share its use of L2. `measured_alone` takes the measured time alone instead.
fn inss(rows: &[&Row], text: &str, largest: u32, measured_alone: bool) -> Predictor {
    let (alone, cache) = (inss_alone(text, largest), inss_alone(text, largest));
    let solo_ms = move |row: &Row| {
        if measured_alone {
            return row.solo.latency_ms;
        }
        let Load {
            model,
            batch_size,
            share,
        } = &row.load;
        1e3 * alone[model].running.seconds(*batch_size, f64::from(*share))
    };
    let cache = move |row: &Row| {
        let [slope, intercept] = cache[&row.neighbour.model].cache;
        slope * f64::from(row.neighbour.share) + intercept
    };
    cache_form(rows, solo_ms, cache)
}

fn inss_form_on_v100(rows: &[&Row]) -> Predictor {
    inss(rows, V100_SOLO, 32, true)
}

fn inss_form_on_gpulet(rows: &[&Row]) -> Predictor {
    inss(rows, GPULET_SOLO, 64, true)
}

fn inss_on_v100(rows: &[&Row]) -> Predictor {
    inss(rows, V100_SOLO, 32, false)
}

fn inss_on_gpulet(rows: &[&Row]) -> Predictor {
    inss(rows, GPULET_SOLO, 64, false)
}

/// A measurement of the InSS paper (tables 2 and 3).
struct InssRow {
    model: String,
    /// The models beside it. In the last series of table 3 their share varies, in the others they are the same in a whole series.
    neighbours: String,
    batch: u32,
    share: f64,
    observed_ms: f64,
    published_ms: f64,
}

/// Returns the measured series, each of four rows in which one number varies.
fn inss_series() -> Vec<Vec<InssRow>> {
    let row = |cells: Cells<'_>| InssRow {
        model: cells[1].to_owned(),
        neighbours: cells[2].trim_matches('"').to_owned(),
        batch: cells[3].parse().unwrap(),
        share: cells[4].parse().unwrap(),
        observed_ms: cells[5].parse().unwrap(),
        published_ms: cells[6].parse().unwrap(),
    };
    // The cells of neighbours are quoted and contain commas.
    let cells = |line: &'static str| -> Cells<'static> {
        match line.split_once('"') {
            Some((before, rest)) => {
                let (neighbours, after) = rest.split_once('"').unwrap();
                let before = before.trim_end_matches(',').split(',');
                let after = after.trim_start_matches(',').split(',');
                before.chain([neighbours]).chain(after).collect()
            }
            None => line.split(',').collect(),
        }
    };
    let rows: Vec<InssRow> = INSS_LATENCIES
        .lines()
        .skip(1)
        .map(|line| row(cells(line)))
        .collect();
    let mut series: Vec<Vec<InssRow>> = Vec::new();
    for row in rows {
        match series.last_mut() {
            Some(last) if last.len() < 4 => last.push(row),
            _ => series.push(vec![row]),
        }
    }
    series
}

/// Returns the share in percent of the only neighbour of a row of table 3's last series.
fn neighbour_share(row: &InssRow) -> f64 {
    let percent = row.neighbours.trim_end_matches("%)");
    let (_, percent) = percent.rsplit_once(',').unwrap();
    percent.parse().unwrap()
}

/// Predicts a row of a series from the three others. The neighbours of a series are the same, so that the regression contains their
/// effect; where only the neighbour's share varies, the time is linear in it.
fn inss_left_out(series: &[InssRow], left_out: usize) -> f64 {
    let others = series.iter().enumerate().filter(|(i, _)| *i != left_out);
    let others: Vec<&InssRow> = others.map(|(_, row)| row).collect();
    let row = &series[left_out];
    if others
        .iter()
        .all(|other| (other.batch, other.share.to_bits()) == (row.batch, row.share.to_bits()))
    {
        let points = others
            .iter()
            .map(|other| (neighbour_share(other), other.observed_ms));
        let [slope, intercept] = fit_line(points).unwrap();
        return slope * neighbour_share(row) + intercept;
    }
    let points = others.iter().map(|other| RegressionPoint {
        batch: other.batch,
        share: other.share,
        seconds: other.observed_ms / 1e3,
    });
    let regression = LocalRegression::new(points.collect()).unwrap();
    1e3 * regression.seconds(row.batch, row.share)
}

/// Writes the measurements of the InSS paper, each predicted from the others of its series.
fn inss_table(out: &mut String) {
    let text = include_str!("interference-inss.md");
    writeln!(out, "\n{}", text.trim_end()).unwrap();
    writeln!(out, "\n| model | beside | batch | share | observed ms | left out, predicted ms | error | paper, predicted ms | error |\n|---|---|--:|--:|--:|--:|--:|--:|--:|").unwrap();
    let (mut inside, mut edges, mut published) = (Vec::new(), Vec::new(), Vec::new());
    for series in inss_series() {
        for (i, row) in series.iter().enumerate() {
            let InssRow {
                model,
                neighbours,
                batch,
                share,
                observed_ms,
                published_ms,
            } = row;
            let predicted = inss_left_out(&series, i);
            let is_inside = (1..series.len() - 1).contains(&i);
            let errors = if is_inside { &mut inside } else { &mut edges };
            errors.push((predicted, *observed_ms));
            published.push((*published_ms, *observed_ms));
            let error = |value: f64| 100.0 * (value / observed_ms - 1.0);
            writeln!(
                out,
                "| {model} | {neighbours} | {batch} | {share} % | {observed_ms:.3} | {predicted:.3} | {:+.1} % | {published_ms:.3} | {:+.1} % |",
                error(predicted),
                error(*published_ms),
            )
            .unwrap();
        }
    }
    let mape = |predictions: &[(f64, f64)]| Errors::from_predictions(predictions).mape;
    writeln!(
        out,
        "\nMean error of the rows inside a series {:.1} %, of its first and last rows, which are extrapolated, {:.1} %; of the paper's own \
         predictions, which were fitted to measurements that are not published, {:.1} %.",
        mape(&inside),
        mape(&edges),
        mape(&published),
    )
    .unwrap();
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
            backbone: None,
            pool: None,
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
const INSS_FORM: &str = "InSS' form, fitted to the same";
const INSS: &str = "InSS, with its regression for the time alone";
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
    let with = |more: &[(&'static str, Method)]| {
        let all = of_both.iter().chain(more);
        all.copied().collect::<Vec<(&str, Method)>>()
    };
    let of_v100 = with(&[
        PUBLISHED,
        (INSS_FORM, inss_form_on_v100),
        (INSS, inss_on_v100),
    ]);
    let of_gpulet = with(&[(INSS_FORM, inss_form_on_gpulet), (INSS, inss_on_gpulet)]);
    for (name, rows, methods) in [("V100", &v100, &of_v100), ("Gpulet", &gpulet, &of_gpulet)] {
        writeln!(out, "\n## {name}, pairs of models never seen together\n").unwrap();
        table(&mut out, &Split::by_pair(rows), methods, true);
        writeln!(out, "\n## {name}, other batch sizes and shares\n").unwrap();
        table(&mut out, &Split::by_measurement(rows), methods, false);
    }
    inss_table(&mut out);
    out
}

#[test]
fn held_out_pairs_are_predicted_better_than_by_igniter_s_formula() {
    let (v100, gpulet) = (v100(), gpulet());
    assert_eq!((v100.len(), gpulet.len()), (1_050, 2_573));
    let inss_forms: [Method; 2] = [inss_form_on_v100, inss_form_on_gpulet];
    for (rows, inss_form) in [&v100, &gpulet].into_iter().zip(inss_forms) {
        for split in [Split::by_pair(rows), Split::by_measurement(rows)] {
            let ours = split.errors(learned_on_l2);
            for rival in [igniter_form as Method, inss_form, no_interference] {
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
