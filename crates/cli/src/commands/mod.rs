//! The subcommands for operators and clients of a gateway, one module each.

mod apply;
mod arguments;
mod audit;
mod backup;
mod certs;
mod consent;
mod dashboard;
mod doctor;
mod events;
mod export;
mod fleet;
mod history;
mod import;
mod infer;
mod keys;
mod model;
mod node;
mod plan;
mod policy;
mod profile;
mod requests;
mod serve;
mod setup;
mod status;
mod store;
mod top;
mod triton_folder;
mod version_folders;

pub(crate) use self::{apply::Differs, consent::NotAgreed, serve::ServiceEnded};

use packhorse_terminal::{context::Context, manual};

use crate::laboratory::{LaboratoryCommand, pass_on};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Run a gateway and an agent for this machine, with the models of a folder
    Serve(Box<serve::ServeArgs>),
    /// Write a PyTorch model as a folder of a model repository
    Export(export::ExportArgs),
    /// Write the models of a repository of Triton as folders of a model repository
    Import(import::ImportArgs),
    /// Download libtorch for the workers of this machine
    Setup(setup::SetupArgs),
    /// Register, list, change and remove models
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Make the cluster have the models, splits, limits and policy that the files of a folder declare
    Apply(apply::ApplyArgs),
    /// Send an inference request
    Infer(Box<infer::InferArgs>),
    /// Show the state of the gateway, its nodes and its models
    Status(status::StatusArgs),
    /// Watch the load of the models, how much of it is in time, and what is wrong, until Ctrl+C
    Top(top::TopArgs),
    /// Show, export, import and record measurements of models
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Show which model runs where, and its expected goodput
    Plan(Box<plan::PlanArgs>),
    #[command(flatten)]
    Laboratory(LaboratoryCommand),
    /// Show or set the placement policy and the dispatch discipline
    Policy(policy::PolicyArgs),
    /// List nodes, take them out of service, and make tokens for them
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Make, list, rotate and delete API keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Make a private authority and certificates for TLS
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Write the gateway's state to a file, while it runs
    Backup(backup::BackupArgs),
    /// Make a state folder of a backup, for a gateway that does not run
    Restore(backup::RestoreArgs),
    /// Move the state to another database, while no gateway runs (packhorse-gateway)
    Store(store::StoreArgs),
    /// Show what happened in the cluster, and follow it
    Events(events::EventsArgs),
    /// Show what admins did
    Audit(audit::AuditArgs),
    /// Show what is wrong in the cluster, with cause and cure
    Findings(events::FindingsArgs),
    /// Show what went wrong since the gateway's start, from when to when, and what began it
    Incidents(events::IncidentsArgs),
    /// Show the last day of a model, a device or all models
    History(history::HistoryArgs),
    /// Examine this machine and the cluster, and say what is wrong and how to mend it
    Doctor(doctor::DoctorArgs),
    /// Open the dashboard in the browser, signed in
    Dashboard(dashboard::DashboardArgs),
    /// Show requests that ended lately, and where their time went
    Requests(requests::RequestsArgs),
    /// Write a trace of the last requests and batches, for Perfetto
    Trace(requests::TraceArgs),
    /// Print the completions of this command for a shell
    Completions(manual::CompletionsArgs),
    /// Write the manual pages of this command
    #[command(hide = true)]
    ManualPages(manual::ManualPagesArgs),
}

impl Command {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Serve(args) => args.run(context).await,
            Self::Export(_) => export::say_where_it_is(),
            Self::Import(args) => args.run(context),
            Self::Model(command) => command.run(context).await,
            Self::Apply(args) => args.run(context).await,
            Self::Infer(args) => args.run(context).await,
            Self::Keys(command) => command.run(context).await,
            Self::Status(args) => args.run(context).await,
            Self::Top(args) => args.run(context).await,
            Self::Profile(command) => command.run(context).await,
            Self::Plan(args) => args.run(context).await,
            Self::Laboratory(_) => pass_on(),
            Self::Policy(args) => args.run(context).await,
            Self::Node(command) => command.run(context).await,
            Self::Certs(command) => command.run(context),
            Self::Backup(args) => args.run(context).await,
            Self::Restore(args) => args.run(context),
            Self::Store(_) => store::pass_on(),
            Self::Events(args) => args.run(context).await,
            Self::Audit(args) => args.run(context).await,
            Self::Findings(args) => args.run(context).await,
            Self::Incidents(args) => args.run(context).await,
            Self::History(args) => args.run(context).await,
            Self::Doctor(args) => args.run(context).await,
            Self::Dashboard(args) => args.run(context).await,
            Self::Requests(args) => args.run(context).await,
            Self::Trace(args) => args.run(context).await,
            Self::Setup(args) => args.run(context).await,
            Self::Completions(args) => {
                args.run(context.command_line());
                Ok(())
            }
            Self::ManualPages(args) => args.run(context.command_line()),
        }
    }
}
