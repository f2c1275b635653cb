//! Who may use whom: the arrows between the crates, and what pure crates may not know.

use std::{collections::BTreeMap, process::Command};

use serde::Deserialize;

/// What each crate of the workspace may depend on, tests included.
const ARROWS: [(&str, &[&str]); 19] = [
    ("cluster", &[]),
    ("contention", &["cluster"]),
    ("control", &["cluster"]),
    ("kernels", &["cluster"]),
    ("protocol", &["cluster"]),
    ("reconcile", &["cluster"]),
    ("wire", &["cluster"]),
    ("api", &["cluster"]),
    ("service", &[]),
    ("placement", &["cluster", "contention"]),
    ("serving", &["cluster", "contention"]),
    (
        "simulator",
        &[
            "cluster",
            "contention",
            "placement",
            "serving",
            "control",
            "reconcile",
        ],
    ),
    ("figures", &["cluster", "placement", "simulator"]),
    (
        "experiments",
        &["cluster", "placement", "simulator", "figures"],
    ),
    ("client", &["cluster", "kernels", "protocol", "api"]),
    (
        "cli",
        &[
            "cluster",
            "contention",
            "placement",
            "protocol",
            "api",
            "simulator",
            "figures",
            "kernels",
            "client",
        ],
    ),
    (
        "gateway",
        &[
            "cluster",
            "contention",
            "placement",
            "serving",
            "control",
            "kernels",
            "protocol",
            "wire",
            "api",
            "service",
        ],
    ),
    (
        "worker-agent",
        &[
            "cluster",
            "contention",
            "kernels",
            "reconcile",
            "wire",
            "api",
            "service",
            "tch",
            "torch-sys",
        ],
    ),
    // Of worker-agent only the library, which knows no libtorch.
    (
        "gpu-check",
        &["cluster", "protocol", "api", "client", "worker-agent"],
    ),
];

/// Crates whose decisions depend on their arguments alone.
const PURE: [&str; 12] = [
    "cluster",
    "contention",
    "placement",
    "serving",
    "control",
    "kernels",
    "protocol",
    "reconcile",
    "wire",
    "api",
    "simulator",
    "figures",
];

/// What brings a runtime, sockets, a file system or a clock with it.
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

/// The direct dependencies of every crate of the workspace, by name without `packhorse-`.
fn dependencies() -> BTreeMap<String, Vec<String>> {
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
    let short = |name: String| name.strip_prefix("packhorse-").unwrap_or(&name).to_owned();
    let packages = metadata
        .packages
        .into_iter()
        .filter(|package| package.name != "xtask");
    packages
        .map(|package| {
            let used = package
                .dependencies
                .into_iter()
                .map(|dependency| short(dependency.name));
            (short(package.name), used.collect())
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
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
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
