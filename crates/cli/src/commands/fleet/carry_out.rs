//! The steps of a plan, carried out by calls of the gateway.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::bail;
use packhorse_api::{ModelRegistration, ModelView, RepositoryProblem};
use packhorse_client::{AdminClient, ArtifactFile, CallError};
use packhorse_cluster::{ArtifactDigest, ModelName, ModelVersion};
use packhorse_fleet::{Change, Cluster, Comparison, DeclaredVersion, Plan, Step, compare};
use packhorse_terminal::output;
use reqwest::StatusCode;
use tokio::{sync::Semaphore, task::JoinSet};

use super::declare::Declared;

/// The most files that are uploaded at the same time.
const UPLOADS: usize = 8;

/// The outcome of the steps.
#[derive(Debug, Default)]
pub(in crate::commands) struct Outcome {
    /// The number of steps that were carried out.
    pub(in crate::commands) done: usize,
    /// The reasons why others were not.
    pub(in crate::commands) problems: Vec<RepositoryProblem>,
}

/// Uploads the files of the versions that the plan registers, as far as the gateway does not have them. Returns the reason by the version for those whose
/// file is not there now.
pub(in crate::commands) async fn upload_files(
    admin: &AdminClient,
    declared: &Declared,
    plan: &Plan,
) -> BTreeMap<(ModelName, ModelVersion), String> {
    let mut needed: BTreeMap<ArtifactDigest, ArtifactFile> = BTreeMap::new();
    let registered = || plan.steps.iter().filter_map(registration);
    for id in registered() {
        for file in declared.files.get(&id).iter().flat_map(|of| &of.needed) {
            needed.entry(file.digest()).or_insert_with(|| file.clone());
        }
    }
    let bar = output::count_bar("uploading", needed.len() as u64);
    let places = Arc::new(Semaphore::new(UPLOADS));
    let mut uploads = JoinSet::new();
    for (digest, file) in needed {
        let (admin, places) = (admin.clone(), Arc::clone(&places));
        uploads.spawn(async move {
            let _place = places.acquire().await;
            let there = admin.has_artifact(digest).await;
            let uploaded = match there {
                Ok(true) => Ok(()),
                Ok(false) => admin.upload_artifact(&file, |_| {}).await.map(drop),
                Err(error) => Err(error.into()),
            };
            let reason = uploaded.err();
            (
                digest,
                reason.map(|error| format!("{:#}", anyhow::Error::from(error))),
            )
        });
    }
    let mut failed = BTreeMap::new();
    while let Some(ended) = uploads.join_next().await {
        bar.inc(1);
        if let Ok((digest, Some(reason))) = ended {
            failed.insert(digest, reason);
        }
    }
    bar.finish_and_clear();
    let of_version = |id: (ModelName, ModelVersion)| {
        let files = &declared.files.get(&id)?.needed;
        let reason = files.iter().find_map(|file| failed.get(&file.digest()))?;
        Some((id, reason.clone()))
    };
    registered().filter_map(of_version).collect()
}

/// Carries out the steps of a plan one after the other. After a step that fails, the other steps of its model are left for the next time; those of other models
/// are carried out, unless the gateway does not answer. `report` is told each step that was carried out.
pub(in crate::commands) async fn carry_out(
    admin: &AdminClient,
    declared: &Declared,
    cluster: &Cluster,
    plan: &Plan,
    report: impl Fn(&Step),
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut failed: BTreeSet<ModelName> = BTreeSet::new();
    let without_file = upload_files(admin, declared, plan).await;
    for step in &plan.steps {
        let model = model(&step.change);
        if model.is_some_and(|model| failed.contains(model)) {
            continue;
        }
        let id = registration(step);
        let missing = id.as_ref().and_then(|id| without_file.get(id));
        let result = match missing {
            Some(reason) => Err(anyhow::Error::msg(reason.clone())),
            None => make(admin, declared, cluster, step).await,
        };
        match result {
            Ok(()) => {
                outcome.done += 1;
                report(step);
            }
            Err(error) => {
                let is_away = is_away(&error);
                failed.extend(model.cloned());
                let files = id.and_then(|id| declared.files.get(&id));
                let place = files.map_or_else(|| step.change.to_string(), |of| of.place.clone());
                let problem = format!("{error:#}");
                outcome.problems.push(RepositoryProblem { place, problem });
                if is_away {
                    break;
                }
            }
        }
    }
    outcome
}

