//! The places of things in the repository.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Instant,
};

use anyhow::{Context as _, ensure};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the repository")
}

/// The Python of the virtual environment.
pub(crate) fn python() -> PathBuf {
    root().join(".venv/bin/python")
}

/// The folder of the programs, if it is another than that of this one.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// A program of the workspace, built: they lie beside this one, unless [`use_programs`] was called.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    if let Some(folder) = PROGRAMS.get() {
        return Ok(folder.join(name));
    }
    Ok(folder_of_this()?.join(name))
}

/// Lets [`program`] return the programs of another folder.
pub(crate) fn use_programs(folder: PathBuf) {
    // It was set to the same before.
    let _ = PROGRAMS.set(folder);
}

fn folder_of_this() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the folder of the built programs")?;
    let folder = own
        .parent()
        .context("find the folder of the built programs")?;
    Ok(folder.to_owned())
}

/// `cargo build` of these packages.
pub(crate) fn cargo_build(packages: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root()).arg("build");
    cargo.args(packages.iter().flat_map(|package| ["-p", package]));
    cargo
}

/// Returns what the compiler prints for these arguments.
pub(crate) fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root()).args(arguments);
    let output = rustc.output().context("start rustc")?;
    ensure!(
        output.status.success(),
        "rustc {arguments:?}: {}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the triple of this machine.
pub(crate) fn host() -> anyhow::Result<String> {
    rustc(&["--print", "host-tuple"])
}

/// The time, for limits on waiting and for what is shown to people.
#[expect(clippy::disallowed_methods, reason = "a tool that waits and measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs a command to its end. Fails if the command does.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("start {name}"))?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}
