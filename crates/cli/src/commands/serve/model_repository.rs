//! A folder of models: NAME/model.json is a registration without artifact, NAME/VERSION/model.pt or model.pt2 the program of a version. Without
//! model.json a config.pbtxt of Triton is one, and without both the program's file tells its registration, or that it does not.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_api::{
    ModelChange, ModelRegistration, ModelView, RepositoryProblem, RepositoryProblems,
};
use packhorse_client::AdminClient;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_terminal::{
    files::{folders, read_regular_file},
    output,
};
use serde_json::{Map, Value};

use crate::commands::{
    model::{
        beside::{Places, name_tokenizer, read_labels},
        describe::{describe, init_command, read_artifact},
        draft::{UNKNOWN, first_unknown},
        register::{check_kind, check_order, name_artifact},
        signature::SignatureArgs,
        upload::{hash_artifact, upload},
    },
    triton_folder::TritonFolder,
    version_folders::{PROGRAMS, version_folders},
};

/// The name of a registration.
const REGISTRATION: &str = "model.json";
/// The fields of a registration that the folders say.
const SAID_BY_FOLDERS: [&str; 3] = ["version", "artifact", "artifact_path"];

/// The folders that are no models and that file systems and tools put into others.
const NO_MODELS: [&str; 2] = ["lost+found", "__pycache__"];
/// The largest registration, in bytes.
const REGISTRATION_LIMIT: u64 = 1 << 20;

/// What holds for models without a registration.
#[derive(Clone, Debug)]
pub(super) struct Undescribed {
    /// The latency objective in milliseconds of those whose file says none.
    pub(super) slo_ms: f64,
    /// The folder with libtorch for a run of their programs, if one is named.
    pub(super) libtorch: Option<PathBuf>,
}

/// The models of a folder, and what is wrong with others there.
#[derive(Debug)]
pub(super) struct ModelRepository {
    versions: Vec<RepositoryVersion>,
    problems: Vec<RepositoryProblem>,
}

/// A version of a model in the folder.
#[derive(Debug)]
struct RepositoryVersion {
    /// The version's folder within the repository.
    place: String,
    /// The registration without its artifact: that of model.json, or only name and version where there is none.
    spec: Map<String, Value>,
    /// True if there is a model.json.
    is_described: bool,
    program: PathBuf,
}

impl ModelRepository {
    /// Reads a folder, by name and ascending version. Hidden files and plain files in it are no models. A mistake in one model does not
    /// concern the others.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut repository = Self {
            versions: Vec::new(),
            problems: Vec::new(),
        };
        let models = folders(folder).with_context(|| cannot_read(folder))?;
        for model in models.into_iter().filter(|model| !is_no_model(model)) {
            if let Err(error) = repository.read_model(folder, &model) {
                repository.note_problem(place(folder, &model), &error);
            }
        }
        Ok(repository)
    }

    fn read_model(&mut self, repository: &Path, model: &Path) -> anyhow::Result<()> {
        if !model.join(REGISTRATION).exists()
            && let Some(of_triton) = TritonFolder::read(model)?
        {
            return self.add_triton(repository, model, of_triton);
        }
        let (spec, is_described) = read_spec(model)?;
        for (version, folder) in version_folders(model)? {
            let place = place(repository, &folder);
            let program = program(&folder).and_then(|program| {
                if !is_described {
                    // What is no program is said at once, before the gateway starts.
                    read_artifact(&program).with_context(|| without_registration(&program))?;
                }
                Ok(program)
            });
            match program {
                Ok(program) => {
                    let mut spec = spec.clone();
                    spec.insert("version".to_owned(), version.into());
                    self.versions.push(RepositoryVersion {
                        place,
                        spec,
                        is_described,
                        program,
                    });
                }
                Err(error) => self.note_problem(place, &error),
            }
        }
        Ok(())
    }

    /// Adds the versions of a model that Triton's configuration describes.
    fn add_triton(
        &mut self,
        repository: &Path,
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
            let place = place(repository, program.parent().unwrap_or(model));
            self.versions.push(RepositoryVersion {
                place,
                spec,
                is_described: true,
                program,
            });
        }
        Ok(())
    }

    fn note_problem(&mut self, place: String, error: &anyhow::Error) {
        let problem = format!("{error:#}");
        output::note(format_args!("{place} is not served: {problem}"));
        self.problems.push(RepositoryProblem { place, problem });
    }

    /// Makes the gateway's registrations equal to the folder's. Models that only the gateway has are left alone, and so is a version whose
    /// registration the gateway refuses. What is wrong becomes a finding of the gateway.
    pub(super) async fn register(
        mut self,
        admin: &AdminClient,
        undescribed: &Undescribed,
    ) -> anyhow::Result<()> {
        let registered = admin.models().await?;
        for version in std::mem::take(&mut self.versions) {
            let place = version.place.clone();
            if let Err(error) = version.register(admin, &registered, undescribed).await {
                self.note_problem(place, &error);
            }
        }
        let more = self.problems.len().saturating_sub(RepositoryProblems::MAX);
        self.problems.truncate(RepositoryProblems::MAX);
        if more > 0
            && let Some(last) = self.problems.last_mut()
        {
            *last = RepositoryProblem {
                place: "and more".to_owned(),
                problem: format!("{} others are not served", more + 1),
            };
        }
        let problems = self.problems;
        admin
            .put_repository_problems(&RepositoryProblems { problems })
            .await?;
        Ok(())
    }
}

