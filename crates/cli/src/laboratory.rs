//! The commands of `packhorse-lab`, which plans, simulates and measures without a gateway, and loads one: `packhorse` passes them on.

use std::ffi::OsString;

use crate::pass_on::pass_on_to;

/// The program.
const PROGRAM: &str = "packhorse-lab";

/// The arguments of a command that `packhorse-lab` reads.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "`packhorse-lab` does it, with the same arguments.\n\nExample:\n  packhorse-lab --help"
)]
pub(crate) struct AnyArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// The commands that are passed on.
#[derive(clap::Subcommand)]
pub(crate) enum LaboratoryCommand {
    /// Predict the latencies of a plan's replicas by a policy's own model (packhorse-lab)
    Predict(AnyArgs),
    /// Run plans in a simulated cluster (packhorse-lab)
    Simulate(AnyArgs),
    /// Send requests to a live gateway and measure how they are answered (packhorse-lab)
    Bench(AnyArgs),
}

/// The commands of `packhorse profile` that are passed on.
#[derive(clap::Subcommand)]
pub(crate) enum ProfileLaboratoryCommand {
    /// Calculate occupancy and SM utilisation of the kernels that torch.profiler recorded of a batch (packhorse-lab)
    Kernels(AnyArgs),
    /// Draw the kernels that the gateway recorded when it measured a model (packhorse-lab)
    Plot(AnyArgs),
    /// Record the kernels of a batch on this machine (packhorse-lab)
    Record(AnyArgs),
    /// Measure on this machine how models slow each other on a shared device (packhorse-lab)
    Pairs(AnyArgs),
    /// Estimate a profile from the operators of a program, without running it (packhorse-lab)
    Estimate(AnyArgs),
}

/// The flags of `packhorse plan` for scenarios, of which the last four are described by `packhorse-lab plan --help`.
#[derive(clap::Args)]
pub(crate) struct ScenarioPlanArgs {
    /// Plan for the devices and models of this file, without a gateway (packhorse-lab, whose help has further flags)
    #[arg(long, value_name = "FILE")]
    scenario: Option<OsString>,
    #[arg(long, hide = true, requires = "scenario")]
    plot: Option<OsString>,
    #[arg(long, hide = true, requires = "scenario")]
    min_devices: bool,
    #[arg(long, hide = true, requires = "scenario")]
    min_cost: bool,
    #[arg(long, hide = true, requires = "scenario")]
    max_devices: Option<OsString>,
}

impl ScenarioPlanArgs {
    /// Returns true if a scenario is given.
    pub(crate) fn is_given(&self) -> bool {
        self.scenario.is_some()
    }
}

/// Becomes `packhorse-lab` with the arguments of this process. Returns only if it cannot.
pub(crate) fn pass_on() -> anyhow::Result<()> {
    pass_on_to(PROGRAM)
}
