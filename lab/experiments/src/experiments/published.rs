//! Every published policy and dispatcher here, in every setting: what does better than `goodput` with `deadline`, and where.

mod grounds;
mod results;

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::Discipline;
use packhorse_figures::{Bar, BarChart, BarGroup, Figure, Panel, Series};

use crate::{
    cell_limit::CellLimit,
    experiment::{Experiment, new_page},
    intervals::Interval,
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::Calibration,
    sweep::Sweep,
    thesis::GOODPUT,
};
use grounds::{MEMORY_SHORT_STEPS, QUICK_MEMORY_SHORT_STEPS, grounds};
use results::{Cell, Results, SettingKey};

pub(crate) struct Published;

/// The reasons for which another entrant is better, by ground.
const REASONS: [(&str, &str); 2] = [
    (
        "Azure 2019",
        "Azure 2019: all plans are made for the mean rates, and stay. In the first minute `vgg19` has 1.6 times its mean. `goodput` gives models further replicas where devices have room \
         (`crates/placement/src/goodput/surge.rs`); `herd` gives each group's devices all of its models, so that any of them may grow. The gateway plans again when rates change, which is not \
         simulated here.",
    ),
    (
        "memory short",
        "Memory short, with two and four GPUs: hundreds of models share an overloaded device, each with few requests. `flex` compares the batches of all models and computes the largest, while the engine decides \
         for each model alone and lets replicas compute beside each other: the same groups of `herd` reach much less with `deadline`. \
         With four, `clockwork` serves models whose weights do not fit, which it loads when they are needed.",
    ),
];

/// The difference in points by which another entrant may be better before the target counts as missed.
const ALLOWED_POINTS: f64 = 0.5;
/// The difference in points below which two entrants count as equal, whatever their intervals.
const EQUAL_POINTS: f64 = 0.05;
/// The longest time of planning, and of each run, of a cell.
const CELL_LIMIT: CellLimit = CellLimit::new(Duration::from_mins(1));
/// The same in a quick run.
const QUICK_CELL_LIMIT: CellLimit = CellLimit::new(Duration::from_secs(40));