impl RepositoryVersion {
    async fn register(
        mut self,
        admin: &AdminClient,
        registered: &[ModelView],
        undescribed: &Undescribed,
    ) -> anyhow::Result<()> {
        let file = hash_artifact(&self.program).await?;
        if !self.is_described {
            let is_it = |view: &&ModelView| {
                view.artifact == file.digest()
                    && self.spec["name"] == view.name.as_str()
                    && self.spec["version"] == u32::from(view.version)
            };
            if registered.iter().any(|view| is_it(&view)) {
                // The file told the same when it was registered, and admins may have changed it since.
                return Ok(());
            }
            self.describe(undescribed).await?;
        }
        name_artifact(&mut self.spec, &file)?;
        let said: BTreeSet<String> = self.spec.keys().cloned().collect();
        let places = Places {
            program: Some(&self.program),
            registration: None,
        };
        read_labels(&mut self.spec, &places)?;
        let mut wanted: ModelRegistration = serde_json::from_value(Value::Object(self.spec))?;
        let tokenizer = name_tokenizer(&mut wanted, &places).await?;
        let version = wanted.version.context("the folder says the version")?;
        let mut of_model = registered.iter().filter(|view| view.name == wanted.name);
        let is_newest = of_model.clone().all(|view| view.version <= version);
        let earlier = match of_model.find(|view| view.version == version) {
            // A list has no names of classes.
            Some(listed) if !listed.postprocess.is_empty() => {
                Some(admin.model(&wanted.name, Some(version)).await?)
            }
            listed => listed.cloned(),
        };
        if let Some(earlier) = &earlier {
            complete(&mut wanted, &said, earlier);
        }
        if let Some(earlier) = earlier
            .as_ref()
            .filter(|earlier| is_same_program(earlier, &wanted))
        {
            return change(admin, earlier, &wanted, is_newest).await;
        }
        if let Some(artifact) = check_kind(&self.program)? {
            check_order(&artifact, &wanted)?;
        }
        for file in [Some(&file), tokenizer.as_ref()].into_iter().flatten() {
            upload(admin, file).await?;
        }
        let view = admin.register_one_of_many(&wanted, earlier.is_some());
        let view = view.await?;
        let outcome = if earlier.is_some() {
            "registered again: its file or signature has changed"
        } else {
            "registered"
        };
        report(&wanted.name, version, outcome);
        // A new version has what the one before it had.
        complete(&mut wanted, &said, &view);
        change(admin, &view, &wanted, is_newest).await
    }
}

