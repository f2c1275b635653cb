//! `packhorse apply`: makes the cluster have what the files of a folder declare.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{bail, ensure};
use packhorse_api::{Consequence, Consequences, RepositoryProblem};
use packhorse_client::{AdminClient, CallError};
use packhorse_cluster::ModelName;
use packhorse_fleet::{Change, Cluster, FieldChange, Plan, Step, plan};
use packhorse_terminal::{context::Context, output};
use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{
    consent::{self, ConsentArgs},
    fleet::{
        Declared, FleetFolder, Outcome, Undescribed, carry_out, declare, registered, upload_files,
    },
};

/// The most changes whose consequences are asked for: two plans are made for each.
const MOST_REHEARSED: usize = 16;
/// The most characters of a value in a table.
const VALUE_WIDTH: usize = 48;

#[derive(clap::Args)]
#[command(after_help = "\
DIR has for each model NAME/model.json (what `packhorse model register` reads), NAME/VERSION/model.pt or model.pt2, and where they are wanted NAME/split.json
({\"split\": {\"1\": 90, \"2\": 10}}) and NAME/VERSION/version.json (fields that differ in a version, or \"artifact\" in place of a file). Models may lie in
folders of folders. Beside them DIR may have policy.json, keys.json and nodes.json: docs/operations/fleet.md.

A plan of the changes is shown first. What is not in the files is left alone, or removed with --prune. A mistake in a file does not concern the others, and the
exit status is then 1. An interrupted apply continues when it is run again.

Examples:
  packhorse apply -f fleet/ --dry-run
  packhorse apply -f fleet/ --dry-run --exit-code
  packhorse apply -f fleet/ --prune --yes
  packhorse apply -f fleet/ --json")]
pub(crate) struct ApplyArgs {
    /// Folder with the files
    #[arg(short, long, value_name = "DIR")]
    file: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// End with status 4 if anything would change
    #[arg(long, requires = "dry_run")]
    exit_code: bool,
    /// Remove the models and versions that the files do not name
    #[arg(long)]
    prune: bool,
    /// Latency objective (SLO) in milliseconds of models without a model.json whose file says none
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    slo_ms: f64,
    /// Folder with libtorch for the run of programs without a model.json
    #[arg(long, env = "PACKHORSE_LIBTORCH", value_name = "DIR")]
    libtorch: Option<PathBuf>,
    #[command(flatten)]
    consent: ConsentArgs,
}

/// The cluster has not what the files declare, and `--exit-code` asks for a status that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster differs from the files: {0} changes")]
pub(crate) struct Differs(usize);

impl Differs {
    /// The exit status where the cluster differs from the files.
    pub(crate) const EXIT_STATUS: u8 = 4;
}

/// The outcome, for programs.
#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    changes: Vec<ChangeReport<'a>>,
    /// The number of changes that were carried out.
    done: usize,
    unchanged: usize,
    unnamed: Vec<String>,
    held: Vec<String>,
    problems: &'a [RepositoryProblem],
    #[serde(flatten)]
    consequences: Consequences,
}

#[derive(Serialize)]
struct ChangeReport<'a> {
    action: &'static str,
    subject: String,
    fields: &'a [FieldChange],
}

