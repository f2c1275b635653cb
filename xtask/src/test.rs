//! Every test there is.

use std::process::Command;

use crate::{prometheus, setup, steps::Steps, web, workspace::python};

/// Sets up, builds, and runs the Rust tests, then the system tests in Python and those of the dashboard.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    add_steps(&mut steps);
    steps.finish()
}

/// The steps that follow set-up.
pub(crate) fn add_steps(steps: &mut Steps) {
    // The same targets and so the same features as the test runner builds: nothing is compiled twice, and the programs that
    // the system tests start are there.
    let built = steps.run(
        "build",
        Command::new("cargo").args(["build", "--workspace", "--all-targets"]),
    );
    if !built {
        return;
    }
    if has_nextest() {
        steps.run(
            "Rust tests",
            Command::new("cargo").args(["nextest", "run", "--workspace", "--no-fail-fast"]),
        );
    } else {
        steps.run(
            "Rust tests",
            Command::new("cargo").args(["test", "--workspace", "--all-targets", "--no-fail-fast"]),
        );
    }
    steps.run(
        "documentation tests",
        Command::new("cargo").args(["test", "--workspace", "--doc", "--no-fail-fast"]),
    );
    // The tests that need it say so and are skipped.
    match prometheus::install() {
        Ok(()) => {}
        Err(reason) => steps.skip("Prometheus for the system tests", reason),
    }
    steps.run(
        "system tests",
        Command::new(python()).args(["-m", "pytest", "tests"]),
    );
    web::add_test_steps(steps);
}

fn has_nextest() -> bool {
    Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}
