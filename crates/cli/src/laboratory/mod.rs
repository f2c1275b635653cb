//! The commands that plan, simulate, predict, measure and draw without a gateway, and the benchmark of a live gateway.
//!
//! With the feature `laboratory` off, `without_laboratory.rs` takes the place of this module: it has the same public items, whose
//! commands and flags fail with an explanation.

mod bench;
mod estimate;
mod image;
mod kernels;
mod local_worker;
mod model_table;
mod pairs;
mod plan;
mod plot;
mod predict;
mod record;
mod scenario;
mod simulate;

pub(crate) use self::{
    image::ImageArgs, kernels::KernelPlotArgs, plan::ScenarioPlanArgs, scenario::parse_policy_name,
};

use crate::context::Context;

/// The commands beside those for operators and clients.
#[derive(clap::Subcommand)]
pub(crate) enum LaboratoryCommand {
    /// Predict the latencies of a plan's replicas by a policy's own model
    Predict(predict::PredictArgs),
    /// Run plans in a simulated cluster
    Simulate(simulate::SimulateArgs),
    /// Send requests to a live gateway and measure how they are answered
    Bench(bench::BenchArgs),
}

impl LaboratoryCommand {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Predict(args) => args.run(context),
            Self::Simulate(args) => args.run(context),
            Self::Bench(args) => args.run(context).await,
        }
    }
}

/// The commands of `packhorse profile` that need no gateway.
#[derive(clap::Subcommand)]
pub(crate) enum ProfileLaboratoryCommand {
    /// Calculate occupancy and SM utilisation of the kernels that torch.profiler recorded of a batch
    Kernels(kernels::KernelsArgs),
    /// Record the kernels of a batch on this machine
    Record(record::RecordArgs),
    /// Measure on this machine how models slow each other on a shared device
    Pairs(pairs::PairsArgs),
    /// Estimate a profile from the operators of a program, without running it
    Estimate(estimate::EstimateArgs),
}

impl ProfileLaboratoryCommand {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Kernels(args) => args.run(context),
            Self::Record(args) => args.run(context).await,
            Self::Pairs(args) => args.run(context).await,
            Self::Estimate(args) => args.run(context).await,
        }
    }
}
