//! A folder of models: NAME/model.json is a registration without artifact, NAME/VERSION/model.pt or model.pt2 the program of a version. Without
//! model.json a config.pbtxt of Triton is one, and without both the program's file tells its registration, or that it does not.
//!
//! NAME/split.json has the split of a model, and NAME/VERSION/version.json what is different in a version, or the digest of a program that the gateway has.
//! Models may lie in folders of folders. A fleet has policy.json, nodes.json and keys.json beside them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_api::{ModelChange, PolicyChange, RepositoryProblem};
use packhorse_cluster::{ModelName, NodeName};
use packhorse_fleet::{DeclaredKey, DocumentError, read_keys, read_nodes, read_policy, read_split};
use packhorse_terminal::{
    files::{folders, read_regular_file},
    output,
};
use serde_json::{Map, Value};

use crate::commands::{
    model::{
        describe::read_artifact,
        draft::{UNKNOWN, first_unknown},
    },
    triton_folder::{CONFIG, TritonFolder},
    version_folders::{PROGRAMS, version_folders},
};

/// The name of a registration.
pub(super) const REGISTRATION: &str = "model.json";
/// The name of what is different in a version.
const OF_VERSION: &str = "version.json";
/// The name of a model's split.
const SPLIT: &str = "split.json";
/// The fields of a registration that the folders say.
const SAID_BY_FOLDERS: [&str; 3] = ["version", "artifact", "artifact_path"];
/// The fields of a version's file that the folders say.
const SAID_OF_VERSION: [&str; 3] = ["name", "version", "artifact_path"];

/// The folders that are no models and that file systems and tools put into others.
const NO_MODELS: [&str; 2] = ["lost+found", "__pycache__"];
/// The largest of these files, in bytes.
const DOCUMENT_LIMIT: u64 = 1 << 20;
/// The most folders in which a model may lie, one in the other.
const MAX_DEPTH: usize = 8;

/// The models of a folder, what it says beside them, and what is wrong there.
#[derive(Debug, Default)]
pub(in crate::commands) struct FleetFolder {
    pub(super) versions: Vec<FolderVersion>,
    pub(super) splits: Vec<(ModelName, ModelChange)>,
    pub(super) policy: Option<PolicyChange>,
    pub(super) nodes: BTreeMap<NodeName, bool>,
    pub(super) keys: Vec<DeclaredKey>,
    /// The models with a mistake.
    pub(super) unreadable: BTreeSet<ModelName>,
    pub(super) problems: Vec<RepositoryProblem>,
    /// True if a folder cannot be read, in which models may be named.
    pub(in crate::commands) incomplete: bool,
    /// The folder of each model that was found.
    places: BTreeMap<String, String>,
}

/// A version of a model in the folder.
#[derive(Debug)]
pub(super) struct FolderVersion {
    /// The version's folder within the folder of all.
    pub(super) place: String,
    /// The registration without its artifact: that of the files, or only name and version where there is none.
    pub(super) spec: Map<String, Value>,
    /// The name of the file with the registration, if there is one.
    pub(super) described_by: Option<&'static str>,
    /// A file of the version's folder, beside which others are.
    pub(super) beside: PathBuf,
    /// The program's file; `None` if the registration names the digest of one that the gateway has.
    pub(super) program: Option<PathBuf>,
}

