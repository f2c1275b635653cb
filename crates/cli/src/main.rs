//! The `packhorse` command: registers models, sends inference requests, and shows the cluster and its plan.
//!
//! [`commands`] has what operators and clients need of a gateway. What needs none, and the benchmark, are commands of `packhorse-lab`:
//! [`laboratory`] passes them on.
//!
//! The exit status is 0 after success, 1 after a failure, 2 after wrong usage, 3 if a change was not made because it would take goodput
//! from other models, and 4 if `apply --dry-run --exit-code` finds a difference; `serve` ends with the status of the program that ended.

#![deny(
    clippy::print_stderr,
    reason = "it panics where standard error cannot be written: output::note"
)]

mod commands;
mod laboratory;
mod pass_on;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use packhorse_terminal::{
    context::{Context, GlobalArgs},
    program,
};

use crate::commands::{Command, Differs, NotAgreed, ServiceEnded};

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

Exit status: 0 success, 1 failure, 2 wrong usage, 3 a change that takes goodput from other models was not agreed to, \
4 apply --dry-run --exit-code found a difference.";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(cli.global, Cli::command());
    program::run(&context, cli.command.run(&context), |error| {
        if error.is::<NotAgreed>() {
            return NotAgreed::EXIT_STATUS.into();
        }
        if error.is::<Differs>() {
            return Differs::EXIT_STATUS.into();
        }
        // `packhorse serve` ends with the status of the program that ended.
        let ended = error.downcast_ref::<ServiceEnded>();
        ended.map_or(ExitCode::FAILURE, |ended| ended.code().into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        packhorse_terminal::manual::check(&Cli::command());
    }
}