impl Experiment for Published {
    fn name(&self) -> &'static str {
        "published"
    }

    fn title(&self) -> &'static str {
        "Published schedulers"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut results = Results::default();
        let quick = runner.is_quick();
        let limit = if quick { QUICK_CELL_LIMIT } else { CELL_LIMIT };
        for (number, ground) in grounds(quick).into_iter().enumerate() {
            results.names.push(ground.name);
            results.have_target.push(ground.has_target);
            let worlds = ground.worlds(&runner.calibrations);
            for (discipline, planners) in ground.entrants() {
                let lists = [vec![discipline.into()]];
                let sweeps =
                    runner.sweeps_within(&worlds, &ground.settings, &planners, &lists, limit)?;
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
        "Does a published scheduler do better than `{GOODPUT}` with `deadline`? Every policy here with `deadline` and with `fixed-wait`; the published systems with their own dispatchers: Shepherd (`herd` with \
         `flex`, which stops batches, and `flex-np`, which does not), Clockwork (`clockwork`, with the replicas of `nexus` at the start), Symphony (`nexus` with `symphony`; also other \
         policies), Clipper's batch sizes (`gpulet` with `aimd`), Proteus' batches for one model per device (`accscale`); and InSS' batch decision (`bda`) and latency model (`inss`) with GPUlet \
         and GSLICE. Seeds {} to {}; ± is the half of a 95 % confidence interval over seeds (Student's t). Differences are between runs with the same seed, which have the same \
         arrivals.",
        runner.seeds.first().copied().unwrap_or_default(),
        runner.seeds.last().copied().unwrap_or_default(),
    ));
    page.paragraph(
        "A combination of a published policy with `deadline` is not a published system: it has our dispatcher. It is here because a policy that does better with it \
         than ours would be a better policy. The *fluid bound* is the share that no plan and no dispatcher can exceed: requests as a fluid, the cheapest first, on devices \
         without memory limits, queues or batches that wait.",
    );
    page.paragraph(
        "`flex`, `flex-np` and `clockwork` compute one batch at a time on a device, alone, as the papers do, and are not slowed by co-location. `clockwork` takes batches of at most 16 rows and \
         25 ms, for its SLO of 100 ms: with 200 ms and models that are cheap in large batches it lacks their throughput. *A thousand GPUs* and *memory short* are simulated in the nominal world. *Memory short* \
         has a thousand models whose weights need eight GPUs (`scenarios/zoo/memory-short.toml`). There `clockwork` loads weights when they are needed, and the others serve the models that \
         fit. It has no target: it is the baseline of later work.",
    );
    let steps = if runner.is_quick() {
        QUICK_MEMORY_SHORT_STEPS
    } else {
        MEMORY_SHORT_STEPS
    };
    page.paragraph(&format!(
        "In *memory short* the search of `{GOODPUT}` ends after {steps} steps: it would go on for minutes."
    ));
    page.heading("Target");
    let worlds = results.worlds();
    page.targets(&targets(results, &worlds));
    page.heading("Settings in which another one does better");
    page.table(&losses(results));
    for (ground, reason) in REASONS {
        if has_losses(results, ground) {
            page.paragraph(reason);
        }
    }
    page.heading("By ground");
    page.figure("grounds", &figure(results));
    for &world in &worlds {
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
    page.table(&bda_table(results, &worlds));
    page.heading("Every setting");
    for &world in &worlds {
        for ground in 0..results.names.len() {
            if results.has(ground, world) {
                page.paragraph(&format!("{}, {world}:", results.names[ground]));
                page.table(&setting_table(results, ground, world));
            }
        }
    }
    page.csv(results.csv());
    page.heading("Not here");
    page.paragraph("Systems that are not in the tables were not run.");
    if !results.given_up.is_empty() {
        let limit = if runner.is_quick() {
            QUICK_CELL_LIMIT
        } else {
            CELL_LIMIT
        };
        let limit = limit.duration().unwrap_or_default().as_secs();
        page.paragraph(&format!(
            "These were given up, because planning or a run took longer than {limit} s:"
        ));
        page.table(&given_up_table(results));
    }
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
            if !results.have_target[ground] {
                continue;
            }
            let rows = results.rows(ground, world).filter_map(|row| {
                let (ours, best) = (results.ours(row)?, results.best_other(row)?);
                Some((ours.points_above(best).mean, row, best.name()))
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
        for (cell, points) in better_cells(results, row, cells) {
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
    if any { text } else { "None.".to_owned() }
}

/// Returns the other entrants of a setting that are better than ours, with the difference in points.
fn better_cells<'a>(
    results: &Results,
    row: &SettingKey,
    cells: &'a [Cell],
) -> Vec<(&'a Cell, Interval)> {
    let Some(ours) = results.ours(row) else {
        return Vec::new();
    };
    let others = cells.iter().filter(|cell| cell.is_other());
    let with_points = others.map(|cell| (cell, cell.points_above(ours)));
    with_points
        .filter(|(_, points)| points.is_above(0.0) && points.mean > EQUAL_POINTS)
        .collect()
}

/// Returns true if another entrant is better in a setting of a ground.
fn has_losses(results: &Results, ground: &str) -> bool {
    let of_ground = results.cells.iter();
    let mut of_ground = of_ground.filter(|(row, _)| results.names[row.0] == ground);
    of_ground.any(|(row, cells)| !better_cells(results, row, cells).is_empty())
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
        let points = match (ours, best) {
            (Some(ours), Some(best)) => text_of_points(ours.points_above(best)),
            _ => "–".to_owned(),
        };
        let share = |cell: Option<&Cell>| {
            cell.map_or("not run".to_owned(), |cell| cell.share().to_string())
        };
        writeln!(
            text,
            "| {} | {:.1} | {} | {} | {} | {points} |",
            results.settings[row],
            results.bounds[row],
            share(ours),
            best.map_or("–".to_owned(), Cell::name),
            share(best),
        )
        .expect("writing to a string cannot fail");
    }
    text
}

fn text_of_points(points: Interval) -> String {
    match points {
        _ if points.mean.abs() <= EQUAL_POINTS => format!("{points}"),
        _ if points.is_above(0.0) => format!("**{points}**"),
        _ if points.is_below(0.0) => format!("{points} (worse)"),
        _ => format!("{points} (within the interval)"),
    }
}

/// Returns the cells that were given up.
fn given_up_table(results: &Results) -> String {
    let mut text = "| ground | setting | entrants |\n|---|---|---|\n".to_owned();
    for (row, cells) in &results.given_up {
        let cells = cells.iter().map(|(name, step)| format!("{name} ({step})"));
        let cells: Vec<String> = cells.collect();
        let (ground, setting) = (results.names[row.0], &results.settings[row]);
        writeln!(
            text,
            "| {ground}, {} | {setting} | {} |",
            row.1,
            cells.join(", ")
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
    let total = |world: Calibration, name: &str, other: &str| -> Option<f64> {
        let cells = results.cells.iter().filter(|(row, _)| row.1 == world);
        let of = |cells: &[Cell], name: &str| {
            let found = cells.iter().find(|cell| cell.name() == name);
            found.map(|cell| cell.goodput)
        };
        // Only the settings that have both.
        let both = cells.filter_map(|(_, cells)| of(cells, other).and(of(cells, name)));
        let found: Vec<f64> = both.collect();
        (!found.is_empty()).then(|| found.iter().sum())
    };
    for (policy, decided) in [
        ("gpulet", "gpulet, bda"),
        ("gpulet", "gpulet, inss, bda"),
        ("gslice", "gslice, bda"),
    ] {
        for &world in worlds {
            for discipline in [Discipline::Deadline, Discipline::FixedWait] {
                let name = |planner: &str| format!("{planner} + {discipline}");
                let of = |planner, other| total(world, &name(planner), &name(other));
                if let (Some(own), Some(bda)) = (of(policy, decided), of(decided, policy)) {
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
    let world = |ground: usize| {
        let calibrated = Calibration::Calibrated;
        if results.has(ground, calibrated) {
            calibrated
        } else {
            Calibration::Nominal
        }
    };
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
        let shares = of_policy.filter_map(|name| results.ground_share(ground, world(ground), name));
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
    let grounds = (0..results.names.len()).filter(|&ground| results.has(ground, world(ground)));
    Figure {
        title: "Published schedulers: each policy with its best dispatcher".to_owned(),
        notes: vec!["calibrated world; a thousand GPUs and memory short: nominal".to_owned()],
        columns: 1,
        panels: vec![Panel::Bars(BarChart {
            value_axis: "% of requests within the SLO".to_owned(),
            series: Series::from_labels(["within the SLO"]),
            groups: grounds.map(group).collect(),
            ..BarChart::default()
        })],
    }
}
