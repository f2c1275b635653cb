//! The dashboard of `web/`: its packages, its types, and the built files in `web/dist`, which the gateway embeds.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, ensure};

use crate::{setup, steps::Steps, workspace::root};

/// Installs the locked packages, generates the types of the API, checks, tests and builds.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    add_steps(&mut steps);
    steps.finish()
}

fn add_steps(steps: &mut Steps) {
    let all = [
        ("dashboard: packages", &["ci", "--ignore-scripts"][..]),
        ("dashboard: types of the API", &["run", "types"]),
        ("dashboard: types", &["run", "check"]),
        ("dashboard: unit tests", &["test"]),
        ("dashboard: build", &["run", "build"]),
    ];
    for (name, arguments) in all {
        let succeeded = steps.call(name, || npm(arguments));
        if !succeeded {
            return;
        }
    }
}

/// Runs npm in `web/`, with the Node of the virtual environment.
fn npm(arguments: &[&str]) -> anyhow::Result<()> {
    let programs = root().join(".venv/bin");
    let status = Command::new(programs.join("npm"))
        .args(["--no-audit", "--no-fund", "--no-update-notifier"])
        .args(arguments)
        .current_dir(root().join("web"))
        .env("PATH", path_with(&programs)?)
        .status()
        .context("start npm")?;
    ensure!(status.success(), "npm {}: {status}", arguments.join(" "));
    Ok(())
}

/// The search path with this folder at its beginning.
fn path_with(folder: &Path) -> anyhow::Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(env::split_paths(&before));
    env::join_paths(folders).context("make the search path")
}
