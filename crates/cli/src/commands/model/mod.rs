//! `packhorse model`: lists, shows, changes and removes registered models.

pub(super) mod beside;
pub(super) mod describe;
pub(super) mod draft;
mod example;
mod init;
pub(super) mod register;
pub(super) mod signature;
mod trial;
pub(super) mod upload;

use std::collections::BTreeMap;

use packhorse_api::ModelChange;
use packhorse_cluster::{
    MinReplicas, ModelName, ModelVersion, Percent, Priority, RateMode, RequestsPerSecond, Split,
    Sticky,
};
use packhorse_terminal::{context::Context, output};

use self::{init::InitArgs, register::RegisterArgs};
use super::{
    arguments::{parse_on_off, parse_percent, parse_rate},
    consent::ConsentArgs,
};
use crate::view;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  packhorse model register minilm.pt --slo-ms 200 --wait
  packhorse model init minilm.pt -o minilm.json
  packhorse model register minilm.json --artifact minilm.pt --wait
  packhorse model list
  packhorse model update minilm --rate-rps 80
  packhorse model split minilm 1=90 2=10")]
pub(crate) enum ModelCommand {
    /// Upload a model and register it
    Register(Box<RegisterArgs>),
    /// Write the registration of a model's file, as far as the file tells it
    Init(Box<InitArgs>),
    /// List all models with their state
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  packhorse model list\n  packhorse model list --json"
    )]
    List,
    /// Show a model: its signature, its replicas, and the reason if it is not ready
    #[command(after_help = "Example:\n  packhorse model show minilm --version 2")]
    Show(ModelRef),
    /// Change the SLO, the reserved rate, the rate mode, the priority, the least number of replicas or the queue limit of a model
    #[command(
        after_help = "Examples:\n  packhorse model update minilm --slo-ms 150 --rate-rps 80\n  packhorse model update minilm --rate-rps none"
    )]
    Update(UpdateArgs),
    /// Split the requests of a model over its versions, in percent
    #[command(
        after_help = "Examples:\n  packhorse model split minilm 1=90 2=10\n  packhorse model split minilm 1=50 2=50 --sticky request-id\n  packhorse model split minilm --auto"
    )]
    Split(SplitArgs),
    /// Give all requests of a model to one version
    #[command(after_help = "Example:\n  packhorse model promote minilm --version 2")]
    Promote(PromoteArgs),
    /// Return to the split before the last change
    #[command(after_help = "Example:\n  packhorse model rollback minilm")]
    Rollback(RollbackArgs),
    /// Remove a model or one of its versions
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  packhorse model remove minilm --version 1\n  packhorse model remove minilm"
    )]
    Remove(RemoveArgs),
}

#[derive(clap::Args)]
pub(crate) struct ModelRef {
    /// Name of the model
    name: ModelName,
    /// Version of the model [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
}

#[derive(clap::Args)]
#[group(id = "change", required = true, multiple = true, args = ["slo_ms", "rate_rps", "rate_mode", "priority", "min_replicas", "queue_limit", "max_cold_wait_ms", "cache", "family", "no_family", "accuracy"])]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    model: ModelRef,
    /// Latency objective (SLO) in milliseconds, at most 60000
    #[arg(long, value_name = "MS")]
    slo_ms: Option<f64>,
    /// Reserved rate, in requests per second; `none` plans the model for its measured rate
    #[arg(long, value_name = "RATE|none", value_parser = parse_reservation)]
    rate_rps: Option<Reservation>,
    /// Rate to plan for beside a reservation: declared, measured, max (the larger of the two) or min (the smaller)
    #[arg(long, value_name = "MODE")]
    rate_mode: Option<RateMode>,
    /// Priority over other models, 0 to 9
    #[arg(long, value_name = "N")]
    priority: Option<Priority>,
    /// Least number of devices with replicas, 1 to 16; those beyond the rate are placed where memory is left
    #[arg(long, value_name = "N")]
    min_replicas: Option<MinReplicas>,
    /// Most requests that may wait for the model; `default` is the gateway's --queue-limit
    #[arg(long, value_name = "N|default", value_parser = parse_queue_limit)]
    queue_limit: Option<QueueLimit>,
    /// Longest wait of a request while the model is loaded from its file, in milliseconds, at most 60000; `default` is the SLO
    #[arg(long, value_name = "MS|default", value_parser = parse_cold_wait)]
    max_cold_wait_ms: Option<ColdWait>,
    /// Keep answers for requests of the same client with the same inputs: on or off
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    cache: Option<bool>,
    /// Family that the model is a variant of
    #[arg(long, value_name = "FAMILY")]
    family: Option<ModelName>,
    /// Take the model out of its family
    #[arg(long, conflicts_with_all = ["family", "accuracy"])]
    no_family: bool,
    /// Percentage of the model's answers that are right
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    accuracy: Option<Percent>,
    #[command(flatten)]
    consent: ConsentArgs,
}

