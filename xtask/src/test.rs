//! Every test there is.

use std::process::Command;

use crate::{debian, postgres, setup, steps::Steps, unpacked, web, workspace::python};

/// The programs that build and run images without a daemon, which are Debian's packages of the same names.
const IMAGE_TOOLS: [&str; 6] = [
    "buildah",
    "podman",
    "podman-compose",
    "debootstrap",
    "runc",
    "iptables",
];

/// Sets up, builds, and runs the Rust tests, then the system tests in Python and those of the dashboard.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run()?;
    let mut steps = Steps::default();
    add_steps(&mut steps);
    steps.finish()
}

/// The steps that follow set-up.
pub(crate) fn add_steps(steps: &mut Steps) {
    // The same targets and so the same features as the test runner builds: nothing is compiled twice, and the programs that
    // the system tests start are there.
    let built = steps.run(
        "build",
        Command::new("cargo").args(["build", "--workspace", "--all-targets"]),
    );
    if !built {
        return;
    }
    let mut postgres = None;
    steps.call_or_skip("PostgreSQL for the tests", || {
        postgres = Some(postgres::Postgres::start()?);
        Ok(())
    });
    let mut rust_tests = Command::new("cargo");
    if has_nextest() {
        rust_tests.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        rust_tests.args(["test", "--workspace", "--all-targets", "--no-fail-fast"]);
    }
    if let Some(server) = &postgres {
        rust_tests.env(postgres::VARIABLE, server.url());
    }
    steps.run("Rust tests", &mut rust_tests);
    drop(postgres);
    steps.run(
        "documentation tests",
        Command::new("cargo").args(["test", "--workspace", "--doc", "--no-fail-fast"]),
    );
    steps.call("programs that build and run images", || {
        // Without them the tests of images are skipped, and say why.
        if let Err(e) = install_image_tools() {
            println!("{e}");
        }
        Ok(())
    });
    // The tests that need it say so and are skipped.
    for (name, unpacked) in [
        ("Prometheus for the system tests", unpacked::prometheus()),
        (
            "perf_analyzer for the system tests",
            unpacked::perf_analyzer(),
        ),
        ("Helm for the system tests", unpacked::helm()),
    ] {
        if let Err(reason) = unpacked {
            steps.skip(name, reason);
        }
    }
    steps.run(
        "system tests",
        Command::new(python()).args(["-m", "pytest", "tests"]),
    );
    web::add_test_steps(steps);
}

/// Installs the programs of `tests/images.py` that are not there.
fn install_image_tools() -> Result<(), String> {
    let is_there = |tool: &str| {
        let found = Command::new(tool).arg("--version").output();
        found.is_ok_and(|output| output.status.success())
    };
    if IMAGE_TOOLS.iter().all(|tool| is_there(tool)) {
        return Ok(());
    }
    // Those that are added are the networks of containers.
    debian::install(&[&IMAGE_TOOLS[..], &["netavark", "aardvark-dns"]].concat())
}

fn has_nextest() -> bool {
    Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}