impl RepositoryVersion {
    /// Has the program's file, and a run of it where that does not tell all, say the registration.
    async fn describe(&mut self, undescribed: &Undescribed) -> anyhow::Result<()> {
        let args = SignatureArgs::none(undescribed.libtorch.clone());
        let described = describe(&self.program, &args).await;
        let without = || without_registration(&self.program);
        let described = described.with_context(without)?;
        if let Some(obstacle) = &described.artifact.obstacle {
            bail!("{}: {obstacle}", without());
        }
        if !described.missing.is_empty() {
            let missing: Vec<String> = described.missing.iter().map(ToString::to_string).collect();
            let folder = self.program.parent().and_then(Path::parent);
            let json = folder.unwrap_or(Path::new("")).join(REGISTRATION);
            bail!(
                "{} does not tell all: {}; {}",
                without(),
                missing.join("; "),
                init_command(&self.program, &described, &json)
            );
        }
        for note in &described.notes {
            output::note(format_args!("{}: {note}", self.place));
        }
        self.spec.extend(described.spec);
        let slo_ms = self.spec.entry("slo_ms");
        slo_ms.or_insert_with(|| undescribed.slo_ms.into());
        Ok(())
    }
}

/// Has a registration be what is registered, where its file, which says these fields, does not say anything.
fn complete(wanted: &mut ModelRegistration, said: &BTreeSet<String>, registered: &ModelView) {
    let is_unsaid = |field: &str| !said.contains(field);
    if is_unsaid("rate_rps") {
        wanted.rate_rps = registered.rate_rps;
    }
    if is_unsaid("rate") {
        wanted.rate = Some(registered.rate);
    }
    if is_unsaid("priority") {
        wanted.priority = Some(registered.priority);
    }
    if is_unsaid("min_replicas") {
        wanted.min_replicas = Some(registered.min_replicas);
    }
    if is_unsaid("queue_limit") {
        wanted.queue_limit = registered.queue_limit;
    }
    if is_unsaid("max_cold_wait_ms") {
        wanted.max_cold_wait_ms = registered.max_cold_wait_ms;
    }
    if is_unsaid("cache") {
        wanted.cache = registered.cache;
    }
    if is_unsaid("family") {
        wanted.family.clone_from(&registered.family);
    }
    if is_unsaid("accuracy") {
        wanted.accuracy = registered.accuracy;
    }
}

/// Returns true if what is registered needs no new program.
fn is_same_program(registered: &ModelView, wanted: &ModelRegistration) -> bool {
    Some(registered.artifact) == wanted.artifact
        && registered.max_batch_size == wanted.max_batch_size
        && registered.inputs == wanted.inputs
        && registered.outputs == wanted.outputs
        && registered.preprocess == wanted.preprocess
        && registered.postprocess == wanted.postprocess
}

/// Changes what differs in SLO, rate, priority, least number of replicas, queue limit, wait for a load, cache, family and accuracy. Rate, priority, least number of replicas and family are those of the newest version.
async fn change(
    admin: &AdminClient,
    registered: &ModelView,
    wanted: &ModelRegistration,
    is_newest: bool,
) -> anyhow::Result<()> {
    let rate = wanted.rate.unwrap_or_default();
    let priority = wanted.priority.unwrap_or_default();
    let min_replicas = wanted.min_replicas.unwrap_or_default();
    let mut change = ModelChange {
        slo_ms: differing(wanted.slo_ms, &registered.slo_ms),
        rate_rps: differing(wanted.rate_rps, &registered.rate_rps).filter(|_| is_newest),
        rate: differing(rate, &registered.rate).filter(|_| is_newest),
        priority: differing(priority, &registered.priority).filter(|_| is_newest),
        min_replicas: differing(min_replicas, &registered.min_replicas).filter(|_| is_newest),
        queue_limit: differing(wanted.queue_limit, &registered.queue_limit),
        max_cold_wait_ms: differing(wanted.max_cold_wait_ms, &registered.max_cold_wait_ms),
        cache: differing(wanted.cache, &registered.cache),
        accuracy: wanted
            .accuracy
            .filter(|_| wanted.accuracy != registered.accuracy && registered.family.is_some()),
        ..ModelChange::default()
    };
    let (name, version) = (&registered.name, registered.version);
    let family = differing(wanted.family.clone(), &registered.family).filter(|_| is_newest);
    if family == Some(None) {
        // Its accuracy goes with the family.
        change.accuracy = None;
    }
    if change != ModelChange::default() {
        admin.change_model(name, Some(version), &change).await?;
    } else if family.is_none() {
        return Ok(());
    }
    if family.is_some() {
        // It belongs to all versions.
        let change = ModelChange {
            accuracy: wanted.accuracy,
            family,
            ..ModelChange::default()
        };
        admin.change_model(name, None, &change).await?;
    }
    report(name, version, "changed");
    Ok(())
}

