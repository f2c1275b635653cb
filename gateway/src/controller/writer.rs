//! The writes of the control plane: carried out one after the other, beside the task that decides.

use packhorse_cluster::ProfileTable;
use packhorse_control::{Receipt, Write, WriteError};
use packhorse_kernels::KernelTable;
use tokio::sync::mpsc;

use super::outcome::Outcome;
use crate::{
    audit::Act,
    store::{InsertModelError, Store, StoreError},
};

/// A write of the control plane, and the act of an admin that it is.
pub(super) type Commission = (Receipt, Write, Option<Act>);

/// Carries out writes in order, until the sender is dropped, and reports the end of each.
pub(super) async fn run(
    store: Store,
    mut writes: mpsc::UnboundedReceiver<Commission>,
    outcomes: mpsc::UnboundedSender<Outcome>,
) {
    while let Some((receipt, write, act)) = writes.recv().await {
        let result = match act {
            Some(act) => carry_out(&store.acting(act), write).await,
            None => carry_out(&store, write).await,
        };
        // Once the task is stopped, nobody waits for the result, and the remaining writes are carried out all the same.
        let _ = outcomes.send(Outcome::Stored(receipt, result));
    }
}

async fn carry_out(store: &Store, write: Write) -> Result<(), WriteError> {
    let (what, result) = match write {
        Write::InsertModel(spec) => ("a registration", inserted(store.insert_model(&spec).await)?),
        Write::ReplaceModel(spec) => {
            let replaced = store.replace_model(&spec).await;
            ("a replaced registration", inserted(replaced)?)
        }
        Write::BeginEpoch(epoch) => ("an epoch", store.begin_epoch_at(epoch).await),
        Write::UpdateModels(specs) => ("a change of a model", store.update_models(&specs).await),
        Write::FailModel(id, reason) => (
            "the failure of a model",
            store.fail_model(&id, &reason).await,
        ),
        Write::SetOperators(id, operators) => (
            "the operators of a model",
            store.set_operators(&id, &operators).await,
        ),
        Write::UpsertSplit(split) => ("a split", store.upsert_split(&split).await),
        Write::DeleteModels(ids, heir) => (
            "the removal of a model",
            store.delete_models(&ids, heir.as_deref()).await,
        ),
        Write::UpsertProfiles(profiles, kernels) => {
            let kernels = recorded_kernels(&profiles, kernels.as_deref());
            let stored = store.upsert_profiles(&profiles, &kernels).await;
            ("profiles", stored)
        }
        Write::UpsertMeasurement(key, profiles, kernels) => {
            let kernels = recorded_kernels(&profiles, kernels.as_deref());
            let stored = store.upsert_measurement(&key, &profiles, &kernels).await;
            ("a measurement", stored)
        }
        Write::DeleteMeasurement(key) => (
            "the removal of a measurement",
            store.delete_measurement(&key).await,
        ),
        Write::UpsertPairs(kind, pairs) => {
            ("measured pairs", store.upsert_pairs(&kind, &pairs).await)
        }
        Write::UpsertNode(node) => ("a node", store.upsert_node(&node).await),
        Write::ScheduleNode(node) => ("the scheduling of a node", store.schedule_node(&node).await),
        Write::DeleteNode(name) => ("the removal of a node", store.delete_node(&name).await),
        Write::UpdateSettings(settings) => ("settings", store.update_settings(&settings).await),
        Write::SetNeeds(needs) => ("the measured needs", store.set_needs(&needs).await),
        Write::InsertPlan(plan, outcome) => {
            ("a plan", store.insert_plan(&plan, outcome.as_ref()).await)
        }
    };
    result.map_err(|error: StoreError| {
        let error_text = error_chain(&error);
        tracing::error!(error = error_text, "cannot store {what}");
        match error {
            StoreError::DiskFull(_) => WriteError::DiskFull,
            StoreError::Unavailable(_) | StoreError::Superseded(_) => WriteError::Unavailable,
            StoreError::Database(_) | StoreError::Unreadable { .. } => WriteError::Failed,
        }
    })
}

/// Returns the outcome of a registration. What the registration itself is wrong about is an error at once.
fn inserted(result: Result<(), InsertModelError>) -> Result<Result<(), StoreError>, WriteError> {
    match result {
        Ok(()) => Ok(Ok(())),
        Err(InsertModelError::Exists) => Err(WriteError::Exists),
        Err(InsertModelError::UnknownArtifact) => Err(WriteError::Dangling),
        Err(InsertModelError::Store(error)) => Ok(Err(error)),
    }
}

/// Returns the text of an error and of its sources.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Returns the kernels that were recorded with a measurement; none if they cannot be read, because the profile is valid without
/// them.
fn recorded_kernels(profiles: &ProfileTable, csv: Option<&str>) -> KernelTable {
    KernelTable::from_csv(csv.unwrap_or_default()).unwrap_or_else(|e| {
        let model = profiles.iter().next().map(|(model, ..)| model.to_string());
        tracing::warn!(error = %e, model.name = model, "the recorded kernels cannot be read");
        KernelTable::default()
    })
}
