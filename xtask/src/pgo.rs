//! The recording of the profile that releases are optimised with: gateway and worker count what runs under the loads of `bench data-plane`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

use crate::{
    bench::empty_folder,
    local::{AgentFlags, Interrupt, LocalCluster},
    release::{self, counting_build, name_compiler},
    setup,
    workspace::{cargo_build, host, program, python, root, rustc, succeed, use_programs},
};

/// The number of programs that count: gateway and worker.
const COUNTING: usize = 2;
/// The load generator, which does not count.
const GENERATOR: &str = "packhorse-lab";
/// The model that is loaded, and the file with its input for JSON.
const MODEL: &str = "sum.pt";
const NUMBERS: &str = "numbers.npy";
/// The seconds of each load.
const SECONDS: &str = "3";
/// The loads: clients, and bytes of the input.
const LOADS: [(&str, &str); 5] = [
    ("1", "64"),
    ("8", "64"),
    ("32", "64"),
    ("1", "602112"),
    ("8", "602112"),
];

/// Builds the programs that count, loads them, and writes the profile.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let merge = merger()?;
    let interrupt = Interrupt::listen()?;
    let dir = empty_folder("pgo-run")?;
    let counts = dir.join("counts");
    println!("Building programs that count what runs");
    let (mut build, programs) = counting_build(&root().join("target/pgo"), &counts);
    interrupt.run(&mut build)?;
    interrupt.run(&mut cargo_build(&[GENERATOR]))?;
    fs::copy(program(GENERATOR)?, programs.join(GENERATOR)).context("copy the generator")?;
    use_programs(programs);
    // Build scripts have counted, too.
    fs::remove_dir_all(&counts).context("empty the folder of the counts")?;

    let mut export = Command::new(python());
    export
        .args(["-Wignore", "xtask/src/bench/sum.py"])
        .args([dir.join(MODEL), dir.join(NUMBERS)]);
    interrupt.run(&mut export)?;
    for links in ["on", "off"] {
        load(&dir, links, &interrupt)?;
    }
    let counted = fs::read_dir(&counts).context("read the counts")?.count();
    ensure!(
        counted >= COUNTING,
        "{counted} files with counts: a program did not end by itself"
    );
    let profile = release::profile();
    succeed(
        Command::new(merge)
            .args(["merge", "--sparse", "-o"])
            .arg(&profile)
            .arg(&counts),
    )?;
    name_compiler()?;
    // Cargo does not see that the profile has changed.
    let former = release::programs();
    if former.exists() {
        fs::remove_dir_all(former).context("remove the programs of the former profile")?;
    }
    println!("Wrote {}", profile.display());
    Ok(())
}

/// Runs a cluster and all loads, then ends it.
fn load(dir: &Path, links: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
    let state_dir = dir.join(links);
    fs::create_dir(&state_dir).with_context(|| format!("create {}", state_dir.display()))?;
    let agents = [AgentFlags::new("local", "cpu:1")];
    let flags = ["--shared-memory-links", links];
    let mut cluster = LocalCluster::start_with(&flags, &state_dir, [0, 0], &agents, interrupt)?;
    let registration = Path::new("xtask/src/bench/sum.json");
    cluster.register("sum", registration, &dir.join(MODEL), Stdio::null())?;
    cluster.wait_until_ready("sum")?;
    let bench = |clients: &str, input: &[&str]| {
        println!("{clients} at once, {}", input.join(" "));
        let mut bench = cluster.command()?;
        bench
            .args(["bench", "sum", "--slo", "10000", "--warm-up", "0"])
            .args(["--duration", SECONDS, "--concurrency", clients])
            .args(input)
            .stdout(Stdio::null());
        interrupt.run(&mut bench)
    };
    for (clients, bytes) in LOADS {
        bench(clients, &["--payload-bytes", bytes])?;
    }
    let numbers = format!("x={}", dir.join(NUMBERS).display());
    bench("8", &["--json-tensors", "--input", &numbers])
}

/// Returns LLVM's program that merges counts, which belongs to the toolchain.
fn merger() -> anyhow::Result<PathBuf> {
    let programs = PathBuf::from(rustc(&["--print", "sysroot"])?)
        .join("lib/rustlib")
        .join(host()?)
        .join("bin");
    let merge = programs.join("llvm-profdata");
    if !merge.exists() {
        succeed(Command::new("rustup").current_dir(root()).args([
            "component",
            "add",
            "llvm-tools",
        ]))?;
    }
    Ok(merge)
}
