//! Many models on few devices: pools, whose devices decide among all their models, beside workers of their own.

use std::fmt::Write as _;

use packhorse_cluster::Discipline;
use packhorse_figures::{Curve, Figure, LineChart, Panel, Series, Stroke};
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

pub(crate) struct Crowd;

/// The most steps of the search of `goodput` for a thousand models, which would go on for minutes.
const STEPS: u64 = 50_000;

/// A share of the requests in time that a pool shall reach where inputs take no time: that of the prototype of a device that decides among all its models, which
/// knew no network.
struct Target {
    devices: u32,
    percent: f64,
}

const fn target(devices: u32, percent: f64) -> Target {
    Target { devices, percent }
}

/// A group of settings that differ in the number of devices.
struct Ground {
    name: &'static str,
    file: &'static str,
    /// The numbers of devices, descending.
    devices: &'static [u32],
    targets: &'static [Target],
}

const GROUNDS: [Ground; 4] = [
    Ground {
        name: "thirty models",
        file: "crowd/thirty.toml",
        devices: &[8, 7, 6, 5, 4],
        targets: &[
            target(8, 100.0),
            target(7, 100.0),
            target(6, 100.0),
            target(5, 96.3),
            target(4, 87.2),
        ],
    },
    Ground {
        name: "sixty models",
        file: "crowd/sixty.toml",
        devices: &[9, 8, 7, 6, 5, 4],
        targets: &[],
    },
    Ground {
        name: "a hundred models",
        file: "crowd/hundred.toml",
        devices: &[10, 9, 8, 7, 6, 5],
        targets: &[],
    },
    Ground {
        name: "a thousand models, whose weights need eight devices",
        file: "zoo/memory-short.toml",
        devices: &[6, 4, 3, 2],
        targets: &[
            target(6, 100.0),
            target(4, 92.0),
            target(3, 80.0),
            target(2, 65.0),
        ],
    },
];

/// A way of serving the models.
struct Entrant {
    name: &'static str,
    planner: fn() -> Planner,
    discipline: Discipline,
    pools: bool,
    /// True if inputs take no time on the network.
    without_network: bool,
}

/// The place of the pools without a network among the ways.
const WITHOUT_NETWORK: usize = 5;

/// The ways, of which the first two are compared.
fn entrants() -> Vec<Entrant> {
    let own = |name, planner, discipline| Entrant {
        name,
        planner,
        discipline,
        pools: false,
        without_network: false,
    };
    let goodput = || Planner::from_policy(GOODPUT).within_steps(STEPS);
    let pools = |name, without_network| Entrant {
        name,
        planner: goodput,
        discipline: Discipline::Deadline,
        pools: true,
        without_network,
    };
    vec![
        pools("pools", false),
        own("own workers", goodput, Discipline::Deadline),
        own(
            "`herd`",
            || Planner::from_policy("herd"),
            Discipline::Deadline,
        ),
        own(
            "`herd` + `flex-np`",
            || Planner::from_policy("herd"),
            Discipline::FlexNp,
        ),
        own(
            "`nexus` + `clockwork`",
            || Planner::from_policy("nexus"),
            Discipline::Clockwork,
        ),
        pools("pools, inputs take no time", true),
        Entrant {
            without_network: true,
            ..own(
                "own workers, inputs take no time",
                goodput,
                Discipline::Deadline,
            )
        },
    ]
}

/// The results of one entrant with one number of devices.
struct Cell {
    /// The percentage of the requests in time, of each seed.
    percent: f64,
    /// The percentage that the plan forecasts.
    forecast: f64,
    /// The loads, and the requests that came when no device had the weights, of the first seed.
    moves: Option<(u64, u64)>,
    /// The number of models of which less than one request in ten was in time.
    starved: usize,
}

