//! The programs as they are released: with all optimisation, and with a profile of a run under load (profile-guided optimization).
//!
//! The profile says how often each part of gateway and worker ran. The compiler puts what runs often together, so that a request needs less of the
//! machine's caches. [`crate::pgo`] records it. A function that has changed since is compiled as without a profile, which costs speed only.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    setup,
    workspace::{cargo_build, root, succeed},
};

/// The name of the programs' profile in Cargo.toml, and of their folder.
const BUILD: &str = "optimized";
/// The package with the solver, which releases have.
const GATEWAY: &str = "packhorse-gateway";

/// Returns the file of the profile.
pub(crate) fn profile() -> PathBuf {
    root().join("xtask/release.profdata")
}

/// Returns the folder of the programs.
pub(crate) fn programs() -> PathBuf {
    root().join("target").join(BUILD)
}

/// Builds all programs as they are released.
pub(crate) fn build_programs() -> anyhow::Result<()> {
    setup::run()?;
    succeed(&mut release_build(&setup::PROGRAMS))
}

/// Returns the command that builds packages as they are released.
pub(crate) fn release_build(packages: &[&str]) -> Command {
    let use_profile = format!("-Cprofile-use={}", profile().display());
    build(
        packages,
        &[&use_profile, "-Cllvm-args=-no-pgo-warn-mismatch"],
    )
}

/// Returns the command that builds packages in a folder, such that they count what runs and write it to another folder when they end; and the folder
/// of the programs.
pub(crate) fn counting_build(
    packages: &[&str],
    folder: &Path,
    counts: &Path,
) -> (Command, PathBuf) {
    let mut cargo = build(
        packages,
        &[&format!("-Cprofile-generate={}", counts.display())],
    );
    cargo.arg("--target-dir").arg(folder);
    (cargo, folder.join(BUILD))
}

fn build(packages: &[&str], flags: &[&str]) -> Command {
    let mut cargo = cargo_build(packages);
    cargo
        .args(["--profile", BUILD])
        // Unlike RUSTFLAGS it may contain paths with spaces.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // A crate with other features is another crate to the profile.
    if packages.contains(&GATEWAY) {
        cargo.args(["--features", "packhorse-gateway/highs"]);
    }
    cargo
}
