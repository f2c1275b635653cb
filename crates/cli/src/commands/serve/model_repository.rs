//! The folder of models of `packhorse serve`: a fleet of models alone, which is applied at each start.

use std::path::Path;

use packhorse_api::{RepositoryProblem, RepositoryProblems};
use packhorse_client::AdminClient;
use packhorse_fleet::{Change, Step, plan};
use packhorse_terminal::output;

use crate::commands::fleet::{FleetFolder, Undescribed, carry_out, declare, registered};

/// Reads the folder, and says what is wrong there before the gateway starts.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn read(folder: &Path) -> anyhow::Result<FleetFolder> {
    let models = FleetFolder::read_models(folder)?;
    models.problems().iter().for_each(note);
    Ok(models)
}

/// Makes the gateway's registrations equal to the folder's. Models that only the gateway has are left alone, and so is a version whose
/// registration the gateway refuses. What is wrong becomes a finding of the gateway.
///
/// # Errors
/// If the gateway does not answer.
pub(super) async fn register(
    models: FleetFolder,
    admin: &AdminClient,
    undescribed: &Undescribed,
) -> anyhow::Result<()> {
    let said = models.problems().len();
    let mut cluster = registered(admin).await?;
    let mut declared = declare(models, admin, &mut cluster, undescribed).await?;
    declared.problems.iter().skip(said).for_each(note);
    let plan = plan(&declared.fleet, &cluster, false);
    let outcome = carry_out(admin, &declared, &cluster, &plan, report).await;
    outcome.problems.iter().for_each(note);
    let mut problems = std::mem::take(&mut declared.problems);
    problems.extend(outcome.problems);
    let more = problems.len().saturating_sub(RepositoryProblems::MAX);
    problems.truncate(RepositoryProblems::MAX);
    if more > 0
        && let Some(last) = problems.last_mut()
    {
        *last = RepositoryProblem {
            place: "and more".to_owned(),
            problem: format!("{} others are not served", more + 1),
        };
    }
    admin
        .put_repository_problems(&RepositoryProblems { problems })
        .await?;
    Ok(())
}

fn note(RepositoryProblem { place, problem }: &RepositoryProblem) {
    output::note(format_args!("{place} is not served: {problem}"));
}

fn report(step: &Step) {
    let outcome = match &step.change {
        Change::Register(_) => "registered",
        Change::Replace(_) => "registered again: its file or signature has changed",
        _ => "changed",
    };
    let subject = step.change.to_string();
    let name = subject.strip_prefix("model ").unwrap_or(&subject);
    output::note(format_args!("{name} {outcome}"));
}
