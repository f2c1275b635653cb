//! Compares what two cargo commands compile. Cargo compiles a dependency again for a command that gives it other features; the demo
//! and the tests shall share everything, so that whoever runs both waits once.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher as _},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::{setup, workspace::root};

/// The output of `cargo build --unit-graph`.
#[derive(Deserialize)]
struct UnitGraph {
    units: Vec<Unit>,
}

/// One call of the compiler.
#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Value,
    profile: Value,
    platform: Option<String>,
    mode: String,
    features: BTreeSet<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    index: usize,
}

/// A package, the kind of its target and what is done with it: units that agree in these differ in features, their own or those of what
/// they depend on.
type Name = (String, String, String);

/// Fails if a build for the demo compiles something that a build for the tests compiles again.
///
/// # Errors
/// Names the packages whose features differ, and the features.
pub(crate) fn run() -> anyhow::Result<()> {
    let tests = UnitGraph::for_command(&["--workspace", "--all-targets"])?;
    let shared: HashSet<u64> = tests.fingerprints().into_iter().collect();
    let mut of_tests: BTreeMap<Name, Vec<&BTreeSet<String>>> = BTreeMap::new();
    for unit in &tests.units {
        of_tests
            .entry(unit.name())
            .or_default()
            .push(&unit.features);
    }
    let mut compiled_twice = BTreeSet::new();
    let mut causes = BTreeSet::new();
    for packages in [&setup::WITHOUT_TORCH[..], &setup::PROGRAMS] {
        let arguments: Vec<&str> = packages.iter().flat_map(|name| ["-p", name]).collect();
        let demo = UnitGraph::for_command(&arguments)?;
        for (unit, fingerprint) in demo.units.iter().zip(demo.fingerprints()) {
            let Some(features) = of_tests.get(&unit.name()) else {
                continue;
            };
            if shared.contains(&fingerprint) {
                continue;
            }
            compiled_twice.insert(unit.name().0);
            if let [others] = features[..]
                && *others != unit.features
            {
                let differing: Vec<_> = others.symmetric_difference(&unit.features).collect();
                causes.insert(format!("{}: {differing:?}", unit.name().0));
            }
        }
    }
    ensure!(
        compiled_twice.is_empty(),
        "demo and tests give these packages other features, so that {} packages are compiled twice; name the features in \
         crates/workspace-hack:\n{}",
        compiled_twice.len(),
        causes.into_iter().collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

impl UnitGraph {
    fn for_command(arguments: &[&str]) -> anyhow::Result<Self> {
        let output = Command::new("cargo")
            .current_dir(root())
            .args(["build", "--unit-graph", "-Z", "unstable-options"])
            .args(arguments)
            // The only way in which a stable cargo prints the graph; nothing is built.
            .env("RUSTC_BOOTSTRAP", "1")
            .output()
            .context("start cargo")?;
        if !output.status.success() {
            bail!(
                "cargo build --unit-graph: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        serde_json::from_slice(&output.stdout).context("read the unit graph")
    }

    /// Per unit a number that is equal where cargo would reuse what it compiled.
    fn fingerprints(&self) -> Vec<u64> {
        let mut known = vec![None; self.units.len()];
        for index in 0..self.units.len() {
            self.fingerprint(index, &mut known);
        }
        known.into_iter().flatten().collect()
    }

    fn fingerprint(&self, index: usize, known: &mut [Option<u64>]) -> u64 {
        if let Some(fingerprint) = known[index] {
            return fingerprint;
        }
        let unit = &self.units[index];
        let mut dependencies: Vec<u64> = unit
            .dependencies
            .iter()
            .map(|dependency| self.fingerprint(dependency.index, known))
            .collect();
        dependencies.sort_unstable();
        let mut hasher = DefaultHasher::new();
        unit.pkg_id.hash(&mut hasher);
        unit.target.to_string().hash(&mut hasher);
        unit.profile.to_string().hash(&mut hasher);
        (&unit.platform, &unit.mode, &unit.features).hash(&mut hasher);
        dependencies.hash(&mut hasher);
        let fingerprint = hasher.finish();
        known[index] = Some(fingerprint);
        fingerprint
    }
}

impl Unit {
    fn name(&self) -> Name {
        let package = self
            .pkg_id
            .rsplit(['/', '#'])
            .next()
            .unwrap_or(&self.pkg_id);
        let kind = self.target["kind"][0].as_str().unwrap_or_default();
        (package.to_owned(), kind.to_owned(), self.mode.clone())
    }
}