/// Returns true if the gateway has not answered, so that it will not answer the next call either.
fn is_away(error: &anyhow::Error) -> bool {
    let call = error.downcast_ref::<CallError>();
    call.is_some_and(|error| error.status().is_none())
}

async fn make(
    admin: &AdminClient,
    declared: &Declared,
    cluster: &Cluster,
    step: &Step,
) -> anyhow::Result<()> {
    match &step.change {
        Change::Policy(change) => admin.change_policy(change).await.map(drop)?,
        Change::Register(new) => register(admin, declared, cluster, new, false).await?,
        Change::Replace(new) => register(admin, declared, cluster, new, true).await?,
        Change::Model(name, version, change) => {
            admin.change_one_of_many(name, *version, change).await?;
        }
        Change::Split(name, change) => {
            admin.change_one_of_many(name, None, change).await?;
        }
        Change::Key { id, limits, .. } => admin.change_key(id, limits).await.map(drop)?,
        Change::Node(name, true) => admin.cordon(name).await.map(drop)?,
        Change::Node(name, false) => admin.uncordon(name).await.map(drop)?,
        Change::Remove(name, version) => {
            if let Some(number) = version {
                let share = admin.model(name, Some(*number)).await?.share_pct;
                if share > 0 {
                    bail!("it gets {share} % of the requests by now, and is not removed");
                }
            }
            admin.remove_one_of_many(name, *version).await?;
        }
    }
    Ok(())
}

/// Registers a version, and changes what a registration cannot say: a new version has what the one before it had. One that somebody else has registered
/// meanwhile is the same if it has the same program.
async fn register(
    admin: &AdminClient,
    declared: &Declared,
    cluster: &Cluster,
    new: &ModelRegistration,
    replace: bool,
) -> anyhow::Result<()> {
    let view = match admin.register_one_of_many(new, replace).await {
        Ok(view) => view,
        Err(error) if error.status() == Some(StatusCode::CONFLICT) && !replace => {
            match admin.model(&new.name, new.version).await {
                Ok(view) => view,
                Err(_) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let models = &declared.fleet.models;
    let versions = models.get(&new.name).map(|model| &model.versions);
    let version = versions.and_then(|versions| versions.get(&view.version));
    match version {
        Some(version) => settle(admin, cluster, &view, version).await,
        None => Ok(()),
    }
}

async fn settle(
    admin: &AdminClient,
    cluster: &Cluster,
    view: &ModelView,
    version: &DeclaredVersion,
) -> anyhow::Result<()> {
    let mut others = cluster.versions(&view.name);
    let is_newest = others.all(|other| other.version <= view.version);
    match compare(view, version, is_newest) {
        Comparison::Replace(_) => bail!(
            "it was registered meanwhile with another program or signature: apply again to replace it"
        ),
        Comparison::Change(steps) => {
            for step in steps {
                if let Change::Model(name, version, change) = &step.change {
                    admin.change_one_of_many(name, *version, change).await?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the version that a step registers.
fn registration(step: &Step) -> Option<(ModelName, ModelVersion)> {
    match &step.change {
        Change::Register(new) | Change::Replace(new) => Some((new.name.clone(), new.version?)),
        _ => None,
    }
}

/// Returns the model that a step is about.
fn model(change: &Change) -> Option<&ModelName> {
    match change {
        Change::Register(new) | Change::Replace(new) => Some(&new.name),
        Change::Model(name, ..) | Change::Split(name, _) | Change::Remove(name, _) => Some(name),
        Change::Policy(_) | Change::Key { .. } | Change::Node(..) => None,
    }
}
