//! Steps that run one after the other, and how they went.

use std::{process::Command, time::Duration};

use anyhow::bail;

use crate::workspace::{now, root};

/// A list of commands with names, run to its end even when some fail.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<Step>,
}

struct Step {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

impl Steps {
    /// Runs a command at the repository's root with its output to the terminal. Says whether it succeeded.
    pub(crate) fn run(&mut self, name: &'static str, command: &mut Command) -> bool {
        println!("\n── {name}");
        let start = now();
        let failure = match command.current_dir(root()).status() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(e) => Some(format!(
                "{} could not be started: {e}",
                command.get_program().display()
            )),
        };
        let succeeded = failure.is_none();
        self.done.push(Step {
            name,
            took: now() - start,
            failure,
        });
        succeeded
    }

    /// Prints one line per step.
    ///
    /// # Errors
    /// If a step failed.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        println!();
        for Step {
            name,
            took,
            failure,
        } in &self.done
        {
            let seconds = took.as_secs();
            let outcome = failure
                .as_ref()
                .map_or_else(|| "ok".to_owned(), |failure| format!("FAILED ({failure})"));
            println!(
                "{name:.<44} {:>2}:{:02} min  {outcome}",
                seconds / 60,
                seconds % 60
            );
        }
        let failed = self
            .done
            .iter()
            .filter(|step| step.failure.is_some())
            .count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.done.len());
        }
        Ok(())
    }
}
