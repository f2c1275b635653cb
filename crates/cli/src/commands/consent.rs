//! The consent to changes that take planned goodput from other models: a dry run, a table of what it says, and a question.

use std::io::{self, BufRead, IsTerminal as _};

use packhorse_api::{Changed, Consequences};
use packhorse_client::CallError;
use packhorse_cluster::ModelName;
use packhorse_terminal::output;

#[derive(clap::Args)]
pub(super) struct ConsentArgs {
    /// Make the change without a question, even if it takes goodput from other models
    #[arg(long, short)]
    yes: bool,
}

/// The reason why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAgreed {
    /// Nobody can be asked.
    #[error(
        "nothing was changed: the change takes goodput from other models, and there is no terminal to ask on; --yes makes it without a question"
    )]
    NoTerminal,
    /// The user said no.
    #[error("nothing was changed")]
    Declined,
}

impl NotAgreed {
    /// The exit status of a command whose change was not agreed to.
    pub(crate) const EXIT_STATUS: u8 = 3;
}

impl ConsentArgs {
    /// Returns true if no question is to be asked.
    pub(super) fn is_given(&self) -> bool {
        self.yes
    }

    /// Shows what a change would take from models, and asks before one that takes something from others than these, which are changed.
    /// With `--yes` there is no dry run and no question.
    ///
    /// # Errors
    /// If the change is refused or not agreed to.
    pub(super) async fn ask(
        &self,
        changed: &[&ModelName],
        dry_run: impl Future<Output = Result<Consequences, CallError>>,
    ) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let consequences = dry_run.await?;
        show(&consequences);
        if consequences.for_others(changed).next().is_none() {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(NotAgreed::NoTerminal.into());
        }
        output::note("Make the change? [y/N]");
        Ok(agreed(&mut io::stdin().lock())?)
    }

    /// Makes a change that is agreed to: asks as [`Self::ask`] does, and shows what the change has taken from models.
    ///
    /// # Errors
    /// If the change is refused or not agreed to.
    pub(super) async fn make<T>(
        &self,
        changed: &[&ModelName],
        dry_run: impl Future<Output = Result<Consequences, CallError>>,
        change: impl Future<Output = Result<Changed<T>, CallError>>,
    ) -> anyhow::Result<Changed<T>> {
        self.ask(changed, dry_run).await?;
        let made = change.await?;
        self.tell(&made.consequences);
        Ok(made)
    }

    /// Shows what a change has taken from models, unless that was shown before.
    pub(super) fn tell(&self, consequences: &Consequences) {
        if self.yes {
            show(consequences);
        }
    }
}

/// Reads the answer to the question whether the change shall be made.
fn agreed(answer: &mut impl BufRead) -> Result<(), NotAgreed> {
    let mut line = String::new();
    match answer.read_line(&mut line) {
        Ok(_) if matches!(line.trim().to_lowercase().as_str(), "y" | "yes") => Ok(()),
        _ => Err(NotAgreed::Declined),
    }
}

/// Writes the consequences of a change for people, if there are any or they are not known.
pub(super) fn show(consequences: &Consequences) {
    if let Some(reason) = &consequences.consequences_unknown {
        output::note(format_args!(
            "what the change takes from other models is not known: {reason}"
        ));
    }
    let mut table = output::new_table(&["MODEL", "NOW", "THEN", "REASON"]);
    for loss in consequences.consequences.iter().flatten() {
        table.add_row([
            loss.model.to_string(),
            output::format_number(loss.before_rps),
            output::format_number(loss.after_rps),
            loss.reason.clone(),
        ]);
    }
    if table.row_count() > 0 {
        output::note("The change lowers the planned goodput (requests/s) of these models:");
        output::note(output::table_text(&table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_a_yes() {
        for yes in ["y\n", "Y\n", "yes\n", " YES \n", "y"] {
            assert_eq!(agreed(&mut yes.as_bytes()), Ok(()), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "no\n", "yess\n", "maybe\n"] {
            assert_eq!(
                agreed(&mut no.as_bytes()),
                Err(NotAgreed::Declined),
                "{no:?}"
            );
        }
    }
}
