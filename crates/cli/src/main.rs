//! The `packhorse` command: registers models, sends inference requests, and shows the cluster and its plan.
//!
//! [`commands`] has what operators and clients need of a gateway. [`laboratory`] has what needs no gateway (plans and runs of
//! scenarios, measurements on this machine, figures) and the benchmark; it is compiled with the default feature `laboratory`.
//!
//! The exit status is 0 after success, 1 after a failure, 2 after wrong usage, and 3 if a change was not made because it would take goodput
//! from other models; `serve` ends with the status of the program that ended.

#![deny(
    clippy::print_stderr,
    reason = "it panics where standard error cannot be written: output::note"
)]

mod commands;
mod context;
mod files;
mod inputs;
#[cfg(feature = "laboratory")]
mod laboratory;
#[cfg(not(feature = "laboratory"))]
#[path = "without_laboratory.rs"]
mod laboratory;
mod npy;
mod output;
mod policy_options;
mod view;

use std::{io, process::ExitCode};

use clap::{CommandFactory as _, Parser};

use crate::{
    commands::{Command, NotAgreed, ServiceEnded},
    context::{Context, GlobalArgs},
};

/// Packhorse: an inference gateway for teams that have more models than GPUs.
#[derive(Parser)]
#[command(name = "packhorse", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

const EXAMPLES: &str = "\
Examples:
  packhorse model register minilm.json --artifact minilm.pt --wait
  packhorse infer minilm --input input_ids=ids.npy --input attention_mask=mask.npy
  packhorse status
  packhorse plan --json

Exit status: 0 success, 1 failure, 2 wrong usage, 3 a change that takes goodput from other models was not agreed to.";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(cli.global, Cli::command());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(cli.command.run(&context));
            // A thread that waits for a file of a broken file system does not delay the end.
            runtime.shutdown_background();
            outcome
        }
        Err(e) => Err(e.into()),
    };
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    {
        // The reader of our results has closed the pipe, for instance `head`.
        return ExitCode::SUCCESS;
    }
    output::note(format_args!("error: {error:#}"));
    if let Some(hint) = context.hint(&error) {
        output::note(format_args!("hint: {hint}"));
    }
    if error.is::<NotAgreed>() {
        return NotAgreed::EXIT_STATUS.into();
    }
    // `packhorse serve` ends with the status of the program that ended.
    let ended = error.downcast_ref::<ServiceEnded>();
    ended.map_or(ExitCode::FAILURE, |ended| ended.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no example");
            command
                .get_subcommands()
                .for_each(|command| check(command, &path));
        }
        Cli::command().debug_assert();
        check(&Cli::command(), "");
    }
}
