//! `gpu-check`: built and run here, or packed for a host that has nothing but a driver and PyTorch. Either way the programs lie in a
//! folder with the launcher that finds libtorch, so that what runs here is what is packed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::{
    setup,
    workspace::{cargo_build, python, root},
};

/// The programs that are needed.
const PROGRAMS: [&str; 5] = [
    "gpu-check",
    "packhorse-lab",
    "packhorse-gateway",
    "packhorse-agent",
    "packhorse-worker",
];
/// The packages that make them.
const PACKAGES: [&str; 4] = [
    "packhorse-gpu-check",
    "packhorse-lab",
    "packhorse-gateway",
    "packhorse-worker-agent",
];
/// The files beside them: path in the repository, and in the folder.
const BESIDE: [(&str, &str); 3] = [
    ("lab/gpu-check/launcher.sh", "gpu-check"),
    ("docs/gpu-check.md", "README.md"),
    ("LICENSE", "LICENSE"),
];
/// The solver of gateway and laboratory, likewise. Programs that were built elsewhere (`--programs`) may not need it.
const SOLVER: (&str, &str) = (".venv/highs/libhighs.so.1", "lib/libhighs.so.1");
const ARCHIVE_LIMIT: u64 = 60_000_000;

/// The flags of gpu-check.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask gpu-check                          Everything, on this host's GPUs
  cargo xtask gpu-check --only devices           One part
  cargo xtask gpu-check --device cpu --quick     Small models on the CPU: shows that the check itself works
  cargo xtask gpu-check --pack                   target/gpu-check.tar.gz, to unpack and run elsewhere with ./gpu-check")]
pub(crate) struct Options {
    /// Write target/gpu-check.tar.gz to run elsewhere, instead of running here
    #[arg(long)]
    pack: bool,
    /// Folder of the programs, built already; without it they are built with optimisation
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Flags of gpu-check; target/gpu-check/bin/gpu-check --help has them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

/// Builds what is not handed over, then runs or packs it.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => build()?,
    };
    let folder = root().join("target/gpu-check");
    stage(&programs, &folder)?;
    if options.pack {
        strip(&folder.join("bin"))?;
        return pack(&folder);
    }
    let mut launcher = Command::new(folder.join("gpu-check"));
    if python().exists() {
        launcher.env("PYTHON", python());
    }
    let status = launcher
        .args(&options.flags)
        .status()
        .context("start the launcher")?;
    ensure!(status.success(), "gpu-check: {status}");
    Ok(())
}

/// Builds the programs with optimisation, as any release is built, but for where libtorch lies on this machine: their folder.
fn build() -> anyhow::Result<PathBuf> {
    setup::run()?;
    println!("Building with optimisation");
    let status = cargo_build(&PACKAGES)
        .arg("--release")
        .env("PACKHORSE_RPATH", "off")
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(root().join("target/release"))
}

fn stage(programs: &Path, folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("empty {}", folder.display()))?;
    }
    for part in ["bin", "lib"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
    }
    let bin = folder.join("bin");
    let copy = |from: PathBuf, to: PathBuf| {
        fs::copy(&from, to).with_context(|| format!("copy {}", from.display()))
    };
    for program in PROGRAMS {
        copy(programs.join(program), bin.join(program))?;
    }
    let solver = root().join(SOLVER.0).exists().then_some(SOLVER);
    for (from, to) in BESIDE.into_iter().chain(solver) {
        copy(root().join(from), folder.join(to))?;
    }
    Ok(())
}

/// Takes out of the copies what only debuggers and backtraces read: most of their size.
fn strip(bin: &Path) -> anyhow::Result<()> {
    let status = Command::new("strip")
        .args(PROGRAMS.map(|program| bin.join(program)))
        .status()
        .context("start strip, of the linker's package")?;
    ensure!(status.success(), "strip: {status}");
    Ok(())
}

fn pack(folder: &Path) -> anyhow::Result<()> {
    let archive = folder.with_extension("tar.gz");
    let parent = folder.parent().context("the folder has a parent")?;
    let status = Command::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(parent)
        .arg("gpu-check")
        .status()
        .context("start tar")?;
    ensure!(status.success(), "tar: {status}");
    let bytes = fs::metadata(&archive)
        .with_context(|| format!("look at {}", archive.display()))?
        .len();
    ensure!(
        bytes < ARCHIVE_LIMIT,
        "the archive has {bytes} bytes, over the limit of {ARCHIVE_LIMIT}"
    );
    println!("{}: {:.1} MB", archive.display(), bytes as f64 / 1e6);
    println!("On the host: tar xzf gpu-check.tar.gz && gpu-check/gpu-check");
    Ok(())
}
