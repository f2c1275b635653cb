//! The experiments of the thesis, repeated: every policy that can plan its settings, with the thesis' dispatcher and with Packhorse's.
//!
//! Each experiment is a file in `experiments/`. It names its settings, has the [`runner::Runner`] simulate them, and writes a
//! [`page::Page`] with tables, figures and the agreement with the thesis. Run by `cargo xtask experiments`.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod cell_limit;
mod check;
mod experiment;
mod experiments;
mod fluid_bound;
mod intervals;
mod page;
mod plan_cache;
mod planner;
mod recorded;
mod runner;
mod setting;
mod summary;
mod sweep;
mod thesis;

use std::{fs, io, path::Path};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;

use crate::{experiment::Experiment, experiments::EXPERIMENTS, runner::Runner, summary::Summary};

/// The folder of the committed results.
const COMMITTED: &str = "docs/experiments";

/// Runs the experiments of the thesis and writes the results to docs/experiments.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask experiments",
    after_help = "\
Examples:
  cargo xtask experiments
  cargo xtask experiments --only 6.1 --only 6.10
  cargo xtask experiments --quick
  cargo xtask experiments --check"
)]
struct Options {
    /// Run only this experiment, given by its figure or name
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run with one seed and in the calibrated world only, and write to target/experiments
    #[arg(long)]
    quick: bool,
    /// Write to target/experiments-check, and fail if a file differs from docs/experiments, except in planning times
    #[arg(long, conflicts_with = "quick")]
    check: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let folder = setting::root().join(match (options.quick, options.check) {
        (true, _) => "target/experiments",
        (_, true) => "target/experiments-check",
        _ => COMMITTED,
    });
    let chosen = chosen(&options.only)?;
    if options.check {
        clear(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let runner = Runner::new(options.quick);
    let mut summary = Summary::default();
    for experiment in &chosen {
        println!("{}: {}", experiment.name(), experiment.title());
        let (page, sweep) = experiment.run(&runner)?;
        summary.add(*experiment, sweep.as_ref());
        page.write(&folder)?;
    }
    // The overview compares experiments, and all its numbers must come from one run.
    if chosen.len() == EXPERIMENTS.len() {
        summary.page(&runner).write(&folder)?;
    }
    println!("Written to {}", folder.display());
    if options.check {
        let differing = check::differing_files(&folder, &setting::root().join(COMMITTED))?;
        ensure!(
            differing.is_empty(),
            "these files differ from {COMMITTED}: {}",
            differing.join(", ")
        );
        println!("All files are the same as in {COMMITTED}");
    }
    Ok(())
}

/// Removes the folder of an earlier check.
fn clear(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the experiments of these names, or all if none is given.
fn chosen(only: &[String]) -> anyhow::Result<Vec<&'static dyn Experiment>> {
    for name in only {
        if !EXPERIMENTS
            .iter()
            .any(|experiment| experiment.name() == name)
        {
            let known: Vec<&str> = EXPERIMENTS
                .iter()
                .map(|experiment| experiment.name())
                .collect();
            bail!(
                "--only: unknown experiment {name:?}: expected one of {}",
                known.join(", ")
            );
        }
    }
    let is_chosen = |experiment: &&&dyn Experiment| {
        only.is_empty() || only.iter().any(|name| name == experiment.name())
    };
    Ok(EXPERIMENTS.iter().filter(is_chosen).copied().collect())
}