impl ApplyArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = self.file.clone();
        let folder = spawn_blocking(move || FleetFolder::read(&path)).await??;
        if self.prune {
            ensure!(
                !folder.is_empty(),
                "{} names no model, and --prune would remove all: nothing was changed",
                self.file.display()
            );
            ensure!(
                !folder.incomplete,
                "--prune: a folder in {} cannot be read, and models may be named there: nothing was changed",
                self.file.display()
            );
        }
        let admin = context.admin()?;
        let mut cluster = read_cluster(&admin, &folder).await?;
        let undescribed = Undescribed {
            slo_ms: self.slo_ms,
            libtorch: self.libtorch.clone(),
        };
        let mut declared = declare(folder, &admin, &mut cluster, &undescribed).await?;
        let mut plan = plan(&declared.fleet, &cluster, self.prune);
        let mut problems = std::mem::take(&mut declared.problems);
        problems.append(&mut plan.problems);
        if !context.json() {
            show(&plan, &problems)?;
        }
        let changes = plan.steps.len();
        let (outcome, consequences) = if self.dry_run {
            let (consequences, refused) = rehearse(&admin, &plan).await?;
            let problems = refused;
            (Outcome { done: 0, problems }, consequences)
        } else {
            self.carry_out(&admin, &declared, &cluster, &plan).await?
        };
        if self.dry_run && !context.json() {
            consent::show(&consequences);
        }
        for problem in &outcome.problems {
            note(problem);
        }
        problems.extend(outcome.problems);
        if context.json() {
            output::print_json(&report(
                &plan,
                &problems,
                self.dry_run,
                outcome.done,
                consequences,
            ))?;
        } else if !self.dry_run {
            output::print_line(format!("{} of {changes} changes made", outcome.done))?;
        }
        if !problems.is_empty() {
            bail!(
                "{} problems: what they are about is not applied",
                problems.len()
            );
        }
        if self.exit_code && !plan.is_done() {
            return Err(Differs(changes + plan.held.len()).into());
        }
        Ok(())
    }

    /// Asks where goodput is taken from models that the files do not change, and carries the steps out.
    async fn carry_out(
        &self,
        admin: &AdminClient,
        declared: &Declared,
        cluster: &Cluster,
        plan: &Plan,
    ) -> anyhow::Result<(Outcome, Consequences)> {
        let models: Vec<&ModelName> = plan.steps.iter().flat_map(Step::models).collect();
        if !self.consent.is_given() && !plan.steps.is_empty() {
            // The consequences of a version are known only where its file is.
            upload_files(admin, declared, plan).await;
        }
        let mut consequences = Consequences::unknown(&"they were not asked for");
        let asked = async {
            consequences = rehearse(admin, plan).await?.0;
            Ok::<_, CallError>(consequences.clone())
        };
        self.consent.ask(&models, asked).await?;
        let bar = output::count_bar("applying", plan.steps.len() as u64);
        let outcome = carry_out(admin, declared, cluster, plan, |_| bar.inc(1)).await;
        bar.finish_and_clear();
        Ok((outcome, consequences))
    }
}

/// Returns what the cluster has of what the folder declares.
async fn read_cluster(admin: &AdminClient, folder: &FleetFolder) -> Result<Cluster, CallError> {
    let mut cluster = registered(admin).await?;
    if folder.declares_policy() {
        cluster.policy = Some(admin.policy().await?);
    }
    if folder.declares_nodes() {
        cluster.nodes = Some(admin.nodes().await?);
    }
    if folder.declares_keys() {
        cluster.keys = Some(admin.keys().await?);
    }
    Ok(cluster)
}

/// Asks the gateway what the steps take from models, each by itself, and which it refuses. Of a version whose file the gateway does not have it is not known.
async fn rehearse(
    admin: &AdminClient,
    plan: &Plan,
) -> Result<(Consequences, Vec<RepositoryProblem>), CallError> {
    let mut losses: BTreeMap<ModelName, Consequence> = BTreeMap::new();
    let mut refused = Vec::new();
    let mut unknown = None;
    let mut asked = 0;
    let new: Vec<&ModelName> = registered_names(plan).collect();
    let bar = output::count_bar("checking", plan.steps.len() as u64);
    for step in &plan.steps {
        bar.inc(1);
        if asked >= MOST_REHEARSED {
            unknown = Some(format!("only {MOST_REHEARSED} changes are looked at"));
            break;
        }
        match rehearse_step(admin, step, &new).await {
            None => {}
            Some(Ok(consequences)) => {
                asked += 1;
                unknown = unknown.or(consequences.consequences_unknown);
                for loss in consequences.consequences.into_iter().flatten() {
                    let worst = losses
                        .entry(loss.model.clone())
                        .or_insert_with(|| loss.clone());
                    if loss.after_rps < worst.after_rps {
                        *worst = loss;
                    }
                }
            }
            Some(Err(error)) => match error.status() {
                Some(status) if status.is_client_error() && is_about_the_file(&error) => {
                    unknown = Some("files of new versions are not uploaded yet".to_owned());
                }
                Some(status) if status.is_client_error() => refused.push(RepositoryProblem {
                    place: step.change.to_string(),
                    problem: format!("{:#}", anyhow::Error::from(error)),
                }),
                _ => return Err(error),
            },
        }
    }
    bar.finish_and_clear();
    let consequences = Consequences {
        consequences: Some(losses.into_values().collect()),
        consequences_unknown: unknown,
    };
    Ok((consequences, refused))
}

