//! `packhorse policy`: how models are placed and requests dispatched.

use packhorse_api::{PolicyChange, PolicyView};
use packhorse_cluster::Discipline;

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
    #[command(
        after_help = "Examples:\n  packhorse policy set exclusive\n  packhorse policy set --discipline deadline"
    )]
    Set(SetArgs),
}

#[derive(clap::Args)]
#[group(id = "change", required = true, multiple = true, args = ["policy", "discipline"])]
struct SetArgs {
    /// The placement policy
    policy: Option<String>,
    /// The dispatch discipline
    #[arg(long, value_name = "D")]
    discipline: Option<Discipline>,
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
    output::line(format!(
        "policy {}, discipline {}\n",
        view.policy, view.discipline
    ))?;
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
