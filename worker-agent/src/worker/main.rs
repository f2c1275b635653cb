//! The Packhorse worker: runs one replica or one measurement. Started by the agent, with a hand-over folder that says what to
//! do and in which it says what became of it; or by hand, to measure itself.

mod bench;
mod connection;
mod drive;
mod executor;
mod fitting;
mod gate;
mod kernels;
mod pipeline;
mod profile;
mod serve;

use std::{panic, path::PathBuf, process, time::Instant};

use clap::{Args, Parser, Subcommand};
use packhorse_worker_agent::handoff::{
    Handoff, ProcessIdentity, WorkerReport, WorkerStatus, exit_code,
};

use bench::BenchOptions;
use executor::ExecutionError;

#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a replica: loads a program, then answers batches until SIGTERM
    Serve(Folder),
    /// Measures a program's latency and memory, then exits
    Profile(Folder),
    /// Measures how much the pipeline computes when there is always another batch, and prints it as JSON
    Bench(BenchOptions),
    /// Runs batches of a program as standard input says, one JSON command a line, and answers on standard output
    Drive(Driven),
}

#[derive(Args)]
struct Folder {
    /// The hand-over folder: task.json says what to do, status.json is written here
    #[arg(long)]
    dir: PathBuf,
}

#[derive(Args)]
struct Driven {
    /// What is driven, as JSON; temporary files are written beside it
    #[arg(long)]
    task: PathBuf,
    /// The environment is what a worker's must be
    #[arg(long, hide = true)]
    prepared: bool,
}

fn main() {
    let cli = Cli::parse();
    // Read in a file, never on a terminal.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    // The kernel may end a sleep 50 µs late, which is more than a look at a device takes. Threads take it over.
    let _ = nix::sys::prctl::set_timerslack(1_000);
    // A thread that is gone leaves batches without an answer: better the whole process, which the agent starts again.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::abort();
    }));
    let code = match cli.command {
        Command::Serve(folder) => serve::serve(&Handoff::new(folder.dir)),
        Command::Profile(folder) => profile::profile(&Handoff::new(folder.dir)),
        Command::Bench(options) => bench::bench(&options),
        Command::Drive(driven) => drive::drive(&driven.task, driven.prepared),
    };
    executor::exit_now(code);
}

#[expect(
    clippy::disallowed_methods,
    reason = "a worker measures the stages of its batches and watches over their limits"
)]
fn now() -> Instant {
    Instant::now()
}

/// Tells the agent where this process is.
struct Reporter<'a> {
    handoff: &'a Handoff,
    process: ProcessIdentity,
}

impl<'a> Reporter<'a> {
    fn new(handoff: &'a Handoff) -> Self {
        let process = ProcessIdentity::current();
        Self { handoff, process }
    }

    fn report(&self, phase: WorkerReport) {
        tracing::info!(?phase, "status");
        let process = self.process;
        if let Err(error) = self.handoff.write_status(&WorkerStatus { process, phase }) {
            tracing::error!(%error, "the agent cannot be told");
        }
    }

    /// Has the agent told why, where libtorch ends the process.
    fn on_terminate(&self) {
        let handoff = self.handoff.clone();
        let last_words = move |error: ExecutionError| {
            Reporter::new(&handoff).failed(error.to_string(), false);
        };
        executor::on_terminate(last_words, exit_code::FAILED);
    }

    fn failed(&self, reason: impl Into<String>, permanent: bool) {
        let reason = reason.into();
        self.report(WorkerReport::Failed { reason, permanent });
    }
}