impl FleetFolder {
    /// Reads the models of a folder, by name and ascending version. Hidden files and plain files in it are no models. A mistake in one model does not
    /// concern the others.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(in crate::commands) fn read_models(folder: &Path) -> anyhow::Result<Self> {
        let mut fleet = Self::default();
        let models = folders(folder).with_context(|| cannot_read(folder))?;
        fleet.read_folders(folder, models, 1);
        Ok(fleet)
    }

    /// Reads a folder with all that a fleet may have.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(in crate::commands) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut fleet = Self::read_models(folder)?;
        fleet.policy = fleet.document(folder, "policy.json", read_policy);
        let nodes = fleet.document(folder, "nodes.json", read_nodes);
        fleet.nodes = nodes.unwrap_or_default();
        let keys = fleet.document(folder, "keys.json", read_keys);
        let (keys, wrong) = keys.unwrap_or_default();
        fleet.keys = keys;
        for error in wrong {
            fleet.note_problem("keys.json".to_owned(), &error.into());
        }
        Ok(fleet)
    }

    /// Returns true if there is no model, neither a right nor a wrong one.
    pub(in crate::commands) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns what is wrong in the folder.
    pub(in crate::commands) fn problems(&self) -> &[RepositoryProblem] {
        &self.problems
    }

    /// Returns true if the files say the policy.
    pub(in crate::commands) fn declares_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Returns true if the files say anything about nodes.
    pub(in crate::commands) fn declares_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns true if the files say anything about keys.
    pub(in crate::commands) fn declares_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Reads a file of the whole fleet, if there is one.
    fn document<T>(
        &mut self,
        folder: &Path,
        name: &str,
        read: impl FnOnce(&[u8]) -> Result<T, DocumentError>,
    ) -> Option<T> {
        let text = match optional_file(folder, name) {
            Ok(text) => text?,
            Err(error) => {
                self.note_problem(name.to_owned(), &error);
                return None;
            }
        };
        match read(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.note_problem(name.to_owned(), &error.into());
                None
            }
        }
    }

    /// Reads folders, each of which is a model or has others.
    fn read_folders(&mut self, root: &Path, found: Vec<PathBuf>, depth: usize) {
        for folder in found.into_iter().filter(|folder| !is_no_model(folder)) {
            let within = if is_model(&folder) {
                Ok(Vec::new())
            } else {
                folders(&folder).with_context(|| cannot_read(&folder))
            };
            match within {
                Ok(within) if within.is_empty() => {
                    if let Err(error) = self.read_model(root, &folder) {
                        // The folder may be the wrong one, or what lies in it is away.
                        self.incomplete |= !is_model(&folder);
                        self.note_problem(place(root, &folder), &error);
                        self.doubt(&folder);
                    }
                }
                Ok(within) if depth < MAX_DEPTH => self.read_folders(root, within, depth + 1),
                Ok(_) => {
                    self.incomplete = true;
                    let problem =
                        format!("models lie in at most {MAX_DEPTH} folders, one in the other");
                    self.note_problem(place(root, &folder), &anyhow::Error::msg(problem));
                }
                Err(error) => {
                    self.incomplete = true;
                    self.note_problem(place(root, &folder), &error);
                }
            }
        }
    }

    fn read_model(&mut self, root: &Path, model: &Path) -> anyhow::Result<()> {
        let name = model_name(model)?;
        let here = place(root, model);
        if let Some(other) = self.places.insert(name.to_owned(), here) {
            self.versions.retain(|version| version.spec["name"] != name);
            self.splits.retain(|(of, _)| of.as_str() != name);
            bail!("name: {other} is of the model {name}, too: neither is applied");
        }
        if !model.join(REGISTRATION).exists()
            && let Some(of_triton) = TritonFolder::read(model)?
        {
            self.add_triton(root, model, of_triton)?;
        } else {
            self.read_versions(root, model)?;
        }
        if let Some(text) = optional_file(model, SPLIT)? {
            let split = read_split(&text).context(SPLIT)?;
            self.splits.push((name.parse()?, split));
        }
        Ok(())
    }

    fn read_versions(&mut self, root: &Path, model: &Path) -> anyhow::Result<()> {
        let (spec, is_described) = read_spec(model)?;
        for (version, folder) in version_folders(model)? {
            let place = place(root, &folder);
            match read_version(spec.clone(), is_described, &folder) {
                Ok((mut spec, program)) => {
                    spec.insert("version".to_owned(), version.into());
                    self.versions.push(FolderVersion {
                        place,
                        spec,
                        described_by: is_described.then_some(REGISTRATION),
                        beside: folder.join(OF_VERSION),
                        program,
                    });
                }
                Err(error) => {
                    self.note_problem(place, &error);
                    self.doubt(model);
                }
            }
        }
        Ok(())
    }

    /// Adds the versions of a model that Triton's configuration describes.
    fn add_triton(
        &mut self,
        root: &Path,
        model: &Path,
        of_triton: TritonFolder,
    ) -> anyhow::Result<()> {
        let name = model_name(model)?;
        for notice in &of_triton.notices {
            output::note(format_args!("{name}: {notice}"));
        }
        for version in of_triton.versions {
            let (mut spec, program) = (version.registration, version.file);
            spec.insert("name".to_owned(), name.into());
            spec.insert("version".to_owned(), version.number.into());
            let place = place(root, program.parent().unwrap_or(model));
            self.versions.push(FolderVersion {
                place,
                spec,
                described_by: Some(CONFIG),
                beside: program.clone(),
                program: Some(program),
            });
        }
        Ok(())
    }

    fn note_problem(&mut self, place: String, error: &anyhow::Error) {
        let problem = format!("{error:#}");
        self.problems.push(RepositoryProblem { place, problem });
    }

    /// Notes that not all of a model could be read.
    fn doubt(&mut self, model: &Path) {
        let name = model_name(model).ok().and_then(|name| name.parse().ok());
        self.unreadable.extend(name);
    }
}