#[derive(clap::Args)]
#[group(id = "split", required = true, multiple = true, args = ["shares", "auto", "sticky"])]
pub(crate) struct SplitArgs {
    /// Name of the model
    name: ModelName,
    /// Shares in percent, which sum to 100; versions that are not named get none
    #[arg(value_name = "VERSION=PERCENT", value_parser = parse_share, conflicts_with = "auto")]
    shares: Vec<(ModelVersion, u32)>,
    /// Let the newest version take over by itself
    #[arg(long)]
    auto: bool,
    /// Choice of a version for a request: none, or request-id (the same version for the same x-request-id)
    #[arg(long, value_name = "HOW")]
    sticky: Option<Sticky>,
    #[command(flatten)]
    consent: ConsentArgs,
}

#[derive(clap::Args)]
pub(crate) struct PromoteArgs {
    /// Name of the model
    name: ModelName,
    /// Version that gets all requests
    #[arg(long, value_name = "N")]
    version: ModelVersion,
    #[command(flatten)]
    consent: ConsentArgs,
}

#[derive(clap::Args)]
pub(crate) struct RollbackArgs {
    /// Name of the model
    name: ModelName,
    #[command(flatten)]
    consent: ConsentArgs,
}

#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Name of the model
    name: ModelName,
    /// Version of the model [default: all versions]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
    #[command(flatten)]
    consent: ConsentArgs,
}

fn parse_share(text: &str) -> Result<(ModelVersion, u32), String> {
    let expected = || "expected VERSION=PERCENT, for example 2=10".to_owned();
    let (version, percent) = text.split_once('=').ok_or_else(expected)?;
    let version = version
        .parse()
        .map_err(|e: packhorse_cluster::IdError| e.to_string())?;
    Ok((version, percent.parse().map_err(|_| expected())?))
}

impl UpdateArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let change = ModelChange {
            slo_ms: self.slo_ms,
            rate_rps: self.rate_rps.map(|Reservation(rate)| rate),
            rate: self.rate_mode,
            priority: self.priority,
            min_replicas: self.min_replicas,
            queue_limit: self.queue_limit.map(|QueueLimit(limit)| limit),
            max_cold_wait_ms: self.max_cold_wait_ms.map(|ColdWait(wait)| wait),
            cache: self.cache,
            family: self.family.map(Some).or(self.no_family.then_some(None)),
            accuracy: self.accuracy,
            ..ModelChange::default()
        };
        let admin = context.admin()?;
        let ModelRef { name, version } = self.model;
        let dry_run = admin.dry_run().change_model(&name, version, &change);
        let change = admin.change_model(&name, version, &change);
        let changed = self.consent.make(&[&name], dry_run, change).await?;
        view::model::print_changed(context, &changed)
    }
}

