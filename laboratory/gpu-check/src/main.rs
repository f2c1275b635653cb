//! `gpu-check`: what can only be shown on a GPU, part by part, with a target and a verdict for each, as tables and as JSON.
//!
//! Runs the programs of Packhorse as they are built, on models that it makes on the spot; needs a Python with PyTorch, and no
//! network. Started by `cargo xtask gpu-check`, or by the launcher of the archive that `cargo xtask gpu-check --pack` writes.
//!
//! Exit status: 0 if nothing was missed or failed, 1 if something was, 2 for wrong usage.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod cluster;
mod host;
mod models;
mod mps_daemon;
mod parts;
mod process;
mod report;
mod worker_bench;

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Parser, builder::PossibleValuesParser};

use crate::{
    host::{Backend, Host, Search},
    parts::{PARTS, Part},
    process::now,
    report::{Report, Section},
};

const EXAMPLES: &str = "\
Examples:
  gpu-check                                     Everything, on this host's GPUs
  gpu-check --only devices,correctness          Two parts
  gpu-check --work /tmp/check --only profiles   Keeps the models for the next part
  gpu-check --device cpu --quick                Small models on the CPU: shows that the check itself works

Exit status: 0 nothing missed, 1 something missed or failed, 2 wrong usage.";

/// Checks and measures Packhorse on this host's GPUs.
#[derive(Parser)]
#[command(name = "gpu-check", version, max_term_width = 100, after_help = EXAMPLES)]
struct Options {
    /// Check only these parts, with commas between them
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(PARTS.map(Part::name)))]
    only: Vec<String>,
    /// What models run on
    #[arg(long, value_enum, default_value = "nvidia")]
    device: Backend,
    /// Small models and short runs; speeds are shown and not judged
    #[arg(long)]
    quick: bool,
    /// Minutes after which nothing more is begun
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// Where the report is written, as JSON; rewritten after every part
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    report: PathBuf,
    /// Where models and logs are kept; without it in a temporary folder that is removed
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Folder of the programs of Packhorse [default: this program's]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// A Python with PyTorch 2.11, torchvision and transformers
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing was missed.
fn run(options: Options) -> anyhow::Result<bool> {
    let temporary = tempfile::tempdir().context("make a temporary folder")?;
    let work = options.work.unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let own = env::current_exe().context("find this program")?;
    let beside = own.parent().context("find this program's folder")?;
    let search = Search {
        backend: options.device,
        quick: options.quick,
        report: options.report.clone(),
        programs: options.programs.unwrap_or_else(|| beside.to_owned()),
        python: options.python,
        work: work.canonicalize().context("find the work folder")?,
        time: Duration::from_secs(options.minutes * 60),
    };
    let host = search.run()?;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: options.device.name().to_owned(),
        quick: options.quick,
        sections: Vec::new(),
    };
    let chosen = PARTS.iter().filter(|part| {
        options.only.is_empty() || options.only.iter().any(|name| name == part.name())
    });
    for part in chosen {
        eprintln!("{}: {} ...", part.name(), part.about());
        let section = check(*part, &host);
        println!("{}", section.render());
        report.sections.push(section);
        report.write(&options.report)?;
    }
    let [met, against, unavailable] = report.tally();
    println!(
        "{met} met, {against} missed or failed, {unavailable} unavailable; {}",
        options.report.display()
    );
    Ok(against == 0)
}

/// Runs a part to its end, whatever comes of it.
fn check(part: &dyn Part, host: &Result<Host, String>) -> Section {
    let mut section = Section::new(part.name());
    let start = now();
    match host {
        Err(reason) => section.unavailable("everything", reason),
        Ok(host) if host.is_out_of_time() => {
            section.out_of_time("everything");
        }
        Ok(host) => {
            if let Err(e) = part.run(host, &mut section) {
                section.failed("the rest", format!("{e:#}"));
            }
        }
    }
    section.seconds = (now() - start).as_secs_f64();
    section
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }
}
