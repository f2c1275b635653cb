//! The subcommands, one file each.

mod bench;
mod classes;
mod driven;
mod explanation;
mod infer;
mod kernel_figure;
mod kernels;
mod layout;
mod model;
mod node;
mod occupancy;
mod pairs;
mod picture;
mod plan;
mod policy;
mod predict;
mod profile;
mod record;
mod register;
mod scenario;
mod simulate;
mod status;

use packhorse_cluster::{ModelName, ModelVersion};

use crate::context::Context;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Register, list, change and remove models
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Ask a model
    Infer(Box<infer::InferArgs>),
    /// How gateway, nodes and models are
    Status(status::StatusArgs),
    /// Look at, export and import what was measured of models
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Which model runs where, and what is expected of it
    Plan(plan::PlanArgs),
    /// What a policy's own model says of the latencies of a plan
    Predict(predict::PredictArgs),
    /// Try plans in a simulated cluster
    Simulate(simulate::SimulateArgs),
    /// Drive a live gateway with a scenario's load
    Bench(bench::BenchArgs),
    /// How models are placed and requests dispatched
    Policy(policy::PolicyArgs),
    /// List nodes and take them out of service
    #[command(subcommand)]
    Node(node::NodeCommand),
}

impl Command {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Model(command) => command.run(context).await,
            Self::Infer(args) => args.run(context).await,
            Self::Status(args) => args.run(context).await,
            Self::Profile(command) => command.run(context).await,
            Self::Plan(args) => args.run(context).await,
            Self::Predict(args) => args.run(context),
            Self::Simulate(args) => args.run(context),
            Self::Bench(args) => args.run(context).await,
            Self::Policy(args) => args.run(context).await,
            Self::Node(command) => command.run(context).await,
        }
    }
}

/// Name and version, as people and plans write it: the first version goes by the name alone.
fn model_text(name: &ModelName, version: ModelVersion) -> String {
    if version == ModelVersion::FIRST {
        name.to_string()
    } else {
        format!("{name}:{version}")
    }
}
