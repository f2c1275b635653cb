//! The fuzz targets in libFuzzer, with the stable compiler: the coverage that guides it is a pass of LLVM.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};

use crate::workspace::{host, root};

/// The flags that count the edges of the program for libFuzzer.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing";
/// The largest input, in bytes.
const MAX_LENGTH: u32 = 1 << 14;
/// The longest time of one input, in seconds.
const INPUT_LIMIT_S: u32 = 10;

/// The flags of the fuzzing.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask fuzz --minutes 10            Ten minutes for each target
  cargo xtask fuzz --only wire_decoder     One target
  cargo xtask fuzz --minutes 5 --merge     And keep what covers more in fuzz/corpus")]
pub(crate) struct Options {
    /// Time for each target
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Only this target
    #[arg(long, value_name = "TARGET")]
    only: Option<String>,
    /// Copy the inputs that cover more than the committed ones to fuzz/corpus
    #[arg(long)]
    merge: bool,
}

/// Builds libFuzzer with the targets and runs one after the other.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let corpora = root().join("fuzz/corpus");
    let mut targets = Vec::new();
    for entry in fs::read_dir(&corpora).context("read fuzz/corpus")? {
        targets.push(entry?.file_name().to_string_lossy().into_owned());
    }
    targets.sort();
    if let Some(only) = &options.only {
        ensure!(
            targets.contains(only),
            "there is no target {only}; there are {}",
            targets.join(", ")
        );
        targets.retain(|target| target == only);
    }
    let folder = root().join("target/fuzz");
    let built = Command::new("cargo")
        .args([
            "build",
            "--release",
            "--manifest-path",
            "fuzz/libfuzzer/Cargo.toml",
            "--target-dir",
        ])
        .arg(&folder)
        // A target is named so that build scripts are built without the flags.
        .args(["--target", &host()?])
        .env("RUSTFLAGS", COVERAGE)
        .current_dir(root())
        .status()
        .context("start cargo")?;
    ensure!(built.success(), "libFuzzer was not built");
    let program = folder.join(host()?).join("release/packhorse-libfuzzer");
    let mut failed = Vec::new();
    for target in targets {
        println!("\n── {target}");
        let committed = corpora.join(&target);
        let found = folder.join("corpus").join(&target);
        let artifacts = folder.join("artifacts").join(&target);
        for folder in [&found, &artifacts] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let fuzz = |arguments: &[String], corpora: &[&Path]| {
            Command::new(&program)
                .arg(format!("-artifact_prefix={}/", artifacts.display()))
                .arg(format!("-max_len={MAX_LENGTH}"))
                .args(arguments)
                .args(corpora)
                .env("PACKHORSE_FUZZ_TARGET", &target)
                .status()
                .context("start libFuzzer")
        };
        let seconds = (options.minutes * 60.0).ceil();
        let arguments = [
            format!("-max_total_time={seconds}"),
            format!("-timeout={INPUT_LIMIT_S}"),
            "-print_final_stats=1".to_owned(),
        ];
        if !fuzz(&arguments, &[&found, &committed])?.success() {
            failed.push(target);
            continue;
        }
        if options.merge {
            let merged = fuzz(&["-merge=1".to_owned()], &[&committed, &found])?;
            ensure!(merged.success(), "the inputs of {target} were not merged");
        }
    }
    if !failed.is_empty() {
        bail!(
            "failed: {}; the inputs are in target/fuzz/artifacts",
            failed.join(", ")
        );
    }
    Ok(())
}
