//! `packhorse doctor`: examines this machine, the gateway's state folder and the cluster, and says what is wrong and how to mend it.
//!
//! It changes nothing. What is on other machines is examined as far as the gateway knows it.

mod check;
mod cluster;
mod machine;
mod state;

use std::path::PathBuf;

use anyhow::bail;
use packhorse_terminal::{
    context::{self, Context},
    output::{self, Colour},
};
use serde::Serialize;

use self::{
    check::{Check, Verdict},
    machine::Machine,
};

const HELP: &str = "\
Examples:
  packhorse doctor
  packhorse doctor --state-dir /var/lib/packhorse
  packhorse doctor --json

Exit status: 0 if nothing is wrong or there are warnings only, 1 if there is a problem.";

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    /// State folder of the gateway on this machine [default: packhorse in the user's data folder, ~/.local/share]
    #[arg(long, value_name = "DIR", env = "PACKHORSE_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Diagnosis {
    problems: usize,
    warnings: usize,
    checks: Vec<Check>,
}

impl DoctorArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let machine = Machine::this();
        let mut checks = vec![machine.descriptors(), machine.idle_cores()];
        match self.state_dir.or_else(context::default_state_dir) {
            Some(dir) => checks.extend(state::checks(&dir)),
            None => checks.push(Check::skipped(
                "state folder",
                "there is no home folder; name the folder with --state-dir",
            )),
        }
        checks.extend(machine.programs().await);
        checks.extend(machine.gpus());
        checks.extend(cluster::checks(context).await);
        let count = |verdict| {
            checks
                .iter()
                .filter(|check| check.verdict == verdict)
                .count()
        };
        let diagnosis = Diagnosis {
            problems: count(Verdict::Problem),
            warnings: count(Verdict::Warning),
            checks,
        };
        if context.json() {
            output::print_json(&diagnosis)?;
        } else {
            print(&diagnosis)?;
        }
        match diagnosis.problems {
            0 => Ok(()),
            1 => bail!("there is 1 problem"),
            problems => bail!("there are {problems} problems"),
        }
    }
}

fn print(diagnosis: &Diagnosis) -> anyhow::Result<()> {
    for check in &diagnosis.checks {
        // Padded before it is painted: the colour has a width for the formatter.
        let verdict = match check.verdict {
            Verdict::Ok => output::paint("ok      ", Colour::Green),
            Verdict::Skipped => "-       ".to_owned(),
            Verdict::Warning => output::paint("warning ", Colour::Yellow),
            Verdict::Problem => output::paint("PROBLEM ", Colour::Red),
        };
        output::print_line(format!("{verdict} {:<13} {}", check.part, check.text))?;
        if let Some(cure) = &check.cure {
            output::print_line(format!("{:<22} mend: {cure}", ""))?;
        }
    }
    Ok(())
}