impl Experiment for Crowd {
    fn name(&self) -> &'static str {
        "crowd"
    }

    fn title(&self) -> &'static str {
        "Many models on few devices"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut page = new_page(self);
        page.paragraph(&format!(
            "The share of the offered requests that is answered within the SLO.\n\
             With *pools* a device decides among all of its models which batch it computes next, one at a time, and whose weights it holds.\n\
             With *own workers* each replica has a process of its own, a model's batches are decided for it alone, and what runs beside them is left to the processor.\n\
             Own workers are planned by `{GOODPUT}` and dispatched by `deadline` unless a column says otherwise.\n\
             The models are those of Clockwork's zoo, whose use of the multiprocessors was not measured and counts as the whole device.\n\
             In the three crowds every device has memory for all models, and a few models get most of the requests (`scenarios/crowd`).\n\
             {} seeds.",
            runner.seeds.len(),
        ));
        page.paragraph(
            "A request brings 12 to 1,073 kB over a network of 1.1 GB/s, so that a batch of 16 photographs takes 9 ms to its device.\n\
             A device is reserved for a model while its batch travels.\n\
             The last two columns are the same with inputs that take no time.",
        );
        let entrants = entrants();
        assert!(entrants[WITHOUT_NETWORK].without_network && entrants[WITHOUT_NETWORK].pools);
        let mut claims = Vec::new();
        let mut panels = Vec::new();
        let mut errors = Vec::new();
        let mut needed = String::new();
        for ground in &GROUNDS {
            let cells = run_ground(ground, &entrants, runner)?;
            page.heading(&format!(
                "{}{}",
                ground.name[..1].to_uppercase(),
                &ground.name[1..]
            ));
            page.table(&table(ground, &entrants, &cells));
            for (devices, row) in ground.devices.iter().zip(&cells) {
                let pools = &row[0];
                errors.push((pools.forecast - pools.percent).abs());
                if let Some(target) = { ground.targets.iter() }.find(|t| t.devices == *devices) {
                    let percent = row[WITHOUT_NETWORK].percent;
                    claims.push(Claim::new(
                        format!("{}, {devices} devices: {} %", ground.name, target.percent),
                        format!("{percent:.1} % ({:.1} % with the network)", pools.percent),
                        // In a tenth of a point, as the targets are given.
                        percent >= target.percent - 0.05,
                    ));
                }
            }
            let needs = |entrant: usize| {
                let rows = ground.devices.iter().zip(&cells);
                let enough = rows.filter(|(_, row)| row[entrant].percent >= 99.0);
                let fewest = enough.map(|(devices, _)| *devices).min();
                fewest.map_or_else(|| format!("> {}", ground.devices[0]), |n| n.to_string())
            };
            let row: Vec<String> = (0..entrants.len()).map(needs).collect();
            writeln!(needed, "| {} | {} |", ground.name, row.join(" | "))?;
            panels.push(panel(ground, &entrants, &cells));
        }
        page.heading("Devices for 99 % in time");
        page.table(&format!("{}{needed}", header("models", &entrants)));
        page.heading("Targets");
        page.paragraph("The shares are those of a prototype without a network, so inputs take no time here either.");
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        claims.push(Claim::new(
            "forecasts of plans with pools: a mean error of at most 2 points".to_owned(),
            format!("{mean:.1} points"),
            mean <= 2.0,
        ));
        page.targets(&claims);
        page.figure(
            "shares",
            &Figure {
                title: "Requests in time over the number of devices".to_owned(),
                notes: Vec::new(),
                columns: 2,
                panels,
            },
        );
        page.heading("Objectives and links");
        page.paragraph(
            "A thousand models with pools, with other SLOs and other bandwidths between the memory of a node and its devices.",
        );
        page.table(&variations(runner)?);
        Ok((page, None))
    }
}

fn setting(ground: &Ground, devices: u32, entrant: &Entrant) -> Setting {
    let file = root().join("scenarios").join(ground.file);
    let setting = Setting::file(file).with_devices(devices);
    let setting = setting.with_pools(entrant.pools);
    if entrant.without_network {
        setting.with_simulation("network_bytes_per_s", 1e14)
    } else {
        setting
    }
}

/// Returns the results by number of devices and entrant.
fn run_ground(
    ground: &Ground,
    entrants: &[Entrant],
    runner: &Runner,
) -> anyhow::Result<Vec<Vec<Cell>>> {
    let cells: Vec<(u32, &Entrant)> = { ground.devices.iter() }
        .flat_map(|devices| entrants.iter().map(move |entrant| (*devices, entrant)))
        .collect();
    let run = |(devices, entrant): (u32, &Entrant)| {
        run_cell(&setting(ground, devices, entrant), entrant, runner)
    };
    let run: anyhow::Result<Vec<Cell>> = cells.into_par_iter().map(run).collect();
    let mut run = run?.into_iter();
    let row = |_| run.by_ref().take(entrants.len()).collect();
    Ok(ground.devices.iter().map(row).collect())
}

