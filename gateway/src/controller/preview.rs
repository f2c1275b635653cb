//! Previews: the plan that a policy would make if the cluster were different. A preview reads the state, computes beside it and
//! changes nothing. The controller's task looks up what the request names, which is bounded, and copies the input of a policy once; all
//! else happens on the preview's own thread.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use packhorse_api::{
    PlacementView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanView, PreviewModel,
};
use packhorse_cluster::{
    ByteCount, DemandedModel, Device, DeviceId, DeviceIndex, DeviceKind, ModelId, ModelName,
    ModelSpec, ModelSpecError, ModelVersion, NodeName, NotLive, PlannedReplica, Priority,
    RequestsPerSecond, VariantMix, known_kind,
};
use packhorse_control::{
    CommandError, PlanReason, PlanReasons, PlanningError, PlanningInput, SolveError,
};
use packhorse_placement::{Demand, UnknownPolicy, goodput_bound};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    permits::{Busy, run_with_permit},
    settings::slo_from_ms,
    solver::{Preview, explanations, preview},
    task::Task,
    views::draft_view,
};

/// The largest number of devices that a preview may add.
const MAX_DEVICES: u32 = 1024;
/// The largest number of entries for devices in a preview.
const MAX_DEVICE_ENTRIES: usize = 64;
/// The largest number of models that a preview may change or add, and that it may leave out.
const MAX_MODELS: usize = 1024;
/// The name of the node that the added devices of a preview belong to. It is no node of the cluster.
const PREVIEW_NODE: &str = "preview";

/// The reason why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The policy does not exist.
    #[error("policy: {0}")]
    Policy(#[from] UnknownPolicy),
    /// The gateway does not have the discipline.
    #[error("discipline: {0}")]
    Discipline(#[from] NotLive),
    /// The model does not exist.
    #[error("{field}: {source}")]
    Model {
        /// The field that names the model.
        field: &'static str,
        /// The error with the model's name.
        source: CommandError,
    },
    /// A changed model is out of its limits.
    #[error("models.{0}")]
    Invalid(#[from] ModelSpecError),
    /// A model to add is registered, or added twice.
    #[error("models.name: model {0} exists already; profile_of is for models to add")]
    ModelExists(ModelId),
    /// The model that a model to add is like is not planned for.
    #[error("models.profile_of: model {0} has no profile yet, or no place in plans")]
    NoProfile(ModelId),
    /// Too many models are changed, added or left out.
    #[error("{0}: at most {MAX_MODELS} models are allowed in one preview")]
    TooManyModels(&'static str),
    /// The memory of a kind of device is unknown.
    #[error(
        "devices.kind: {0} is unknown: no node has such a device, and there is no built-in data sheet"
    )]
    UnknownKind(DeviceKind),
    /// Too many entries are for devices.
    #[error("devices: at most {MAX_DEVICE_ENTRIES} entries are allowed in one preview")]
    TooManyDeviceEntries,
    /// Too many devices are added.
    #[error("devices.count: at most {MAX_DEVICES} devices can be added in one preview")]
    TooManyDevices,
    /// More devices are taken away than there are.
    #[error(
        "devices.count: {removed} devices of kind {kind} cannot be taken away; plans may use {present} of them"
    )]
    TooFewDevices {
        /// The kind.
        kind: DeviceKind,
        /// The number of devices to take away.
        removed: u32,
        /// The number of devices that plans may use.
        present: usize,
    },
    /// Too many previews and explanations run.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The policy made no plan.
    #[error(transparent)]
    NoPlan(#[from] PlanningError),
}

/// The input of a preview, the changes of the cluster in it, and the plan that it is compared with.
pub(super) struct PreviewInput {
    input: PlanningInput,
    models: Vec<PreviewedModel>,
    removed: Vec<ModelName>,
    devices: Vec<PreviewedDevices>,
    explain: bool,
    current: Option<PlanView>,
}

