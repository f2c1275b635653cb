//! The requirements of a replica in Usher's terms: Creq, a percentage of a device's compute, and Mreq, a percentage of its memory.

use packhorse_cluster::{
    ComputeMetric, DeviceIndex, ModelIndex, Percent, PlannedReplica, Problem, Profile, Shortfall,
};

use crate::{
    candidates::{Candidate, Candidates},
    device_classes::{DeviceClass, class_of_each_device, device_classes},
};

/// A batch size within the model's SLO and a device's memory, with the resources that it requires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Requirement {
    /// The number of rows.
    pub(crate) batch_size: u32,
    /// The throughput of full batches, in requests per second.
    pub(crate) throughput: f64,
    /// Creq, in percent of the device's compute.
    pub(crate) compute: f64,
    /// Mreq, in percent of the device's memory.
    pub(crate) memory: f64,
}

impl Requirement {
    /// Returns the replica with this batch size, without a compute share.
    pub(crate) fn replica(&self, model: ModelIndex, device: DeviceIndex) -> PlannedReplica {
        PlannedReplica::new(model, device, self.batch_size)
    }
}

/// The requirements of every model on every class of devices.
pub(crate) struct Requirements<'a> {
    /// The classes of the devices.
    pub(crate) classes: Vec<DeviceClass<'a>>,
    /// The class of each device.
    pub(crate) class_of: Vec<usize>,
    /// The requirements by model, then class, ordered by batch size.
    table: Vec<Vec<Vec<Requirement>>>,
    /// The reason why a model has no requirement on any class, by model.
    infeasible: Vec<Option<Shortfall>>,
    /// The metric that counts as Creq.
    metric: ComputeMetric,
    problem: &'a Problem,
}

impl<'a> Requirements<'a> {
    pub(crate) fn new(problem: &'a Problem, metric: ComputeMetric) -> Self {
        let classes = device_classes(problem);
        let class_of = class_of_each_device(&classes);
        let candidates = Candidates::new(problem);
        let mut requirements = Self {
            classes,
            class_of,
            table: Vec::new(),
            infeasible: Vec::new(),
            metric,
            problem,
        };
        for (model, _) in problem.models() {
            let by_class: Vec<_> = requirements
                .classes
                .iter()
                .map(|class| requirements.compute(&candidates, model, class))
                .collect();
            let nowhere = by_class.iter().all(Vec::is_empty);
            let reason = nowhere.then(|| requirements.find_reason(&candidates, model));
            requirements.table.push(by_class);
            requirements.infeasible.push(reason);
        }
        requirements
    }

    /// Returns the model's requirements on devices of a class, ordered by batch size; empty if the model cannot run there.
    pub(crate) fn on_class(&self, model: ModelIndex, class: usize) -> &[Requirement] {
        &self.table[model.0][class]
    }

    /// Returns the requirement of a batch size on a class, if the model can have it there.
    pub(crate) fn with_batch(
        &self,
        model: ModelIndex,
        class: usize,
        batch_size: u32,
    ) -> Option<Requirement> {
        let requirements = self.on_class(model, class);
        let found =
            requirements.binary_search_by_key(&batch_size, |requirement| requirement.batch_size);
        Some(requirements[found.ok()?])
    }

    /// Returns all batch sizes that the model can have on any class, in ascending order.
    pub(crate) fn batch_sizes(&self, model: ModelIndex) -> Vec<u32> {
        let mut sizes: Vec<u32> = self.table[model.0]
            .iter()
            .flatten()
            .map(|requirement| requirement.batch_size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the reason why the model can run on no class; `None` if it can run on one.
    pub(crate) fn infeasible(&self, model: ModelIndex) -> Option<&Shortfall> {
        self.infeasible[model.0].as_ref()
    }

    /// Returns the mean Creq minus the mean Mreq over all profiled batch sizes and classes, including sizes beyond the SLO. The unit is
    /// a millionth of a percentage point, an integer so that equal imbalances compare as equal.
    pub(crate) fn imbalance(&self, model: ModelIndex) -> i64 {
        let (mut compute, mut memory) = (Vec::new(), Vec::new());
        for class in &self.classes {
            let profile = self
                .problem
                .profiles
                .get(&self.problem.models[model.0].id, class.kind);
            for row in profile.iter().flat_map(|profile| profile.whole()) {
                compute.extend(self.metric.value(row).map(Percent::get));
                memory.extend(row.memory.map(|bytes| percent_of(bytes.as_u64(), class)));
            }
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        ((mean(&compute) - mean(&memory)) * 1e6).round() as i64
    }

    /// Returns the sorted names of the models in one text.
    pub(crate) fn joined_names(&self, models: &[ModelIndex]) -> String {
        let mut names: Vec<String> = models
            .iter()
            .map(|model| self.problem.models[model.0].id.to_string())
            .collect();
        names.sort_unstable();
        names.join(" ")
    }

    fn compute(
        &self,
        candidates: &Candidates<'_>,
        model: ModelIndex,
        class: &DeviceClass<'_>,
    ) -> Vec<Requirement> {
        let Some(profile) = self
            .problem
            .profiles
            .get(&self.problem.models[model.0].id, class.kind)
        else {
            return Vec::new();
        };
        let rows = profile.whole();
        let requirement = |candidate: &Candidate| {
            // A batch below the smallest profiled one requires as much as that.
            let row = rows
                .iter()
                .find(|row| row.batch_size >= candidate.batch_size)?;
            Some(Requirement {
                batch_size: candidate.batch_size,
                throughput: candidate.throughput,
                compute: self.metric.value(row)?.get(),
                memory: percent_of(candidate.memory?.as_u64(), class),
            })
        };
        candidates
            .on_device(model, class.devices[0])
            .iter()
            .filter_map(requirement)
            .filter(|requirement| requirement.memory <= 100.0)
            .collect()
    }

    fn find_reason(&self, candidates: &Candidates<'_>, model: ModelIndex) -> Shortfall {
        if let Some(infeasible) = candidates.infeasible(model) {
            return infeasible;
        }
        let id = &self.problem.models[model.0].id;
        let rows = || {
            let profiles = self
                .classes
                .iter()
                .filter_map(|class| self.problem.profiles.get(id, class.kind));
            profiles.flat_map(Profile::whole)
        };
        if rows().all(|row| self.metric.value(row).is_none()) {
            Shortfall::MissingColumn {
                column: self.metric.column(),
            }
        } else if rows().all(|row| row.memory.is_none()) {
            Shortfall::MissingColumn {
                column: "memory_mib",
            }
        } else {
            Shortfall::NoUsableBatch {
                column: self.metric.column(),
            }
        }
    }
}

fn percent_of(bytes: u64, class: &DeviceClass<'_>) -> f64 {
    100.0 * bytes as f64 / class.memory.as_u64().max(1) as f64
}
