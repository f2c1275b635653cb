//! The Packhorse worker: runs one replica or one measurement. Started by the agent, with a hand-over folder that says what to
//! do and in which it says what became of it; or by hand, to measure itself.

mod executor;
mod worker;

use std::{panic, path::PathBuf, process};

use clap::{Args, Parser, Subcommand};
use packhorse_worker_agent::handoff::Handoff;
use worker::BenchOptions;

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
        Command::Serve(folder) => worker::serve(&Handoff::at(folder.dir)),
        Command::Profile(folder) => worker::profile(&Handoff::at(folder.dir)),
        Command::Bench(options) => worker::bench(&options),
        Command::Drive(driven) => worker::drive(&driven.task, driven.prepared),
    };
    executor::exit_now(code);
}
