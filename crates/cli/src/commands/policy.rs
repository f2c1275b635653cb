//! `packhorse policy`: how models are placed and requests dispatched.

use packhorse_api::{PolicyChange, PolicyView};
use packhorse_cluster::Discipline;

use super::scenario::ChoiceArgs;
use crate::{context::Context, output};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  packhorse policy\n  packhorse policy set first-fit")]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: Option<PolicyCommand>,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    /// Choose the placement policy or the dispatch discipline
    #[command(after_help = "\
Choices about how a policy decides (--creq, --objective, --nexus-published, --prefer, --compute-shares,
--effort) take the place of all earlier ones.

Examples:
  packhorse policy set exclusive
  packhorse policy set ao-milp --objective max-min --prefer small-batch
  packhorse policy set --discipline deadline")]
    Set(SetArgs),
}

#[derive(clap::Args)]
#[group(id = "change", required = true, multiple = true, args = ["policy", "discipline", "creq", "objective", "nexus_published", "prefer", "compute_shares", "effort"])]
struct SetArgs {
    /// The placement policy
    policy: Option<String>,
    /// The dispatch discipline
    #[arg(long, value_name = "D")]
    discipline: Option<Discipline>,
    #[command(flatten)]
    choices: ChoiceArgs,
}

impl PolicyArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let view = match self.command {
            None => admin.policy().await?,
            Some(PolicyCommand::Set(args)) => {
                admin
                    .change_policy(&PolicyChange {
                        policy: args.policy,
                        options: args.choices.for_gateway(),
                        discipline: args.discipline,
                    })
                    .await?
            }
        };
        if context.json() {
            output::json(&view)
        } else {
            print(&view)
        }
    }
}

fn print(view: &PolicyView) -> anyhow::Result<()> {
    let options = &view.options;
    let metric = options.compute_metric.as_ref();
    let objective = options.objective.as_ref();
    let shares = options.compute_shares.as_ref();
    let shares = shares.filter(|choice| *choice != "never");
    let effort = options.effort.filter(|times| *times > 1);
    let chosen = [
        Some(format!("policy {}", view.policy)),
        Some(format!("discipline {}", view.discipline)),
        metric.map(|metric| format!("creq {metric}")),
        objective.map(|objective| format!("objective {objective}")),
        options
            .prefer_small_batch
            .then(|| "prefers small batches".to_owned()),
        options
            .nexus_published
            .then(|| "nexus as published".to_owned()),
        shares.map(|choice| format!("compute shares {choice}")),
        effort.map(|times| format!("effort {times}")),
    ];
    let chosen: Vec<String> = chosen.into_iter().flatten().collect();
    output::line(format!("{}\n", chosen.join(", ")))?;
    let mut table = output::table(&["POLICY", "", "SOURCE"]);
    for policy in &view.policies {
        let mark = if policy.name == view.policy {
            "* "
        } else {
            "  "
        };
        table.add_row([
            format!("{mark}{}", policy.name),
            policy.summary.clone(),
            policy.source.clone(),
        ]);
    }
    Ok(output::table_or(&table, "no policies")?)
}
