//! The estimator of request rates against others, on synthetic and on recorded arrivals.

mod burstiness;
mod forecaster;
mod trial;
mod workload;

use std::fmt::Write as _;

use packhorse_cluster::RateMode;
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
use rayon::prelude::*;

use self::{
    forecaster::{Declared, Forecaster, Holt, HourAgo, Measured, MovingAverage, Oracle},
    trial::{Score, Timing, run, seconds_until_noticed},
    workload::{Group, HOUR, Workload, step, workloads},
};
use crate::{
    experiment::{Experiment, new_page},
    page::{Claim, Page},
    runner::Runner,
    sweep::Sweep,
};

pub(crate) struct Rates;

/// The times of all trials, except where a table varies them.
const TIMING: Timing = Timing {
    period: 5,
    delay: 20,
    horizon: 30,
};
/// The constants of Holt's method that are tried, for the level and for the trend.
const HOLT: [(f64, f64); 9] = [
    (0.05, 0.01),
    (0.05, 0.05),
    (0.05, 0.1),
    (0.2, 0.01),
    (0.2, 0.05),
    (0.2, 0.1),
    (0.5, 0.01),
    (0.5, 0.05),
    (0.5, 0.1),
];
/// The seeds of the steps whose delay is measured.
const STEP_SEEDS: std::ops::RangeInclusive<u64> = 1..=9;
/// The rates, in requests/s, and the coefficients of variation of the steps whose delay is measured.
const STEPS: [(f64, f64); 6] = [
    (1.0, 1.0),
    (30.0, 1.0),
    (30.0, 2.0),
    (30.0, 4.0),
    (300.0, 1.0),
    (300.0, 4.0),
];
/// The relative height of these steps.
const STEP: f64 = 0.5;
/// The workloads in the figure, with the first and the last second that it shows.
const SHOWN: [(&str, usize, usize); 4] = [
    ("steps, 30/s, CV 4", 0, 7_200),
    ("ramps 30 to 90/s, 10 min", 0, 7_200),
    ("functions 6", 0, 14_400),
    ("LLM code", 0, 3_600),
];

/// An estimator of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Estimator {
    Declared,
    MovingAverage,
    Holt(f64, f64),
    HourAgo,
    Measured(RateMode),
    Oracle,
}

impl Estimator {
    fn label(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::MovingAverage => "average",
            Self::Holt(..) => "Holt",
            Self::HourAgo => "hour ago",
            Self::Measured(RateMode::Max) => "`max`",
            Self::Measured(_) => "`measured`",
            Self::Oracle => "oracle",
        }
    }

    fn create(self, workload: &Workload) -> Box<dyn Forecaster + '_> {
        let declared = workload.mean();
        match self {
            Self::Declared => Box::new(Declared(declared)),
            Self::MovingAverage => Box::new(MovingAverage::new(declared)),
            Self::Holt(level, trend) => Box::new(Holt::new(declared, level, trend)),
            Self::HourAgo => Box::new(HourAgo::new(declared)),
            Self::Measured(mode) => Box::new(Measured::new(mode, declared)),
            Self::Oracle => Box::new(Oracle {
                truth: &workload.truth,
                now: 0,
            }),
        }
    }

    fn score(self, workload: &Workload, timing: Timing) -> Score {
        run(
            workload,
            &mut *self.create(workload),
            timing,
            &mut |_, _| {},
        )
    }
}

const MEASURED: Estimator = Estimator::Measured(RateMode::Measured);

/// A workload's mean scores over all seeds, in the order of the estimators.
struct Row {
    name: String,
    group: Group,
    scores: Vec<Score>,
}

/// The scores of all estimators on all workloads.
struct Comparison {
    estimators: Vec<Estimator>,
    rows: Vec<Row>,
}

