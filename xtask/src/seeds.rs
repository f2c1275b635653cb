//! Random histories of a whole cluster in virtual time: as many as one likes, one again with its trace, or as many as find the bugs that
//! are planted for them.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

use crate::workspace::root;

/// The test that lets histories happen.
const TEST: &str = "histories::after_any_history_everything_heals";
/// The planted bug whose trace the page shows.
const SHOWN: &str = "09-an-agent-forgets-its-workers";
/// The largest number of lines of the trace.
const LINES: usize = 40;

/// The flags of the histories.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this seed only, and print its steps and what the control plane tells
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first", "minutes", "planted"])]
    seed: Option<u64>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Run seeds for this time instead
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Plant the bugs of crates/virtual/tests/planted-bugs one by one in a copy of the last commit, and write which seeds find them to
    /// docs/benchmarks/seeds.md
    #[arg(long, conflicts_with_all = ["first", "minutes"])]
    planted: bool,
}

/// Runs the test of `crates/virtual` that lets histories happen. The first that fails is made simpler, and printed.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.planted {
        return plant(options.seeds);
    }
    let mut test = test(root());
    match (options.seed, options.minutes) {
        (Some(seed), _) => test.env("PACKHORSE_SEED", seed.to_string()),
        (None, Some(minutes)) => test.env("PACKHORSE_MINUTES", minutes.to_string()),
        (None, None) => test.env("PACKHORSE_SEEDS", options.seeds.to_string()),
    };
    test.env("PACKHORSE_FIRST_SEED", options.first.to_string());
    let status = test.status().context("start cargo")?;
    ensure!(status.success(), "a history does not heal: see above");
    Ok(())
}

fn test(folder: &Path) -> Command {
    let mut test = Command::new("cargo");
    test.current_dir(folder)
        .args(["test", "--quiet", "--package", "packhorse-virtual"])
        .args(["--test", "cluster", "--", "--exact", "--nocapture", TEST]);
    test
}

/// A bug that was planted, and what found it.
struct Found {
    /// The first sentence of the patch.
    bug: String,
    /// The seed; none if none of them found it.
    seed: Option<u64>,
    /// The number of steps of the simplest history.
    steps: usize,
    /// The invariant that did not hold.
    message: String,
}

/// Plants the bugs one by one, and writes the page.
fn plant(seeds: u64) -> anyhow::Result<()> {
    let folder = root().join("target/planted-bugs");
    let tree = folder.join("tree");
    let mut patches: Vec<PathBuf> = fs::read_dir(root().join("crates/virtual/tests/planted-bugs"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    patches.sort();
    let speed = output(test(root()).env("PACKHORSE_SEEDS", seeds.to_string()))?;
    let speed = speed.lines().find(|line| line.contains(" seeds from "));
    let speed = speed
        .context("the seeds do not hold without a bug")?
        .to_owned();
    println!("{speed}");
    let mut found = Vec::new();
    let mut trace = String::new();
    copy(&tree)?;
    for patch in &patches {
        apply(&tree, patch, &[])?;
        let mut test_with_bug = test(&tree);
        test_with_bug.env("CARGO_TARGET_DIR", folder.join("target"));
        let printed = output(test_with_bug.env("PACKHORSE_SEEDS", seeds.to_string()))?;
        let bug = fs::read_to_string(patch)?;
        let bug = bug.lines().next().unwrap_or_default().to_owned();
        let result = read(bug, &printed);
        ensure!(
            result.seed.is_some() || printed.contains(" seeds from "),
            "the test was not run:\n{printed}"
        );
        println!("{:?}  {}  {}", result.seed, result.bug, result.message);
        if let Some(seed) = result.seed
            && patch.file_stem().is_some_and(|name| name == SHOWN)
        {
            test_with_bug.env("PACKHORSE_SEED", seed.to_string());
            trace = last_lines(&output(&mut test_with_bug)?);
        }
        found.push(result);
        apply(&tree, patch, &["--reverse"])?;
    }
    let file = root().join("docs/benchmarks/seeds.md");
    fs::write(&file, page(seeds, &speed, &found, &trace))
        .with_context(|| format!("write {}", file.display()))
}

/// Applies a patch to the copy. The files that it changes are newer then, so that they are compiled again.
fn apply(tree: &Path, patch: &Path, flags: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("git")
        .current_dir(tree)
        // The copy is none of the repository's folders.
        .env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree))
        .arg("apply")
        .args(flags)
        .arg(patch)
        .status()
        .context("start git")?;
    ensure!(status.success(), "{} does not apply", patch.display());
    Ok(())
}

