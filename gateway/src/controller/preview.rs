//! Previews: the plan that a policy would make if the cluster were different. A preview reads the state, computes beside it and
//! changes nothing.

use std::time::Duration;

use packhorse_api::{PlacementView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanView};
use packhorse_cluster::{
    ByteCount, Device, DeviceId, DeviceKind, ModelSpec, ModelSpecError, NodeName,
    RequestsPerSecond, known_kind,
};
use packhorse_placement::UnknownPolicy;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Busy,
    cluster::Cluster,
    models::{ModelError, slo_from_ms},
    plan_reason::{PlanReason, PlanReasons},
    planning_input::PlanningInput,
    planning_trouble::PlanningError,
    run_with_permit,
    views::draft_view,
};

/// The largest number of devices that a preview may add.
const MAX_DEVICES: u32 = 1024;
/// The name of the node that the added devices of a preview belong to. It is no node of the cluster.
const PREVIEW_NODE: &str = "preview";

/// The reason why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The policy does not exist.
    #[error("policy: {0}")]
    Policy(#[from] UnknownPolicy),
    /// The model does not exist.
    #[error("{field}: {source}")]
    Model {
        /// The field that names the model.
        field: &'static str,
        /// The error with the model's name.
        source: ModelError,
    },
    /// A changed model is out of its limits.
    #[error("models.{0}")]
    Invalid(#[from] ModelSpecError),
    /// The memory of a kind of device is unknown.
    #[error(
        "devices.kind: {0} is unknown: no node has such a device, and there is no built-in data sheet"
    )]
    UnknownKind(DeviceKind),
    /// Too many devices are added.
    #[error("devices.count: at most {MAX_DEVICES} devices can be added in one preview")]
    TooManyDevices,
    /// Too many previews and explanations run.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The policy made no plan.
    #[error(transparent)]
    NoPlan(#[from] PlanningError),
}

/// The input of a preview, and the plan that it is compared with.
pub(super) struct PreviewInput {
    input: PlanningInput,
    budget: Duration,
    current: Option<PlanView>,
}

impl Cluster {
    /// Returns the input of a policy for the cluster with the requested changes.
    pub(super) fn preview_input(
        &self,
        request: &PlanPreviewRequest,
    ) -> Result<PreviewInput, PreviewError> {
        let policy = match &request.policy {
            Some(name) => packhorse_placement::policy(name)?,
            None => self.policy,
        };
        let mut input = self.planning_input(policy, PlanReasons::from(PlanReason::Preview));
        input.explain = request.explain;
        if let Some(options) = request.options {
            input.options = options;
        }
        if let Some(discipline) = request.discipline {
            input.problem.discipline = discipline;
        }
        for change in &request.models {
            let id = self
                .find_model(&change.name, change.version)
                .map_err(|source| PreviewError::Model {
                    field: "models.name",
                    source,
                })?;
            let spec = ModelSpec::clone(&self.models[&id].spec);
            let slo = change.slo_ms.map(slo_from_ms).transpose()?;
            let changed = ModelSpec {
                slo: slo.unwrap_or(spec.slo),
                rate: change.rate_rps.unwrap_or(spec.rate),
                ..spec
            };
            changed.validate()?;
            input.change_model(&changed);
        }
        for name in &request.remove {
            self.find_model(name, None)
                .map_err(|source| PreviewError::Model {
                    field: "remove",
                    source,
                })?;
            input.problem.models.retain(|model| model.id.name != *name);
            input.rates.retain(|id, _| id.name != *name);
            input.pinned.retain(|draft| draft.model.name != *name);
            input.unattended.retain(|draft| draft.model.name != *name);
        }
        let mut added: u32 = 0;
        for devices in &request.devices {
            let (memory, multiprocessors) = self.data_sheet(&devices.kind)?;
            for _ in 0..devices.count {
                if added >= MAX_DEVICES {
                    return Err(PreviewError::TooManyDevices);
                }
                input.add_device(added, &devices.kind, memory, multiprocessors);
                added += 1;
            }
        }
        Ok(PreviewInput {
            input,
            budget: self.config.solve_budget,
            current: self.plan_view(),
        })
    }

