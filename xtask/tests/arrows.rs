//! The allowed dependencies between the crates, and the libraries that pure crates may not use.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// The crates on which each crate of the workspace may depend, tests included but for those of [`TESTS`].
const ARROWS: [(&str, &[&str]); 38] = [
    ("ceilings", &["grpc"]),
    ("mapped", &[]),
    ("cluster", &[]),
    ("contention", &["cluster"]),
    ("control", &["cluster", "contention", "estimator"]),
    ("estimator", &["cluster"]),
    ("grpc", &["cluster", "protocol"]),
    ("history", &["cluster"]),
    ("kernels", &["cluster"]),
    ("preprocess", &["cluster"]),
    ("protocol", &["cluster"]),
    ("reconcile", &["cluster"]),
    ("trace", &["cluster"]),
    ("triton", &[]),
    ("wire", &["cluster"]),
    ("api", &["cluster"]),
    ("fleet", &["cluster", "api"]),
    ("artifact", &["cluster"]),
    ("service", &[]),
    ("tls", &[]),
    ("scenario", &["cluster", "control"]),
    ("placement", &["cluster", "contention"]),
    ("serving", &["cluster", "contention"]),
    ("links", &["cluster", "contention", "control", "serving"]),
    (
        "virtual",
        &[
            "cluster",
            "contention",
            "control",
            "links",
            "reconcile",
            "serving",
        ],
    ),
    (
        "simulator",
        &[
            "cluster",
            "contention",
            "placement",
            "scenario",
            "serving",
            "control",
            "trace",
            "virtual",
        ],
    ),
    ("figures", &["cluster", "simulator"]),
    (
        "experiments",
        &[
            "cluster",
            "control",
            "estimator",
            "placement",
            "simulator",
            "figures",
        ],
    ),
    (
        "training",
        &["cluster", "placement", "simulator", "figures"],
    ),
    ("client", &["cluster", "kernels", "protocol", "api", "tls"]),
    (
        "cli",
        &[
            "cluster",
            "contention",
            "protocol",
            "api",
            "client",
            "service",
            "terminal",
            "artifact",
            "fleet",
            "triton",
        ],
    ),
    ("stand-in", &[]),
    ("terminal", &["cluster", "protocol", "api", "client"]),
    (
        "lab",
        &[
            "cluster",
            "contention",
            "control",
            "estimator",
            "placement",
            "protocol",
            "api",
            "simulator",
            "figures",
            "kernels",
            "client",
            "terminal",
        ],
    ),
    (
        "gateway",
        &[
            "artifact",
            "cluster",
            "contention",
            "placement",
            "serving",
            "control",
            "estimator",
            "grpc",
            "history",
            "kernels",
            "links",
            "mapped",
            "preprocess",
            "protocol",
            "scenario",
            "trace",
            "wire",
            "api",
            "service",
            "tls",
        ],
    ),
    (
        "worker-agent",
        &[
            "artifact",
            "cluster",
            "contention",
            "estimator",
            "kernels",
            "mapped",
            "reconcile",
            "wire",
            "api",
            "service",
            "tls",
            "tch",
            "torch-sys",
        ],
    ),
    (
        "fuzz",
        &[
            "artifact",
            "cluster",
            "grpc",
            "preprocess",
            "protocol",
            "wire",
            "api",
            "simulator",
            "triton",
        ],
    ),
    // Of worker-agent only the library, which knows no libtorch.
    (
        "gpu-check",
        &["cluster", "protocol", "api", "client", "worker-agent"],
    ),
];

/// The crates on which only the tests of a crate may depend.
const TESTS: [(&str, &[&str]); 8] = [
    // Both commands are run against the same stand-in.
    ("cli", &["stand-in"]),
    ("lab", &["stand-in"]),
    // Benchmarks read the processor's time of their thread.
    ("placement", &["rustix"]),
    ("preprocess", &["rustix"]),
    ("serving", &["rustix"]),
    ("simulator", &["rustix"]),
    // The clusters in virtual time plan with real policies, and with scenarios that are exported of them.
    ("virtual", &["placement", "scenario", "simulator"]),
    // The gateway's driver replays the history of a simulated cluster.
    ("gateway", &["simulator"]),
];