/// Returns true for a folder that has what only that of a model has.
fn is_model(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).symlink_metadata().is_ok();
    has(REGISTRATION) || has(CONFIG) || has(SPLIT) || version_folders(folder).is_ok()
}

/// Returns what the files say of a version, and its program.
fn read_version(
    mut spec: Map<String, Value>,
    is_described: bool,
    folder: &Path,
) -> anyhow::Result<(Map<String, Value>, Option<PathBuf>)> {
    if let Some(text) = optional_file(folder, OF_VERSION)? {
        ensure!(
            is_described,
            "{OF_VERSION}: there is no {REGISTRATION}, of which it says the differences"
        );
        let of_version = object(&text, OF_VERSION)?;
        refuse_fields(&of_version, &SAID_OF_VERSION, OF_VERSION)?;
        spec.extend(of_version);
    }
    let has_program = PROGRAMS.iter().any(|name| folder.join(name).exists());
    if spec.contains_key("artifact") {
        ensure!(
            !has_program,
            "{OF_VERSION}: artifact: there is a program's file, too: remove one"
        );
        return Ok((spec, None));
    }
    let program = program(folder)?;
    if !is_described {
        // What is no program is said at once, before the gateway starts.
        read_artifact(&program).with_context(|| without_registration(&program))?;
    }
    Ok((spec, Some(program)))
}

/// Returns the words before the reason why a file cannot stand alone.
pub(super) fn without_registration(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    format!("there is no {REGISTRATION}, and {name}")
}

/// Returns the registration of a model's folder, whose name it has, and true; or the name alone and false if there is none.
fn read_spec(folder: &Path) -> anyhow::Result<(Map<String, Value>, bool)> {
    let name = model_name(folder)?;
    let Some(text) = optional_file(folder, REGISTRATION)? else {
        let name_alone = Map::from_iter([("name".to_owned(), name.into())]);
        return Ok((name_alone, false));
    };
    let mut spec = object(&text, REGISTRATION)?;
    refuse_fields(&spec, &SAID_BY_FOLDERS, REGISTRATION)?;
    if let Some(field) = first_unknown(&spec) {
        bail!(
            "{REGISTRATION}: {field} is {UNKNOWN:?}, which packhorse model init writes for what nobody knows: write it there"
        );
    }
    if let Some(other) = spec.insert("name".to_owned(), name.into()) {
        ensure!(
            other == name,
            "{REGISTRATION}: the field name is {other}, but the folder is {name:?}"
        );
    }
    Ok((spec, true))
}

/// Reads a file that need not be there.
fn optional_file(folder: &Path, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    match read_regular_file(&folder.join(name), DOCUMENT_LIMIT) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        text => Ok(Some(text.with_context(|| format!("cannot read {name}"))?)),
    }
}

fn object(text: &[u8], name: &str) -> anyhow::Result<Map<String, Value>> {
    let value = serde_json::from_slice(text);
    match value.with_context(|| format!("{name} is not valid JSON"))? {
        Value::Object(object) => Ok(object),
        _ => bail!("{name}: expected a JSON object"),
    }
}

