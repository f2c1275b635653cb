//! `packhorse plan`: which model runs where, and what is expected of it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context as _;
use packhorse_api::{
    PlacementView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanView, PreviewDevices,
    PreviewModel,
};
use packhorse_client::AdminClient;
use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, Discipline, Explanation, Generation, IdError, ModelName,
    ModelVersion, RequestsPerSecond,
};
use packhorse_figures::plans;
use packhorse_placement::DEFAULT_POLICY;
use packhorse_simulator::Scenario;
use serde::Serialize;

use self::offline::SmallestArgs;
use super::{
    explanation,
    layout::{DeviceLayout, Layout, ModelLayout, ReplicaLayout},
    model::parse_rate,
    model_text,
    scenario::{self, ChoiceArgs, PolicyName},
};
use crate::{
    context::Context,
    output::{self, number},
    plot::PlotFile,
};

mod offline;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse plan
  packhorse plan --json
  packhorse plan --explain
  packhorse plan --policy usher --creq mean
  packhorse plan --scenario thesis.toml --policy usher
  packhorse plan --scenario thesis.toml --policy usher --plot plan.svg
  packhorse plan --scenario thesis.toml --policy usher --min-devices
  packhorse plan --scenario thesis.toml --policy goodput --explain
  packhorse plan preview --policy exclusive --add-device H200:2")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    #[command(flatten)]
    question: QuestionArgs,
}

/// What is asked, in place of the live cluster's plan as it is.
#[derive(clap::Args)]
struct QuestionArgs {
    /// Plan for the cluster and the models of this file, without a gateway
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The policy to ask [default: goodput for a scenario, the configured one for the live cluster]
    #[arg(long, value_name = "P")]
    policy: Option<PolicyName>,
    /// The dispatch discipline that the policy may reckon with
    #[arg(long, value_name = "D")]
    discipline: Option<Discipline>,
    /// Tell what bounds each model that is not fully served, and what it would take
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    choices: ChoiceArgs,
    #[command(flatten)]
    smallest: SmallestArgs,
    /// Also draw the plan: a bar per device, with its replicas
    #[arg(long, value_name = "F.svg|F.png", requires = "scenario")]
    plot: Option<PlotFile>,
}

#[derive(clap::Subcommand)]
enum PlanCommand {
    /// Show what would be planned if something were different; changes nothing
    #[command(after_help = "\
Examples:
  packhorse plan preview --policy exclusive
  packhorse plan preview --add-device H200:2 --rate minilm=500
  packhorse plan preview --remove minilm
  packhorse plan preview --explain")]
    Preview(PreviewArgs),
    /// List earlier plans
    #[command(after_help = "Example:\n  packhorse plan history")]
    History,
    /// Show what a plan starts and stops where another one ran
    #[command(after_help = "Example:\n  packhorse plan diff 3 4")]
    Diff {
        /// The number of the plan that ran
        before: u64,
        /// The number of the plan that takes its place
        after: u64,
    },
    /// Show an earlier plan
    #[command(after_help = "Example:\n  packhorse plan show 3")]
    Show {
        /// Its number
        #[arg(value_name = "GENERATION")]
        generation: u64,
    },
}

#[derive(clap::Args)]
struct PreviewArgs {
    /// The policy to ask [default: the configured one]
    #[arg(long, value_name = "P")]
    policy: Option<String>,
    /// The dispatch discipline that the policy may reckon with [default: the configured one]
    #[arg(long, value_name = "D")]
    discipline: Option<Discipline>,
    #[command(flatten)]
    choices: ChoiceArgs,
    /// Devices to add, for instance H200:2
    #[arg(long, value_name = "KIND:COUNT", value_parser = parse_devices)]
    add_device: Vec<PreviewDevices>,
    /// A registered model at another rate, in requests per second
    #[arg(long, value_name = "MODEL=RATE", value_parser = assignment(parse_rate))]
    rate: Vec<(WhichModel, RequestsPerSecond)>,
    /// A registered model with another latency objective, in milliseconds
    #[arg(long, value_name = "MODEL=MS", value_parser = assignment(|ms| ms.parse::<f64>().map_err(|e| e.to_string())))]
    slo_ms: Vec<(WhichModel, f64)>,
    /// A model to leave out
    #[arg(long, value_name = "MODEL")]
    remove: Vec<ModelName>,
    /// Tell what bounds each model that would not be fully served, and what it would take
    #[arg(long)]
    explain: bool,
}

