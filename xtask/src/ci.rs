//! The steps of CI.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command},
};

use anyhow::{Context as _, ensure};

use crate::{setup, steps::Steps, test, units, workspace::root};

/// The programs that examine dependencies, with their versions.
const TOOLS: [(&str, &str); 2] = [("cargo-deny", "0.20.2"), ("cargo-machete", "0.9.2")];

/// Format, lints, dependencies, then every test.
pub(crate) fn run() -> anyhow::Result<()> {
    let installation = Installation::begin()?;
    setup::run()?;
    let mut steps = Steps::default();
    steps.run(
        "format",
        Command::new("cargo").args(["fmt", "--all", "--check"]),
    );
    steps.call("demo and tests compile the same", units::run);
    if steps.call("installation of cargo-deny and cargo-machete", || {
        installation.wait()
    }) {
        dependencies(&mut steps);
    }
    let lints = ["clippy", "--workspace", "--all-targets"];
    let deny_warnings = ["--", "-D", "warnings"];
    steps.run(
        "lints",
        Command::new("cargo").args(lints).args(deny_warnings),
    );
    // The worker without libtorch, the laboratory and the gateway without HiGHS. All at once, so that dependencies keep
    // the features for which they were checked already.
    steps.run(
        "lints without default features",
        Command::new("cargo")
            .args(lints)
            .arg("--no-default-features")
            .args(deny_warnings),
    );
    steps.run(
        "links of the documentation",
        Command::new("cargo")
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ])
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    test::add_steps(&mut steps);
    steps.finish()
}

/// Licences, sources, duplicates, advisories and unused dependencies.
fn dependencies(steps: &mut Steps) {
    let deny = program("cargo-deny");
    steps.run(
        "licences, duplicates and sources",
        Command::new(&deny).args(["check", "bans", "licenses", "sources"]),
    );
    // The database of advisories is a public repository, which not every machine can reach.
    steps.run_if_reachable(
        "advisories",
        Command::new(&deny).args(["check", "advisories"]),
        "failed to fetch advisory database",
    );
    steps.run(
        "unused dependencies",
        Command::new(program("cargo-machete")).arg("--with-metadata"),
    );
}

/// The installation of the programs of [`TOOLS`], which goes on while set-up unpacks PyTorch.
struct Installation {
    /// `cargo install`; none where all are there.
    cargo: Option<Child>,
    log: PathBuf,
}

impl Installation {
    /// Begins to compile the programs that are not there yet.
    fn begin() -> anyhow::Result<Self> {
        let folder = tools();
        fs::create_dir_all(&folder)?;
        let log = folder.join("install.log");
        let missing = TOOLS.iter().filter(|tool| !is_installed(tool));
        let missing: Vec<String> = missing
            .map(|(name, version)| format!("{name}@{version}"))
            .collect();
        let cargo = if missing.is_empty() {
            None
        } else {
            let file = File::create(&log)?;
            let mut cargo = Command::new("cargo");
            cargo
                .current_dir(root())
                .args(["install", "--locked", "--root"])
                .arg(&folder)
                .args(missing)
                // They run for a second: compiling them well does not pay.
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .stdout(file.try_clone()?)
                .stderr(file);
            Some(cargo.spawn().context("start cargo install")?)
        };
        Ok(Self { cargo, log })
    }

    /// Waits until they are there.
    fn wait(self) -> anyhow::Result<()> {
        if let Some(mut cargo) = self.cargo {
            let status = cargo.wait().context("wait for cargo install")?;
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            ensure!(status.success(), "cargo install: {status}\n{log}");
        }
        Ok(())
    }
}

fn tools() -> PathBuf {
    root().join("target/tools")
}

fn program(name: &str) -> PathBuf {
    tools().join("bin").join(name)
}

fn is_installed((name, version): &(&str, &str)) -> bool {
    let installed = Command::new(program(name)).arg("--version").output();
    // cargo-deny prints its name before its version, cargo-machete does not.
    installed.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace().last() == Some(version)
    })
}