/// A model as a preview has it.
struct PreviewedModel {
    spec: ModelSpec,
    /// The rate to plan for if it is another one.
    rate: Option<RequestsPerSecond>,
    /// The priority of all versions of the name if it is another one.
    priority: Option<Priority>,
    /// The model whose profile a model to add has; `None` for a registered model.
    like: Option<ModelId>,
}

/// Devices that a preview adds, or takes away if the count is negative.
struct PreviewedDevices {
    kind: DeviceKind,
    count: i32,
    /// The memory and the multiprocessors of a device to add.
    sheet: Option<(ByteCount, Option<u32>)>,
}

impl Task {
    /// Returns the input of a policy, and the requested changes, checked against the state.
    pub(super) fn preview_input(
        &self,
        request: &PlanPreviewRequest,
    ) -> Result<PreviewInput, PreviewError> {
        let controller = self.controller();
        let policy = match &request.policy {
            Some(name) => packhorse_placement::policy(name)?.name,
            None => controller.policy(),
        };
        let changes_policy =
            request.policy.is_some() || request.options.is_some() || request.discipline.is_some();
        let reasons = PlanReasons::from(if changes_policy {
            PlanReason::PreviewOfPolicy
        } else {
            PlanReason::Preview
        });
        let mut input = controller.planning_input(policy.to_owned(), reasons);
        if let Some(options) = request.options {
            input.options = options;
        }
        if let Some(discipline) = request.discipline {
            input.problem.discipline = discipline.live()?;
        }
        if request.models.len() > MAX_MODELS {
            return Err(PreviewError::TooManyModels("models"));
        }
        if request.remove.len() > MAX_MODELS {
            return Err(PreviewError::TooManyModels("remove"));
        }
        if request.devices.len() > MAX_DEVICE_ENTRIES {
            return Err(PreviewError::TooManyDeviceEntries);
        }
        let models = request.models.iter().map(|change| self.previewed(change));
        let models: Vec<Option<PreviewedModel>> = models.collect::<Result<_, _>>()?;
        for name in &request.remove {
            let known = controller.find_model(name, None);
            known.map_err(|source| PreviewError::Model {
                field: "remove",
                source,
            })?;
        }
        let devices = request.devices.iter().map(|devices| {
            Ok(PreviewedDevices {
                kind: devices.kind.clone(),
                count: devices.count,
                // Devices that are taken away need no description.
                sheet: match devices.count {
                    ..0 => None,
                    _ => Some(self.data_sheet(&devices.kind)?),
                },
            })
        });
        Ok(PreviewInput {
            input,
            models: models.into_iter().flatten().collect(),
            removed: request.remove.clone(),
            devices: devices.collect::<Result<_, PreviewError>>()?,
            explain: request.explain,
            current: self.plan_view(),
        })
    }

    /// Returns a model with its changes, or a model to add; `None` if there is no such model any more.
    fn previewed(&self, change: &PreviewModel) -> Result<Option<PreviewedModel>, PreviewError> {
        let controller = self.controller();
        let (field, name, version) = match &change.profile_of {
            Some(like) => ("models.profile_of", like, None),
            None => ("models.name", &change.name, change.version),
        };
        let id = controller
            .find_model(name, version)
            .map_err(|source| PreviewError::Model { field, source })?;
        let Some(model) = controller.model(&id) else {
            return Ok(None);
        };
        let mut spec = ModelSpec::clone(&model.spec);
        if let Some(slo_ms) = change.slo_ms {
            spec.slo = slo_from_ms(slo_ms)?;
        }
        let of_name = controller.find_model(name, None).ok();
        let newest = of_name.and_then(|newest| controller.model(&newest));
        let priority = newest.map_or(spec.priority, |newest| newest.spec.priority);
        spec.priority = change.priority.unwrap_or(priority);
        spec.validate()?;
        if change.profile_of.is_some() {
            spec.program.model = ModelId {
                name: change.name.clone(),
                version: change.version.unwrap_or(ModelVersion::FIRST),
            };
            if controller.model(&spec.program.model).is_some() {
                return Err(PreviewError::ModelExists(spec.program.model));
            }
        }
        Ok(Some(PreviewedModel {
            spec,
            rate: change.rate_rps,
            priority: change.priority,
            like: change.profile_of.is_some().then_some(id),
        }))
    }

