//! The measurements of models: their assignment to devices, and their results.
//!
//! Every model is measured once on every kind of device that accepts replicas. A device measures one model at a time, because
//! simultaneous measurements would slow each other.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_api::ProfilingView;
use packhorse_cluster::{
    DeviceId, DeviceKind, ModelId, NodeName, ProfileError, ProfileProgress, ProfileTable,
    WantedProfile,
};
use packhorse_kernels::KernelTable;

use super::{cluster::Cluster, nodes::Node, plan_reason::PlanReason};

/// The model and the kind of device of a measurement.
type MeasurementKey = (ModelId, DeviceKind);

/// The measurements that are assigned to a device, and those that cannot be made.
#[derive(Default)]
pub(super) struct Measurements {
    assigned: BTreeMap<MeasurementKey, Assignment>,
    unmeasurable: BTreeSet<MeasurementKey>,
}

/// The assignment of a measurement to a device.
struct Assignment {
    /// The device that measures.
    device: DeviceId,
    /// The first revision of the node's wanted state that contains the measurement; none before it is published. Results for older
    /// revisions are of an earlier model of the same name.
    since: Option<u64>,
}

/// The reason why there is no result of a measurement.
#[derive(Debug, thiserror::Error)]
enum MeasurementError {
    /// The node reported that the measurement failed; with the node's text.
    #[error("{0}")]
    Reported(String),
    /// The profile cannot be parsed.
    #[error("the measurement cannot be read: {0}")]
    Unreadable(#[source] ProfileError),
    /// The profile is of another model or kind of device.
    #[error("the measurement is of another model or device")]
    OtherSubject,
}

impl Measurements {
    /// Removes the measurements of a model that was removed.
    pub(super) fn remove_model(&mut self, removed: &ModelId) {
        self.assigned.retain(|(model, _), _| model != removed);
        self.unmeasurable.retain(|(model, _)| model != removed);
    }

    /// Removes a measurement, because there is a profile now.
    pub(super) fn remove(&mut self, model: &ModelId, kind: &DeviceKind) {
        let key = (model.clone(), kind.clone());
        self.assigned.remove(&key);
        self.unmeasurable.remove(&key);
    }

    /// Notes that a revision of a node's wanted state with its assigned measurements was published.
    pub(super) fn published(&mut self, node: &NodeName, revision: u64) {
        for assignment in self.assigned.values_mut() {
            if assignment.device.node() == node {
                assignment.since.get_or_insert(revision);
            }
        }
    }
}

impl Cluster {
    /// Assigns every missing measurement to a device, as far as there are devices without one.
    pub(super) fn assign_measurements(&mut self) {
        let missing = self.missing_profiles();
        let nodes = &self.nodes;
        self.measurements.assigned.retain(|key, assignment| {
            let available = nodes
                .get(assignment.device.node())
                .filter(|node| node.takes_replicas())
                .and_then(|node| node.device(assignment.device.local()))
                .is_some_and(|device| device.kind == key.1);
            available && missing.contains(key)
        });
        for key in missing {
            if self.measurements.assigned.contains_key(&key) {
                continue;
            }
            if let Some(device) = self.idlest_device(&key.1) {
                let since = None;
                self.measurements
                    .assigned
                    .insert(key, Assignment { device, since });
            }
        }
    }

    /// Returns the measurements that are neither made nor impossible.
    fn missing_profiles(&self) -> BTreeSet<MeasurementKey> {
        let kinds: BTreeSet<&DeviceKind> = self
            .nodes
            .values()
            .filter(|node| node.takes_replicas())
            .flat_map(|node| &node.stored.devices)
            .map(|device| &device.kind)
            .collect();
        let servable = self
            .models
            .iter()
            .filter(|(_, model)| model.failure.is_none());
        servable
            .flat_map(|(id, _)| kinds.iter().map(|kind| (id.clone(), (*kind).clone())))
            .filter(|key| {
                self.profiles.get(&key.0, &key.1).is_none()
                    && !self.measurements.unmeasurable.contains(key)
            })
            .collect()
    }

    /// Returns the device of a kind without a measurement that has the fewest replicas.
    fn idlest_device(&self, kind: &DeviceKind) -> Option<DeviceId> {
        let busy = |device: &DeviceId| {
            let assigned = self.measurements.assigned.values();
            assigned.map(|a| &a.device).any(|other| other == device)
        };
        let replicas = |device: &DeviceId| {
            let planned = self.plan.replicas.iter();
            planned.filter(|replica| replica.device == *device).count()
        };
        self.nodes
            .values()
            .filter(|node| node.takes_replicas())
            .flat_map(Node::devices)
            .filter(|(id, device)| device.kind == *kind && !busy(id))
            .map(|(id, _)| id)
            .min_by_key(|id| (replicas(id), id.clone()))
    }

    /// Returns the measurements that each node shall make.
    pub(super) fn wanted_profiles(&self) -> BTreeMap<NodeName, Vec<WantedProfile>> {
        let mut wanted: BTreeMap<NodeName, Vec<WantedProfile>> = BTreeMap::new();
        for ((model, kind), assignment) in &self.measurements.assigned {
            let Some(model) = self.models.get(model) else {
                continue;
            };
            wanted
                .entry(assignment.device.node().clone())
                .or_default()
                .push(WantedProfile {
                    program: model.spec.program.clone(),
                    device: assignment.device.local().to_owned(),
                    device_kind: kind.clone(),
                    time_limit_ms: u64::try_from(self.config.profile_time_limit.as_millis())
                        .unwrap_or(u64::MAX),
                });
        }
        wanted
    }