fn parse_devices(text: &str) -> Result<PreviewDevices, String> {
    let (kind, count) = text.split_once(':').unwrap_or((text, "1"));
    let count = count
        .parse()
        .map_err(|_| format!("{count:?} is no number of devices"))?;
    let kind = DeviceKind::from_str(kind).map_err(|e| e.to_string())?;
    Ok(PreviewDevices { kind, count })
}

/// NAME or NAME:VERSION; without one the newest is meant.
type WhichModel = (ModelName, Option<ModelVersion>);

fn parse_model(text: &str) -> Result<WhichModel, IdError> {
    match text.split_once(':') {
        Some((name, version)) => Ok((name.parse()?, Some(version.parse()?))),
        None => Ok((text.parse()?, None)),
    }
}

/// Reads MODEL=VALUE.
fn assignment<T>(
    value: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<(WhichModel, T), String> + Clone {
    move |text: &str| {
        let (model, text) = text.split_once('=').ok_or("expected MODEL=VALUE")?;
        Ok((parse_model(model).map_err(|e| e.to_string())?, value(text)?))
    }
}

impl PlanArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(path) = &self.question.scenario {
            return self.question.offline(context, path);
        }
        let admin = context.admin()?;
        match self.command {
            None => {
                let explain = self.question.explain;
                let plan = match self.question.preview() {
                    Some(preview) => Some(admin.preview_plan(&preview).await?.plan),
                    None if explain => admin.explained_plan().await?,
                    None => admin.plan().await?,
                };
                let plan = plan.context("there is no plan yet: register a model")?;
                print(context, &plan).await
            }
            Some(PlanCommand::Show { generation }) => {
                let plan = admin.plan_of(Generation(generation)).await?;
                print(context, &plan).await
            }
            Some(PlanCommand::History) => history(context, &admin.plans().await?),
            Some(PlanCommand::Diff { before, after }) => {
                let diff = admin
                    .plan_difference(Generation(before), Generation(after))
                    .await?;
                if context.json() {
                    output::json(&diff)
                } else {
                    print_diff(&diff)
                }
            }
            Some(PlanCommand::Preview(args)) => {
                let preview = admin.preview_plan(&args.request()).await?;
                if context.json() {
                    output::json(&preview)
                } else {
                    print_preview(&preview)
                }
            }
        }
    }
}

impl QuestionArgs {
    /// Asks a policy here, about a scenario.
    fn offline(&self, context: &Context, path: &Path) -> anyhow::Result<()> {
        let scenario = scenario::read(path)?;
        let default = || DEFAULT_POLICY.parse();
        let policy = self.policy.clone().map_or_else(default, Ok)?;
        let mut answer = scenario::ask(
            &scenario,
            &policy,
            &self.choices,
            self.discipline.unwrap_or_default(),
            self.smallest.limit(),
        )?;
        if self.explain {
            answer.explanations =
                scenario::explain(&scenario, &policy, &self.choices, &answer.cluster)?;
        }
        let smallest = self.smallest.limit().is_some();
        let scenario = Scenario {
            problem: answer.cluster.problem.clone(),
            ..scenario
        };
        if let Some(plot) = &self.plot {
            let report = offline::report(&scenario, &answer);
            let metric = self.choices.compute_metric();
            plot.write(&plans::figure(&scenario, &report, metric)?)?;
        }
        offline::print(context, &scenario, &answer, smallest)
    }

    /// What the gateway is asked; none if the plan in force is wanted.
    fn preview(self) -> Option<PlanPreviewRequest> {
        let options = self.choices.for_gateway();
        let asked = self.policy.is_some() || self.discipline.is_some() || options.is_some();
        asked.then(|| PlanPreviewRequest {
            policy: self.policy.map(PolicyName::into_name),
            options,
            discipline: self.discipline,
            explain: self.explain,
            ..PlanPreviewRequest::default()
        })
    }
}

