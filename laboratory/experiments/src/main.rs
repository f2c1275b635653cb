//! The experiments of the thesis, again: every policy that can, with the thesis' dispatcher and with ours, on its settings.
//!
//! Each experiment is a file in `experiments/`: it names its settings, has the [`lab::Lab`] try them, and writes a [`page::Page`] with
//! tables, figures and what agrees with the thesis. Run by `cargo xtask experiments`.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod experiments;
mod lab;
mod page;
mod setting;
mod summary;
mod sweep;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use clap::Parser;

use crate::{
    experiments::{EXPERIMENTS, Experiment},
    lab::Lab,
};

/// Runs the experiments of the thesis and writes what came out to docs/experiments.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask experiments",
    after_help = "\
Examples:
  cargo xtask experiments
  cargo xtask experiments --only 6.1 --only 6.10
  cargo xtask experiments --quick"
)]
struct Options {
    /// Run only this experiment, by its figure or name
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// One seed and the calibrated world only, and write to target/experiments
    #[arg(long)]
    quick: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let folder: PathBuf = if options.quick {
        "target/experiments"
    } else {
        "docs/experiments"
    }
    .into();
    let folder = setting::root().join(folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let chosen = chosen(&options.only)?;
    let lab = Lab::new(options.quick);
    let mut summary = summary::Summary::default();
    for experiment in &chosen {
        println!("{}: {}", experiment.name(), experiment.title());
        let (page, sweep) = experiment.run(&lab)?;
        summary.add(*experiment, sweep.as_ref());
        page.write(&folder)?;
    }
    // What stands beside each other comes from one run.
    if chosen.len() == EXPERIMENTS.len() {
        summary.page(&lab).write(&folder)?;
    }
    println!("Written to {}", folder.display());
    Ok(())
}

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
                "--only: there is no experiment {name:?}, but {}",
                known.join(", ")
            );
        }
    }
    let is_chosen = |experiment: &&&dyn Experiment| {
        only.is_empty() || only.iter().any(|name| name == experiment.name())
    };
    Ok(EXPERIMENTS.iter().filter(is_chosen).copied().collect())
}
