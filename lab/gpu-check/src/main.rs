//! `gpu-check`: checks and measurements that need a GPU, part by part, with targets and verdicts, as tables and as JSON.
//!
//! It runs the built programs of Packhorse on models that it makes itself. It needs a Python with PyTorch, and no network. It is started
//! by `cargo xtask gpu-check`, or by the launcher of the archive that `cargo xtask gpu-check --pack` writes.
//!
//! The exit status is 0 if nothing was missed or failed, 1 if something was, and 2 for wrong usage.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod cluster;
mod host;
mod models;
mod mps_daemon;
mod part;
mod parts;
mod process;
mod report;
mod worker_bench;

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Parser, builder::PossibleValuesParser};

use crate::{
    host::{Backend, Host, HostOptions},
    part::Part,
    parts::PARTS,
    process::now,
    report::{Report, Section},
};

const EXAMPLES: &str = "\
Examples:
  gpu-check                                     Everything, on this host's GPUs
  gpu-check --only devices,correctness          Two parts
  gpu-check --work /tmp/check --only profiles   Keeps the models for the next part
  gpu-check --device cpu --quick                Small models on the CPU, as a test of the check itself

Exit status: 0 nothing missed, 1 something missed or failed, 2 wrong usage.";

/// Checks and measures Packhorse on this host's GPUs.
#[derive(Parser)]
#[command(name = "gpu-check", version, max_term_width = 100, after_help = EXAMPLES)]
struct Options {
    /// Check only these parts, with commas between them
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(PARTS.map(Part::name)))]
    only: Vec<String>,
    /// The devices that models run on
    #[arg(long, value_enum, default_value = "nvidia")]
    device: Backend,
    /// Use small models and short runs; speeds are shown without targets
    #[arg(long)]
    quick: bool,
    /// Minutes after which nothing more is started
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    minutes: u64,
    /// File of the report, as JSON; rewritten after every part
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    report: PathBuf,
    /// Folder for models and logs [default: a temporary folder that is removed]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Folder of Packhorse's programs [default: this program's]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Python with PyTorch 2.11, torchvision and transformers
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

/// Runs the chosen parts, and returns true if nothing was missed or failed.
fn run(options: Options) -> anyhow::Result<bool> {
    let temporary = tempfile::tempdir().context("make a temporary folder")?;
    let work = options.work.unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let own = env::current_exe().context("find this program")?;
    let own_folder = own.parent().context("find this program's folder")?;
    let host_options = HostOptions {
        backend: options.device,
        quick: options.quick,
        report: options.report.clone(),
        programs: options.programs.unwrap_or_else(|| own_folder.to_owned()),
        python: options.python,
        work: work.canonicalize().context("find the work folder")?,
        time: Duration::from_secs(options.minutes * 60),
    };
    let host = host_options.find_host()?;
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
        eprintln!("{}: {} ...", part.name(), part.description());
        let section = run_part(*part, &host);
        println!("{}", section.render());
        report.sections.push(section);
        report.write(&options.report)?;
    }
    let counts = report.count_verdicts();
    println!(
        "{} met, {} missed or failed, {} unavailable; {}",
        counts.met,
        counts.missed_or_failed,
        counts.unavailable,
        options.report.display()
    );
    Ok(counts.missed_or_failed == 0)
}

/// Runs a part, and returns its section with an error as a failed row.
fn run_part(part: &dyn Part, host: &Result<Host, String>) -> Section {
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
