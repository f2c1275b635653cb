//! The state of the cluster in the form of the admin API.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_api::{
    DeviceView, DisciplineInfo, ForecastView, MeasuredRateView, ModelView, NodeView, PlacementView,
    PlanView, PolicyInfo, PolicyView, PredictedGoodputView, ProfilingView, ReplicaView,
};
use packhorse_cluster::{
    BackboneId, DeviceId, DeviceKind, Discipline, ModelId, ModelName, ModelState, ModelVersion,
    NodeName, ProfileSource, Program, Replica, ReplicaId, ReplicaSpec, WorkerKind,
};
use packhorse_control::{
    CommandError, DraftPlan, LinkState, Model, ModelStatus, Node,
    record::{Forecast, PlanRecord},
};
use packhorse_placement::POLICIES;

use super::task::Task;

impl Task {
    /// Returns all models, without the names of their classes.
    pub(super) fn model_views(&self) -> Vec<ModelView> {
        let models = self.controller().models();
        models
            .map(|(id, model)| self.view_of_model(id, model).without_labels())
            .collect()
    }

    /// Returns a model for an event, without the names of its classes.
    pub(super) fn told_model_view(&self, id: &ModelId) -> Result<ModelView, CommandError> {
        Ok(self.model_view(id)?.without_labels())
    }

    /// Returns a model.
    pub(super) fn model_view(&self, id: &ModelId) -> Result<ModelView, CommandError> {
        let unknown = || CommandError::UnknownVersion(id.name.clone(), id.version);
        let model = self.controller().model(id).ok_or_else(unknown)?;
        Ok(self.view_of_model(id, model))
    }

    /// Returns a version of a model, the newest if none is given.
    pub(super) fn find_model_view(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelView, CommandError> {
        self.model_view(&self.controller().find_model(name, version)?)
    }

    fn view_of_model(&self, id: &ModelId, model: &Model) -> ModelView {
        let controller = self.controller();
        let status = controller.model_status(id);
        let ModelStatus {
            state,
            reason,
            measurements,
        } = status.unwrap_or(ModelStatus {
            state: ModelState::Registered,
            reason: None,
            measurements: Vec::new(),
        });
        let profiling = measurements.into_iter().map(|progress| ProfilingView {
            device_kind: progress.device_kind,
            done: progress.done,
            total: progress.total,
        });
        let kinds = |source: ProfileSource| {
            let profiles = controller.profiles().of_model(id);
            let of_source = profiles.filter(move |(_, profile)| profile.source() == source);
            of_source.map(|(kind, _)| kind.clone()).collect()
        };
        let replicas = controller.replicas_of(id);
        let replicas = replicas.filter(|replica| replica.spec.model == model.program);
        let spec = &model.spec;
        let split = controller.split(&id.name);
        ModelView {
            name: id.name.clone(),
            version: id.version,
            state,
            reason,
            artifact: spec.program.artifact,
            artifact_bytes: model.artifact_bytes,
            max_batch_size: spec.program.max_batch_size,
            slo_ms: spec.slo.as_nanos() as f64 / 1e6,
            rate_rps: spec.rate,
            rate: spec.rate_mode,
            priority: spec.priority,
            min_replicas: spec.min_replicas,
            measured: self.measured_rate_view(id),
            predicted: self.predicted_view(id),
            queue_limit: spec.queue_limit,
            max_cold_wait_ms: { spec.max_cold_wait }
                .map(|wait| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)),
            cache: spec.cache,
            family: spec.family().cloned(),
            accuracy: spec.variant.as_ref().map(|variant| variant.accuracy),
            share_pct: controller.share(id),
            split: split.split,
            rollback_split: controller.rollback_split(&id.name),
            sticky: split.sticky,
            inputs: spec.program.inputs.clone(),
            outputs: spec.program.outputs.clone(),
            preprocess: spec.processing.preprocess.clone(),
            postprocess: spec.processing.postprocess.clone(),
            profiled_on: kinds(ProfileSource::Measured),
            estimated_on: kinds(ProfileSource::Estimated),
            measuring_failed_on: controller.measuring_failed_on(id).cloned().collect(),
            profiling: profiling.collect(),
            replicas: replicas
                .filter_map(|replica| self.replica_view(replica))
                .collect(),
        }
    }

    fn measured_rate_view(&self, id: &ModelId) -> Option<MeasuredRateView> {
        let measured = self.controller().measured_rate(id)?;
        Some(MeasuredRateView {
            rate_rps: measured.rate.get(),
            low_rps: measured.low.get(),
            high_rps: measured.high.get(),
            planned_rps: self.controller().planned_rate(id)?.get(),
            rows_per_request: self.controller().rows_per_request(id),
        })
    }