impl PreviewArgs {
    fn request(self) -> PlanPreviewRequest {
        let mut models: BTreeMap<WhichModel, PreviewModel> = BTreeMap::new();
        let mut changed = |id: WhichModel, change: &dyn Fn(&mut PreviewModel)| {
            let (name, version) = id.clone();
            change(models.entry(id).or_insert(PreviewModel {
                name,
                version,
                slo_ms: None,
                rate_rps: None,
            }));
        };
        for (id, rate) in self.rate {
            changed(id, &|model| model.rate_rps = Some(rate));
        }
        for (id, slo_ms) in self.slo_ms {
            changed(id, &|model| model.slo_ms = Some(slo_ms));
        }
        PlanPreviewRequest {
            policy: self.policy,
            options: self.choices.for_gateway(),
            discipline: self.discipline,
            models: models.into_values().collect(),
            remove: self.remove,
            devices: self.add_device,
            explain: self.explain,
        }
    }
}

/// A plan as programs read it, wherever it comes from: devices are numbers in the order of nodes and their devices.
#[derive(Serialize)]
struct PlanReport<'a> {
    /// None: the live cluster's.
    scenario: Option<&'a str>,
    policy: &'a str,
    predicted_goodput_rps: f64,
    solve_ms: f64,
    replicas: Vec<ReplicaReport>,
    models: Vec<ModelReport>,
    unserved: Vec<String>,
    devices_used: usize,
    generation: Option<Generation>,
    created_unix_ms: Option<i64>,
    reason: &'a str,
}

#[derive(Serialize)]
struct ReplicaReport {
    model: String,
    device: usize,
    batch_size: u32,
    compute_share_pct: Option<ComputeShare>,
}

#[derive(Serialize)]
struct ModelReport {
    name: String,
    rate_rps: f64,
    predicted_goodput_rps: f64,
    replicas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
}

impl<'a> PlanReport<'a> {
    /// `devices` in the order that numbers them; devices of the plan that have left since are numbered after them.
    fn new(plan: &'a PlanView, mut devices: Vec<DeviceId>) -> Self {
        let mut index = |device: &DeviceId| {
            devices
                .iter()
                .position(|known| known == device)
                .unwrap_or_else(|| {
                    devices.push(device.clone());
                    devices.len() - 1
                })
        };
        let replicas = plan.replicas.iter().map(|replica| ReplicaReport {
            model: model_text(&replica.model, replica.version),
            device: index(&replica.device),
            batch_size: replica.batch_size,
            compute_share_pct: replica.compute_share_pct,
        });
        let models = plan.models.iter().map(|model| ModelReport {
            name: model_text(&model.name, model.version),
            rate_rps: model.rate_rps,
            predicted_goodput_rps: model.predicted_goodput_rps,
            replicas: model.replicas,
            explanation: model.explanation.clone(),
        });
        let unserved = plan.models.iter().filter(|model| model.replicas == 0);
        Self {
            scenario: None,
            policy: &plan.policy,
            predicted_goodput_rps: plan.predicted_goodput_rps,
            solve_ms: plan.solve_ms,
            replicas: replicas.collect(),
            models: models.collect(),
            unserved: unserved
                .map(|model| model_text(&model.name, model.version))
                .collect(),
            devices_used: plan.devices_used,
            generation: plan.generation,
            created_unix_ms: plan.created_unix_ms,
            reason: &plan.reason,
        }
    }
}

async fn print(context: &Context, plan: &PlanView) -> anyhow::Result<()> {
    if context.json() {
        let devices = devices(&context.admin()?).await?;
        return output::json(&PlanReport::new(plan, devices));
    }
    print_plan(plan)
}

/// The devices of a cluster, in the order that numbers them.
async fn devices(admin: &AdminClient) -> anyhow::Result<Vec<DeviceId>> {
    let nodes = admin.nodes().await?;
    let devices = nodes.into_iter().flat_map(|node| node.devices);
    Ok(devices.map(|device| device.id).collect())
}

/// The plan of a live cluster, as `--json` prints it.
pub(super) async fn live(admin: &AdminClient) -> anyhow::Result<Option<serde_json::Value>> {
    let Some(plan) = admin.plan().await? else {
        return Ok(None);
    };
    let report = PlanReport::new(&plan, devices(admin).await?);
    Ok(Some(serde_json::to_value(report)?))
}