/// Refuses the fields that follow from the folders.
fn refuse_fields(spec: &Map<String, Value>, fields: &[&str], name: &str) -> anyhow::Result<()> {
    for field in fields {
        ensure!(
            !spec.contains_key(*field),
            "{name}: remove the field {field}, which follows from the folders"
        );
    }
    Ok(())
}

fn model_name(folder: &Path) -> anyhow::Result<&str> {
    let name = folder.file_name().and_then(OsStr::to_str);
    name.context("the folder's name is not a model's name")
}

/// Returns the file of a version's folder.
fn program(folder: &Path) -> anyhow::Result<PathBuf> {
    let files = PROGRAMS.map(|name| folder.join(name));
    let mut found = files.into_iter().filter(|file| file.exists());
    match (found.next(), found.next()) {
        (Some(file), None) if file.is_file() => Ok(file),
        (Some(file), None) => bail!("{} is not a regular file", file.display()),
        (None, _) => bail!("there is neither model.pt nor model.pt2"),
        (Some(_), Some(_)) => bail!("there are both model.pt and model.pt2"),
    }
}

/// Returns true for a folder that nobody means as a model.
fn is_no_model(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| NO_MODELS.contains(&name))
}

/// Returns the path of a folder within the repository.
fn place(repository: &Path, folder: &Path) -> String {
    let within = folder.strip_prefix(repository).unwrap_or(folder);
    within.display().to_string()
}