    fn predicted_view(&self, id: &ModelId) -> Option<PredictedGoodputView> {
        let goodput = self.controller().predicted_goodput(id)?;
        Some(PredictedGoodputView {
            offered_rps: goodput.offered_rps,
            predicted_rps: goodput.predicted_rps,
            observed_rps: goodput.observed_rps,
            bias: goodput.bias,
        })
    }

    /// Returns a replica in the form of the API; `None` if its device is unknown.
    pub(super) fn replica_view(&self, replica: &Replica<Arc<Program>>) -> Option<ReplicaView> {
        let controller = self.controller();
        let status = controller.replica_status(replica);
        Some(ReplicaView {
            id: replica.id,
            device: replica.spec.device.clone(),
            device_kind: controller.device_kind(&replica.spec.device)?.clone(),
            batch_size: replica.spec.batch_size,
            compute_share_pct: replica.spec.compute_share,
            state: status.map(|status| status.state),
            serving: controller.link(replica.id) == Some(&LinkState::Serving),
            restarts: status.map_or(0, |status| status.restarts),
            pid: status.and_then(|status| status.pid),
            worker: status.map_or(WorkerKind::Own, |status| status.worker),
            reason: status.and_then(|status| status.reason.clone()),
            memory_bytes: status.and_then(|status| status.memory_bytes),
            capacity: status.and_then(|status| status.capacity),
            verification: status.and_then(|status| status.verification.clone()),
            weights: self.data_plane().telemetry().weights().view(replica.id),
        })
    }

    /// Returns all nodes.
    pub(super) fn node_views(&self) -> Vec<NodeView> {
        let nodes = self.controller().nodes();
        nodes
            .map(|(name, node)| self.view_of_node(name, node))
            .collect()
    }

    /// Returns a node.
    pub(super) fn node_view(&self, name: &NodeName) -> Result<NodeView, CommandError> {
        let node = self.controller().node(name);
        let node = node.ok_or_else(|| CommandError::UnknownNode(name.clone()))?;
        Ok(self.view_of_node(name, node))
    }

    fn view_of_node(&self, name: &NodeName, node: &Node) -> NodeView {
        let controller = self.controller();
        let gpus = self.data_plane().telemetry().gpus(name);
        let now = controller.now();
        NodeView {
            name: name.clone(),
            state: node.state(),
            agent_version: node.record.agent_version.clone(),
            last_seen_ms: node.last_heard.map(|heard| {
                u64::try_from(now.saturating_since(heard).as_millis()).unwrap_or(u64::MAX)
            }),
            devices: node
                .devices()
                .map(|(id, device)| DeviceView {
                    kind: device.kind.clone(),
                    description: device.description.clone(),
                    memory_bytes: device.memory_bytes,
                    multiprocessors: device.multiprocessors,
                    gpu: gpus.iter().find(|gpu| gpu.device == device.name).cloned(),
                    replicas: controller
                        .replicas_on(&id)
                        .map(|replica| replica.id)
                        .collect(),
                    id,
                })
                .collect(),
        }
    }

    /// Returns the current plan with its newest forecasts.
    pub(super) fn plan_view(&self) -> Option<PlanView> {
        let record = self.controller().plan()?;
        let mut view = plan_view(record);
        view.bias = self.controller().total_bias();
        let counts = replica_counts(record.replicas.iter().map(|replica| &replica.spec));
        let forecasts = self.controller().forecasts().values();
        view.models = forecasts
            .map(|forecast| forecast_view(forecast, &counts))
            .collect();
        Some(with_totals(view))
    }

    /// Returns the policy, its options, the discipline and the available policies.
    pub(super) fn policy_view(&self) -> PolicyView {
        PolicyView {
            policy: self.controller().policy().to_owned(),
            options: self.controller().options(),
            discipline: self.controller().discipline(),
            policies: POLICIES
                .iter()
                .map(|entry| PolicyInfo {
                    name: entry.name.to_owned(),
                    summary: entry.summary.to_owned(),
                    source: entry.source.to_owned(),
                })
                .collect(),
            disciplines: Discipline::ALL
                .map(|name| DisciplineInfo {
                    name,
                    live: name.is_live(),
                })
                .to_vec(),
        }
    }
}

/// Returns a stored plan in the form of the API.
pub(crate) fn plan_view(plan: &PlanRecord) -> PlanView {
    let counts = replica_counts(plan.replicas.iter().map(|replica| &replica.spec));
    let forecasts = plan.forecasts.iter();
    let workers = SharedWorkers::of(plan.replicas.iter().map(|replica| &replica.spec));
    let placement = |replica: &Replica| {
        let id = Some(replica.id);
        placement_view(id, &replica.spec, &plan.device_kinds, &workers)
    };
    with_totals(PlanView {
        generation: Some(plan.generation),
        policy: plan.policy.clone(),
        created_unix_ms: Some(plan.created_ms),
        reason: plan.reason.clone(),
        solve_ms: plan.solve_ms,
        predicted_goodput_rps: 0.0,
        bias: None,
        replicas: plan.replicas.iter().filter_map(placement).collect(),
        models: forecasts
            .map(|forecast| forecast_view(forecast, &counts))
            .collect(),
        unserved: Vec::new(),
        devices_used: 0,
    })
}