impl Comparison {
    fn new(of_seeds: &[Vec<Workload>]) -> Self {
        let holt = HOLT.map(|(level, trend)| {
            let error = of_seeds[0]
                .par_iter()
                .map(|workload| Estimator::Holt(level, trend).score(workload, TIMING).error);
            let errors: Vec<f64> = error.collect();
            (errors.iter().sum::<f64>(), Estimator::Holt(level, trend))
        });
        let best = holt.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let estimators = vec![
            Estimator::Declared,
            Estimator::MovingAverage,
            best.expect("there are constants").1,
            Estimator::HourAgo,
            MEASURED,
            Estimator::Measured(RateMode::Max),
            Estimator::Oracle,
        ];
        let rows = (0..of_seeds[0].len()).into_par_iter().map(|i| {
            let score = |estimator: &Estimator| {
                let scores: Vec<Score> = of_seeds
                    .iter()
                    .map(|workloads| estimator.score(&workloads[i], TIMING))
                    .collect();
                Score::mean(&scores)
            };
            Row {
                name: of_seeds[0][i].name.clone(),
                group: of_seeds[0][i].group,
                scores: estimators.iter().map(score).collect(),
            }
        });
        Self {
            rows: rows.collect(),
            estimators,
        }
    }

    fn index(&self, label: &str) -> usize {
        let mut labels = self.estimators.iter().map(|estimator| estimator.label());
        labels
            .position(|other| other == label)
            .expect("it is compared")
    }

    fn rows(&self, groups: &[Group]) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| groups.contains(&row.group))
    }

    fn row(&self, name: &str) -> &Row {
        let row = self.rows.iter().find(|row| row.name == name);
        row.expect("it is a workload")
    }

    /// Returns a table with a row for each workload of some groups and their mean, and a column for each of these estimators.
    fn table(&self, groups: &[Group], labels: &[&str], cell: impl Fn(&Score) -> String) -> String {
        let mut text = format!(
            "| workload | {} |\n|---|{}\n",
            labels.join(" | "),
            "---:|".repeat(labels.len())
        );
        let mean = |label: &&str| {
            let index = self.index(label);
            let scores: Vec<Score> = self.rows(groups).map(|row| row.scores[index]).collect();
            cell(&Score::mean(&scores))
        };
        for row in self.rows(groups) {
            let cells = labels
                .iter()
                .map(|label| cell(&row.scores[self.index(label)]));
            let cells: Vec<String> = cells.collect();
            writeln!(text, "| {} | {} |", row.name, cells.join(" | "))
                .expect("writing to a string cannot fail");
        }
        let means: Vec<String> = labels.iter().map(mean).collect();
        writeln!(text, "| **mean** | {} |", means.join(" | "))
            .expect("writing to a string cannot fail");
        text
    }
}

/// Returns the median and the largest of the delays until a step is noticed, in seconds; infinite where it is not.
fn step_delays(estimator: Estimator, rate: f64, variation: f64) -> anyhow::Result<(f64, f64)> {
    let delays = STEP_SEEDS.into_par_iter().map(|seed| {
        let workload = step(rate, (1.0 + STEP) * rate, variation, seed)?;
        // The declared rate is that before the step.
        let mut forecaster: Box<dyn Forecaster> = match estimator {
            Estimator::Measured(mode) => Box::new(Measured::new(mode, rate)),
            _ => Box::new(MovingAverage::new(rate)),
        };
        let noticed = seconds_until_noticed(&workload, &mut *forecaster, TIMING, HOUR as usize);
        Ok(noticed.map_or(f64::INFINITY, |seconds| seconds as f64))
    });
    let mut delays = delays.collect::<anyhow::Result<Vec<f64>>>()?;
    delays.sort_by(f64::total_cmp);
    Ok((delays[delays.len() / 2], delays[delays.len() - 1]))
}

fn step_table() -> anyhow::Result<String> {
    let mut text =
        "| from, requests/s | CV of gaps | average: median s | largest | `measured`: median s | largest |\n\
         |---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (rate, variation) in STEPS {
        let (average, largest_average) = step_delays(Estimator::MovingAverage, rate, variation)?;
        let (measured, largest_measured) = step_delays(MEASURED, rate, variation)?;
        writeln!(
            text,
            "| {rate} | {variation} | {average} | {largest_average} | {measured} | {largest_measured} |"
        )
        .expect("writing to a string cannot fail");
    }
    Ok(text)
}

