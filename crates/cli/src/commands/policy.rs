//! `packhorse policy`: shows and sets the placement policy and the dispatch discipline.

use packhorse_api::{Changed, PolicyChange, PolicyView};
use packhorse_cluster::{BatchStep, ComputeShareMode, Discipline, Effort, LatencyModel};
use packhorse_terminal::{context::Context, output, policy_options::PolicyOptionArgs};

use super::consent::ConsentArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  packhorse policy\n  packhorse policy set first-fit")]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: Option<PolicyCommand>,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    /// Set the placement policy, its options, or the dispatch discipline
    #[command(after_help = "\
The options of a policy (--creq, --objective, --nexus-published, --prefer, --compute-shares, --effort, \
--batch-step, --latency-model, --herd-greedy) are set together: an option that is not given returns to its default.

Examples:
  packhorse policy set exclusive
  packhorse policy set ao-milp --objective max-min --prefer small-batch
  packhorse policy set --discipline deadline")]
    Set(SetArgs),
}

#[derive(clap::Args)]
#[group(id = "change", required = true, multiple = true, args = ["policy", "discipline", "creq", "objective", "nexus_published", "prefer", "compute_shares", "effort", "batch_step", "latency_model", "herd_greedy"])]
struct SetArgs {
    /// Placement policy; `packhorse policy` lists them
    policy: Option<String>,
    /// Dispatch discipline: deadline, fixed-wait, symphony, accscale or aimd
    #[arg(long, value_name = "DISCIPLINE")]
    discipline: Option<Discipline>,
    #[command(flatten)]
    options: PolicyOptionArgs,
    #[command(flatten)]
    consent: ConsentArgs,
}

impl PolicyArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            None => {
                let view = context.admin()?.policy().await?;
                if context.json() {
                    output::print_json(&view)
                } else {
                    print(&view)
                }
            }
            Some(PolicyCommand::Set(args)) => args.run(context).await,
        }
    }
}

impl SetArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let change = PolicyChange {
            policy: self.policy,
            options: self.options.given(),
            discipline: self.discipline,
        };
        let dry_run = admin.dry_run().change_policy(&change);
        self.consent.ask(&[], dry_run).await?;
        let changed = admin.change_policy(&change).await?;
        let Changed { view, consequences } = &changed;
        self.consent.tell(consequences);
        if context.json() {
            output::print_json(&changed)
        } else {
            print(view)
        }
    }
}

fn print(view: &PolicyView) -> anyhow::Result<()> {
    let options = &view.options;
    let limits_shares = options.compute_shares != ComputeShareMode::Never;
    let searches_longer = options.effort != Effort::DEFAULT;
    let chosen = [
        Some(format!("policy {}", view.policy)),
        Some(format!("discipline {}", view.discipline)),
        options
            .compute_metric
            .map(|metric| format!("creq {metric}")),
        Some(format!("objective {}", options.objective)),
        options
            .prefer_small_batch
            .then(|| "prefers small batches".to_owned()),
        options
            .nexus_published
            .then(|| "nexus as published".to_owned()),
        limits_shares.then(|| format!("compute shares {}", options.compute_shares)),
        searches_longer.then(|| format!("effort {}", options.effort.get())),
        (options.batch_step != BatchStep::Own)
            .then(|| format!("batch step {}", options.batch_step)),
        (options.latency_model != LatencyModel::Profile)
            .then(|| format!("latency model {}", options.latency_model)),
        options.herd_greedy.then(|| "herd greedy".to_owned()),
    ];
    let chosen: Vec<String> = chosen.into_iter().flatten().collect();
    output::print_line(format!("{}\n", chosen.join(", ")))?;
    let mut table = output::new_table(&["POLICY", "", "SOURCE"]);
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
    Ok(output::print_table(&table, "no policies")?)
}
