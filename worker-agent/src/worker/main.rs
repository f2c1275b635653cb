//! The Packhorse worker: a process that runs one replica, or one measurement, until it is told to stop.
//!
//! This room is separate from the agent's because only this program links libtorch: a model that crashes, hangs or leaks affects its own
//! process only. The agent starts the worker with a hand-over folder, from which it reads its task and to which it writes its status. A
//! person can start it to measure a program by hand.
//!
//! There are blocking threads and no async runtime. Each connection has one thread that receives batches straight into the memory of
//! their inputs, and one that answers; between them are the stages of the pipeline. While one batch computes, the next is received and
//! the last is answered. A watchdog ends the process when a program does not return.

mod acceptor;
mod answer_writer;
mod batch_limit;
mod bench;
mod clock;
mod confinement;
mod connection;
mod device_turns;
mod executor;
mod inspect;
mod kernel_recorder;
mod link_stream;
mod listeners;
mod measure;
mod pipeline;
mod pool;
mod process_memory;
mod profile;
mod proofs;
mod residency;
mod reused;
mod run_delay;
mod semaphore;
mod serve;
mod shared_memory;
mod status_reporter;
mod stored_program;
mod trial;

use std::{panic, path::PathBuf, process};

use clap::{Args, Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use packhorse_worker_agent::handoff::Handoff;

use bench::BenchOptions;
use inspect::InspectOptions;
use reused::ResultTask;

/// The Packhorse worker: runs one replica, or one measurement.
#[derive(Parser)]
#[command(name = "packhorse-worker", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a replica: load a program, then answer batches until SIGTERM
    Serve(HandoffOptions),
    /// Run replicas of a device in one process, as its agent names them, until SIGTERM
    #[command(hide = true)]
    Pool(HandoffOptions),
    /// Measure the latency and memory of a program, then exit
    Profile(ResultOptions),
    /// Measure the throughput of the pipeline under full load, and print it as JSON
    Bench(BenchOptions),
    /// Print the operators of a program as JSON, without running it
    Inspect(InspectOptions),
    /// Find the operators of a program for an agent, then exit
    #[command(hide = true)]
    Operators(ResultOptions),
    /// Run batches of a program by JSON commands on standard input, one per line, with replies on standard output
    Measure(MeasureOptions),
    /// Run a program of which only the inputs are known, and print its outputs as JSON
    Trial(TrialOptions),
}

#[derive(Args)]
struct HandoffOptions {
    /// The hand-over folder, with the task in task.json; the status is written to status.json
    #[arg(long)]
    dir: PathBuf,
    /// Confine the process to its own files before the program is loaded
    #[arg(long)]
    confine: bool,
    /// Keep the memory of the process from other processes of its user
    #[arg(long)]
    hide_memory: bool,
}

#[derive(Args)]
struct ResultOptions {
    #[command(flatten)]
    handoff: HandoffOptions,
    /// Do the tasks of the hand-over folders that standard input names, one a line, until its end
    #[arg(long, hide = true)]
    reused: bool,
}

#[derive(Args)]
struct MeasureOptions {
    /// File with the task as JSON; temporary files are written to its folder
    #[arg(long)]
    task: PathBuf,
    /// The environment is already that of a worker
    #[arg(long, hide = true)]
    prepared: bool,
}

#[derive(Args)]
struct TrialOptions {
    /// File with the task as JSON; temporary files are written to its folder, and no others
    #[arg(long)]
    task: PathBuf,
}

fn main() {
    let cli = Cli::parse();
    // The log goes to a file and not to a terminal.
    tracing_subscriber::fmt()
        .with_ansi(false)
        // A line that cannot be written, as on a full disk, is lost; saying so there would end the process.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    // No service ends by SIGHUP. A blocked signal waits forever, here and in all threads.
    let _ = SigSet::from_iter([Signal::SIGHUP]).thread_block();
    // By default the kernel may end a sleep 50 µs late, longer than a query of a CUDA event. Threads inherit the setting.
    let _ = nix::sys::prctl::set_timerslack(1_000);
    // A thread that ends leaves batches without an answer, so that the whole process ends. The agent restarts it.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::abort();
    }));
    if matches!(cli.command, Command::Operators(_)) {
        // Before this process belongs to root in /proc.
        inspect::yield_to_others();
    }
    if let Command::Pool(_) = &cli.command {
        executor::prepare_parking();
    }
    if matches!(
        &cli.command,
        Command::Profile(ResultOptions { reused: true, .. })
    ) {
        process_memory::prepare_new_peaks();
    }
    if let Command::Serve(options)
    | Command::Pool(options)
    | Command::Profile(ResultOptions {
        handoff: options, ..
    })
    | Command::Operators(ResultOptions {
        handoff: options, ..
    }) = &cli.command
        && options.hide_memory
    {
        // A program that gains rights would be the way around.
        let hidden = nix::sys::prctl::set_dumpable(false);
        if let Err(error) = hidden.and_then(|()| nix::sys::prctl::set_no_new_privs()) {
            tracing::warn!(%error, "other processes of this user can read the memory of this one");
        }
    }
    let code = match cli.command {
        Command::Serve(options) => serve::serve(&Handoff::new(options.dir), options.confine),
        Command::Pool(options) => pool::pool(&Handoff::new(options.dir), options.confine),
        Command::Profile(options) => options.run(profile::profile, profile::run_reused),
        Command::Bench(options) => bench::bench(&options),
        Command::Inspect(options) => inspect::inspect(&options),
        Command::Operators(options) => options.run(inspect::report, inspect::report_reused),
        Command::Measure(options) => measure::measure(&options.task, options.prepared),
        Command::Trial(options) => trial::trial(&options.task),
    };
    executor::exit_now(code);
}

impl ResultOptions {
    /// Does one task, or those that standard input names, and returns the exit code.
    fn run(self, one: fn(&Handoff, bool) -> u8, each: ResultTask) -> u8 {
        let handoff = Handoff::new(self.handoff.dir);
        let confine = self.handoff.confine;
        if self.reused {
            reused::run(&handoff, confine, each)
        } else {
            one(&handoff, confine)
        }
    }
}
