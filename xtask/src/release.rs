//! The programs as they are released: with all optimisation, and with a profile of a run under load (profile-guided optimization).
//!
//! The profile says how often each part of gateway and worker ran. The compiler puts what runs often together, so that a request needs less of the
//! machine's caches. [`crate::pgo`] records it. A function that has changed since is compiled as without a profile, which costs speed only.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::{
    setup,
    workspace::{cargo_build, root, rustc, succeed},
};

/// The name of the programs' profile in Cargo.toml, and of their folder.
const BUILD: &str = "optimized";
/// The packages that the profile is of. They are always built together: with other features of a common dependency, a crate is another crate to
/// the profile.
const PROFILED: [&str; 2] = ["packhorse-gateway", "packhorse-worker-agent"];
/// The packages that the profile is not of.
const OTHERS: [&str; 2] = ["packhorse-cli", "packhorse-lab"];
/// The solver, which releases have.
const FEATURES: &str = "packhorse-gateway/highs";

/// Returns the file of the profile.
pub(crate) fn profile() -> PathBuf {
    root().join("xtask/release.profdata")
}

/// Writes the compiler's name beside the profile, which is for this compiler.
pub(crate) fn name_compiler() -> anyhow::Result<()> {
    let name = rustc(&["--version"])? + "\n";
    fs::write(compiler_file(), name).context("write the compiler's name")
}

fn compiler_file() -> PathBuf {
    profile().with_extension("rustc")
}

/// Returns the folder of the programs.
pub(crate) fn programs() -> PathBuf {
    root().join("target").join(BUILD)
}

/// Builds all programs as they are released.
pub(crate) fn build_programs() -> anyhow::Result<()> {
    setup::run()?;
    build_programs_with(|_| ())
}

/// Builds all programs as they are released, by commands with further flags. Fails if another compiler recorded the profile, which then may be
/// of no use.
pub(crate) fn build_programs_with(flags: impl Fn(&mut Command)) -> anyhow::Result<()> {
    let profiled =
        fs::read_to_string(compiler_file()).context("read the name of the profile's compiler")?;
    let (profiled, compiler) = (profiled.trim(), rustc(&["--version"])?);
    ensure!(
        profiled == compiler,
        "{} is of {profiled}, this is {compiler}: record it anew with `cargo xtask pgo`",
        profile().display()
    );
    let use_profile = format!("-Cprofile-use={}", profile().display());
    let rustflags = [&use_profile, "-Cllvm-args=-no-pgo-warn-mismatch"];
    for mut cargo in [profiled_build(&rustflags), build(&OTHERS, &rustflags)] {
        flags(&mut cargo);
        succeed(&mut cargo)?;
    }
    Ok(())
}

/// Returns the command that builds the programs that the profile is of in a folder, such that they count what runs and write it to another folder
/// when they end; and the folder of the programs.
pub(crate) fn counting_build(folder: &Path, counts: &Path) -> (Command, PathBuf) {
    let mut cargo = profiled_build(&[&format!("-Cprofile-generate={}", counts.display())]);
    cargo.arg("--target-dir").arg(folder);
    (cargo, folder.join(BUILD))
}

fn profiled_build(rustflags: &[&str]) -> Command {
    let mut cargo = build(&PROFILED, rustflags);
    cargo.args(["--features", FEATURES]);
    cargo
}

fn build(packages: &[&str], rustflags: &[&str]) -> Command {
    let mut cargo = cargo_build(packages);
    cargo
        .args(["--profile", BUILD])
        // Unlike RUSTFLAGS it may contain paths with spaces.
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"));
    cargo
}