fn differing<T: PartialEq>(wanted: T, registered: &T) -> Option<T> {
    (wanted != *registered).then_some(wanted)
}

fn report(name: &ModelName, version: ModelVersion, outcome: &str) {
    output::note(format_args!("{name}:{version} {outcome}"));
}

/// Returns the words before the reason why a file cannot stand alone.
fn without_registration(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    format!("there is no {REGISTRATION}, and {name}")
}

/// Returns the registration of a model's folder, whose name it has, and true; or the name alone and false if there is none.
fn read_spec(folder: &Path) -> anyhow::Result<(Map<String, Value>, bool)> {
    let name = model_name(folder)?;
    let text = match read_regular_file(&folder.join(REGISTRATION), REGISTRATION_LIMIT) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let name_alone = Map::from_iter([("name".to_owned(), name.into())]);
            return Ok((name_alone, false));
        }
        text => text.with_context(|| format!("cannot read {REGISTRATION}"))?,
    };
    let spec: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{REGISTRATION} is not valid JSON"))?;
    let Value::Object(mut spec) = spec else {
        bail!("{REGISTRATION}: expected a JSON object")
    };
    for field in SAID_BY_FOLDERS {
        ensure!(
            !spec.contains_key(field),
            "{REGISTRATION}: remove the field {field}, which follows from the folders"
        );
    }
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
        let repository = ModelRepository::read(folder.path()).unwrap();
        let found: Vec<_> = repository
            .versions
            .iter()
            .map(|version| {
                let program = version.program.strip_prefix(folder.path()).unwrap();
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
            let repository = ModelRepository::read(folder.path()).unwrap();
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
        let repository = ModelRepository::read(folder.path()).unwrap();
        let found = repository.versions.iter();
        let found: Vec<_> = found
            .map(|version| (&version.place[..], version.spec.get("inputs").is_some()))
            .collect();
        assert_eq!(found, [("a/1", true), ("a/2", true), ("b/1", false)]);
        assert_eq!(repository.versions[0].spec["name"], "a");
        assert!(repository.versions[0].program.ends_with("a/1/net.pt"));
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
        let repository = ModelRepository::read(folder.path()).unwrap();
        assert_eq!(repository.versions[0].place, "a/1");
        assert_eq!(repository.problems[0].place, "a/2");
    }

    #[test]
    fn a_folder_that_nobody_means_as_a_model_is_no_mistake() {
        let folder = repository(&[("lost+found/x", ""), ("__pycache__/x.pyc", "")]);
        let repository = ModelRepository::read(folder.path()).unwrap();
        assert!(repository.versions.is_empty());
        assert_eq!(repository.problems, []);
    }

    #[test]
    fn a_named_pipe_in_place_of_a_registration_is_not_waited_for() {
        let folder = repository(&[("a/1/model.pt", "")]);
        let pipe = folder.path().join("a/model.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let repository = ModelRepository::read(folder.path()).unwrap();
        let text = &repository.problems[0].problem;
        assert!(text.contains("it is not a regular file"), "{text}");
    }
}
