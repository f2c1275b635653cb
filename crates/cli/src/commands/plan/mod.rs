//! `packhorse plan`: shows which model runs on which device, and the goodput that is expected of it.

mod preview;

use anyhow::Context as _;
use packhorse_api::PlanPreviewRequest;
use packhorse_cluster::{Discipline, Generation};
use packhorse_terminal::{context::Context, output, plan, policy_options::PolicyOptionArgs};

use self::preview::PreviewArgs;
use crate::laboratory::{ScenarioPlanArgs, pass_on};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse plan
  packhorse plan --json
  packhorse plan --explain
  packhorse plan --policy usher --creq mean
  packhorse plan --scenario thesis.toml --policy usher
  packhorse plan preview --policy exclusive --add-device H200:2
  packhorse plan export > live.toml")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    #[command(flatten)]
    request: PlanRequestArgs,
}

/// Options of a plan other than the one in force.
#[derive(clap::Args)]
struct PlanRequestArgs {
    /// Placement policy [default: that of the scenario, else goodput; the configured policy for the live cluster]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Dispatch discipline that the policy assumes [default: that of the scenario, else deadline; the configured discipline for the
    /// live cluster]
    #[arg(long, value_name = "DISCIPLINE")]
    discipline: Option<Discipline>,
    /// Explain what limits each model that is not fully served, and which changes would suffice
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    options: PolicyOptionArgs,
    #[command(flatten)]
    scenario: ScenarioPlanArgs,
}

#[derive(clap::Subcommand)]
enum PlanCommand {
    /// Show the plan that changed models, devices or policies would lead to; changes nothing
    #[command(after_help = "\
Examples:
  packhorse plan preview --policy exclusive
  packhorse plan preview --add-device H200:2 --rate minilm=500
  packhorse plan preview --priority minilm=7
  packhorse plan preview --remove minilm
  packhorse plan preview --explain")]
    Preview(Box<PreviewArgs>),
    /// Print what the live cluster plans with as a scenario, for `packhorse plan --scenario` and `packhorse simulate`
    #[command(after_help = "\
The plan for the scenario is the plan that the gateway would make now. With --json the scenario is printed as JSON, for other \
programs; `packhorse plan --scenario` reads TOML.

Examples:
  packhorse plan export > live.toml
  packhorse plan --scenario live.toml
  packhorse simulate --scenario live.toml --replan")]
    Export,
    /// List earlier plans
    #[command(after_help = "Example:\n  packhorse plan history")]
    History,
    /// Show the replicas that one plan starts and stops in place of another
    #[command(after_help = "Example:\n  packhorse plan diff 3 4")]
    Diff {
        /// Number of the earlier plan
        before: u64,
        /// Number of the plan that replaces it
        after: u64,
    },
    /// Show an earlier plan
    #[command(after_help = "Example:\n  packhorse plan show 3")]
    Show {
        /// Number of the plan
        #[arg(value_name = "GENERATION")]
        generation: u64,
    },
}

impl PlanArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.request.scenario.is_given() {
            return pass_on();
        }
        let admin = context.admin()?;
        match self.command {
            None => {
                let explain = self.request.explain;
                let plan = match self.request.into_preview() {
                    Some(preview) => Some(admin.preview_plan(&preview).await?.plan),
                    None if explain => admin.explained_plan().await?,
                    None => admin.plan().await?,
                };
                let plan = plan.context("there is no plan yet: register a model first")?;
                plan::print_plan(context, &admin, &plan).await
            }
            Some(PlanCommand::Show { generation }) => {
                let plan = admin.stored_plan(Generation(generation)).await?;
                plan::print_plan(context, &admin, &plan).await
            }
            Some(PlanCommand::Export) => {
                let scenario = admin.plan_scenario().await?;
                if context.json() {
                    let scenario: toml::Table = toml::from_str(&scenario)
                        .context("the gateway's scenario cannot be read")?;
                    return output::print_json(&scenario);
                }
                Ok(output::print_bytes(scenario.as_bytes())?)
            }
            Some(PlanCommand::History) => {
                let plans = admin.plans().await?;
                if context.json() {
                    output::print_json(&plans)
                } else {
                    plan::print_history(&plans)
                }
            }
            Some(PlanCommand::Diff { before, after }) => {
                let diff = admin
                    .plan_diff(Generation(before), Generation(after))
                    .await?;
                if context.json() {
                    output::print_json(&diff)
                } else {
                    plan::print_diff(&diff)
                }
            }
            Some(PlanCommand::Preview(args)) => {
                let preview = admin.preview_plan(&args.into_request()).await?;
                if context.json() {
                    output::print_json(&preview)
                } else {
                    plan::print_preview(&preview)
                }
            }
        }
    }
}

impl PlanRequestArgs {
    /// Returns the preview to request from the gateway; `None` if the flags select the plan in force.
    fn into_preview(self) -> Option<PlanPreviewRequest> {
        let options = self.options.given();
        let differs = self.policy.is_some() || self.discipline.is_some() || options.is_some();
        differs.then(|| PlanPreviewRequest {
            policy: self.policy,
            options,
            discipline: self.discipline,
            explain: self.explain,
            ..PlanPreviewRequest::default()
        })
    }
}