fn run_cell(setting: &Setting, entrant: &Entrant, runner: &Runner) -> anyhow::Result<Cell> {
    let scenario = setting.scenario(Calibration::Nominal)?;
    let planner = (entrant.planner)();
    let plan = planner.plan(&scenario, entrant.discipline, &PlanCache::default())?;
    let offered: f64 = scenario.problem.models.iter().map(|m| m.rate.get()).sum();
    let mut shares = Vec::new();
    let mut cell = Cell {
        percent: 0.0,
        forecast: 100.0 * plan.report.predicted_goodput_rps / offered,
        moves: None,
        starved: 0,
    };
    for &seed in &runner.seeds {
        let report = planner.run(&scenario, &plan, entrant.discipline.into(), seed)?;
        shares.push(100.0 * report.totals.goodput_rps / report.totals.offered_rps);
        if shares.len() == 1 {
            let moves = report.totals.pools;
            cell.moves = moves.map(|moves| (moves.loads, moves.cold_requests));
            let starved = { report.models.iter() }
                .filter(|m| m.offered_rps > 1.0 && m.goodput_rps < 0.1 * m.offered_rps);
            cell.starved = starved.count();
        }
    }
    cell.percent = shares.iter().sum::<f64>() / shares.len() as f64;
    Ok(cell)
}

fn header(first: &str, entrants: &[Entrant]) -> String {
    let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name).collect();
    let rule = "--:|".repeat(names.len());
    format!("| {first} | {} |\n|---|{rule}\n", names.join(" | "))
}

fn table(ground: &Ground, entrants: &[Entrant], cells: &[Vec<Cell>]) -> String {
    let mut text = header("devices", entrants);
    // Beside each other they are the measure of how good the forecast and the fairness are.
    text = text.replacen(
        "| pools |",
        "| pools | forecast | copies | cold requests | models below 10 % |",
        1,
    );
    text = text.replacen("|---|--:|", "|---|--:|--:|--:|--:|--:|", 1);
    for (devices, row) in ground.devices.iter().zip(cells) {
        let pools = &row[0];
        let (loads, cold) = pools.moves.unwrap_or_default();
        let mut columns = vec![
            format!("{:.1}", pools.percent),
            format!("{:.1}", pools.forecast),
            loads.to_string(),
            cold.to_string(),
            format!("{}, own workers {}", pools.starved, row[1].starved),
        ];
        columns.extend(row[1..].iter().map(|cell| format!("{:.1}", cell.percent)));
        let columns = columns.join(" | ");
        text = format!("{text}| {devices} | {columns} |\n");
    }
    text
}

fn panel(ground: &Ground, entrants: &[Entrant], cells: &[Vec<Cell>]) -> Panel {
    let curve = |entrant: usize| {
        let rows = ground.devices.iter().zip(cells);
        let points = rows.map(|(devices, row)| (f64::from(*devices), row[entrant].percent));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.reverse();
        Curve {
            series: entrant,
            stroke: Stroke::LineAndDots,
            points,
        }
    };
    Panel::Lines(LineChart {
        title: ground.name.to_owned(),
        x_axis: "devices".to_owned(),
        y_axis: "% in time".to_owned(),
        x_end: None,
        y_end: Some(100.0),
        series: Series::from_labels(entrants.iter().map(|entrant| entrant.name)),
        curves: (0..entrants.len()).map(curve).collect(),
        reference_lines: Vec::new(),
    })
}

/// Returns the shares of a thousand models with other objectives and links.
fn variations(runner: &Runner) -> anyhow::Result<String> {
    let ground = &GROUNDS[3];
    let pools = &entrants()[0];
    let mut text = "| devices | SLO 50 ms | 100 ms | 250 ms | 12 GB/s | 25 GB/s | 50 GB/s |\n|---|--:|--:|--:|--:|--:|--:|\n".to_owned();
    for &devices in ground.devices {
        let base = || setting(ground, devices, pools);
        let slos = [50, 100, 250].map(|slo| base().with_models("slo_ms", slo));
        let links = [12e9, 25e9, 50e9].map(|link| base().with_host_link(link));
        let settings: Vec<Setting> = slos.into_iter().chain(links).collect();
        let cells = settings.par_iter();
        let cells = cells.map(|setting| run_cell(setting, pools, runner));
        let cells = cells.collect::<anyhow::Result<Vec<Cell>>>()?;
        let shares: Vec<String> = { cells.iter() }
            .map(|cell| format!("{:.1}", cell.percent))
            .collect();
        writeln!(text, "| {devices} | {} |", shares.join(" | "))?;
    }
    Ok(text)
}