/// Crates whose decisions depend on their arguments alone.
const PURE: [&str; 23] = [
    "artifact",
    "cluster",
    "grpc",
    "contention",
    "placement",
    "serving",
    "control",
    "estimator",
    "fleet",
    "history",
    "kernels",
    "links",
    "preprocess",
    "protocol",
    "reconcile",
    "scenario",
    "trace",
    "triton",
    "wire",
    "api",
    "virtual",
    "simulator",
    "figures",
];

/// The libraries with a runtime, sockets, a file system or a clock.
const IMPURE: [&str; 9] = [
    "tokio",
    "tokio-util",
    "axum",
    "hyper",
    "reqwest",
    "sqlx",
    "nix",
    "rustix",
    "socket2",
];

/// The packages of the workspace.
fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo is there: it runs this test");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata.packages
}

/// A crate's name without `packhorse-`.
fn short(name: &str) -> &str {
    name.strip_prefix("packhorse-").unwrap_or(name)
}

/// The direct dependencies of every crate of the workspace, by short name, without those of [`TESTS`].
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let tests = BTreeMap::from(TESTS);
    let packages = packages().into_iter();
    packages
        .filter(|package| !["workspace-hack", "xtask"].contains(&package.name.as_str()))
        .map(|package| {
            let of_tests = tests.get(short(&package.name)).copied().unwrap_or_default();
            let used = package.dependencies.iter().filter(|dependency| {
                dependency.kind.as_deref() != Some("dev")
                    || !of_tests.contains(&short(&dependency.name))
            });
            let used = used.map(|dependency| short(&dependency.name).to_owned());
            (short(&package.name).to_owned(), used.collect())
        })
        .collect()
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[test]
fn every_crate_depends_only_on_those_below_it() {
    let arrows = BTreeMap::from(ARROWS);
    for (name, used) in dependencies() {
        let allowed = arrows
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} has no row in the table of arrows"));
        for dependency in used {
            let restricted = arrows.contains_key(dependency.as_str())
                || dependency == "tch"
                || dependency == "torch-sys";
            assert!(
                !restricted || allowed.contains(&dependency.as_str()),
                "{name} may not use {dependency}"
            );
        }
    }
}

#[test]
fn what_operators_run_needs_nothing_of_the_laboratory() {
    let packages = packages();
    let is_laboratory = |package: &&Package| package.manifest_path.starts_with(laboratory());
    let laboratory: Vec<&str> = packages
        .iter()
        .filter(is_laboratory)
        .map(|package| package.name.as_str())
        .collect();
    assert!(laboratory.contains(&"packhorse-lab"), "{laboratory:?}");
    for package in packages.iter().filter(|package| !is_laboratory(package)) {
        for dependency in &package.dependencies {
            assert!(
                !laboratory.contains(&dependency.name.as_str()),
                "{} uses {}",
                package.name,
                dependency.name
            );
        }
    }
}

/// The folder of the laboratory.
fn laboratory() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.with_file_name("lab")
}

#[test]
fn pure_crates_know_no_runtime_socket_or_file() {
    let dependencies = dependencies();
    for name in PURE {
        let used = &dependencies[name];
        let impure: Vec<&String> = used
            .iter()
            .filter(|used| IMPURE.contains(&used.as_str()))
            .collect();
        assert!(impure.is_empty(), "{name} uses {impure:?}");
    }
}

#[test]
fn the_table_names_only_crates_that_there_are() {
    let dependencies = dependencies();
    for (name, _) in ARROWS {
        assert!(dependencies.contains_key(name), "there is no crate {name}");
    }
}
