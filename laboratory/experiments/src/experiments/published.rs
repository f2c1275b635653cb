//! Every published policy and dispatcher here, in every setting: what does better than `goodput` with `deadline`, and where.

use std::{collections::BTreeMap, fmt::Write as _};

use packhorse_cluster::{BatchStep, Discipline, LatencyModel};
use packhorse_figures::{Bar, BarChart, BarGroup, Figure, Panel, Series};

use crate::{
    experiment::{Experiment, new_page},
    fluid_bound::fluid_bound,
    intervals::Interval,
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting},
    sweep::{Sweep, Trial},
    thesis::{GOODPUT, gpu_settings, load_settings, vision_settings},
};

pub(crate) struct Published;

/// The difference in points by which another entrant may be better before the target counts as missed.
const ALLOWED_POINTS: f64 = 0.5;
/// The difference in points below which two entrants count as equal, whatever their intervals.
const EQUAL_POINTS: f64 = 0.05;
/// The counted time of runs with the recorded load, in seconds: it has counts of four minutes.
const RECORDED_S: f64 = 239.0;

/// A group of settings.
struct Ground {
    name: &'static str,
    settings: Vec<Setting>,
    /// True if only `deadline` and one world are simulated, because runs are long.
    is_long: bool,
}

fn grounds() -> Vec<Ground> {
    let short = |name, settings| Ground {
        name,
        settings,
        is_long: false,
    };
    let bursts = [2.0, 4.0].into_iter().flat_map(|cv: f64| {
        let arrivals = toml::Table::from_iter([("gamma_cv".to_owned(), cv.into())]);
        vision_settings(&format!("CV {cv}"), "arrivals", &arrivals.into())
    });
    let hidden = [0.3, 0.6].into_iter().flat_map(|value: f64| {
        vision_settings(
            &format!("extra slowdown {value}"),
            "extra_slowdown",
            &value.into(),
        )
    });
    let counts = "../azure/functions2019-vision.csv";
    let arrivals = toml::Table::from_iter([("counts".to_owned(), counts.into())]);
    let recorded = vision_settings("Azure 2019", "arrivals", &arrivals.into()).into_iter();
    let recorded = recorded.map(|setting| setting.with_simulation("window_s", RECORDED_S));
    vec![
        short("6.1", gpu_settings("6.1", 6)),
        short("6.10", gpu_settings("6.10", 8)),
        short("6.15", load_settings("6.15")),
        short("A.2", gpu_settings("A.2", 8)),
        short("bursts", bursts.collect()),
        short("hidden interference", hidden.collect()),
        Ground {
            name: "Azure 2019",
            settings: recorded.collect(),
            is_long: true,
        },
    ]
}

/// Returns the entrants: planners, by the discipline that dispatches their plans.
fn entrants() -> Vec<(Discipline, Vec<Planner>)> {
    let policy = Planner::from_policy;
    let bda = |planner: Planner| planner.with_batch_step(BatchStep::Bda);
    let variants = [
        bda(policy("gpulet")),
        bda(policy("gpulet").with_latency_model(LatencyModel::Inss)),
        bda(policy("gslice")),
        policy("herd").greedy(),
    ];
    let mut all = Planner::every_policy();
    all.extend(variants);
    let deferred = ["nexus", "herd", "gpulet", "wsm-milp", GOODPUT].map(policy);
    vec![
        (Discipline::Deadline, all.clone()),
        (Discipline::FixedWait, all),
        (Discipline::Symphony, deferred.to_vec()),
        // Proteus gives a device one model.
        (Discipline::Accscale, vec![policy("exclusive")]),
    ]
}

/// The key of a cell's row: ground, world and setting.
type SettingKey = (usize, Calibration, usize);

/// An entrant in one setting.
struct Cell {
    planner: String,
    discipline: Discipline,
    /// The share of the offered requests answered within the SLO, by seed.
    shares: Vec<f64>,
    goodput: f64,
    offered: f64,
}

impl Cell {
    fn is_ours(&self) -> bool {
        (self.planner.as_str(), self.discipline) == (GOODPUT, Discipline::Deadline)
    }