/// Returns the consequences of a step; `None` if it has none, or they depend on steps before it.
async fn rehearse_step(
    admin: &AdminClient,
    step: &Step,
    new: &[&ModelName],
) -> Option<Result<Consequences, CallError>> {
    let dry_run = admin.dry_run();
    Some(match &step.change {
        Change::Policy(change) => dry_run.change_policy(change).await,
        Change::Register(registration) => dry_run.register_model(registration).await,
        Change::Replace(registration) => dry_run.replace_model(registration).await,
        Change::Split(name, _) if new.contains(&name) => return None,
        Change::Model(name, version, change) => dry_run.change_model(name, *version, change).await,
        Change::Split(name, change) => dry_run.change_model(name, None, change).await,
        Change::Remove(name, version) => dry_run.remove_model(name, *version).await,
        Change::Key { .. } | Change::Node(..) => return None,
    })
}

fn registered_names(plan: &Plan) -> impl Iterator<Item = &ModelName> {
    plan.steps.iter().filter_map(|step| match &step.change {
        Change::Register(new) | Change::Replace(new) => Some(&new.name),
        _ => None,
    })
}

/// Returns true if the gateway has not the file yet.
fn is_about_the_file(error: &CallError) -> bool {
    error.to_string().contains("is not stored")
}

/// Shows the plan and what is wrong in the files.
fn show(plan: &Plan, problems: &[RepositoryProblem]) -> anyhow::Result<()> {
    for problem in problems {
        note(problem);
    }
    let mut table = output::new_table(&["CHANGE", "WHAT", "FIELD", "NOW", "FILES"]);
    for step in &plan.steps {
        let (action, subject) = (step.action().to_owned(), step.change.to_string());
        let mut heads =
            std::iter::once([action, subject]).chain(std::iter::repeat_with(Default::default));
        let none = [FieldChange {
            field: String::new(),
            old: Value::Null,
            new: Value::Null,
        }];
        let fields = if step.fields.is_empty() {
            &none[..]
        } else {
            &step.fields
        };
        for field in fields {
            let [action, subject] = heads.next().unwrap_or_default();
            let values = if field.field.is_empty() {
                [String::new(), String::new()]
            } else {
                [short(&field.old), short(&field.new)]
            };
            let [old, new] = values;
            table.add_row([action, subject, field.field.clone(), old, new]);
        }
    }
    if table.row_count() > 0 {
        output::print_line(output::table_text(&table))?;
        output::print_line("")?;
    }
    for held in &plan.held {
        output::print_line(format!(
            "model {}:{} stays for now: it gets {} % of the requests that name no version",
            held.name, held.version, held.share_pct
        ))?;
    }
    let count = |action: &str| {
        plan.steps
            .iter()
            .filter(|step| step.action() == action)
            .count()
    };
    let mut counts: Vec<String> = ["create", "replace", "change", "remove"]
        .into_iter()
        .map(|action| (action, count(action)))
        .filter(|(_, count)| *count > 0)
        .map(|(action, count)| format!("{count} to {action}"))
        .collect();
    counts.push(format!("{} unchanged", plan.unchanged));
    if !plan.unnamed.is_empty() {
        counts.push(format!(
            "{} not in the files, left alone",
            plan.unnamed.len()
        ));
    }
    Ok(output::print_line(counts.join(", "))?)
}

/// Returns a value for people: a text without its marks, and no more of it than a table holds.
fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= VALUE_WIDTH {
        return text;
    }
    let head: String = text.chars().take(VALUE_WIDTH - 1).collect();
    format!("{head}…")
}

fn report<'a>(
    plan: &'a Plan,
    problems: &'a [RepositoryProblem],
    dry_run: bool,
    done: usize,
    consequences: Consequences,
) -> Report<'a> {
    let change = |step: &'a Step| ChangeReport {
        action: step.action(),
        subject: step.change.to_string(),
        fields: &step.fields,
    };
    let unnamed = plan.unnamed.iter().map(|model| match model.version {
        Some(version) => format!("{}:{version}", model.name),
        None => model.name.to_string(),
    });
    let held = plan.held.iter();
    Report {
        dry_run,
        changes: plan.steps.iter().map(change).collect(),
        done,
        unchanged: plan.unchanged,
        unnamed: unnamed.collect(),
        held: held
            .map(|held| format!("{}:{}", held.name, held.version))
            .collect(),
        problems,
        consequences,
    }
}

fn note(RepositoryProblem { place, problem }: &RepositoryProblem) {
    output::note(format_args!("{place} is not applied: {problem}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_and_a_missing_one_is_a_dash() {
        assert_eq!(short(&Value::Null), "-");
        assert_eq!(short(&"max".into()), "max");
        assert_eq!(short(&5.5.into()), "5.5");
        assert_eq!(short(&"é".repeat(60).into()).chars().count(), VALUE_WIDTH);
    }
}
