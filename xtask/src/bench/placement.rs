//! The solve time of each placement policy, the part of the fluid bound that its plan promises, and the loss of the default policy against a
//! long run of itself. Times are criterion's medians, in processor time.

mod long_run;

use std::{collections::BTreeSet, fmt::Write as _, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};

use super::machine;
use crate::{setup, workspace::root};

/// The paper's time for its own policy on 24 devices and 20 models, in milliseconds.
const USHER_PAPER_MS: f64 = 510.0;
const USHER_PAPER_SETTING: &str = "24-devices-20-models";

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leaves out the MILP policies, which need the solver `HiGHS`
    #[arg(long)]
    without_highs: bool,
    /// Measures only the loss against a long run, which takes some minutes, and keeps the rest of the report
    #[arg(long)]
    only_long_run: bool,
    /// Measures all but the loss against a long run, and keeps that section of the report
    #[arg(long, conflicts_with = "only_long_run")]
    without_long_run: bool,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/placement.md")]
    report: PathBuf,
}

/// A line of what the benchmark writes.
struct Solve {
    group: String,
    policy: String,
    setting: String,
    once_ms: f64,
    /// The goodput of the plan, in requests per second; `None` if planning was stopped.
    goodput: Option<f64>,
    offered: f64,
    bound: f64,
    /// Criterion's median, in milliseconds; `None` if it did not time this one.
    median_ms: Option<f64>,
}

/// Measures and writes the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = root().join(&options.report);
    let shown = || path.display().to_string();
    let mut kept = String::new();
    if options.only_long_run || options.without_long_run {
        kept = fs::read_to_string(&path).with_context(shown)?;
    }
    let (times, long_run) = kept.split_at(kept.find(long_run::HEADING).unwrap_or(kept.len()));
    let mut text = if options.only_long_run {
        times.to_owned()
    } else {
        solve_times(options)?
    };
    if options.without_long_run {
        text += long_run;
    } else {
        text += &long_run::section()?;
    }
    fs::write(&path, text).with_context(shown)?;
    println!("Wrote {}", shown());
    Ok(())
}

/// Returns the report without its last section.
fn solve_times(options: &Options) -> anyhow::Result<String> {
    let mut features: &[&str] = &[];
    if !options.without_highs {
        setup::run()?;
        features = &["--features", "highs"];
    }
    let text = measured(
        "packhorse-placement",
        "solve_times",
        features,
        "solve-times.csv",
    )?;
    let solves = text
        .lines()
        .skip(1)
        .map(Solve::read)
        .collect::<anyhow::Result<Vec<_>>>()?;
    report(options, &solves)
}

