//! The crates that the programs are made of, with their licences.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::workspace::{python, root};

/// The beginnings of the names of files with a licence, in capitals.
const LICENCE_FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// All crates of some programs, without those that only build or test them.
pub(super) struct Dependencies {
    packages: Vec<Package>,
    /// By package id, the ids of what it depends on.
    edges: BTreeMap<String, BTreeSet<String>>,
    /// By name and version, the SHA-256 in the lock file.
    checksums: BTreeMap<(String, String), String>,
    solver: Solver,
}

/// The solver, which is no crate.
struct Solver {
    version: String,
    licence: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Clone, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
    /// None for the crates of this repository.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// None for an ordinary dependency, else `build` or `dev`.
    kind: Option<String>,
}

impl Dependencies {
    /// Reads what cargo resolves for these packages of the workspace on a platform.
    pub(super) fn read(programs: &[&str], target: &str) -> anyhow::Result<Self> {
        let output = Command::new("cargo")
            .current_dir(root())
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", target])
            .args(["--features", "packhorse-gateway/highs"])
            .output()
            .context("start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
        let all: BTreeMap<String, BTreeSet<String>> = metadata
            .resolve
            .nodes
            .into_iter()
            .map(|node| (node.id, ordinary(node.deps)))
            .collect();
        let packages = metadata.packages;
        let is_program = |package: &&Package| {
            package.source.is_none() && programs.contains(&package.name.as_str())
        };
        let mut open: Vec<String> = packages
            .iter()
            .filter(is_program)
            .map(|package| package.id.clone())
            .collect();
        let mut edges = BTreeMap::new();
        while let Some(id) = open.pop() {
            let next = all.get(&id).cloned().unwrap_or_default();
            if edges.insert(id, next.clone()).is_none() {
                open.extend(next);
            }
        }
        let mut packages: Vec<Package> = packages
            .into_iter()
            .filter(|package| edges.contains_key(&package.id))
            .collect();
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Self {
            packages,
            edges,
            checksums: checksums()?,
            solver: Solver::read()?,
        })
    }

    /// Returns the licence of every dependency, and the texts that come with it.
    pub(super) fn licences(&self) -> anyhow::Result<String> {
        let mut text =
            "Packhorse contains these libraries, each under its own licence.\n".to_owned();
        let mut add = |title: &str, licence: &str, texts: &[String]| {
            let line = "=".repeat(80);
            let head = format!("\n{line}\n{title}: {licence}\n{line}\n");
            text.extend([head, texts.concat()]);
        };
        for package in self.packages.iter().filter(|p| p.source.is_some()) {
            let title = format!(
                "{} {} ({})",
                package.name,
                package.version,
                package.repository.as_deref().unwrap_or("no repository")
            );
            let folder = package
                .manifest_path
                .parent()
                .context("a manifest is in a folder")?;
            let licence = package.license.as_deref().unwrap_or("see below");
            add(&title, licence, &licence_texts(folder)?);
        }
        let Solver { version, licence } = &self.solver;
        let title = format!("HiGHS {version} (https://highs.dev)");
        add(&title, "MIT", std::slice::from_ref(licence));
        Ok(text)
    }

    /// Returns a bill of materials in `CycloneDX` 1.5, without a time or a serial number, so that it depends on the sources alone.
    pub(super) fn bill_of_materials(&self) -> anyhow::Result<String> {
        let references: BTreeMap<&str, String> = self
            .packages
            .iter()
            .map(|package| (package.id.as_str(), package.reference()))
            .collect();
        let solver = format!("pkg:pypi/highspy@{}", self.solver.version);
        let mut components: Vec<_> = self.packages.iter().map(|p| self.component(p)).collect();
        components.push(json!({
            "type": "library", "bom-ref": solver, "name": "HiGHS", "version": self.solver.version,
            "purl": solver, "licenses": [{"expression": "MIT"}],
        }));
        let dependencies: Vec<_> = self
            .packages
            .iter()
            .map(|package| {
                let on = self.edges[&package.id].iter();
                let mut on: Vec<&String> = on.map(|id| &references[id.as_str()]).collect();
                if package.name == "highs-sys" {
                    on.push(&solver);
                }
                json!({"ref": package.reference(), "dependsOn": on})
            })
            .collect();
        let document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {
                "type": "application", "name": "packhorse", "version": env!("CARGO_PKG_VERSION"),
            }},
            "components": components,
            "dependencies": dependencies,
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    fn component(&self, package: &Package) -> serde_json::Value {
        let reference = package.reference();
        let mut component = json!({
            "type": "library", "bom-ref": reference, "name": package.name, "version": package.version,
            "purl": reference,
        });
        if let Some(licence) = &package.license {
            // Old crates write MIT/Apache-2.0, which is no expression of SPDX.
            let expression = licence.replace('/', " OR ");
            component["licenses"] = json!([{"expression": expression}]);
        }
        let key = (package.name.clone(), package.version.clone());
        if let Some(checksum) = self.checksums.get(&key) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    }
}

impl Package {
    /// Returns the package URL.
    fn reference(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

impl Solver {
    /// Reads what set-up has installed.
    fn read() -> anyhow::Result<Self> {
        let script = "import importlib.metadata as m; d = m.distribution('highspy'); print(d.version); \
             print(next(f.read_text() for f in d.files if 'LICENSE' in f.name))";
        let output = Command::new(python()).args(["-c", script]).output();
        let output = output.context("start Python; cargo xtask setup installs it")?;
        ensure!(
            output.status.success(),
            "highspy: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout)?;
        let (version, licence) = text.split_once('\n').context("version and licence")?;
        Ok(Self {
            version: version.to_owned(),
            licence: licence.to_owned(),
        })
    }
}

/// Returns what is linked into the program, not what only builds or tests it.
fn ordinary(edges: Vec<Edge>) -> BTreeSet<String> {
    let is_ordinary = |edge: &Edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none());
    edges
        .into_iter()
        .filter(is_ordinary)
        .map(|edge| edge.pkg)
        .collect()
}

/// Reads the checksums of the lock file, whose lines have a fixed form.
fn checksums() -> anyhow::Result<BTreeMap<(String, String), String>> {
    let text = fs::read_to_string(root().join("Cargo.lock")).context("read Cargo.lock")?;
    let mut found = BTreeMap::new();
    for package in text.split("[[package]]") {
        let value = |key: &str| {
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            value.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    Ok(found)
}

/// Returns the texts of the licences in a crate's folder, by name.
fn licence_texts(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("read {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_uppercase();
            path.is_file() && LICENCE_FILES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            Ok(format!("{}\n", String::from_utf8_lossy(&text)))
        })
        .collect()
}
