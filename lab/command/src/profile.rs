//! `packhorse-lab profile`: what profiles are made of.

use packhorse_terminal::context::Context;

use crate::{estimate, kernels, pairs, record};

/// The commands of `packhorse-lab profile`.
#[derive(clap::Subcommand)]
#[command(
    after_help = "Examples:\n  packhorse-lab profile kernels batch.json\n  packhorse-lab profile plot resnet50 kernels.svg\n  packhorse-lab profile pairs a.json=a.pt b.json=b.pt --output pairs.csv\n  packhorse-lab profile estimate resnet50.pt --device-kind H100-SXM5-80GB"
)]
pub(crate) enum ProfileCommand {
    /// Calculate occupancy and SM utilisation of the kernels that torch.profiler recorded of a batch
    Kernels(kernels::KernelsArgs),
    /// Draw the kernels that the gateway recorded when it measured a model
    Plot(kernels::PlotArgs),
    /// Record the kernels of a batch on this machine
    Record(record::RecordArgs),
    /// Measure on this machine how models slow each other on a shared device
    Pairs(pairs::PairsArgs),
    /// Estimate a profile from the operators of a program, without running it
    Estimate(estimate::EstimateArgs),
}

impl ProfileCommand {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Kernels(args) => args.run(context),
            Self::Plot(args) => args.run(context).await,
            Self::Record(args) => args.run(context).await,
            Self::Pairs(args) => args.run(context).await,
            Self::Estimate(args) => args.run(context).await,
        }
    }
}