    /// Returns true if neither the policy nor the plan is ours. Ours with another dispatcher is no published system.
    fn is_other(&self) -> bool {
        self.planner != GOODPUT
    }

    fn name(&self) -> String {
        format!("{} + {}", self.planner, self.discipline)
    }

    fn share(&self) -> Interval {
        Interval::new(&self.shares).scaled(100.0)
    }

    /// Returns the difference to another entrant in points, seed by seed: equal seeds have equal arrivals.
    fn points_above(&self, other: &Self) -> Interval {
        Interval::of_differences(&self.shares, &other.shares).scaled(100.0)
    }
}

/// All results.
#[derive(Default)]
struct Results {
    names: Vec<&'static str>,
    settings: BTreeMap<SettingKey, String>,
    cells: BTreeMap<SettingKey, Vec<Cell>>,
    /// The fluid bound, in percent of the offered requests.
    bounds: BTreeMap<SettingKey, f64>,
    not_run: BTreeMap<String, String>,
}

impl Results {
    fn add(&mut self, ground: usize, discipline: Discipline, sweep: &Sweep) {
        for (key, trial) in &sweep.trials {
            let row = (ground, key.calibration, key.setting);
            let setting = &sweep.settings[key.setting];
            self.settings.insert(row, setting.name());
            let scenario = &sweep.scenarios[&(key.setting, key.calibration)];
            self.bounds
                .entry(row)
                .or_insert_with(|| mean_bound(scenario, trial));
            self.cells.entry(row).or_default().push(Cell {
                planner: sweep.planners[key.planner].clone(),
                discipline,
                shares: trial.shares(),
                goodput: trial.goodput(),
                offered: trial.offered(),
            });
        }
        self.not_run.extend(sweep.not_run.iter().cloned());
    }

    fn ours(&self, row: &SettingKey) -> &Cell {
        let mut cells = self.cells[row].iter();
        cells.find(|cell| cell.is_ours()).expect("it is an entrant")
    }

    fn best_other(&self, row: &SettingKey) -> &Cell {
        let others = self.cells[row].iter().filter(|cell| cell.is_other());
        others
            .max_by(|a, b| a.goodput.total_cmp(&b.goodput))
            .expect("there are others")
    }

    /// Returns the rows of a ground in a world.
    fn rows(&self, ground: usize, world: Calibration) -> impl Iterator<Item = &SettingKey> {
        let rows = self.cells.keys();
        rows.filter(move |row| (row.0, row.1) == (ground, world))
    }

    fn has(&self, ground: usize, world: Calibration) -> bool {
        self.rows(ground, world).next().is_some()
    }

    /// Returns the share of an entrant over all settings of a ground, in percent; `None` if it was not run there.
    fn ground_share(&self, ground: usize, world: Calibration, name: &str) -> Option<f64> {
        let (mut good, mut offered) = (0.0, 0.0);
        for row in self.rows(ground, world) {
            let mut cells = self.cells[row].iter();
            let cell = cells.find(|cell| cell.name() == name)?;
            good += cell.goodput;
            offered += cell.offered;
        }
        (offered > 0.0).then_some(100.0 * good / offered)
    }

    /// Returns the names of all entrants, in the order in which they were run.
    fn entrants(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for cell in self.cells.values().flatten() {
            if !names.contains(&cell.name()) {
                names.push(cell.name());
            }
        }
        names
    }

    fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = [
            "ground",
            "world",
            "setting",
            "policy",
            "discipline",
            "seeds",
            "offered_rps",
            "goodput_rps",
            "share_pct",
            "share_ci95_pct",
            "points_below_goodput",
            "points_ci95",
            "fluid_bound_pct",
        ];
        writer
            .write_record(header)
            .expect("writing to memory cannot fail");
        for (row, cells) in &self.cells {
            let ours = self.ours(row);
            let half = |interval: Interval| {
                interval
                    .half
                    .map_or(String::new(), |half| format!("{half:.3}"))
            };
            for cell in cells {
                let (share, below) = (cell.share(), ours.points_above(cell));
                let record = [
                    self.names[row.0].to_owned(),
                    row.1.to_string(),
                    self.settings[row].clone(),
                    cell.planner.clone(),
                    cell.discipline.to_string(),
                    cell.shares.len().to_string(),
                    format!("{:.1}", cell.offered),
                    format!("{:.1}", cell.goodput),
                    format!("{:.3}", share.mean),
                    half(share),
                    format!("{:.3}", below.mean),
                    half(below),
                    format!("{:.3}", self.bounds[row]),
                ];
                writer
                    .write_record(record)
                    .expect("writing to memory cannot fail");
            }
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("the fields are UTF-8")
    }
}

/// Returns the fluid bound in percent of the offered requests, in the mean over seeds.
fn mean_bound(scenario: &packhorse_simulator::Scenario, trial: &Trial) -> f64 {
    let bound = |report| 100.0 * fluid_bound(scenario, report) / report.totals.offered_rps;
    trial.reports.iter().map(bound).sum::<f64>() / trial.reports.len() as f64
}

impl Experiment for Published {
    fn name(&self) -> &'static str {
        "published"
    }

    fn title(&self) -> &'static str {
        "Published schedulers"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut results = Results::default();
        for (number, ground) in grounds().into_iter().enumerate() {
            results.names.push(ground.name);
            for (discipline, planners) in entrants() {
                let calibrations = &runner.calibrations[..if ground.is_long {
                    1
                } else {
                    runner.calibrations.len()
                }];
                if ground.is_long && discipline != Discipline::Deadline {
                    continue;
                }
                let dispatches = vec![discipline.into()];
                let sweeps =
                    runner.sweeps_in(calibrations, &ground.settings, &planners, &[dispatches])?;
                for sweep in &sweeps {
                    results.add(number, discipline, sweep);
                }
            }
        }
        Ok((page(self, &results, runner), None))
    }
}

fn page(experiment: &dyn Experiment, results: &Results, runner: &Runner) -> Page {
    let mut page = new_page(experiment);
    page.paragraph(&format!(
        "Does a published scheduler do better than `{GOODPUT}` with `deadline`? Every policy here with `deadline` and with `fixed-wait`; Nexus, Shepherd's groups \
         (`herd`), GPUlet and the best MILP with Symphony's deferred batches; one model per device with Proteus' batches (`accscale`); and InSS' batch decision (`bda`) \
         and latency model (`inss`) with GPUlet and GSLICE. Seeds {} to {}; ± is the half of a 95 % confidence interval over seeds (Student's t). Differences are between \
         runs with the same seed, which have the same arrivals.",
        runner.seeds.first().copied().unwrap_or_default(),
        runner.seeds.last().copied().unwrap_or_default(),
    ));
    page.paragraph(
        "A combination of a published policy with `deadline` is not a published system: it has our dispatcher. It is here because a policy that does better with it \
         than ours would be a better policy. The *fluid bound* is the share that no plan and no dispatcher can exceed: requests as a fluid, the cheapest first, on devices \
         without memory limits, queues or batches that wait.",
    );
    page.heading("Target");
    page.targets(&targets(results, &runner.calibrations));
    page.heading("Settings in which another one does better");
    page.table(&losses(results));
    page.heading("By ground");
    page.figure("grounds", &figure(results));
    for &world in &runner.calibrations {
        page.paragraph(&format!(
            "Percent of the offered requests answered within the SLO over all settings of a ground, {world}; bold is the best of a column."
        ));
        page.table(&ground_table(results, world));
    }
    page.heading("InSS' batch decision on GPUlet");
    page.paragraph(
        "The paper reports 11 % more throughput by BDA on its GPUlet, which takes the largest batch within half of the SLO and waits for it for the other half. Ours follows the \
         published GPUlet, whose batches already leave time for waiting, and both dispatchers send smaller batches than planned.",
    );
    page.table(&bda_table(results, &runner.calibrations));
    page.heading("Every setting");
    for &world in &runner.calibrations {
        for ground in 0..results.names.len() {
            if results.has(ground, world) {
                page.paragraph(&format!("{}, {world}:", results.names[ground]));
                page.table(&setting_table(results, ground, world));
            }
        }
    }
    page.csv(results.csv());
    page.heading("Not here");
    page.paragraph(
        "Flex (preemption at exit points) and Clockwork need a dispatcher that sees all models of a group of devices; Clipper's AIMD needs one that keeps a batch size per \
         replica and learns from each answer. InSS' two-layer scheduler needs its trained network, which was not published. Systems that are not in the tables were not run.",
    );
    for (planner, reason) in &results.not_run {
        page.paragraph(&format!("`{planner}` was not run: {reason}."));
    }
    page
}

