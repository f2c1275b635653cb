//! The files of a folder as a fleet that can be compared with a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use packhorse_api::{ModelRegistration, ModelView, RepositoryProblem};
use packhorse_client::{AdminClient, ArtifactFile, CallError};
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_fleet::{Cluster, DeclaredVersion, Fleet};
use packhorse_terminal::output;
use serde_json::Value;

use super::folder::{FleetFolder, FolderVersion, REGISTRATION, without_registration};
use crate::commands::model::{
    beside::{Places, name_tokenizer, read_labels},
    describe::{describe, init_command},
    register::{check_kind, check_order, name_artifact},
    signature::SignatureArgs,
    upload::hash_artifact,
};

/// The properties of models without a registration.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Undescribed {
    /// The latency objective in milliseconds of those whose file says none.
    pub(in crate::commands) slo_ms: f64,
    /// The folder with libtorch for a run of their programs, if one is named.
    pub(in crate::commands) libtorch: Option<PathBuf>,
}

/// A fleet with its files.
#[derive(Debug, Default)]
pub(in crate::commands) struct Declared {
    pub(in crate::commands) fleet: Fleet,
    /// The mistakes in the files.
    pub(in crate::commands) problems: Vec<RepositoryProblem>,
    /// The files that the versions need, and the folder of each.
    pub(super) files: BTreeMap<(ModelName, ModelVersion), VersionFiles>,
}

/// The files of a version.
#[derive(Debug)]
pub(super) struct VersionFiles {
    /// The version's folder within the folder of all.
    pub(super) place: String,
    /// The program and the tokenizer, as far as they are files here.
    pub(super) needed: Vec<ArtifactFile>,
}

/// Returns all models of the gateway.
///
/// # Errors
/// If the gateway does not answer.
pub(in crate::commands) async fn registered(admin: &AdminClient) -> Result<Cluster, CallError> {
    Ok(Cluster {
        models: admin.models().await?,
        ..Cluster::default()
    })
}

/// Reads the programs of a folder, and describes those without a registration. A mistake in one version does not concern the others. The cluster's models get
/// what a list leaves out and a comparison needs.
///
/// # Errors
/// If the gateway does not answer.
pub(in crate::commands) async fn declare(
    folder: FleetFolder,
    admin: &AdminClient,
    cluster: &mut Cluster,
    undescribed: &Undescribed,
) -> anyhow::Result<Declared> {
    let mut declared = Declared {
        problems: folder.problems,
        ..Declared::default()
    };
    let fleet = &mut declared.fleet;
    fleet.unreadable = folder.unreadable;
    (fleet.policy, fleet.nodes, fleet.keys) = (folder.policy, folder.nodes, folder.keys);
    for version in folder.versions {
        let (place, name) = (version.place.clone(), version.spec["name"].clone());
        match version.declare(cluster, undescribed).await {
            Ok((number, version, needed)) => declared.add(number, place, version, needed),
            Err(error) => {
                let name = name.as_str().and_then(|name| name.parse().ok());
                declared.fleet.unreadable.extend(name);
                let problem = format!("{error:#}");
                declared.problems.push(RepositoryProblem { place, problem });
            }
        }
    }
    for (name, split) in folder.splits {
        declared.fleet.models.entry(name).or_default().split = Some(split);
    }
    for view in &mut cluster.models {
        let is_declared = declared.fleet.models.contains_key(&view.name);
        if is_declared && !view.postprocess.is_empty() {
            // A list has no names of classes.
            *view = admin.model(&view.name, Some(view.version)).await?;
        }
    }
    Ok(declared)
}

impl Declared {
    fn add(
        &mut self,
        number: ModelVersion,
        place: String,
        version: DeclaredVersion,
        needed: Vec<ArtifactFile>,
    ) {
        let name = version.registration.name.clone();
        let files = VersionFiles { place, needed };
        self.files.insert((name.clone(), number), files);
        let model = self.fleet.models.entry(name).or_default();
        model.versions.insert(number, version);
    }
}

impl FolderVersion {
    /// Makes the version's registration complete, and returns the files that it needs.
    async fn declare(
        mut self,
        cluster: &Cluster,
        undescribed: &Undescribed,
    ) -> anyhow::Result<(ModelVersion, DeclaredVersion, Vec<ArtifactFile>)> {
        let program = self.program.take();
        let file = match &program {
            Some(program) => Some(hash_artifact(program).await?),
            None => None,
        };
        let same = cluster.models.iter().find(|view| {
            file.as_ref()
                .is_some_and(|file| view.artifact == file.digest())
                && self.spec["name"] == view.name.as_str()
                && self.spec["version"] == u32::from(view.version)
        });
        if self.described_by.is_none() {
            if let Some(view) = same {
                // The file told the same when it was registered, and admins may have changed it since.
                let registration = registration_of(view);
                let said = BTreeSet::new();
                let declared = DeclaredVersion { registration, said };
                return Ok((view.version, declared, Vec::new()));
            }
            if let Some(program) = &program {
                self.describe(program, undescribed).await?;
            }
        }
        if let Some(file) = &file {
            name_artifact(&mut self.spec, file)?;
        }
        let said = self.spec.keys().cloned().collect();
        let places = Places {
            program: Some(&self.beside),
            registration: None,
        };
        read_labels(&mut self.spec, &places)?;
        let mut registration: ModelRegistration =
            serde_path_to_error::deserialize(Value::Object(self.spec))
                .context(self.described_by.unwrap_or("the program's file"))?;
        let number = registration.version;
        let number = number.context("the folder says the version")?;
        let tokenizer = name_tokenizer(&mut registration, &places).await?;
        if let (Some(program), None) = (&program, same)
            && let Some(artifact) = check_kind(program)?
        {
            check_order(&artifact, &registration)?;
        }
        let files = [file, tokenizer].into_iter().flatten().collect();
        Ok((number, DeclaredVersion { registration, said }, files))
    }

    /// Has the program's file, and a run of it where that does not tell all, say the registration.
    async fn describe(&mut self, program: &Path, undescribed: &Undescribed) -> anyhow::Result<()> {
        let args = SignatureArgs::none(undescribed.libtorch.clone());
        let described = describe(program, &args).await;
        let without = || without_registration(program);
        let described = described.with_context(without)?;
        if let Some(obstacle) = &described.artifact.obstacle {
            bail!("{}: {obstacle}", without());
        }
        if !described.missing.is_empty() {
            let missing: Vec<String> = described.missing.iter().map(ToString::to_string).collect();
            let folder = program.parent().and_then(Path::parent);
            let json = folder.unwrap_or(Path::new("")).join(REGISTRATION);
            bail!(
                "{} does not tell all: {}; {}",
                without(),
                missing.join("; "),
                init_command(program, &described, &json)
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

/// Returns the registration of what is registered.
fn registration_of(view: &ModelView) -> ModelRegistration {
    ModelRegistration {
        name: view.name.clone(),
        version: Some(view.version),
        artifact: Some(view.artifact),
        artifact_path: None,
        max_batch_size: view.max_batch_size,
        slo_ms: view.slo_ms,
        rate_rps: view.rate_rps,
        rate: Some(view.rate),
        priority: Some(view.priority),
        min_replicas: Some(view.min_replicas),
        queue_limit: view.queue_limit,
        max_cold_wait_ms: view.max_cold_wait_ms,
        cache: view.cache,
        family: view.family.clone(),
        accuracy: view.accuracy,
        inputs: view.inputs.clone(),
        outputs: view.outputs.clone(),
        preprocess: view.preprocess.clone(),
        postprocess: view.postprocess.clone(),
    }
}
