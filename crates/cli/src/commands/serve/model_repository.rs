//! A folder of models: NAME/model.json is a registration without artifact, NAME/VERSION/model.pt or model.pt2 the program of a version.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_api::{ModelChange, ModelRegistration, ModelView};
use packhorse_client::AdminClient;
use packhorse_cluster::{ModelName, ModelVersion};
use serde_json::{Map, Value};

use crate::{
    commands::model::register::{hash_artifact, name_artifact, upload},
    files::read_file,
};

/// The name of a registration.
const REGISTRATION: &str = "model.json";
/// The names of a program.
const PROGRAMS: [&str; 2] = ["model.pt", "model.pt2"];
/// The fields of a registration that the folders say.
const SAID_BY_FOLDERS: [&str; 3] = ["version", "artifact", "artifact_path"];

/// The models of a folder.
#[derive(Debug)]
pub(super) struct ModelRepository {
    versions: Vec<RepositoryVersion>,
}

/// A version of a model in the folder.
#[derive(Debug)]
struct RepositoryVersion {
    registration_file: PathBuf,
    /// The registration without its artifact.
    spec: Map<String, Value>,
    program: PathBuf,
}

impl ModelRepository {
    /// Reads a folder, by name and ascending version. Hidden files and plain files in it are no models.
    ///
    /// # Errors
    /// Names the model's folder or file that is not as it should be.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut versions = Vec::new();
        for model in folders(folder).with_context(|| cannot_read(folder))? {
            let registration_file = model.join(REGISTRATION);
            let spec = read_spec(&model, &registration_file)?;
            let mut numbered = Vec::new();
            for folder in folders(&model).with_context(|| cannot_read(&model))? {
                let name = folder.file_name().and_then(OsStr::to_str);
                if let Some(version) = name.and_then(|name| name.parse::<u32>().ok()) {
                    numbered.push((version, program(&folder)?));
                }
            }
            ensure!(
                !numbered.is_empty(),
                "{} has no version: put the model's file into {}",
                model.display(),
                model.join("1").join(PROGRAMS[0]).display()
            );
            numbered.sort();
            for (version, program) in numbered {
                let mut spec = spec.clone();
                spec.insert("version".to_owned(), version.into());
                versions.push(RepositoryVersion {
                    registration_file: registration_file.clone(),
                    spec,
                    program,
                });
            }
        }
        Ok(Self { versions })
    }

    /// Makes the gateway's registrations equal to the folder's. Models that only the gateway has are left alone.
    pub(super) async fn register(self, admin: &AdminClient) -> anyhow::Result<()> {
        let registered = admin.models().await?;
        for version in self.versions {
            let file = version.registration_file.clone();
            version
                .register(admin, &registered)
                .await
                .with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

impl RepositoryVersion {
    async fn register(
        mut self,
        admin: &AdminClient,
        registered: &[ModelView],
    ) -> anyhow::Result<()> {
        let file = hash_artifact(&self.program).await?;
        name_artifact(&mut self.spec, &file)?;
        let wanted: ModelRegistration = serde_json::from_value(Value::Object(self.spec))?;
        let version = wanted.version.context("the folder says the version")?;
        let mut of_model = registered.iter().filter(|view| view.name == wanted.name);
        let is_newest = of_model.clone().all(|view| view.version <= version);
        let earlier = of_model.find(|view| view.version == version);
        if let Some(earlier) = earlier.filter(|earlier| is_same_program(earlier, &wanted)) {
            return change(admin, earlier, &wanted, is_newest).await;
        }
        upload(admin, &file).await?;
        let outcome = if earlier.is_some() {
            // Nothing is served yet, so that no replica of the former program is lost.
            admin.remove_model(&wanted.name, Some(version)).await?;
            "registered again: its file or signature has changed"
        } else {
            "registered"
        };
        admin.register_model(&wanted).await?;
        report(&wanted.name, version, outcome);
        Ok(())
    }
}

/// Returns true if what is registered needs no new program.
fn is_same_program(registered: &ModelView, wanted: &ModelRegistration) -> bool {
    Some(registered.artifact) == wanted.artifact
        && registered.max_batch_size == wanted.max_batch_size
        && registered.inputs == wanted.inputs
        && registered.outputs == wanted.outputs
}

/// Changes what differs in SLO, rate, queue limit, family and accuracy. Rate and family are those of the newest version.
async fn change(
    admin: &AdminClient,
    registered: &ModelView,
    wanted: &ModelRegistration,
    is_newest: bool,
) -> anyhow::Result<()> {
    let rate = wanted.rate.unwrap_or_default();
    let mut change = ModelChange {
        slo_ms: differing(wanted.slo_ms, &registered.slo_ms),
        rate_rps: differing(wanted.rate_rps, &registered.rate_rps).filter(|_| is_newest),
        rate: differing(rate, &registered.rate).filter(|_| is_newest),
        queue_limit: differing(wanted.queue_limit, &registered.queue_limit),
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
    eprintln!("{name}:{version} {outcome}");
}

/// Returns the registration of a model's folder, whose name it has.
fn read_spec(folder: &Path, file: &Path) -> anyhow::Result<Map<String, Value>> {
    let shown = file.display();
    let spec: Value = serde_json::from_slice(&read_file(file)?)
        .with_context(|| format!("{shown} is not valid JSON"))?;
    let Value::Object(mut spec) = spec else {
        bail!("{shown}: expected a JSON object")
    };
    for field in SAID_BY_FOLDERS {
        ensure!(
            !spec.contains_key(field),
            "{shown}: remove the field {field}, which follows from the folders"
        );
    }
    let name = folder.file_name().and_then(OsStr::to_str);
    let name = name.with_context(|| format!("{}: not a model's name", folder.display()))?;
    if let Some(other) = spec.insert("name".to_owned(), name.into()) {
        ensure!(
            other == name,
            "{shown}: the field name is {other}, but the folder is {name:?}"
        );
    }
    Ok(spec)
}

/// Returns the file of a version's folder.
fn program(folder: &Path) -> anyhow::Result<PathBuf> {
    let files = PROGRAMS.map(|name| folder.join(name));
    let mut found = files.into_iter().filter(|file| file.is_file());
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => bail!("{} has neither model.pt nor model.pt2", folder.display()),
        (Some(_), Some(_)) => bail!("{} has both model.pt and model.pt2", folder.display()),
    }
}

/// Returns the folders in a folder that are not hidden, by name.
fn folders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && !name.as_encoded_bytes().starts_with(b".") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn cannot_read(folder: &Path) -> String {
    format!("cannot read {}", folder.display())
}

#[cfg(test)]
mod tests {
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
    fn a_mistake_is_named_with_its_place() {
        for (files, expected) in [
            (&[("a/1/model.pt", "")][..], "a/model.json"),
            (&[("a/model.json", "{}")], "a has no version"),
            (
                &[("a/model.json", "{}"), ("a/1/model.onnx", "")],
                "a/1 has neither model.pt nor model.pt2",
            ),
            (
                &[
                    ("a/model.json", "{}"),
                    ("a/1/model.pt", ""),
                    ("a/1/model.pt2", ""),
                ],
                "a/1 has both",
            ),
            (
                &[("a/model.json", r#"{"name": "b"}"#), ("a/1/model.pt", "")],
                r#"the field name is "b", but the folder is "a""#,
            ),
            (
                &[("a/model.json", r#"{"version": 1}"#), ("a/1/model.pt", "")],
                "remove the field version",
            ),
        ] {
            let folder = repository(files);
            let error = ModelRepository::read(folder.path()).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains(expected), "{text}");
        }
    }
}