    /// Returns the memory and the multiprocessors of a kind of device: those of a device in the cluster, else of the data sheet.
    fn data_sheet(&self, kind: &DeviceKind) -> Result<(ByteCount, Option<u32>), PreviewError> {
        let nodes = self.controller().nodes();
        let mut devices = nodes.flat_map(|(_, node)| &node.record.devices);
        if let Some(device) = devices.find(|device| device.kind == *kind) {
            return Ok((device.memory_bytes, device.multiprocessors));
        }
        let (memory, multiprocessors) =
            known_kind(kind).ok_or_else(|| PreviewError::UnknownKind(kind.clone()))?;
        Ok((memory, Some(multiprocessors)))
    }
}

/// Removes the versions of a model.
fn remove_model(input: &mut PlanningInput, name: &ModelName) {
    let problem = &mut input.problem;
    let is_kept = problem.models.iter().map(|model| model.id.name != *name);
    let is_kept: Vec<bool> = is_kept.collect();
    renumber(&mut problem.current, &is_kept, |replica| {
        &mut replica.model.0
    });
    retain(&mut problem.models, &is_kept);
}

/// Takes a model out of its family.
fn remove_variant(input: &mut PlanningInput, name: &ModelName) {
    for family in &mut input.families {
        family.variants.retain(|variant| {
            let mut shares = variant.shares.iter();
            !shares.any(|(id, _)| id.name == *name)
        });
    }
    input.families.retain(|family| !family.variants.is_empty());
}

/// Changes the SLO of a model, and its rate if there is another one. Returns true if that is the rate of a family, which the variants share.
fn change_model(
    input: &mut PlanningInput,
    spec: &ModelSpec,
    rate: Option<RequestsPerSecond>,
) -> bool {
    let id = &spec.program.model;
    let before = input.rates.get(id).copied();
    let mut families = input.families.iter_mut();
    let family = families.find(|family| {
        let mut shares = family.variants.iter().flat_map(|variant| &variant.shares);
        shares.any(|(of, _)| of == id)
    });
    let is_variant = family.is_some();
    let changes_family = is_variant && rate.is_some();
    if let (Some(family), Some(rate)) = (family, rate) {
        // The rate of a variant is a part of its family's, which becomes this one.
        family.rate = rate;
    }
    let rate = rate.filter(|_| !is_variant);
    if let Some(rate) = rate {
        input.rates.insert(id.clone(), rate);
    }
    let mut models = input.problem.models.iter_mut();
    if let Some(model) = models.find(|model| model.id == *id) {
        model.slo = spec.slo;
        if let Some(rate) = rate {
            // The part of the rate that pinned replicas serve stays theirs.
            let pinned = before.map_or(0.0, |before| before.get() - model.rate.get());
            let remaining = (rate.get() - pinned).max(0.0);
            model.rate = RequestsPerSecond::new(remaining).unwrap_or(rate);
        }
    }
    changes_family
}

/// Changes the priority of all versions of a model.
fn change_priority(input: &mut PlanningInput, name: &ModelName, priority: Priority) {
    let models = input.problem.models.iter_mut();
    for model in models.filter(|model| model.id.name == *name) {
        model.priority = priority;
    }
}

/// Adds a model with the profiles of another.
fn add_model(
    input: &mut PlanningInput,
    spec: &ModelSpec,
    rate: RequestsPerSecond,
    like: &ModelId,
) -> Result<(), PreviewError> {
    let id = &spec.program.model;
    if input.rates.contains_key(id) {
        return Err(PreviewError::ModelExists(id.clone()));
    }
    let problem = &mut input.problem;
    let profiles = problem.profiles.of_model(like);
    let profiles: Vec<_> = profiles
        .map(|(kind, profile)| (kind.clone(), Arc::clone(profile)))
        .collect();
    let other = problem.models.iter().find(|model| model.id == *like);
    let Some(other) = other.filter(|_| !profiles.is_empty()) else {
        return Err(PreviewError::NoProfile(like.clone()));
    };
    problem.models.push(DemandedModel {
        id: id.clone(),
        rate,
        need: Some(RequestsPerSecond::ZERO),
        slo: spec.slo,
        priority: spec.priority,
        ..other.clone()
    });
    for (kind, profile) in profiles {
        problem.profiles.insert(id.clone(), kind, profile);
    }
    input.rates.insert(id.clone(), rate);
    Ok(())
}