/// Returns the target of each ground: no other entrant is more than [`ALLOWED_POINTS`] better in any setting.
fn targets(results: &Results, worlds: &[Calibration]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for &world in worlds {
        for (ground, name) in results.names.iter().enumerate() {
            let rows = results.rows(ground, world).map(|row| {
                let best = results.best_other(row);
                (results.ours(row).points_above(best).mean, row, best.name())
            });
            let Some((points, row, best)) = rows.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            claims.push(Claim::new(
                format!("{name}, {world}: no other entrant more than {ALLOWED_POINTS} points better in any setting"),
                format!("at worst {points:+.2} points at {}, beside {best}", results.settings[row]),
                points >= -ALLOWED_POINTS,
            ));
        }
    }
    claims
}

/// Returns the entrants that are better than ours with 95 % confidence, and by more than counts as equal.
fn losses(results: &Results) -> String {
    let mut text = "| ground | world | setting | entrant | points above `goodput` + `deadline` |\n|---|---|---|---|---:|\n".to_owned();
    let mut any = false;
    for (row, cells) in &results.cells {
        let ours = results.ours(row);
        for cell in cells.iter().filter(|cell| cell.is_other()) {
            let points = cell.points_above(ours);
            if points.is_above(0.0) && points.mean > EQUAL_POINTS {
                any = true;
                writeln!(
                    text,
                    "| {} | {} | {} | {} | {points} |",
                    results.names[row.0],
                    row.1,
                    results.settings[row],
                    cell.name()
                )
                .expect("writing to a string cannot fail");
            }
        }
    }
    if any { text } else { "None.".to_owned() }
}

fn ground_table(results: &Results, world: Calibration) -> String {
    let grounds: Vec<usize> = (0..results.names.len())
        .filter(|&ground| results.has(ground, world))
        .collect();
    let names: Vec<&str> = grounds
        .iter()
        .map(|&ground| results.names[ground])
        .collect();
    let mut text = format!(
        "| | {} |\n|---|{}\n",
        names.join(" | "),
        "---:|".repeat(names.len())
    );
    let rows: Vec<(String, Vec<Option<f64>>)> = results
        .entrants()
        .into_iter()
        .map(|name| {
            let shares = grounds
                .iter()
                .map(|&ground| results.ground_share(ground, world, &name));
            let shares = shares.collect();
            (name, shares)
        })
        .collect();
    let best = |column: usize| {
        rows.iter()
            .filter_map(|row| row.1[column])
            .fold(0.0, f64::max)
    };
    for (name, shares) in &rows {
        let cell = |(column, share): (usize, &Option<f64>)| match share {
            Some(share) if *share > best(column) - EQUAL_POINTS => format!("**{share:.1}**"),
            Some(share) => format!("{share:.1}"),
            None => "–".to_owned(),
        };
        let cells: Vec<String> = shares.iter().enumerate().map(cell).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))
            .expect("writing to a string cannot fail");
    }
    let bound = |&ground: &usize| {
        let rows: Vec<f64> = results
            .rows(ground, world)
            .map(|row| results.bounds[row])
            .collect();
        format!("{:.1}", rows.iter().sum::<f64>() / rows.len() as f64)
    };
    let bounds: Vec<String> = grounds.iter().map(bound).collect();
    writeln!(
        text,
        "| fluid bound, mean of settings | {} |",
        bounds.join(" | ")
    )
    .expect("writing to a string cannot fail");
    text
}

