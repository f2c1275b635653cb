//! Which measurements are made where, and what becomes of their results.
//!
//! Every model is measured once on every kind of device that takes replicas. A device measures one model at a time, for two at
//! once would measure each other.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_api::ProfilingView;
use packhorse_cluster::{
    DeviceId, DeviceKind, ModelId, NodeName, ProfileProgress, ProfileTable, WantedProfile,
};
use packhorse_kernels::KernelTable;

use super::{cluster::Cluster, nodes::Node};

/// A model and the kind of device it is measured on.
type Subject = (ModelId, DeviceKind);

/// The measurements under way, and those that cannot be made.
#[derive(Default)]
pub(super) struct Measuring {
    assigned: BTreeMap<Subject, Assigned>,
    impossible: BTreeMap<Subject, String>,
}

struct Assigned {
    device: DeviceId,
    /// The first revision of the node's wanted state that asks for it. A result that is older is of something else: of a model
    /// that had the same name before.
    since: Option<u64>,
}

impl Measuring {
    /// The model is gone.
    pub(super) fn forget(&mut self, model: &ModelId) {
        self.assigned.retain(|(of, _), _| of != model);
        self.impossible.retain(|(of, _), _| of != model);
    }

    /// There is a profile now.
    pub(super) fn known(&mut self, model: &ModelId, kind: &DeviceKind) {
        let subject = (model.clone(), kind.clone());
        self.assigned.remove(&subject);
        self.impossible.remove(&subject);
    }

    /// A revision of a node's wanted state that holds its assignments was published.
    pub(super) fn published(&mut self, node: &NodeName, revision: u64) {
        for assigned in self.assigned.values_mut() {
            if assigned.device.node() == node {
                assigned.since.get_or_insert(revision);
            }
        }
    }
}

impl Cluster {
    /// Gives every missing profile a device to be measured on, as far as there are devices that measure nothing yet.
    pub(super) fn assign_measurements(&mut self) {
        let missing = self.missing_profiles();
        let nodes = &self.nodes;
        self.measuring.assigned.retain(|subject, assigned| {
            let there = nodes
                .get(assigned.device.node())
                .filter(|node| node.takes_replicas())
                .and_then(|node| node.device(assigned.device.local()))
                .is_some_and(|device| device.kind == subject.1);
            there && missing.contains(subject)
        });
        for subject in missing {
            if self.measuring.assigned.contains_key(&subject) {
                continue;
            }
            if let Some(device) = self.idlest_device(&subject.1) {
                let since = None;
                self.measuring
                    .assigned
                    .insert(subject, Assigned { device, since });
            }
        }
    }

    fn missing_profiles(&self) -> BTreeSet<Subject> {
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
            .filter(|subject| {
                self.profiles.get(&subject.0, &subject.1).is_none()
                    && !self.measuring.impossible.contains_key(subject)
            })
            .collect()
    }