/// Returns a table with the mean scores of `measured` by the length of periods and by the horizon.
fn timing_table(workloads: &[Workload]) -> String {
    let mut text =
        "| period s | delay s | horizon s | Poisson 30/s: plans per day | error % | plans per day | too low % | too high % |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let timings = [
        (1, 20, 30),
        (5, 20, 30),
        (15, 20, 30),
        (60, 20, 30),
        (5, 5, 10),
        (5, 60, 90),
    ];
    for (period, delay, horizon) in timings {
        let timing = Timing {
            period,
            delay,
            horizon,
        };
        let changing = workloads
            .par_iter()
            .filter(|workload| workload.group != Group::Stationary);
        let scores = changing.map(|workload| MEASURED.score(workload, timing));
        let mean = Score::mean(&scores.collect::<Vec<Score>>());
        let stationary = workloads
            .iter()
            .find(|workload| workload.name == STATIONARY);
        let stationary = MEASURED.score(stationary.expect("it is a workload"), timing);
        writeln!(
            text,
            "| {period} | {delay} | {horizon} | {:.1} | {:.1} | {:.0} | {:.1} | {:.1} |",
            stationary.plans_per_day,
            100.0 * mean.error,
            mean.plans_per_day,
            100.0 * mean.under,
            100.0 * mean.over
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// The workload of the target for false plans.
const STATIONARY: &str = "Poisson 30/s";
/// The bursty workload whose false plans must stay few.
const BURSTY: &str = "gamma CV 4, 30/s";

fn targets(comparison: &Comparison) -> anyhow::Result<Vec<Claim>> {
    let (measured, average, holt, declared) = (
        comparison.index(MEASURED.label()),
        comparison.index("average"),
        comparison.index("Holt"),
        comparison.index("declared"),
    );
    let plans = |name: &str, index: usize| comparison.row(name).scores[index].plans_per_day;
    let false_plans = |name: &str, limit: f64| {
        let found = plans(name, measured);
        Claim::new(
            format!("{name}: fewer than {limit} new plans per day"),
            format!(
                "{found:.1}; average {:.0}, Holt {:.0}",
                plans(name, average),
                plans(name, holt)
            ),
            found < limit,
        )
    };
    let stationary: Vec<&Row> = comparison.rows(&[Group::Stationary]).collect();
    let least = |coverage: fn(&Score) -> f64| {
        let coverages = stationary.iter().map(|row| coverage(&row.scores[measured]));
        coverages.fold(1.0, f64::min)
    };
    let (coverage, forecast_coverage) = (
        least(|score| score.coverage),
        least(|score| score.forecast_coverage),
    );
    let (delay, largest) = step_delays(MEASURED, 30.0, 1.0)?;
    let moving = [Group::Changing, Group::Recorded];
    let dearer = comparison
        .rows(&moving)
        .filter(|row| row.scores[measured].cost() >= row.scores[declared].cost());
    let dearer: Vec<&str> = dearer.map(|row| row.name.as_str()).collect();
    let mean = |index: usize| {
        let scores = comparison.rows(&moving).map(|row| row.scores[index]);
        Score::mean(&scores.collect::<Vec<Score>>())
    };
    let (ours, of_average, of_holt) = (mean(measured), mean(average), mean(holt));
    Ok(vec![
        false_plans(STATIONARY, 1.0),
        false_plans(BURSTY, 12.0),
        Claim::new(
            "stationary arrivals: the interval of 95 % contains the rate, and that of the forecast what arrives, in at least 90 % of the periods",
            format!(
                "{:.1} % and {:.1} % in the worst workload",
                100.0 * coverage,
                100.0 * forecast_coverage
            ),
            coverage >= 0.9 && forecast_coverage >= 0.9,
        ),
        Claim::new(
            "a step of +50 % at 30 requests/s is noticed within 10 s",
            format!("{delay} s in the median, {largest} s at most"),
            largest <= 10.0,
        ),
        Claim::new(
            "where the rate changes, the plans cost less than one for the declared average",
            if dearer.is_empty() {
                "on all workloads".to_owned()
            } else {
                format!("not on {}", dearer.join(", "))
            },
            dearer.is_empty(),
        ),
        Claim::new(
            "they cost less in the mean than those of the average and of Holt, and are at most a third as many",
            format!(
                "{:.1} % of the requests and {:.0} per day; average {:.1} % and {:.0}, Holt {:.1} % and {:.0}",
                100.0 * ours.cost(),
                ours.plans_per_day,
                100.0 * of_average.cost(),
                of_average.plans_per_day,
                100.0 * of_holt.cost(),
                of_holt.plans_per_day
            ),
            ours.cost() < of_average.cost().min(of_holt.cost())
                && 3.0 * ours.plans_per_day <= of_average.plans_per_day.min(of_holt.plans_per_day),
        ),
    ])
}

/// Returns a figure of the true and the planned rates of some workloads.
fn figure(workloads: &[Workload]) -> Figure {
    let estimators = [Estimator::MovingAverage, MEASURED];
    let labels = ["rate", "planned by average", "planned by measured"];
    let panel = |(name, from, until): (&str, usize, usize)| {
        let workload = workloads.iter().find(|workload| workload.name == name);
        let workload = workload.expect("it is a workload");
        let minute = |second: usize| (second - from) as f64 / 60.0;
        let truth = (from..until)
            .step_by(10)
            .map(|second| (minute(second), workload.truth[second]));
        let mut curves = vec![Curve {
            series: 0,
            stroke: Stroke::Line,
            points: truth.collect(),
        }];
        for (i, estimator) in estimators.iter().enumerate() {
            let mut points: Vec<(f64, f64)> = Vec::new();
            run(
                workload,
                &mut *estimator.create(workload),
                TIMING,
                &mut |second, rate| {
                    if !(from..until).contains(&second) {
                        return;
                    }
                    // A step needs a point on either side.
                    match points.last() {
                        Some(last) if (last.1 - rate).abs() < 1e-9 && second + 1 < until => {}
                        Some(last) => {
                            let before = last.1;
                            points.extend([(minute(second), before), (minute(second), rate)]);
                        }
                        None => points.push((minute(second), rate)),
                    }
                },
            );
            curves.push(Curve {
                series: i + 1,
                stroke: Stroke::Line,
                points,
            });
        }
        Panel::Lines(LineChart {
            title: name.to_owned(),
            x_axis: "minutes".to_owned(),
            y_axis: "requests/s".to_owned(),
            series: Series::from_labels(labels),
            curves,
            ..LineChart::default()
        })
    };
    Figure {
        title: "Rates and what is planned for them".to_owned(),
        notes: Vec::new(),
        columns: 2,
        panels: SHOWN.map(panel).to_vec(),
    }
}

impl Experiment for Rates {
    fn name(&self) -> &'static str {
        "rates"
    }

    fn title(&self) -> &'static str {
        "Measured rates"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let of_seeds = runner.seeds.iter().map(|&seed| workloads(seed));
        let of_seeds = of_seeds.collect::<anyhow::Result<Vec<_>>>()?;
        let comparison = Comparison::new(&of_seeds);
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The estimator of request rates (`crates/control/src/rates.rs`) beside others, without cluster and policy: a plan is a number of requests per second that \
            it can serve. Every {} s an estimator is told the arrivals. When it finds the plan's assumption out of date, it names another rate, which is served {} s later; \
            it plans {} s ahead. The declared rate is the mean of the workload. Seeds {:?}.",
            TIMING.period, TIMING.delay, TIMING.horizon, runner.seeds
        ));
        page.paragraph(&format!(
            "* *declared*: the declared rate, always.\n\
             * *average*: the simulator's exponential moving average, to which each period contributes half.\n\
             * *Holt*: Holt's linear trend, with the best of {} pairs of constants for all these workloads, found afterwards: {}.\n\
             * *hour ago*: the arrivals of an hour before, averaged over a minute: all that a seasonal memory could add.\n\
             * *`measured`*, *`max`*: the estimator, in these rate modes. `max` is never below the declared rate.\n\
             * *oracle*: the true rate at the horizon, with the estimator's thresholds of +10 % and -25 %.",
            HOLT.len(),
            match comparison.estimators[comparison.index("Holt")] {
                Estimator::Holt(level, trend) => format!("{level} for the level, {trend} for the trend"),
                _ => unreachable!("its label is Holt"),
            },
        ));
        page.paragraph(&format!(
            "*Too low* are the requests above the served rate, *too high* the served requests above the rate, both over all requests. *Cost* is {} times the first \
            plus the second.",
            Score::PRICE
        ));
        page.targets(&targets(&comparison)?);
        page.figure("planned", &figure(&of_seeds[0]));
        add_tables(&mut page, &comparison);
        page.heading("Delay until a step is noticed");
        page.paragraph(&format!(
            "An hour at a rate, then {:.0} % more. Seeds 1 to {}. The average is quick because it is often wrong: see its plans without a change above.",
            100.0 * STEP,
            STEP_SEEDS.end()
        ));
        page.table(&step_table()?);
        page.heading("Periods and horizons");
        page.paragraph(
            "Means of `measured` over the workloads whose rate changes, with the first seed. Half of a period's length is added to every delay; where periods are longer than the changes, these become noise.",
        );
        page.table(&timing_table(&of_seeds[0]));
        page.heading("Burstiness");
        page.paragraph(
            "The percentage of requests in time of plans by `goodput`, nominal, dispatched by `deadline`. The coefficient of variation is estimated from the counts of five \
            minutes, and serves as `Conditions::burstiness`; the plans then serve other arrivals of the same kind.",
        );
        let trials = burstiness::trials(&runner.seeds)?;
        let worst = trials.iter().min_by(|a, b| a.gain().total_cmp(&b.gain()));
        let worst = worst.expect("there are trials");
        page.targets(&[Claim::new(
            format!(
                "nowhere does planning with the measured burstiness lose more than {:.1} percentage points",
                100.0 * burstiness::MAX_LOSS
            ),
            format!("{:+.2} at the least: {}", 100.0 * worst.gain(), worst.name()),
            worst.gain() >= -burstiness::MAX_LOSS,
        )]);
        page.table(&burstiness::table(&trials));
        Ok((page, None))
    }
}