    /// Takes the results of the measurements that a node has finished. `applied` is the epoch and revision that the node reports
    /// on.
    pub(super) async fn collect_measurements(&mut self, name: &NodeName, applied: (u64, u64)) {
        let Some(report) = self.nodes.get(name).and_then(|node| node.report.as_ref()) else {
            return;
        };
        let (epoch, revision) = applied;
        let key =
            |progress: &ProfileProgress| (progress.model.clone(), progress.device_kind.clone());
        let is_assigned = |progress: &&ProfileProgress| {
            let assignment = self.measurements.assigned.get(&key(progress));
            epoch == self.fence.epoch()
                && assignment.is_some_and(|assignment| {
                    assignment.device.node() == name
                        && assignment.since.is_some_and(|since| since <= revision)
                })
        };
        let finished: Vec<(MeasurementKey, Result<Measurement, MeasurementError>)> = report
            .profiles
            .iter()
            .filter(is_assigned)
            .filter_map(|progress| Some((key(progress), result(progress)?)))
            .collect();
        for (key, result) in finished {
            match result {
                Ok(measurement) => self.store_measurement(&key, measurement).await,
                Err(error) => self.measurement_failed(key, &error).await,
            }
        }
    }

    async fn store_measurement(&mut self, key: &MeasurementKey, measurement: Measurement) {
        let Measurement { profile, kernels } = measurement;
        let (model, kind) = key;
        if let Err(e) = self.store.upsert_profiles(&profile, &kernels).await {
            // The node reports the result again as long as it is wanted.
            tracing::error!(error = %e, model.name = %model, "cannot store a profile");
            return;
        }
        tracing::info!(model.name = %model.name, model.version = model.version.get(), device.kind = %kind,
            "a model was measured");
        for (model, kind, profile) in profile.iter() {
            self.profiles
                .insert(model.clone(), kind.clone(), profile.clone());
        }
        self.measurements.remove(model, kind);
        self.memory_limits.remove(model, kind);
        // A model that was removed and registered again keeps its replicas, and with them the plan, but not the profile.
        self.published.outdated = true;
        self.request_plan(PlanReason::ModelMeasured(model.clone(), kind.clone()));
    }

    async fn measurement_failed(&mut self, key: MeasurementKey, error: &MeasurementError) {
        tracing::warn!(model.name = %key.0.name, model.version = key.0.version.get(), device.kind = %key.1, reason = %error,
            "a model could not be measured");
        let model = key.0.clone();
        self.measurements.assigned.remove(&key);
        self.measurements.unmeasurable.insert(key);
        let measured = self.profiles.iter().any(|(id, ..)| *id == model);
        let measurable = self.missing_profiles().iter().any(|(id, _)| *id == model);
        if !measured && !measurable {
            self.fail_model(&model, &error.to_string()).await;
        }
    }

    /// Returns the progress of a model's assigned measurements.
    pub(super) fn profiling_views(&self, model: &ModelId) -> Vec<ProfilingView> {
        let of_model = self
            .measurements
            .assigned
            .iter()
            .filter(|((id, _), _)| id == model);
        of_model
            .map(|((_, kind), assignment)| {
                let report = self
                    .nodes
                    .get(assignment.device.node())
                    .and_then(|node| node.report.as_ref());
                let progress = report.and_then(|report| {
                    let mut all = report.profiles.iter();
                    all.find(|p| p.model == *model && p.device_kind == *kind)
                });
                ProfilingView {
                    device_kind: kind.clone(),
                    done: progress.map_or(0, |p| p.done),
                    total: progress.map_or(0, |p| p.total),
                }
            })
            .collect()
    }

    /// Returns true if a measurement of the model waits for a device.
    pub(super) fn waits_for_measurement(&self, model: &ModelId) -> bool {
        let mut missing = self.missing_profiles().into_iter();
        missing.any(|key| key.0 == *model && !self.measurements.assigned.contains_key(&key))
    }
}

/// The result of a measurement.
struct Measurement {
    profile: ProfileTable,
    kernels: KernelTable,
}

/// Returns the result of a measurement; `None` while it has not ended.
fn result(progress: &ProfileProgress) -> Option<Result<Measurement, MeasurementError>> {
    if let Some(reason) = &progress.error {
        return Some(Err(MeasurementError::Reported(reason.clone())));
    }
    let profile = match ProfileTable::from_csv(progress.csv.as_ref()?) {
        Ok(profile) => profile,
        Err(e) => return Some(Err(MeasurementError::Unreadable(e))),
    };
    let keys: Vec<_> = profile
        .iter()
        .map(|(model, kind, _)| (model, kind))
        .collect();
    if keys != [(&progress.model, &progress.device_kind)] {
        return Some(Err(MeasurementError::OtherSubject));
    }
    Some(Ok(Measurement {
        kernels: recorded_kernels(progress),
        profile,
    }))
}

/// Returns the kernels that were recorded with a measurement; none if they cannot be read, because the profile is valid without
/// them.
fn recorded_kernels(progress: &ProfileProgress) -> KernelTable {
    let table = KernelTable::from_csv(progress.kernels.as_deref().unwrap_or_default());
    table.unwrap_or_else(|e| {
        tracing::warn!(error = %e, model.name = %progress.model, "the recorded kernels cannot be read");
        KernelTable::default()
    })
}