/// Returns a draft in the form of the API.
pub(super) fn draft_view(draft: &DraftPlan, reason: String) -> PlanView {
    let counts = replica_counts(draft.replicas.iter());
    let forecasts = draft.forecasts.iter();
    let workers = SharedWorkers::of(&draft.replicas);
    let placement = |spec: &ReplicaSpec| placement_view(None, spec, &draft.device_kinds, &workers);
    with_totals(PlanView {
        generation: None,
        policy: draft.policy.to_owned(),
        created_unix_ms: None,
        reason,
        solve_ms: draft.solve_ms,
        predicted_goodput_rps: 0.0,
        bias: None,
        replicas: draft.replicas.iter().filter_map(placement).collect(),
        models: forecasts
            .map(|forecast| forecast_view(forecast, &counts))
            .collect(),
        unserved: Vec::new(),
        devices_used: 0,
    })
}

/// Fills in the fields that follow from replicas and forecasts.
fn with_totals(mut view: PlanView) -> PlanView {
    let goodput = view.models.iter().map(|m| m.predicted_goodput_rps);
    // The sum of no numbers is -0.0; adding it to 0.0 gives 0.0.
    view.predicted_goodput_rps = 0.0 + goodput.sum::<f64>();
    view.unserved = view
        .models
        .iter()
        .filter(|model| model.replicas == 0)
        .map(|model| model.name.to_string())
        .collect();
    view.unserved.dedup();
    let mut devices: Vec<_> = view.replicas.iter().map(|r| &r.device).collect();
    devices.sort();
    devices.dedup();
    view.devices_used = devices.len();
    view
}

/// The models of each worker that several replicas share.
struct SharedWorkers<'a>(BTreeMap<(&'a DeviceId, BackboneId), Vec<&'a ModelId>>);

impl<'a> SharedWorkers<'a> {
    fn of(replicas: impl IntoIterator<Item = &'a ReplicaSpec>) -> Self {
        let mut workers: BTreeMap<_, Vec<&ModelId>> = BTreeMap::new();
        for spec in replicas {
            if let Some(backbone) = spec.backbone {
                let models = workers.entry((&spec.device, backbone)).or_default();
                models.push(&spec.model);
            }
        }
        Self(workers)
    }

    /// Returns the other models that a replica's worker serves.
    fn beside(&self, spec: &ReplicaSpec) -> Vec<ModelId> {
        let models = spec
            .backbone
            .and_then(|backbone| self.0.get(&(&spec.device, backbone)));
        let others = models
            .into_iter()
            .flatten()
            .filter(|model| **model != &spec.model);
        others.copied().cloned().collect()
    }
}

/// Returns the number of replicas of each model.
fn replica_counts<'a>(
    replicas: impl Iterator<Item = &'a ReplicaSpec>,
) -> BTreeMap<&'a ModelId, usize> {
    let mut counts = BTreeMap::new();
    for replica in replicas {
        *counts.entry(&replica.model).or_default() += 1;
    }
    counts
}

/// Returns the forecast of a model with its number of replicas.
fn forecast_view(forecast: &Forecast, replicas: &BTreeMap<&ModelId, usize>) -> ForecastView {
    ForecastView {
        name: forecast.model.name.clone(),
        version: forecast.model.version,
        rate_rps: forecast.rate.get(),
        predicted_goodput_rps: forecast.goodput.get(),
        replicas: replicas.get(&forecast.model).copied().unwrap_or_default(),
        shortfall: forecast.shortfall.clone(),
        explanation: None,
    }
}

/// Returns a planned replica in the form of the API; `None` if the kind of its device is unknown.
fn placement_view(
    id: Option<ReplicaId>,
    spec: &ReplicaSpec,
    kinds: &BTreeMap<DeviceId, DeviceKind>,
    workers: &SharedWorkers<'_>,
) -> Option<PlacementView> {
    Some(PlacementView {
        id,
        model: spec.model.name.clone(),
        version: spec.model.version,
        device: spec.device.clone(),
        device_kind: kinds.get(&spec.device)?.clone(),
        batch_size: spec.batch_size,
        compute_share_pct: spec.compute_share,
        duty_cycle_ms: spec.duty_cycle.map(|cycle| cycle.as_secs_f64() * 1e3),
        also: workers.beside(spec),
    })
}