fn cannot_read(folder: &Path) -> String {
    format!("cannot read {}", folder.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        folder
    }

    #[test]
    fn versions_are_read_by_name_and_number() {
        let folder = repository(&[
            ("b/model.json", r#"{"name": "b", "slo_ms": 5}"#),
            ("b/10/model.pt", ""),
            ("b/9/model.pt2", ""),
            ("b/notes/readme", ""),
            ("a/model.json", "{}"),
            ("a/1/model.pt", ""),
            (".git/config", ""),
            ("README.md", ""),
        ]);
        let repository = FleetFolder::read_models(folder.path()).unwrap();
        let found: Vec<_> = repository
            .versions
            .iter()
            .map(|version| {
                let program = version.program.as_ref().unwrap();
                let program = program.strip_prefix(folder.path()).unwrap();
                (
                    version.spec["name"].as_str().unwrap(),
                    version.spec["version"].as_u64().unwrap(),
                    program.to_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("a", 1, "a/1/model.pt"),
                ("b", 9, "b/9/model.pt2"),
                ("b", 10, "b/10/model.pt"),
            ]
        );
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_the_other_models_are_read() {
        for (files, place, expected) in [
            (
                &[("a/1/model.pt", "")][..],
                "a/1",
                "there is no model.json, and model.pt: the file is empty",
            ),
            (
                &[("a/1/model.pt", "<!DOCTYPE html>")],
                "a/1",
                "there is no model.json, and model.pt: the file is a web page",
            ),
            (
                &[
                    ("a/model.json", r#"{"inputs": [{"shape": "?"}]}"#),
                    ("a/1/model.pt", ""),
                ],
                "a",
                "inputs[0].shape is \"?\", which packhorse model init writes",
            ),
            (
                &[
                    ("a/config.pbtxt", "backend: \"python\""),
                    ("a/1/model.pt", ""),
                ],
                "a",
                "config.pbtxt, line 1: backend: \"python\" is not served",
            ),
            (&[("a/model.json", "{}")], "a", "there is no version"),
            (
                &[("a/model.json", "{"), ("a/1/model.pt", "")],
                "a",
                "model.json is not valid JSON",
            ),
            (
                &[("a/model.json/x", ""), ("a/1/model.pt", "")],
                "a",
                "cannot read model.json: it is not a regular file",
            ),
            (
                &[("a/model.json", "{}"), ("a/1/model.onnx", "")],
                "a/1",
                "there is neither model.pt nor model.pt2",
            ),
            (
                &[("a/model.json", "{}"), ("a/1/model.pt/x", "")],
                "a/1",
                "is not a regular file",
            ),
            (
                &[
                    ("a/model.json", "{}"),
                    ("a/1/model.pt", ""),
                    ("a/1/model.pt2", ""),
                ],
                "a/1",
                "there are both",
            ),
            (
                &[("a/model.json", r#"{"name": "b"}"#), ("a/1/model.pt", "")],
                "a",
                r#"the field name is "b", but the folder is "a""#,
            ),
            (
                &[("a/model.json", r#"{"version": 1}"#), ("a/1/model.pt", "")],
                "a",
                "remove the field version",
            ),
        ] {
            let good = [("good/model.json", "{}"), ("good/1/model.pt", "")];
            let folder = repository(&[files, &good].concat());
            let repository = FleetFolder::read_models(folder.path()).unwrap();
            let problems = &repository.problems;
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(problems[0].place, place);
            let text = &problems[0].problem;
            assert!(text.contains(expected), "{text}");
            let read: Vec<_> = repository.versions.iter().map(|v| &v.place).collect();
            assert_eq!(read, ["good/1"]);
        }
    }

    #[test]
    fn a_configuration_of_triton_describes_a_model_without_a_registration() {
        const CONFIG: &str = r#"platform: "pytorch_libtorch" max_batch_size: 4
            input { name: "x" data_type: TYPE_FP32 dims: 3 }
            output { name: "y" data_type: TYPE_FP32 dims: 1 }
            default_model_filename: "net.pt" version_policy { all {} }"#;
        let folder = repository(&[
            ("a/config.pbtxt", CONFIG),
            ("a/1/net.pt", ""),
            ("a/2/net.pt", ""),
            ("b/config.pbtxt", CONFIG),
            ("b/model.json", "{}"),
            ("b/1/model.pt", ""),
            ("c/config.pbtxt", CONFIG),
            ("c/1/model.pt", ""),
        ]);
        let repository = FleetFolder::read_models(folder.path()).unwrap();
        let found = repository.versions.iter();
        let found: Vec<_> = found
            .map(|version| (&version.place[..], version.spec.get("inputs").is_some()))
            .collect();
        assert_eq!(found, [("a/1", true), ("a/2", true), ("b/1", false)]);
        assert_eq!(repository.versions[0].spec["name"], "a");
        assert!(
            repository.versions[0]
                .program
                .as_ref()
                .unwrap()
                .ends_with("a/1/net.pt")
        );
        assert_eq!(repository.problems[0].place, "c");
        let text = &repository.problems[0].problem;
        assert!(text.contains("c/1: there is no net.pt"), "{text}");
    }

    #[test]
    fn a_version_without_a_file_does_not_concern_the_others_of_its_model() {
        let folder = repository(&[
            ("a/model.json", "{}"),
            ("a/1/model.pt", ""),
            ("a/2/readme", ""),
        ]);
        let repository = FleetFolder::read_models(folder.path()).unwrap();
        assert_eq!(repository.versions[0].place, "a/1");
        assert_eq!(repository.problems[0].place, "a/2");
    }

    #[test]
    fn a_folder_that_nobody_means_as_a_model_is_no_mistake() {
        let folder = repository(&[("lost+found/x", ""), ("__pycache__/x.pyc", "")]);
        let repository = FleetFolder::read_models(folder.path()).unwrap();
        assert!(repository.versions.is_empty());
        assert_eq!(repository.problems, []);
    }

    #[test]
    fn a_named_pipe_in_place_of_a_registration_is_not_waited_for() {
        let folder = repository(&[("a/1/model.pt", "")]);
        let pipe = folder.path().join("a/model.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let repository = FleetFolder::read_models(folder.path()).unwrap();
        let text = &repository.problems[0].problem;
        assert!(text.contains("it is not a regular file"), "{text}");
    }

    #[test]
    fn models_lie_in_folders_of_folders_and_two_of_a_name_are_both_refused() {
        let folder = repository(&[
            ("search/bert/model.json", "{}"),
            ("search/bert/1/model.pt", ""),
            ("vision/eu/cat/1/model.pt2", ""),
            ("vision/eu/cat/model.json", "{}"),
            ("vision/dog/model.json", "{}"),
            ("vision/dog/1/model.pt", ""),
            ("zoo/dog/model.json", "{}"),
            ("zoo/dog/1/model.pt", ""),
            ("a/b/c/d/e/f/g/h/deep/1/model.pt", ""),
        ]);
        let fleet = FleetFolder::read(folder.path()).unwrap();
        let found: Vec<_> = fleet.versions.iter().map(|v| &v.place[..]).collect();
        assert_eq!(found, ["search/bert/1", "vision/eu/cat/1"]);
        let problems: Vec<_> = fleet
            .problems
            .iter()
            .map(|p| (&p.place[..], &p.problem[..]))
            .collect();
        assert_eq!(
            problems,
            [
                (
                    "a/b/c/d/e/f/g/h",
                    "models lie in at most 8 folders, one in the other"
                ),
                (
                    "zoo/dog",
                    "name: vision/dog is of the model dog, too: neither is applied"
                ),
            ]
        );
        assert!(fleet.incomplete);
        assert!(fleet.unreadable.contains(&"dog".parse().unwrap()));
    }

    #[test]
    fn a_version_has_fields_of_its_own_and_may_name_a_program_by_its_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let named = format!(r#"{{"artifact": "{digest}", "slo_ms": 7}}"#);
        let folder = repository(&[
            ("a/model.json", r#"{"slo_ms": 5}"#),
            ("a/1/model.pt", ""),
            ("a/1/version.json", r#"{"cache": true}"#),
            ("a/2/version.json", &named),
            ("a/3/version.json", &named),
            ("a/3/model.pt", ""),
            ("a/4/version.json", r#"{"name": "b"}"#),
            ("a/split.json", r#"{"split": {"1": 100}}"#),
            ("b/split.json", r#"{"slo_ms": 5}"#),
            ("b/model.json", "{}"),
            ("b/1/model.pt", ""),
        ]);
        let fleet = FleetFolder::read(folder.path()).unwrap();
        let [one, two, _] = &fleet.versions[..] else {
            panic!("{:?}", fleet.versions)
        };
        assert_eq!(one.spec["slo_ms"], 5);
        assert_eq!(one.spec["cache"], true);
        assert_eq!(two.spec["slo_ms"], 7);
        assert_eq!(two.spec["artifact"], digest);
        assert_eq!(two.program, None);
        let problems: Vec<_> = fleet.problems.iter().map(|p| &p.place[..]).collect();
        assert_eq!(problems, ["a/3", "a/4", "b"]);
        for (problem, expected) in fleet.problems.iter().zip([
            "version.json: artifact: there is a program's file, too",
            "version.json: remove the field name",
            "split.json: slo_ms: expected split and sticky only",
        ]) {
            assert!(problem.problem.starts_with(expected), "{problem:?}");
        }
        assert_eq!(fleet.splits.len(), 1);
        assert_eq!(fleet.unreadable.len(), 2);
    }

    #[test]
    fn a_mounted_folder_is_read_through_the_link_that_is_swapped() {
        use std::os::unix::fs::symlink;
        let folder = repository(&[
            ("..2026/a/model.json", "{}"),
            ("..2026/a/1/model.pt", ""),
            ("..2026/keys.json", r#"[{"name": "k", "rate_rps": 1}, 5]"#),
        ]);
        symlink("..2026", folder.path().join("..data")).unwrap();
        symlink("..data/a", folder.path().join("a")).unwrap();
        symlink("..data/keys.json", folder.path().join("keys.json")).unwrap();
        let fleet = FleetFolder::read(folder.path()).unwrap();
        let found: Vec<_> = fleet.versions.iter().map(|v| &v.place[..]).collect();
        assert_eq!(found, ["a/1"]);
        assert_eq!(fleet.keys.len(), 1);
        assert_eq!(fleet.problems.len(), 1, "{:?}", fleet.problems);
        assert!(fleet.problems[0].problem.starts_with("[1]: "));
    }
}
