//! The dashboard of `web/`: its packages, its types, and the built files in `web/dist`, which the gateway embeds.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use crate::{
    debian, setup,
    steps::Steps,
    workspace::{program, root, succeed},
};

/// Installs the locked packages, generates the types of the API, checks, tests and builds.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    add_steps(&mut steps);
    steps.finish()
}

fn add_steps(steps: &mut Steps) {
    let all = [
        ("dashboard: types of the API", &["run", "types"][..]),
        ("dashboard: types", &["run", "check"]),
        ("dashboard: unit tests", &["test"]),
        ("dashboard: build", &["run", "build"]),
    ];
    if steps.call("dashboard: packages", install) {
        for (name, arguments) in all {
            if !steps.call(name, || npm(arguments)) {
                return;
            }
        }
    }
}

/// The tests of the dashboard: its types, its units, and its pages in Chromium against the built gateway with simulated devices.
pub(crate) fn add_test_steps(steps: &mut Steps) {
    if !steps.call("dashboard: packages", install) {
        return;
    }
    steps.call("dashboard: types", || npm(&["run", "check"]));
    steps.call("dashboard: unit tests", || npm(&["test"]));
    let name = "dashboard: end to end";
    match chromium() {
        Ok(chromium) => {
            steps.call(name, || {
                let programs = program("packhorse-gateway")?;
                let programs = programs.parent().context("a program is in a folder")?;
                let mut npm = npm_command(&["run", "e2e"])?;
                npm.env("CHROMIUM", chromium)
                    .env("PACKHORSE_TEST_PROGRAMS", programs);
                succeed(&mut npm)
            });
        }
        Err(reason) => steps.skip(name, reason),
    }
}

/// Returns the path of Chromium, installed by Debian's package manager where it is not there yet; otherwise the reason why there is none.
fn chromium() -> Result<PathBuf, String> {
    if let Some(found) = find_chromium() {
        return Ok(found);
    }
    debian::install(&["chromium"]).map_err(|e| format!("there is no Chromium, and {e}"))?;
    find_chromium().ok_or_else(|| "the package chromium has no program of that name".to_owned())
}

fn find_chromium() -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut places =
        env::split_paths(&folders).flat_map(|folder| names.map(|name| folder.join(name)));
    places.find(|place| place.is_file())
}

/// Installs the locked packages where the installed ones are older.
fn install() -> anyhow::Result<()> {
    let web = root().join("web");
    let modified = |path: &str| fs::metadata(web.join(path)).and_then(|file| file.modified());
    let installed = modified("node_modules/.package-lock.json");
    let locked = modified("package-lock.json").context("find web/package-lock.json")?;
    if installed.is_ok_and(|installed| installed >= locked) {
        return Ok(());
    }
    // Not `npm ci`: it refuses a lock file without the packages of other platforms, and not every registry has those.
    npm(&["install", "--no-save", "--ignore-scripts"])
}

/// Runs npm in `web/`.
fn npm(arguments: &[&str]) -> anyhow::Result<()> {
    succeed(&mut npm_command(arguments)?)
}

fn npm_command(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut npm = npm_anywhere(arguments)?;
    npm.current_dir(root().join("web"));
    Ok(npm)
}

/// Returns npm with these arguments, and with the Node of the virtual environment.
pub(crate) fn npm_anywhere(arguments: &[&str]) -> anyhow::Result<Command> {
    let programs = root().join(".venv/bin");
    let mut npm = Command::new(programs.join("npm"));
    npm.args(["--no-audit", "--no-fund", "--no-update-notifier"])
        .args(arguments)
        .env("PATH", path_with(&programs)?);
    Ok(npm)
}

/// The search path with this folder at its beginning.
fn path_with(folder: &Path) -> anyhow::Result<OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(env::split_paths(&before));
    env::join_paths(folders).context("make the search path")
}
