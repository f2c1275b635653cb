//! The steps of CI.

use std::{path::PathBuf, process::Command};

use crate::{setup, steps::Steps, test, units, workspace::root};

const CARGO_DENY: &str = "0.20.2";
const CARGO_MACHETE: &str = "0.9.2";

/// Format, lints, dependencies, then every test.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    steps.run(
        "format",
        Command::new("cargo").args(["fmt", "--all", "--check"]),
    );
    steps.call("demo and tests compile the same", units::run);
    dependencies(&mut steps);
    let lints = ["clippy", "--workspace", "--all-targets"];
    let deny_warnings = ["--", "-D", "warnings"];
    steps.run(
        "lints",
        Command::new("cargo").args(lints).args(deny_warnings),
    );
    // The worker without libtorch, the command without its laboratory, the gateway without HiGHS. All at once, so that dependencies keep
    // the features for which they were checked already.
    steps.run(
        "lints without default features",
        Command::new("cargo")
            .args(lints)
            .arg("--no-default-features")
            .args(deny_warnings),
    );
    test::add_steps(&mut steps);
    steps.finish()
}

/// Licences, sources, duplicates, advisories and unused dependencies.
fn dependencies(steps: &mut Steps) {
    if let Some(deny) = tool(steps, "cargo-deny", CARGO_DENY) {
        steps.run(
            "licences, duplicates and sources",
            Command::new(&deny).args(["check", "bans", "licenses", "sources"]),
        );
        // The database of advisories is a public repository, which not every machine can reach.
        steps.run_if_reachable(
            "advisories",
            Command::new(&deny).args(["check", "advisories"]),
            "failed to fetch advisory database",
        );
    }
    if let Some(machete) = tool(steps, "cargo-machete", CARGO_MACHETE) {
        steps.run(
            "unused dependencies",
            Command::new(machete).arg("--with-metadata"),
        );
    }
}

/// Returns the path of a program of this version, compiled here where it is not there yet. `None` if it cannot be compiled.
fn tool(steps: &mut Steps, name: &str, version: &str) -> Option<PathBuf> {
    let folder = root().join("target/tools");
    let program = folder.join("bin").join(name);
    let installed = Command::new(&program).arg("--version").output();
    // cargo-deny prints its name before its version, cargo-machete does not.
    let is_installed = installed.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace().last() == Some(version)
    });
    if !is_installed {
        let mut install = Command::new("cargo");
        install
            .args(["install", "--locked", "--version", version, "--root"])
            .arg(&folder)
            .arg(name)
            // It runs for a second: compiling it well does not pay.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if !steps.run(format!("installation of {name}"), &mut install) {
            return None;
        }
    }
    Some(program)
}