/// Adds the tables of all workloads.
fn add_tables(page: &mut Page, comparison: &Comparison) {
    const STATIONARY: [Group; 1] = [Group::Stationary];
    const MOVING: [Group; 2] = [Group::Changing, Group::Recorded];
    let percent = |value: f64| format!("{:.1}", 100.0 * value);
    let labels = [
        "declared",
        "average",
        "Holt",
        "`measured`",
        "`max`",
        "oracle",
    ];
    page.heading("Arrivals whose rate does not change");
    page.paragraph("New plans per day, none of which was needed. The MMPP alternates between two rates faster than a plan can follow.");
    let plans = |score: &Score| format!("{:.1}", score.plans_per_day);
    page.table(&comparison.table(&STATIONARY, &labels, plans));
    page.paragraph("The periods in which the interval of `measured` contains the rate / that of its forecast contains what arrives, in percent:");
    let coverage = |score: &Score| {
        format!(
            "{} / {}",
            percent(score.coverage),
            percent(score.forecast_coverage)
        )
    };
    page.table(&comparison.table(&STATIONARY, &["`measured`"], coverage));
    page.heading("Arrivals whose rate changes");
    page.paragraph(
            "Functions: a day of the Azure Functions trace of 2019, 1,000 functions in 12 stripes, by minute. LLM: an hour of the Azure LLM traces of 2023, every request \
            recorded; the true rate is the mean over a minute around each second.",
        );
    page.paragraph("The mean absolute error of the forecast, in percent of the mean rate:");
    let errors = ["declared", "average", "Holt", "hour ago", "`measured`"];
    page.table(&comparison.table(&MOVING, &errors, |score| percent(score.error)));
    page.paragraph("New plans per day:");
    let plans = |score: &Score| format!("{:.0}", score.plans_per_day);
    page.table(&comparison.table(&MOVING, &labels, plans));
    page.paragraph("Too low / too high, in percent of the requests:");
    let areas = |score: &Score| format!("{} / {}", percent(score.under), percent(score.over));
    page.table(&comparison.table(&MOVING, &labels, areas));
    page.paragraph("Cost, in percent of the requests:");
    page.table(&comparison.table(&MOVING, &labels, |score| percent(score.cost())));
}