    /// Returns the memory and the multiprocessors of a kind of device: those of a device in the cluster, else of the data sheet.
    fn data_sheet(&self, kind: &DeviceKind) -> Result<(ByteCount, Option<u32>), PreviewError> {
        let mut devices = self.nodes.values().flat_map(|node| &node.stored.devices);
        if let Some(device) = devices.find(|device| device.kind == *kind) {
            return Ok((device.memory_bytes, device.multiprocessors));
        }
        let (memory, multiprocessors) =
            known_kind(kind).ok_or_else(|| PreviewError::UnknownKind(kind.clone()))?;
        Ok((memory, Some(multiprocessors)))
    }
}

impl PlanningInput {
    /// Changes the rate and the SLO of a model.
    fn change_model(&mut self, spec: &ModelSpec) {
        let id = &spec.program.model;
        let before = self.rates.insert(id.clone(), spec.rate);
        let Some(model) = self.problem.models.iter_mut().find(|model| model.id == *id) else {
            return;
        };
        // The part of the rate that pinned replicas serve stays theirs.
        let pinned = before.map_or(0.0, |before| before.get() - model.rate.get());
        let rate = (spec.rate.get() - pinned).max(0.0);
        model.rate = RequestsPerSecond::new(rate).unwrap_or(spec.rate);
        model.slo = spec.slo;
    }

    /// Adds a device.
    fn add_device(
        &mut self,
        number: u32,
        kind: &DeviceKind,
        memory: ByteCount,
        multiprocessors: Option<u32>,
    ) {
        let node: NodeName = PREVIEW_NODE.parse().expect("a valid name");
        let id = DeviceId::new(node.clone(), &format!("new{number}"));
        self.devices.push(id.expect("a valid name"));
        self.problem.devices.push(Device {
            kind: kind.clone(),
            memory,
            multiprocessors,
            node,
            cost_per_hour: None,
        });
    }
}

impl PreviewInput {
    /// Plans on a thread of its own.
    pub(super) async fn run(
        self,
        permit: OwnedSemaphorePermit,
    ) -> Result<PlanPreview, PreviewError> {
        let Self {
            input,
            budget,
            current,
        } = self;
        let policy = input.policy.name;
        let outcome = run_with_permit(permit, move || input.solve(budget)).await;
        let outcome = outcome.map_err(|e| PlanningError::Panicked {
            policy,
            error: e.to_string(),
        })?;
        let draft = outcome.result?;
        let reason = match &draft.fallback {
            Some(fallback) => fallback.to_string(),
            None => outcome.reasons.to_string(),
        };
        let plan = draft_view(&draft, reason);
        let none = Vec::new();
        let before = current.as_ref().map_or(&none, |plan| &plan.replicas);
        Ok(PlanPreview {
            diff: diff(before, &plan.replicas),
            plan,
            current,
        })
    }
}

/// Returns the difference between the replicas of two plans. Replicas are equal if they serve the same model on the same device
/// with the same batch size and compute share.
pub(crate) fn diff(before: &[PlacementView], after: &[PlacementView]) -> PlanDiff {
    let anonymous = |placement: &PlacementView| PlacementView {
        id: None,
        // The duty cycle can change while the replica runs.
        duty_cycle_ms: None,
        ..placement.clone()
    };
    let mut removed = before.to_vec();
    let mut added = Vec::new();
    let mut kept = 0;
    for placement in after {
        let same = |other: &PlacementView| anonymous(other) == anonymous(placement);
        match removed.iter().position(same) {
            Some(index) => {
                removed.remove(index);
                kept += 1;
            }
            None => added.push(placement.clone()),
        }
    }
    PlanDiff {
        added,
        removed,
        kept,
    }
}