    /// A device of a kind that measures nothing; of several, the one with the fewest replicas.
    fn idlest_device(&self, kind: &DeviceKind) -> Option<DeviceId> {
        let busy = |device: &DeviceId| {
            let assigned = self.measuring.assigned.values();
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

    /// What every node shall measure.
    pub(super) fn wanted_profiles(&self) -> BTreeMap<NodeName, Vec<WantedProfile>> {
        let mut wanted: BTreeMap<NodeName, Vec<WantedProfile>> = BTreeMap::new();
        for ((model, kind), assigned) in &self.measuring.assigned {
            let Some(model) = self.models.get(model) else {
                continue;
            };
            wanted
                .entry(assigned.device.node().clone())
                .or_default()
                .push(WantedProfile {
                    program: model.spec.program.clone(),
                    device: assigned.device.local().to_owned(),
                    device_kind: kind.clone(),
                    time_limit_ms: u64::try_from(self.config.profile_time_limit.as_millis())
                        .unwrap_or(u64::MAX),
                });
        }
        wanted
    }

    /// Takes the measurements that a node has finished. `applied` is the wanted state that it reports on.
    pub(super) async fn collect_measurements(&mut self, name: &NodeName, applied: (u64, u64)) {
        let Some(report) = self.nodes.get(name).and_then(|node| node.report.as_ref()) else {
            return;
        };
        let (epoch, revision) = applied;
        let asked = |progress: &&ProfileProgress| {
            let subject = (progress.model.clone(), progress.device_kind.clone());
            let assigned = self.measuring.assigned.get(&subject);
            epoch == self.epoch
                && assigned.is_some_and(|assigned| {
                    assigned.device.node() == name
                        && assigned.since.is_some_and(|since| since <= revision)
                })
        };
        let finished: Vec<(Subject, Result<Measurement, String>)> = report
            .profiles
            .iter()
            .filter(asked)
            .filter_map(|progress| {
                let subject = (progress.model.clone(), progress.device_kind.clone());
                Some((subject, result_of(progress)?))
            })
            .collect();
        for (subject, result) in finished {
            match result {
                Ok(profile) => self.take_profile(&subject, profile).await,
                Err(reason) => self.take_failure(subject, reason).await,
            }
        }
    }

    async fn take_profile(&mut self, subject: &Subject, measured: Measurement) {
        let Measurement { profile, kernels } = measured;
        if let Err(e) = self.store.put_profiles(&profile, &kernels).await {
            // The node goes on reporting it for as long as it is wanted: the next report tries again.
            tracing::error!(error = %e, model.name = %subject.0, "cannot store a profile");
            return;
        }
        tracing::info!(model.name = %subject.0.name, model.version = subject.0.version.get(), device.kind = %subject.1,
            "a model was measured");
        for (model, kind, profile) in profile.iter() {
            self.profiles
                .insert(model.clone(), kind.clone(), profile.clone());
        }
        self.measuring.known(&subject.0, &subject.1);
        self.fitting.forget(&subject.0, &subject.1);
        // A model removed and registered again keeps its replicas, and with them the plan: only the profile is new.
        self.published.outdated = true;
        self.request_plan(format!("{} was measured on {}", subject.0, subject.1));
    }

    async fn take_failure(&mut self, subject: Subject, reason: String) {
        tracing::warn!(model.name = %subject.0.name, model.version = subject.0.version.get(), device.kind = %subject.1, reason,
            "a model could not be measured");
        let model = subject.0.clone();
        self.measuring.assigned.remove(&subject);
        self.measuring.impossible.insert(subject, reason.clone());
        let measured = self.profiles.iter().any(|(id, ..)| *id == model);
        let hope = self
            .missing_profiles()
            .iter()
            .any(|(missing, _)| *missing == model);
        if !measured && !hope {
            self.fail_model(&model, reason).await;
        }
    }

    /// How the measurements of a model stand.
    pub(super) fn profiling_views(&self, model: &ModelId) -> Vec<ProfilingView> {
        let of_model = self
            .measuring
            .assigned
            .iter()
            .filter(|((id, _), _)| id == model);
        of_model
            .map(|((_, kind), assigned)| {
                let report = self
                    .nodes
                    .get(assigned.device.node())
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

    /// Whether a model waits until a device has measured another.
    pub(super) fn waits_to_be_measured(&self, model: &ModelId) -> bool {
        let mut missing = self.missing_profiles().into_iter();
        missing
            .any(|subject| subject.0 == *model && !self.measuring.assigned.contains_key(&subject))
    }
}

/// What a measurement found.
struct Measurement {
    profile: ProfileTable,
    kernels: KernelTable,
}

/// What a measurement found, if it has ended: a profile of exactly what was asked, or why there is none.
fn result_of(progress: &ProfileProgress) -> Option<Result<Measurement, String>> {
    if let Some(reason) = &progress.error {
        return Some(Err(reason.clone()));
    }
    let table = match ProfileTable::from_csv(progress.csv.as_ref()?) {
        Ok(table) => table,
        Err(e) => return Some(Err(format!("the measurement cannot be read: {e}"))),
    };
    let mut keys = table.iter().map(|(model, kind, _)| (model, kind));
    let exact = keys.next() == Some((&progress.model, &progress.device_kind));
    if exact && keys.next().is_none() {
        drop(keys);
        Some(Ok(Measurement {
            profile: table,
            kernels: kernels_of(progress),
        }))
    } else {
        Some(Err(
            "the measurement is of another model or device".to_owned()
        ))
    }
}

/// The kernels that were recorded with a measurement. A profile is good without them, whatever is wrong with them.
fn kernels_of(progress: &ProfileProgress) -> KernelTable {
    let table = KernelTable::from_csv(progress.kernels.as_deref().unwrap_or_default());
    table.unwrap_or_else(|e| {
        tracing::warn!(error = %e, model.name = %progress.model, "the recorded kernels cannot be read");
        KernelTable::default()
    })
}
