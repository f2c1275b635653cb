//! Division of large clusters into cells, each of which is searched by itself.
//!
//! A cell is a few devices of one class ([`crate::device_classes`]), neighbours by index, so that nodes stay together. Models are assigned to
//! cells by their load, `rate · min(latency · utilisation / batch)`, the largest first. A model with more than [`MAX_PART`] of a cell's load
//! is divided into parts. Each part goes to a cell where the model runs now, if that has capacity left, else to the one with the most
//! capacity left of those on which it can run. The problem of a cell contains only its parts of the models. Cells cannot use each other's free
//! capacity; `docs/benchmarks/placement.md` measures the loss against one search over the whole cluster.

use std::collections::BTreeSet;

use packhorse_cluster::{
    DeviceIndex, ModelIndex, PlannedReplica, Problem, ProfileTable, RequestsPerSecond,
};

use crate::{
    candidates::Candidates,
    device_classes::{DeviceClass, device_classes},
};

/// The largest part of a model, in cells.
const MAX_PART: f64 = 0.5;

/// A few devices, and the parts of models that are planned on them.
pub(super) struct Cell {
    /// The indices of the devices, ascending.
    pub(super) devices: Vec<usize>,
    /// Models with the part of their rate, ordered by model.
    pub(super) models: Vec<(usize, f64)>,
    /// The load that it has capacity left for, in devices.
    free: f64,
    /// Models that run on its devices now.
    running: BTreeSet<usize>,
}

/// Divides a problem into cells of at most `size` devices.
pub(super) fn divide(problem: &Problem, candidates: &Candidates<'_>, size: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    let classes = device_classes(problem);
    for class in &classes {
        let count = class.devices.len().div_ceil(size);
        let length = class.devices.len().div_ceil(count);
        for devices in class.devices.chunks(length) {
            let is_inside = |replica: &&PlannedReplica| devices.contains(&replica.device);
            cells.push(Cell {
                devices: devices.iter().map(|device| device.0).collect(),
                models: Vec::new(),
                free: devices.len() as f64,
                running: BTreeSet::new(),
            });
            let running = problem.current.iter().filter(is_inside);
            let cell = cells.last_mut().expect("just pushed");
            cell.running = running.map(|replica| replica.model.0).collect();
        }
    }
    let mut loads: Vec<(usize, f64)> = problem
        .models()
        .map(|(model, _)| (model.0, load(problem, candidates, &classes, model)))
        .collect();
    loads.retain(|(_, load)| load.is_finite() && *load > 0.0);
    // If the load exceeds the devices, all cells are overloaded by the same factor.
    let total: f64 = loads.iter().map(|(_, load)| load).sum();
    let overload = (total / problem.devices.len().max(1) as f64).max(1.0);
    loads.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    for (model, load) in loads {
        let parts = (load / overload / (MAX_PART * size as f64)).ceil().max(1.0);
        for _ in 0..parts as usize {
            assign(
                &mut cells,
                candidates,
                model,
                1.0 / parts,
                load / overload / parts,
            );
        }
    }
    for cell in &mut cells {
        cell.models.sort_unstable_by_key(|part| part.0);
    }
    cells
}

/// Returns the load of a model in devices, with the batches that use the least device time.
fn load(
    problem: &Problem,
    candidates: &Candidates<'_>,
    classes: &[DeviceClass<'_>],
    model: ModelIndex,
) -> f64 {
    let demanded = &problem.models[model.0];
    let least_on = |device: DeviceIndex| {
        let profile = problem.profile(model, device)?;
        let cost = |candidate: &crate::candidates::Candidate| {
            let used = profile
                .sm_utilization(candidate.batch_size)
                .map_or(1.0, |used| used.get() / 100.0);
            used / candidate.throughput
        };
        candidates
            .on_device(model, device)
            .iter()
            .map(cost)
            .min_by(f64::total_cmp)
    };
    let least = classes
        .iter()
        .filter_map(|class| least_on(class.devices[0]))
        .fold(f64::INFINITY, f64::min);
    demanded.rate.get() * demanded.latency_scale * least
}

/// Assigns a part of a model to the best cell that it can run on.
fn assign(cells: &mut [Cell], candidates: &Candidates<'_>, model: usize, part: f64, load: f64) {
    let can_run = |cell: &Cell| {
        !candidates
            .on_device(ModelIndex(model), DeviceIndex(cell.devices[0]))
            .is_empty()
    };
    let kept = |cell: &Cell| cell.running.contains(&model) && cell.free >= load;
    let best = cells
        .iter_mut()
        .filter(|cell| can_run(cell))
        .max_by(|a, b| {
            kept(a)
                .cmp(&kept(b))
                .then(a.free.total_cmp(&b.free))
                .then(b.devices.cmp(&a.devices))
        });
    let Some(cell) = best else { return };
    cell.free -= load;
    match cell.models.iter_mut().find(|given| given.0 == model) {
        Some(given) => given.1 += part,
        None => cell.models.push((model, part)),
    }
}

impl Cell {
    /// Returns the problem of this cell.
    pub(super) fn problem(&self, whole: &Problem) -> Problem {
        let mut profiles = ProfileTable::default();
        let kind = &whole.devices[self.devices[0]].kind;
        let mut models = Vec::with_capacity(self.models.len());
        for &(model, part) in &self.models {
            let mut demanded = whole.models[model].clone();
            // The rate without the clients' own work, which would count again for every part otherwise.
            let overhead = demanded.rate.get() * whole.conditions.client_overhead.as_secs_f64();
            let rate = demanded.rate.get() / (1.0 + overhead) * part;
            demanded.rate = RequestsPerSecond::new(rate).expect("a part of a rate");
            if let Some(profile) = whole.profiles.get(&demanded.id, kind) {
                profiles.insert(demanded.id.clone(), kind.clone(), profile.clone());
            }
            models.push(demanded);
        }
        let mut conditions = whole.conditions;
        conditions.client_overhead = std::time::Duration::ZERO;
        let of_kind = whole
            .observations
            .iter()
            .filter(|observation| observation.kind == *kind);
        Problem {
            devices: self
                .devices
                .iter()
                .map(|device| whole.devices[*device].clone())
                .collect(),
            models,
            profiles,
            discipline: whole.discipline,
            network: whole.network,
            conditions,
            current: whole
                .current
                .iter()
                .filter_map(|replica| self.to_cell(replica))
                .collect(),
            observations: of_kind.cloned().collect(),
        }
    }

    /// Converts a replica of the whole problem into one of the cell's; `None` if it is not in the cell.
    fn to_cell(&self, replica: &PlannedReplica) -> Option<PlannedReplica> {
        let device = self.devices.binary_search(&replica.device.0).ok()?;
        let model = self
            .models
            .binary_search_by_key(&replica.model.0, |part| part.0)
            .ok()?;
        Some(PlannedReplica {
            model: ModelIndex(model),
            device: DeviceIndex(device),
            ..replica.clone()
        })
    }

    /// Converts a replica of the cell's problem into one of the whole problem.
    pub(super) fn to_whole(&self, replica: &PlannedReplica) -> PlannedReplica {
        PlannedReplica {
            model: ModelIndex(self.models[replica.model.0].0),
            device: DeviceIndex(self.devices[replica.device.0]),
            ..replica.clone()
        }
    }
}