/// Makes the folder a copy of the last commit.
fn copy(tree: &Path) -> anyhow::Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    fs::create_dir_all(tree)?;
    let archive = Command::new("git")
        .current_dir(root())
        .args(["archive", "HEAD"])
        .stdout(Stdio::piped())
        .spawn()
        .context("start git")?;
    let archive = archive.stdout.context("it is piped")?;
    let status = Command::new("tar")
        .args(["--extract", "--touch", "--directory"])
        .arg(tree)
        .stdin(archive)
        .status()
        .context("start tar")?;
    ensure!(status.success(), "tar: {status}");
    Ok(())
}

/// Returns what a command prints to both outputs, whether or not it succeeds.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .env("RUST_BACKTRACE", "0")
        .output()
        .context("start cargo")?;
    let bytes = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads what the test says of a seed that fails.
fn read(bug: String, printed: &str) -> Found {
    let mut lines = printed
        .lines()
        .skip_while(|line| !line.contains(" fails. Of its "));
    let seed = lines.next().and_then(|line| {
        let number = line.strip_prefix("seed ")?.split(' ').next()?;
        number.parse().ok()
    });
    let rest: Vec<&str> = lines.collect();
    let steps = rest
        .iter()
        .take_while(|line| line.starts_with("  "))
        .count();
    let message = rest.get(steps).copied().unwrap_or_default().to_owned();
    Found {
        bug,
        seed,
        steps,
        message,
    }
}

/// Returns the last lines of a trace, up to the failure.
fn last_lines(printed: &str) -> String {
    let lines = printed.lines().filter(|line| line.contains(" s  "));
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn page(seeds: u64, without: &str, bugs: &[Found], trace: &str) -> String {
    let mut page = format!(
        "# A thousand histories of a cluster in virtual time\n\n\
         Made by `cargo xtask seeds --planted --seeds {seeds}`, with the development build on one core.\n\n\
         The test lets a cluster of four nodes live through up to 60 random steps under load: registrations, removals, drains, killed, stopped and cut off \
         workers, agents, nodes and gateways, slow and failing stores, wiped folders, restored backups, requests on which models throw or workers die.\n\
         The controller, the engine, the links and the agents' reconcilers are the real ones; network, disk, processes and time are simulated.\n\
         After every event the invariants must hold (`crates/virtual/src/invariants.rs`, `clients.rs`, `data_plane.rs`).\n\
         After the last step all faults end, everything must become \
         ready, and 99 % of the requests of ten more seconds must be answered in time.\n\n\
         Without a planted bug: {without}.\n\n\
         ## Planted bugs\n\n\
         Each patch of `crates/virtual/tests/planted-bugs` is applied to a copy by itself.\n\
         The seeds begin with 0; the history of the seed that fails \
         first is made simpler as long as it still fails.\n\n\
         | bug | first seed that fails | steps that are enough | what was noticed |\n|---|--:|--:|---|\n"
    );
    for found in bugs {
        let seed = found.seed;
        let seed = seed.map_or("**none**".to_owned(), |seed| seed.to_string());
        let (bug, steps, message) = (&found.bug, found.steps, &found.message);
        let message = message.replace('|', "\\|");
        let _ = writeln!(page, "| {bug} | {seed} | {steps} | {message} |");
    }
    let _ = write!(
        page,
        "\n## The trace of a seed\n\n`cargo xtask seeds --seed N` prints a history from its first step to its end. The end of the one with which an agent forgets its \
         workers (`***` are the steps):\n\n```text\n{trace}\n```\n"
    );
    page
}