fn print_plan(plan: &PlanView) -> anyhow::Result<()> {
    let number_of = plan.generation.map_or_else(
        || "plan".to_owned(),
        |generation| format!("plan {generation}"),
    );
    output::line(format!(
        "{number_of} by {}: {} requests/s in time expected, {} on {}",
        plan.policy,
        number(plan.predicted_goodput_rps),
        count(plan.replicas.len(), "replica"),
        count(plan.devices_used, "device"),
    ))?;
    output::line(format!(
        "made in {} ms because: {}\n",
        number(plan.solve_ms),
        plan.reason
    ))?;
    output::line(layout(plan).text())?;
    let explained = plan.models.iter().filter_map(|model| {
        let name = model_text(&model.name, model.version);
        Some((name, model.explanation.as_ref()?))
    });
    explanation::print(explained)
}

/// By device; what its memory is and what was measured of the models is not in a plan.
fn layout(plan: &PlanView) -> Layout {
    let mut devices: BTreeMap<&DeviceId, DeviceLayout> = BTreeMap::new();
    for replica in &plan.replicas {
        let device = devices
            .entry(&replica.device)
            .or_insert_with(|| DeviceLayout {
                name: replica.device.to_string(),
                kind: replica.device_kind.to_string(),
                memory: None,
                replicas: Vec::new(),
            });
        device.replicas.push(ReplicaLayout {
            model: model_text(&replica.model, replica.version),
            batch_size: replica.batch_size,
            share_pct: replica.compute_share_pct.map(ComputeShare::get),
            measured: None,
        });
    }
    let models = plan.models.iter().map(|model| ModelLayout {
        name: model_text(&model.name, model.version),
        rate_rps: model.rate_rps,
        predicted_goodput_rps: model.predicted_goodput_rps,
        replicas: model.replicas,
        shortfall: model.shortfall.clone(),
    });
    Layout {
        devices: devices.into_values().collect(),
        models: models.collect(),
    }
}

fn placement(replica: &PlacementView) -> [String; 5] {
    [
        replica.device.to_string(),
        replica.device_kind.to_string(),
        model_text(&replica.model, replica.version),
        replica.batch_size.to_string(),
        replica.compute_share_pct.map_or_else(
            || "-".to_owned(),
            |share| format!("{} %", number(share.get())),
        ),
    ]
}

fn print_preview(preview: &PlanPreview) -> anyhow::Result<()> {
    print_plan(&preview.plan)?;
    if let Some(current) = &preview.current {
        let (now, then) = (
            current.predicted_goodput_rps,
            preview.plan.predicted_goodput_rps,
        );
        output::line(format!(
            "\nexpected in time: {} requests/s now, {} then",
            number(now),
            number(then)
        ))?;
    }
    print_diff(&preview.diff)
}

fn print_diff(diff: &PlanDiff) -> anyhow::Result<()> {
    output::line(format!(
        "{} to start, {} to stop, {} to stay",
        count(diff.added.len(), "replica"),
        diff.removed.len(),
        diff.kept
    ))?;
    if diff.added.is_empty() && diff.removed.is_empty() {
        return Ok(());
    }
    let mut table = output::table(&[]);
    for (mark, replicas) in [("+", &diff.added), ("-", &diff.removed)] {
        for replica in replicas {
            let [device, kind, model, batch, share] = placement(replica);
            table.add_row([
                mark.to_owned(),
                device,
                kind,
                model,
                format!("batch {batch}"),
                share,
            ]);
        }
    }
    Ok(output::table_or(&table, "")?)
}

fn history(context: &Context, plans: &[PlanView]) -> anyhow::Result<()> {
    if context.json() {
        return output::json(&plans);
    }
    let mut table = output::table(&[
        "PLAN",
        "POLICY",
        "REPLICAS",
        "DEVICES",
        "EXPECTED/S",
        "UNSERVED",
        "REASON",
    ]);
    for plan in plans {
        table.add_row([
            plan.generation
                .map_or_else(|| "-".to_owned(), |generation| generation.to_string()),
            plan.policy.clone(),
            plan.replicas.len().to_string(),
            plan.devices_used.to_string(),
            number(plan.predicted_goodput_rps),
            plan.unserved.join(", "),
            plan.reason.clone(),
        ]);
    }
    Ok(output::table_or(&table, "no plans")?)
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
