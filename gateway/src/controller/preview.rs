//! What would be planned if something were different. Looks at the state, asks the policy beside it, changes nothing.

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
    models::{ModelError, slo_of_ms},
    question::Question,
    views::draft_view,
};

/// The most devices that a preview may add.
const MAX_DEVICES: u32 = 1024;
/// The node that holds the devices of a preview; real nodes cannot be called so while it lasts, for it never exists.
const PREVIEW_NODE: &str = "preview";

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// There is no such policy.
    #[error("policy: {0}")]
    Policy(#[from] UnknownPolicy),
    /// There is no such model.
    #[error("{field}: {source}")]
    Model {
        /// The field.
        field: &'static str,
        /// Which model.
        source: ModelError,
    },
    /// A changed model is out of its limits.
    #[error("models.{0}")]
    Invalid(#[from] ModelSpecError),
    /// Nothing is known of a kind of device.
    #[error(
        "devices.kind: nothing is known of {0}: no data sheet is built in, and no node has one"
    )]
    UnknownKind(DeviceKind),
    /// Too many devices.
    #[error("devices.count: at most {MAX_DEVICES} in all")]
    TooManyDevices,
    /// Too much is being thought about.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The policy gave no plan.
    #[error("{0}")]
    NoPlan(String),
}

/// A question with the changes in it, and what it is compared with.
pub(super) struct Preview {
    question: Question,
    budget: Duration,
    current: Option<PlanView>,
}

impl Cluster {
    /// The question a policy would be asked if things were as `request` says.
    pub(super) fn preview(&self, request: &PlanPreviewRequest) -> Result<Preview, PreviewError> {
        let policy = match &request.policy {
            Some(name) => packhorse_placement::policy(name)?,
            None => self.policy,
        };
        let mut question = self.question(policy, "a preview".to_owned());
        question.explain = request.explain;
        if let Some(options) = request.options {
            question.options = options;
        }
        if let Some(discipline) = request.discipline {
            question.problem.discipline = discipline;
        }
        for change in &request.models {
            let id = self
                .find_model(&change.name, change.version)
                .map_err(|source| PreviewError::Model {
                    field: "models.name",
                    source,
                })?;
            let spec = ModelSpec::clone(&self.models[&id].spec);
            let slo = change.slo_ms.map(slo_of_ms).transpose()?;
            let changed = ModelSpec {
                slo: slo.unwrap_or(spec.slo),
                rate: change.rate_rps.unwrap_or(spec.rate),
                ..spec
            };
            changed.validate()?;
            question.change(&changed);
        }
        for name in &request.remove {
            self.find_model(name, None)
                .map_err(|source| PreviewError::Model {
                    field: "remove",
                    source,
                })?;
            question
                .problem
                .models
                .retain(|model| model.id.name != *name);
            question.rates.retain(|id, _| id.name != *name);
            question
                .pinned
                .retain(|drafted| drafted.model.name != *name);
            question
                .unattended
                .retain(|drafted| drafted.model.name != *name);
        }
        let mut added: u32 = 0;
        for devices in &request.devices {
            let (memory, multiprocessors) = self.data_sheet(&devices.kind)?;
            for _ in 0..devices.count {
                if added >= MAX_DEVICES {
                    return Err(PreviewError::TooManyDevices);
                }
                question.add_device(added, &devices.kind, memory, multiprocessors);
                added += 1;
            }
        }
        Ok(Preview {
            question,
            budget: self.config.solve_budget,
            current: self.plan_view(),
        })
    }

    /// Memory and multiprocessors of a kind of device: of one that there is, else of the data sheet.
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

impl Question {
    fn change(&mut self, spec: &ModelSpec) {
        let id = &spec.program.model;
        let before = self.rates.insert(id.clone(), spec.rate);
        let Some(model) = self.problem.models.iter_mut().find(|model| model.id == *id) else {
            return;
        };
        // What pinned replicas serve of it they go on serving.
        let pinned = before.map_or(0.0, |before| before.get() - model.rate.get());
        let rate = (spec.rate.get() - pinned).max(0.0);
        model.rate = RequestsPerSecond::new(rate).unwrap_or(spec.rate);
        model.slo = spec.slo;
    }

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

impl Preview {
    /// Asks the policy, on a thread of its own.
    pub(super) async fn answer(
        self,
        place: OwnedSemaphorePermit,
    ) -> Result<PlanPreview, PreviewError> {
        let Self {
            question,
            budget,
            current,
        } = self;
        let thought = tokio::task::spawn_blocking(move || {
            // Kept until the thought has ended, whether or not somebody waits for it still.
            let _place = place;
            question.solve(budget)
        });
        let solved = thought
            .await
            .map_err(|e| PreviewError::NoPlan(format!("the policy failed: {e}")))?;
        let draft = solved.result.map_err(PreviewError::NoPlan)?;
        let reason = draft.note.clone().unwrap_or(solved.reason);
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

/// What a change of plan starts and stops. Replicas are equal that serve the same model on the same device in the same way.
pub(crate) fn diff(before: &[PlacementView], after: &[PlacementView]) -> PlanDiff {
    let anonymous = |placement: &PlacementView| PlacementView {
        id: None,
        // When it has its turn can change while it runs.
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
