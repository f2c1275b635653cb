//! What a replica takes of a device in Usher's terms: Creq, percent of its compute, and Mreq, percent of its memory.

use packhorse_cluster::{ModelIndex, Problem};

use crate::{
    ComputeMetric,
    candidates::Candidates,
    classes::{Class, classes},
};

/// A batch size that a replica could have, within its model's SLO and the whole of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Requirement {
    pub(crate) batch_size: u32,
    /// Requests per second of full batches.
    pub(crate) throughput: f64,
    /// Creq, in percent of the device.
    pub(crate) compute: f64,
    /// Mreq, in percent of the device.
    pub(crate) memory: f64,
}

/// The requirements of every model on every class of devices.
pub(crate) struct Requirements<'a> {
    pub(crate) classes: Vec<Class<'a>>,
    /// Which class a device is of.
    pub(crate) class_of: Vec<usize>,
    /// By model, then class: by batch size.
    table: Vec<Vec<Vec<Requirement>>>,
    /// By model: why it has none at all.
    missing: Vec<Option<String>>,
    metric: ComputeMetric,
    problem: &'a Problem,
}

impl<'a> Requirements<'a> {
    pub(crate) fn new(problem: &'a Problem, metric: ComputeMetric) -> Self {
        let classes = classes(problem);
        let mut class_of = vec![0; problem.devices.len()];
        for (number, class) in classes.iter().enumerate() {
            class
                .devices
                .iter()
                .for_each(|device| class_of[device.0] = number);
        }
        let candidates = Candidates::new(problem);
        let mut requirements = Self {
            classes,
            class_of,
            table: Vec::new(),
            missing: Vec::new(),
            metric,
            problem,
        };
        for (model, _) in problem.models() {
            let of_classes: Vec<_> = requirements
                .classes
                .iter()
                .map(|class| requirements.on_class(&candidates, model, class))
                .collect();
            let nowhere = of_classes.iter().all(Vec::is_empty);
            let why = nowhere.then(|| requirements.why_missing(&candidates, model));
            requirements.table.push(of_classes);
            requirements.missing.push(why);
        }
        requirements
    }

    /// By batch size; empty if the model cannot run there.
    pub(crate) fn of(&self, model: ModelIndex, class: usize) -> &[Requirement] {
        &self.table[model.0][class]
    }

    /// With this batch size, if the model can have it there.
    pub(crate) fn with_batch(
        &self,
        model: ModelIndex,
        class: usize,
        batch_size: u32,
    ) -> Option<Requirement> {
        let of = self.of(model, class);
        let found = of.binary_search_by_key(&batch_size, |requirement| requirement.batch_size);
        Some(of[found.ok()?])
    }

    /// All batch sizes that the model can have somewhere.
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

    /// Why the model can run nowhere; `None` if there is somewhere.
    pub(crate) fn missing(&self, model: ModelIndex) -> Option<&str> {
        self.missing[model.0].as_deref()
    }

    /// Mean Creq minus mean Mreq over all profiled batch sizes and classes, whether or not they are within the SLO, in
    /// millionths of a percent: equal figures are equal numbers.
    pub(crate) fn imbalance(&self, model: ModelIndex) -> i64 {
        let (mut compute, mut memory) = (Vec::new(), Vec::new());
        for class in &self.classes {
            let profile = self
                .problem
                .profiles
                .get(&self.problem.models[model.0].id, class.kind);
            for row in profile.iter().flat_map(|profile| profile.whole()) {
                compute.extend(self.metric.of(row).map(packhorse_cluster::Percent::get));
                memory.extend(row.memory.map(|bytes| percent_of(bytes.as_u64(), class)));
            }
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        ((mean(&compute) - mean(&memory)) * 1e6).round() as i64
    }

    /// The models' names in one, whatever their order.
    pub(crate) fn names(&self, models: &[ModelIndex]) -> String {
        let mut names: Vec<String> = models
            .iter()
            .map(|model| self.problem.models[model.0].id.to_string())
            .collect();
        names.sort_unstable();
        names.join(" ")
    }

    fn on_class(
        &self,
        candidates: &Candidates<'_>,
        model: ModelIndex,
        class: &Class<'_>,
    ) -> Vec<Requirement> {
        let Some(profile) = self
            .problem
            .profiles
            .get(&self.problem.models[model.0].id, class.kind)
        else {
            return Vec::new();
        };
        let rows = profile.whole();
        let requirement = |candidate: &crate::candidates::Candidate| {
            // A batch below every profiled one takes what the smallest takes.
            let row = rows
                .iter()
                .find(|row| row.batch_size >= candidate.batch_size)?;
            Some(Requirement {
                batch_size: candidate.batch_size,
                throughput: candidate.throughput,
                compute: self.metric.of(row)?.get(),
                memory: percent_of(candidate.memory?.as_u64(), class),
            })
        };
        candidates
            .of(model, class.devices[0])
            .iter()
            .filter_map(requirement)
            .filter(|requirement| requirement.memory <= 100.0)
            .collect()
    }

    fn why_missing(&self, candidates: &Candidates<'_>, model: ModelIndex) -> String {
        if let Some(unfit) = candidates.unfit(model) {
            return unfit;
        }
        let id = &self.problem.models[model.0].id;
        let rows = || {
            let profiles = self
                .classes
                .iter()
                .filter_map(|class| self.problem.profiles.get(id, class.kind));
            profiles.flat_map(packhorse_cluster::Profile::whole)
        };
        if rows().all(|row| self.metric.of(row).is_none()) {
            format!("its profiles have no {}", self.metric.column())
        } else if rows().all(|row| row.memory.is_none()) {
            "its profiles have no memory_mib".to_owned()
        } else {
            format!(
                "no batch size within its SLO has both {} and memory_mib, and the memory on any device",
                self.metric.column()
            )
        }
    }
}

fn percent_of(bytes: u64, class: &Class<'_>) -> f64 {
    100.0 * bytes as f64 / class.memory.as_u64().max(1) as f64
}
