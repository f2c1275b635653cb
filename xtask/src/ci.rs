//! What CI runs.

use std::process::Command;

use crate::{setup, steps::Steps, test, workspace::root};

const CARGO_DENY: &str = "0.20.2";

/// Format, lints, licences and who may use what, then every test.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    steps.run(
        "format",
        Command::new("cargo").args(["fmt", "--all", "--check"]),
    );
    deny(&mut steps);
    let lints = ["--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.run("lints", Command::new("cargo").arg("clippy").args(lints));
    let without_libtorch = [
        "-p",
        "packhorse-worker-agent",
        "--all-targets",
        "--no-default-features",
    ];
    steps.run(
        "lints of the worker without libtorch",
        Command::new("cargo")
            .arg("clippy")
            .args(without_libtorch)
            .args(["--", "-D", "warnings"]),
    );
    let without_highs = [
        "-p",
        "packhorse-placement",
        "-p",
        "packhorse-gateway",
        "-p",
        "packhorse-cli",
        "--all-targets",
        "--no-default-features",
    ];
    steps.run(
        "lints of gateway and CLI without HiGHS",
        Command::new("cargo")
            .arg("clippy")
            .args(without_highs)
            .args(["--", "-D", "warnings"]),
    );
    test::add_steps(&mut steps);
    steps.finish()
}

/// Runs cargo-deny, compiled here where it is not there yet.
fn deny(steps: &mut Steps) {
    let tools = root().join("target/tools");
    let cargo_deny = tools.join("bin/cargo-deny");
    let version = Command::new(&cargo_deny)
        .arg("--version")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    if version.trim_ascii() != format!("cargo-deny {CARGO_DENY}").as_bytes() {
        let mut install = Command::new("cargo");
        install
            .args(["install", "--locked", "--version", CARGO_DENY, "--root"])
            .arg(&tools)
            .arg("cargo-deny");
        // It runs for a second: compiling it well does not pay.
        install
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        install.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if !steps.run("installation of cargo-deny", &mut install) {
            return;
        }
    }
    steps.run(
        "licences, bans and sources",
        Command::new(&cargo_deny).args(["check", "bans", "licenses", "sources"]),
    );
}
