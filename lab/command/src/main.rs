//! The `packhorse-lab` command: plans, simulates, predicts and measures without a gateway, and sends the load of a benchmark to one.
//!
//! [`plan`], [`simulate`] and [`predict`] run scenarios; [`profile`] makes and draws measurements; [`mod@bench`] loads a live gateway.
//! `packhorse` passes its commands of these names on, so that both understand the same flags.
//!
//! The exit status is 0 after success, 1 after a failure, and 2 after wrong usage.

#![deny(
    clippy::print_stderr,
    reason = "it panics where standard error cannot be written: output::note"
)]

mod bench;
mod estimate;
mod kernels;
mod local_worker;
mod model_table;
mod pairs;
mod plan;
mod plot;
mod predict;
mod profile;
mod record;
mod scenario;
mod simulate;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use packhorse_terminal::{
    context::{Context, GlobalArgs},
    manual, program,
};

/// Packhorse's laboratory: plans, simulations and measurements, mostly without a gateway.
#[derive(Parser)]
#[command(name = "packhorse-lab", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

const EXAMPLES: &str = "\
Examples:
  packhorse-lab plan --scenario thesis.toml --policy usher
  packhorse-lab simulate --scenario thesis.toml --policy usher --policy goodput
  packhorse-lab bench resnet50 --rate 200 --slo 100

Exit status: 0 success, 1 failure, 2 wrong usage.";

#[derive(clap::Subcommand)]
enum Command {
    /// Plan for the devices and models of a scenario
    Plan(Box<plan::PlanArgs>),
    /// Run plans in a simulated cluster
    Simulate(Box<simulate::SimulateArgs>),
    /// Predict the latencies of a plan's replicas by a policy's own model
    Predict(predict::PredictArgs),
    /// Send requests to a live gateway and measure how they are answered
    Bench(Box<bench::BenchArgs>),
    /// Record, measure, estimate and draw what profiles are made of
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Print the completions of this command for a shell
    Completions(manual::CompletionsArgs),
    /// Write the manual pages of this command
    #[command(hide = true)]
    ManualPages(manual::ManualPagesArgs),
}

impl Command {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Plan(args) => args.run(context),
            Self::Simulate(args) => args.run(context),
            Self::Predict(args) => args.run(context),
            Self::Bench(args) => args.run(context).await,
            Self::Profile(command) => command.run(context).await,
            Self::Completions(args) => {
                args.run(context.command_line());
                Ok(())
            }
            Self::ManualPages(args) => args.run(context.command_line()),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(cli.global, Cli::command());
    program::run(&context, cli.command.run(&context), |_| ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        packhorse_terminal::manual::check(&Cli::command());
    }
}