/// Adds a device.
fn add_device(
    input: &mut PlanningInput,
    number: u32,
    kind: &DeviceKind,
    memory: ByteCount,
    multiprocessors: Option<u32>,
) {
    let node: NodeName = PREVIEW_NODE.parse().expect("a valid name");
    let id = DeviceId::new(node.clone(), &format!("new{number}")).expect("a valid name");
    input.kinds.insert(id.clone(), kind.clone());
    input.devices.push(id);
    input.problem.devices.push(Device {
        kind: kind.clone(),
        memory,
        multiprocessors,
        node,
        cost_per_hour: None,
        pool: None,
    });
}

/// Removes devices of a kind, those with the fewest replicas first, with their replicas.
fn remove_devices(
    input: &mut PlanningInput,
    kind: &DeviceKind,
    count: u32,
) -> Result<(), PreviewError> {
    let problem = &mut input.problem;
    let of_kind = problem.devices().filter(|(_, device)| device.kind == *kind);
    let mut of_kind: Vec<DeviceIndex> = of_kind.map(|(index, _)| index).collect();
    if of_kind.len() < count as usize {
        return Err(PreviewError::TooFewDevices {
            kind: kind.clone(),
            removed: count,
            present: of_kind.len(),
        });
    }
    let mut replicas = vec![0_u32; problem.devices.len()];
    for replica in &problem.current {
        replicas[replica.device.0] += 1;
    }
    of_kind.sort_by_key(|device| (replicas[device.0], Reverse(device.0)));
    let mut is_kept = vec![true; problem.devices.len()];
    for device in &of_kind[..count as usize] {
        is_kept[device.0] = false;
    }
    renumber(&mut problem.current, &is_kept, |replica| {
        &mut replica.device.0
    });
    retain(&mut problem.devices, &is_kept);
    retain(&mut input.devices, &is_kept);
    Ok(())
}

/// Removes the replicas of removed models or devices, and gives the others the indices that theirs have afterwards.
fn renumber(
    replicas: &mut Vec<PlannedReplica>,
    is_kept: &[bool],
    index: impl Fn(&mut PlannedReplica) -> &mut usize,
) {
    let mut kept = 0;
    let numbers = is_kept.iter().map(|is_kept| {
        kept += usize::from(*is_kept);
        is_kept.then(|| kept - 1)
    });
    let numbers: Vec<Option<usize>> = numbers.collect();
    replicas.retain_mut(|replica| {
        let index = index(replica);
        let number = numbers[*index];
        *index = number.unwrap_or(*index);
        number.is_some()
    });
}

/// Removes the elements that are not kept.
fn retain<T>(list: &mut Vec<T>, is_kept: &[bool]) {
    let mut is_kept = is_kept.iter();
    list.retain(|_| is_kept.next().is_none_or(|is_kept| *is_kept));
}

/// Returns a bound on the goodput of any plan, pinned replicas included, in requests/s.
fn bound(input: &PlanningInput) -> f64 {
    let problem = &input.problem;
    let demands: Vec<Demand> = problem
        .models
        .iter()
        .map(|model| Demand {
            rate: model.rate.get(),
            latency_scale: model.latency_scale,
        })
        .collect();
    // The part of the rates that pinned replicas serve is not in the problem.
    let models = problem.models.iter();
    let pinned =
        models.filter_map(|model| Some(input.rates.get(&model.id)?.get() - model.rate.get()));
    let pinned: f64 = pinned.map(|rate| rate.max(0.0)).sum();
    goodput_bound(problem, &demands, problem.devices.len() as f64) + pinned
}