/// Runs a benchmark and returns the file that it writes to cargo's folder for such files.
fn measured(package: &str, bench: &str, arguments: &[&str], file: &str) -> anyhow::Result<String> {
    let mut command = Command::new("cargo");
    command
        .current_dir(root())
        .args(["bench", "-p", package, "--bench", bench])
        .args(arguments);
    let status = command.status().context("start cargo")?;
    ensure!(status.success(), "cargo bench: {status}");
    let path = root().join("target/tmp").join(file);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

impl Solve {
    fn read(line: &str) -> anyhow::Result<Self> {
        let cells: Vec<&str> = line.split(',').collect();
        let [
            group,
            policy,
            setting,
            _,
            _,
            once_ms,
            goodput,
            offered,
            bound,
        ] = cells[..]
        else {
            anyhow::bail!("solve-times.csv has a line of {} cells", cells.len());
        };
        let estimates = root()
            .join("target/criterion")
            .join(group)
            .join(policy)
            .join(setting)
            .join("new/estimates.json");
        let goodput: Option<f64> = (!goodput.is_empty()).then(|| goodput.parse()).transpose()?;
        let once_ms: f64 = once_ms.parse()?;
        // A solve that was timed once may have estimates of an earlier run.
        let median_ms = match fs::read(&estimates) {
            Ok(json) if goodput.is_some() && once_ms <= 200.0 => {
                let json: serde_json::Value = serde_json::from_slice(&json)?;
                json["median"]["point_estimate"].as_f64().map(|ns| ns / 1e6)
            }
            _ => None,
        };
        Ok(Self {
            group: group.to_owned(),
            policy: policy.to_owned(),
            setting: setting.to_owned(),
            once_ms,
            goodput,
            offered: offered.parse()?,
            bound: bound.parse()?,
            median_ms,
        })
    }

    /// Returns the time in milliseconds, in brackets if it is of a single run.
    fn time(&self) -> String {
        match (self.median_ms, self.goodput) {
            (Some(median), _) => format!("{median:.3}"),
            (None, Some(_)) => format!("({:.0})", self.once_ms),
            (None, None) => format!("stopped after {:.0} s", self.once_ms / 1e3),
        }
    }
}

fn report(options: &Options, solves: &[Solve]) -> anyhow::Result<String> {
    let flag = if options.without_highs {
        " --without-highs"
    } else {
        ""
    };
    let mut text = format!(
        "# How long placement takes\n\nMade by `cargo xtask bench placement{flag}` on {}. Times are criterion's medians in milliseconds \
         of processor time (optimised build, one thread), since the machine also does other work; in brackets of a single run, where that took \
         more than a fifth of a second. Goodput is what the \
         policy itself predicts, in percent of the fluid bound: devices that only take turns, always with the batches that give most, \
         without waiting and without memory. Policies that let replicas run side by side without loss may count more than the bound on \
         a cluster that is short; nobody counts more than is offered.\n",
        machine()?
    );
    writeln!(text, "\n## The thesis' settings\n")?;
    table(&mut text, solves, "thesis", Solve::time)?;
    writeln!(
        text,
        "\nGoodput in requests/s, by each policy's own estimate:\n"
    )?;
    table(&mut text, solves, "thesis", |solve| {
        solve
            .goodput
            .map_or_else(|| "–".to_owned(), |goodput| format!("{goodput:.1}"))
    })?;
    writeln!(
        text,
        "\n## From 4 to 6,000 devices\n\nModels drawn from the Clockwork zoo with a fixed seed, rates that want 90 % of the devices' time in \
         full batches, SLOs of 2 to 6 times the largest batch. Memory is the zoo's weights and 30 MiB per row; the zoo has no \
         occupancies, and they are drawn from the range of the thesis' table A.1.\n"
    )?;
    table(&mut text, solves, "scale", |solve| {
        solve.goodput.map_or_else(
            || solve.time(),
            |goodput| format!("{} / {:.1} %", solve.time(), 100.0 * goodput / solve.bound),
        )
    })?;
    writeln!(text, "\nOffered rate over the bound: {}.", ratios(solves))?;
    writeln!(
        text,
        "\nClusters of more than 256 devices `goodput` cuts into cells that it fills without searching. [What that loses](#against-a-long-run) \
         stands below."
    )?;
    writeln!(
        text,
        "\n`usher` and `wao-usher` are asked up to 200 models: matching takes the third power of their number, and cannot be stopped. \
         The programs are asked up to 100 devices times models, and iGniter where there are coefficients."
    )?;
    let usher = solves
        .iter()
        .find(|solve| solve.policy == "usher" && solve.setting == USHER_PAPER_SETTING);
    if let Some(ours) = usher.and_then(|solve| solve.median_ms) {
        writeln!(
            text,
            "\nThe Usher paper gives {USHER_PAPER_MS} ms for 24 devices and 20 models; `usher` takes {ours:.3} ms here: {:.0} times faster \
             (on another machine, and on models of another zoo).",
            USHER_PAPER_MS / ours
        )?;
    }
    Ok(text)
}

fn ratios(solves: &[Solve]) -> String {
    let mut seen = BTreeSet::new();
    let mut ratios = Vec::new();
    for solve in solves.iter().filter(|solve| solve.group == "scale") {
        if seen.insert(&solve.setting) {
            ratios.push(format!("{:.2}", solve.offered / solve.bound));
        }
    }
    ratios.join(", ")
}

/// Returns a table with a row per policy and a column per setting, both in the order of the solves.
fn table(
    text: &mut String,
    solves: &[Solve],
    group: &str,
    cell: impl Fn(&Solve) -> String,
) -> anyhow::Result<()> {
    let of_group = || solves.iter().filter(|solve| solve.group == group);
    let (mut policies, mut settings) = (Vec::new(), Vec::new());
    for solve in of_group() {
        if !policies.contains(&&solve.policy) {
            policies.push(&solve.policy);
        }
        if !settings.contains(&&solve.setting) {
            settings.push(&solve.setting);
        }
    }
    write!(text, "| |")?;
    for setting in &settings {
        write!(text, " {} |", setting.replace('-', " "))?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(settings.len()))?;
    for policy in policies {
        write!(text, "| `{policy}` |")?;
        for setting in &settings {
            let found =
                of_group().find(|solve| solve.policy == *policy && solve.setting == **setting);
            write!(text, " {} |", found.map_or_else(String::new, &cell))?;
        }
        writeln!(text)?;
    }
    Ok(())
}
