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
    name: String,
    took: Duration,
    outcome: Outcome,
}

enum Outcome {
    Succeeded,
    /// Could not be done on this machine, with the reason.
    Skipped(String),
    Failed(String),
}

impl Steps {
    /// Runs a command at the repository's root with its output to the terminal. Returns true if it succeeded.
    pub(crate) fn run(&mut self, name: impl Into<String>, command: &mut Command) -> bool {
        self.step(name, || match command.current_dir(root()).status() {
            Ok(status) if status.success() => Outcome::Succeeded,
            Ok(status) => Outcome::Failed(status.to_string()),
            Err(e) => Outcome::Failed(cannot_start(command, &e)),
        })
    }

    /// Runs a command like [`Self::run`], and skips it where its error output contains `unreachable`.
    pub(crate) fn run_if_reachable(
        &mut self,
        name: impl Into<String>,
        command: &mut Command,
        unreachable: &str,
    ) -> bool {
        self.step(name, || match command.current_dir(root()).output() {
            Ok(output) if output.status.success() => Outcome::Succeeded,
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                if let Some(line) = text.lines().find(|line| line.contains(unreachable)) {
                    return Outcome::Skipped(line.trim().to_owned());
                }
                println!("{text}");
                Outcome::Failed(output.status.to_string())
            }
            Err(e) => Outcome::Failed(cannot_start(command, &e)),
        })
    }

    /// Calls a function. Returns true if it succeeded.
    pub(crate) fn call(
        &mut self,
        name: impl Into<String>,
        function: impl FnOnce() -> anyhow::Result<()>,
    ) -> bool {
        self.step(name, || match function() {
            Ok(()) => Outcome::Succeeded,
            Err(e) => {
                println!("{e:#}");
                Outcome::Failed("see above".to_owned())
            }
        })
    }

    /// Calls a function for tests that are skipped, and say so, if it fails.
    pub(crate) fn call_or_skip(
        &mut self,
        name: impl Into<String>,
        function: impl FnOnce() -> anyhow::Result<()>,
    ) {
        self.step(name, || match function() {
            Ok(()) => Outcome::Succeeded,
            Err(e) => Outcome::Skipped(format!("{e:#}; the tests that need it are skipped")),
        });
    }

    /// Records a step that cannot be done on this machine, with the reason.
    pub(crate) fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.step(name, || Outcome::Skipped(reason.into()));
    }

    fn step(&mut self, name: impl Into<String>, run: impl FnOnce() -> Outcome) -> bool {
        let name = name.into();
        println!("\n── {name}");
        let start = now();
        let outcome = run();
        let succeeded = !matches!(outcome, Outcome::Failed(_));
        self.done.push(Step {
            name,
            took: now() - start,
            outcome,
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
            outcome,
        } in &self.done
        {
            let seconds = took.as_secs();
            let outcome = match outcome {
                Outcome::Succeeded => "ok".to_owned(),
                Outcome::Skipped(reason) => format!("skipped: {reason}"),
                Outcome::Failed(reason) => format!("FAILED ({reason})"),
            };
            println!(
                "{name:.<44} {:>2}:{:02} min  {outcome}",
                seconds / 60,
                seconds % 60
            );
        }
        let failed = self
            .done
            .iter()
            .filter(|step| matches!(step.outcome, Outcome::Failed(_)))
            .count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.done.len());
        }
        Ok(())
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!(
        "{} could not be started: {error}",
        command.get_program().display()
    )
}
