//! Large clusters, cut into cells that are searched each by itself.
//!
//! A cell is a few devices of one class ([`crate::classes`]), neighbours by index, so that nodes stay together. Models are given to
//! cells by the work that they are, `rate · min(latency · utilisation / batch)`, the largest first: one that is more than a part of
//! a cell is cut into parts; each part goes to a cell where the model runs now, if that has room, else to the one with most room
//! left of those on which it can run. A cell knows of its models only the parts that it is given. What is lost against one search
//! over everything is what cells could lend each other; the benchmark says how much that is (`docs/benchmarks/placement.md`).

use std::collections::BTreeSet;

use packhorse_cluster::{
    DeviceIndex, ModelIndex, PlannedReplica, Problem, ProfileTable, RequestsPerSecond,
};

use crate::{
    candidates::Candidates,
    classes::{Class, classes},
};

/// A model's part is at most this much of a cell.
const PART: f64 = 0.5;

/// Some devices, and the parts of some models that they shall serve.
pub(super) struct Cell {
    /// By index, ascending.
    pub(super) devices: Vec<usize>,
    /// Model and part of its rate; by model, each once.
    pub(super) models: Vec<(usize, f64)>,
    /// Devices' worth of work that it has room for.
    room: f64,
    /// Models that run here now.
    running: BTreeSet<usize>,
}

/// Cuts a problem into cells of at most `size` devices.
pub(super) fn cells(problem: &Problem, candidates: &Candidates<'_>, size: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    let classes = classes(problem);
    for class in &classes {
        let count = class.devices.len().div_ceil(size);
        let length = class.devices.len().div_ceil(count);
        for devices in class.devices.chunks(length) {
            let here = |replica: &&PlannedReplica| devices.contains(&replica.device);
            cells.push(Cell {
                devices: devices.iter().map(|device| device.0).collect(),
                models: Vec::new(),
                room: devices.len() as f64,
                running: BTreeSet::new(),
            });
            let running = problem.current.iter().filter(here);
            let cell = cells.last_mut().expect("just pushed");
            cell.running = running.map(|replica| replica.model.0).collect();
        }
    }
    let mut works: Vec<(usize, f64)> = problem
        .models()
        .map(|(model, _)| (model.0, work(problem, candidates, &classes, model)))
        .collect();
    works.retain(|(_, work)| work.is_finite() && *work > 0.0);
    // Together they may be more than there is room for: then every cell gets too much, in equal measure.
    let total: f64 = works.iter().map(|(_, work)| work).sum();
    let crowding = (total / problem.devices.len().max(1) as f64).max(1.0);
    works.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    for (model, work) in works {
        let parts = (work / crowding / (PART * size as f64)).ceil().max(1.0);
        for _ in 0..parts as usize {
            give(
                &mut cells,
                candidates,
                model,
                1.0 / parts,
                work / crowding / parts,
            );
        }
    }
    for cell in &mut cells {
        cell.models.sort_unstable_by_key(|part| part.0);
    }
    cells
}

/// Devices' worth of time that a model's rate takes in the batches that take least.
fn work(
    problem: &Problem,
    candidates: &Candidates<'_>,
    classes: &[Class<'_>],
    model: ModelIndex,
) -> f64 {
    let demanded = &problem.models[model.0];
    let on = |device: DeviceIndex| {
        let profile = problem.profile(model, device)?;
        let cost = |candidate: &crate::candidates::Candidate| {
            let used = profile
                .sm_utilization(candidate.batch_size)
                .map_or(1.0, |used| used.get() / 100.0);
            used / candidate.throughput
        };
        candidates
            .of(model, device)
            .iter()
            .map(cost)
            .min_by(f64::total_cmp)
    };
    let least = classes
        .iter()
        .filter_map(|class| on(class.devices[0]))
        .fold(f64::INFINITY, f64::min);
    demanded.rate.get() * demanded.latency_scale * least
}

/// Gives a part of a model to the cell that suits it best.
fn give(cells: &mut [Cell], candidates: &Candidates<'_>, model: usize, part: f64, work: f64) {
    let suits = |cell: &Cell| {
        !candidates
            .of(ModelIndex(model), DeviceIndex(cell.devices[0]))
            .is_empty()
    };
    let kept = |cell: &Cell| cell.running.contains(&model) && cell.room >= work;
    let best = cells.iter_mut().filter(|cell| suits(cell)).max_by(|a, b| {
        kept(a)
            .cmp(&kept(b))
            .then(a.room.total_cmp(&b.room))
            .then(b.devices.cmp(&a.devices))
    });
    let Some(cell) = best else { return };
    cell.room -= work;
    match cell.models.iter_mut().find(|given| given.0 == model) {
        Some(given) => given.1 += part,
        None => cell.models.push((model, part)),
    }
}

impl Cell {
    /// What this cell is asked.
    pub(super) fn problem(&self, whole: &Problem) -> Problem {
        let mut profiles = ProfileTable::default();
        let kind = &whole.devices[self.devices[0]].kind;
        let mut models = Vec::with_capacity(self.models.len());
        for &(model, part) in &self.models {
            let mut demanded = whole.models[model].clone();
            // What really comes, so that a client's own work is not counted again for every part.
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
                .filter_map(|replica| self.inside(replica))
                .collect(),
            observations: of_kind.cloned().collect(),
        }
    }

    /// A replica of the whole as one of the cell's problem, if it is in it.
    fn inside(&self, replica: &PlannedReplica) -> Option<PlannedReplica> {
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

    /// A replica of the cell's problem as one of the whole.
    pub(super) fn outside(&self, replica: &PlannedReplica) -> PlannedReplica {
        PlannedReplica {
            model: ModelIndex(self.models[replica.model.0].0),
            device: DeviceIndex(self.devices[replica.device.0]),
            ..replica.clone()
        }
    }
}