impl SplitArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let change = self.change()?;
        let (admin, name) = (context.admin()?, self.name);
        let dry_run = admin.dry_run().change_model(&name, None, &change);
        let change = admin.change_model(&name, None, &change);
        self.consent.make(&[&name], dry_run, change).await?;
        print_versions(context, &name).await
    }

    fn change(&self) -> anyhow::Result<ModelChange> {
        let shares: BTreeMap<ModelVersion, u32> = self.shares.iter().copied().collect();
        if shares.len() < self.shares.len() {
            anyhow::bail!("a version is given twice");
        }
        let split = if self.auto {
            Some(None)
        } else if shares.is_empty() {
            None
        } else {
            Some(Some(Split::new(shares)?))
        };
        Ok(ModelChange {
            split,
            sticky: self.sticky,
            ..ModelChange::default()
        })
    }
}

impl PromoteArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let (admin, name, version) = (context.admin()?, self.name, self.version);
        let dry_run = admin.dry_run().promote(&name, version);
        let change = admin.promote(&name, version);
        self.consent.make(&[&name], dry_run, change).await?;
        print_versions(context, &name).await
    }
}

impl RollbackArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let (admin, name) = (context.admin()?, self.name);
        let dry_run = admin.dry_run().roll_back(&name);
        let change = admin.roll_back(&name);
        self.consent.make(&[&name], dry_run, change).await?;
        print_versions(context, &name).await
    }
}

impl RemoveArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let (admin, name, version) = (context.admin()?, self.name, self.version);
        let dry_run = admin.dry_run().remove_model(&name, version);
        let change = admin.remove_model(&name, version);
        let removed = self.consent.make(&[&name], dry_run, change).await?;
        if context.json() {
            return output::print_json(&removed);
        }
        let version = version.map_or_else(String::new, |version| format!(", version {version}"));
        Ok(output::print_line(format!("removed {name}{version}"))?)
    }
}

/// The reserved rate of a model; `None` removes the reservation.
#[derive(Clone, Copy)]
struct Reservation(Option<RequestsPerSecond>);

fn parse_reservation(text: &str) -> Result<Reservation, String> {
    if text == "none" {
        return Ok(Reservation(None));
    }
    let rate = parse_rate(text).map_err(|error| format!("{error}, or `none`"));
    rate.map(|rate| Reservation(Some(rate)))
}

/// The most requests that may wait for a model; `None` is the gateway's limit.
#[derive(Clone, Copy)]
struct QueueLimit(Option<u32>);

fn parse_queue_limit(text: &str) -> Result<QueueLimit, String> {
    if text == "default" {
        return Ok(QueueLimit(None));
    }
    let limit = text.parse().ok();
    limit
        .map(|limit| QueueLimit(Some(limit)))
        .ok_or_else(|| "expected a number of requests or `default`".to_owned())
}

/// The longest wait for a model that is loaded from its file, in milliseconds; `None` is the SLO.
#[derive(Clone, Copy)]
struct ColdWait(Option<u32>);

fn parse_cold_wait(text: &str) -> Result<ColdWait, String> {
    if text == "default" {
        return Ok(ColdWait(None));
    }
    let wait = text.parse().ok();
    wait.map(|wait| ColdWait(Some(wait)))
        .ok_or_else(|| "expected a number of milliseconds or `default`".to_owned())
}

impl ModelCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Register(args) => args.run(context).await,
            Self::Init(args) => args.run(context).await,
            Self::List => list(context).await,
            Self::Show(model) => {
                let view = context.admin()?.model(&model.name, model.version).await?;
                view::model::print_details(context, &view)
            }
            Self::Update(args) => args.run(context).await,
            Self::Split(args) => args.run(context).await,
            Self::Promote(args) => args.run(context).await,
            Self::Rollback(args) => args.run(context).await,
            Self::Remove(args) => args.run(context).await,
        }
    }
}

async fn list(context: &Context) -> anyhow::Result<()> {
    let models = context.admin()?.models().await?;
    if context.json() {
        output::print_json(&models)
    } else {
        view::model::print_list(&models)
    }
}

/// Prints the versions of a model with their shares.
async fn print_versions(context: &Context, name: &ModelName) -> anyhow::Result<()> {
    let mut models = context.admin()?.models().await?;
    models.retain(|model| model.name == *name);
    if context.json() {
        output::print_json(&models)
    } else {
        view::model::print_versions(&models)
    }
}