impl PreviewInput {
    /// Makes the changes in the input.
    fn apply(&mut self) -> Result<(), PreviewError> {
        let input = &mut self.input;
        let mut families_change = false;
        for model in &self.models {
            let PreviewedModel { spec, rate, .. } = model;
            match &model.like {
                Some(like) => add_model(input, spec, rate.unwrap_or(spec.prior_rate()), like)?,
                None => families_change |= change_model(input, spec, *rate),
            }
            if let Some(priority) = model.priority {
                change_priority(input, &spec.program.model.name, priority);
            }
        }
        if families_change {
            *input = input.at(VariantMix::ACCURATE);
        }
        for name in &self.removed {
            remove_model(input, name);
            input.rates.retain(|id, _| id.name != *name);
            remove_variant(input, name);
            input.pinned.retain(|spec| spec.model.name != *name);
            input.retained.retain(|spec| spec.model.name != *name);
        }
        let mut added: u32 = 0;
        for PreviewedDevices { kind, count, sheet } in &self.devices {
            let Some((memory, multiprocessors)) = *sheet else {
                remove_devices(input, kind, count.unsigned_abs())?;
                continue;
            };
            for _ in 0..*count {
                if added >= MAX_DEVICES {
                    return Err(PreviewError::TooManyDevices);
                }
                add_device(input, added, kind, memory, multiprocessors);
                added += 1;
            }
        }
        Ok(())
    }

    /// Plans on a thread of its own.
    pub(super) async fn run(
        self,
        permit: OwnedSemaphorePermit,
        budget: Duration,
    ) -> Result<PlanPreview, PreviewError> {
        let policy = self.input.policy.clone();
        let planned = run_with_permit(permit, move || self.plan(budget)).await;
        planned.unwrap_or_else(|error| {
            let panicked = SolveError::Panicked { policy, error };
            Err(PlanningError::from(panicked).into())
        })
    }

    fn plan(mut self, budget: Duration) -> Result<PlanPreview, PreviewError> {
        self.apply()?;
        let Self {
            input,
            explain,
            current,
            ..
        } = self;
        let Preview {
            input,
            solution,
            draft,
        } = preview(&input, budget)?;
        let reason = match &draft.fallback {
            Some(fallback) => fallback.clone(),
            None => input.reasons.to_string(),
        };
        let mut plan = draft_view(&draft, reason);
        if explain {
            let explanations = explanations(&input, &solution.plan, budget);
            for (model, explanation) in input.problem.models.iter().zip(explanations) {
                let forecast = plan.models.iter_mut().find(|view| view.id() == model.id);
                if let Some(forecast) = forecast {
                    forecast.explanation = Some(explanation);
                }
            }
        }
        let none = Vec::new();
        let before = current.as_ref().map_or(&none, |plan| &plan.replicas);
        Ok(PlanPreview {
            diff: diff(before, &plan.replicas),
            bound_rps: bound(&input),
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

#[cfg(test)]
mod tests {
    use packhorse_cluster::ModelIndex;

    use super::*;

    #[test]
    fn replicas_of_what_is_removed_go_and_the_others_follow_their_indices() {
        let replica = |device: usize| PlannedReplica {
            model: ModelIndex(7),
            device: DeviceIndex(device),
            batch_size: 1,
            compute_share: None,
            duty_cycle: None,
            memory: None,
            backbone: None,
            pool: None,
        };
        let is_kept = [true, false, true, false, true];
        let mut replicas = [4, 0, 1, 2, 3, 2].map(replica).to_vec();
        renumber(&mut replicas, &is_kept, |replica| &mut replica.device.0);
        assert_eq!(replicas, [2, 0, 1, 1].map(replica));
        let mut names = vec!["a", "b", "c", "d", "e"];
        retain(&mut names, &is_kept);
        assert_eq!(names, ["a", "c", "e"]);
    }
}