/// Returns ours and the best other entrant in each setting.
fn setting_table(results: &Results, ground: usize, world: Calibration) -> String {
    let mut text = "| setting | fluid bound | `goodput` + `deadline` | best other | | points above it |\n|---|---:|---:|---|---:|---:|\n".to_owned();
    for row in results.rows(ground, world) {
        let (ours, best) = (results.ours(row), results.best_other(row));
        let points = ours.points_above(best);
        let points = match points {
            _ if points.mean.abs() <= EQUAL_POINTS => format!("{points}"),
            _ if points.is_above(0.0) => format!("**{points}**"),
            _ if points.is_below(0.0) => format!("{points} (worse)"),
            _ => format!("{points} (within the interval)"),
        };
        writeln!(
            text,
            "| {} | {:.1} | {} | {} | {} | {points} |",
            results.settings[row],
            results.bounds[row],
            ours.share(),
            best.name(),
            best.share(),
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Returns the effect of InSS' batch decision, and of its latency model, on the throughput within the SLO of GPUlet and GSLICE.
fn bda_table(results: &Results, worlds: &[Calibration]) -> String {
    let mut text =
        "| | world | dispatcher | own batches | bda | change |\n|---|---|---|---:|---:|---:|\n"
            .to_owned();
    let total = |world: Calibration, name: &str| -> Option<f64> {
        let cells = results.cells.iter().filter(|(row, _)| row.1 == world);
        let found: Vec<f64> = cells
            .flat_map(|(_, cells)| cells.iter().filter(|cell| cell.name() == name))
            .map(|cell| cell.goodput)
            .collect();
        (!found.is_empty()).then(|| found.iter().sum())
    };
    for (policy, decided) in [
        ("gpulet", "gpulet, bda"),
        ("gpulet", "gpulet, inss, bda"),
        ("gslice", "gslice, bda"),
    ] {
        for &world in worlds {
            for discipline in [Discipline::Deadline, Discipline::FixedWait] {
                let of = |planner: &str| total(world, &format!("{planner} + {discipline}"));
                if let (Some(own), Some(bda)) = (of(policy), of(decided)) {
                    let change = 100.0 * (bda / own - 1.0);
                    writeln!(
                        text,
                        "| {decided} | {world} | {discipline} | {own:.0} | {bda:.0} | {change:+.1} % |"
                    )
                    .expect("writing to a string cannot fail");
                }
            }
        }
    }
    text
}

/// Returns a chart of the best combination of each policy on each ground, in the first world.
fn figure(results: &Results) -> Figure {
    let world = Calibration::Calibrated;
    let policies: Vec<String> = Planner::every_policy()
        .into_iter()
        .map(|planner| planner.label)
        .filter(|label| !results.not_run.contains_key(label))
        .collect();
    let names = results.entrants();
    let best = |ground: usize, policy: &str| {
        let of_policy = names.iter().filter(|name| {
            let entrant = name.split([',', ' ']).next();
            entrant == Some(policy)
        });
        let shares = of_policy.filter_map(|name| results.ground_share(ground, world, name));
        shares.fold(0.0, f64::max)
    };
    let group = |ground: usize| BarGroup {
        label: results.names[ground].to_owned(),
        bars: policies
            .iter()
            .map(|policy| Bar {
                label: policy.clone(),
                values: vec![best(ground, policy)],
            })
            .collect(),
    };
    let grounds = (0..results.names.len()).filter(|&ground| results.has(ground, world));
    Figure {
        title: "Published schedulers: each policy with its best dispatcher".to_owned(),
        notes: vec!["calibrated world".to_owned()],
        columns: 1,
        panels: vec![Panel::Bars(BarChart {
            value_axis: "% of requests within the SLO".to_owned(),
            series: Series::from_labels(["within the SLO"]),
            groups: grounds.map(group).collect(),
            ..BarChart::default()
        })],
    }
}
