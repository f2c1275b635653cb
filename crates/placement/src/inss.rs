//! `inss`: a trained network chooses the device and the compute share of every model, and a bisection its batch size.
//!
//! InSS calls this the two-layer scheduler TS. The first layer is the actor of a discrete soft actor-critic (SAC-D), which has been
//! trained offline (`cargo xtask train inss`, `lab/training`); here it only computes, without randomness. The second layer is BDA
//! (`crates/placement/src/batch_step.rs`).
//!
//! 1. *Parts.* A model whose rate exceeds what a device carries ([`ModelTraits::capacity`]) becomes several equal parts.
//! 2. *Cells.* The devices are divided into cells of at most [`DEVICES`]. Each part goes to the cell with the least load per device, the
//!    largest part first. A cell with more than [`MODELS`] parts decides on them in groups, which are as alike as can be.
//! 3. *Decision.* The network sees a group's observation ([`observation()`]) and gives every part a preference for each device and each
//!    level of its share. Each part, the one with the most load first, gets the preferred device among those with the memory for it, and the
//!    preferred level. The network decides twice, as in two steps of an episode: the second time it sees the memory that the first decision uses.
//! 4. *Shares.* The levels of a device's replicas are scaled such that the device is full ([`plan`]), and BDA chooses the batch sizes.
//!
//! Source: "InSS: An Intelligent Scheduling Orchestrator for Multi-GPU Inference with Spatio-Temporal Sharing", section 5. Its trained network
//! was not published; its code (code-InSS/InSS, TS/) was read for what the paper leaves out.
//!
//! Deviations of the problem; those of the training are named in `lab/training`:
//! - The paper trains a network for six known models on four known GPUs, and leaves what is constant there out of the state. This one decides for
//!   any models, so that the observation also has what distinguishes them ([`ModelTraits`]); the published code adds the device of the model's last
//!   placement instead. Parts, cells and groups, which lead other problems to the size of the network, are ours.
//! - A model has one replica in the paper (1e). Here each part has one.
//! - A share has [`LEVELS`] levels. The published 17 steps of 6 or 7 % exceed a device. It then adds and takes single steps in turn until a device is full;
//!   here the shares are scaled.
//! - Where the network prefers a device without the memory for the model (1b), the next preferred one is taken. The paper leaves the model out.
//! - Interference (`int`, `α_cache`) counts if the options have `latency_model: inss` and there are measurements; otherwise this is the paper's
//!   InSS-ni. What neighbours cost is then known to the network alone, from the rewards of its training.
//! - The paper keeps a placement as long as BDA finds batches that carry the rates. Here the controller decides if a plan is worth a move.
//! - Devices of several kinds: a model is placed on the kind with the most requests per cost.
//! - A model without expected requests gets the lowest level.

use std::sync::LazyLock;

use packhorse_cluster::{ByteCount, DeviceIndex, ModelIndex, Plan, Problem};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::Candidates,
    device_classes::{DeviceClass, device_classes},
};

pub use decision::{DEVICES, LEVELS, MODELS, OPTIONS, OUTPUTS, device_options, level_options};
pub use network::{Layer, Network, NetworkError};
pub use observation::{INPUTS, ModelTraits, Slot, observation};
pub use placed::{Placed, plan};

mod decision;
mod network;
mod observation;
mod placed;

pub(crate) const NAME: &str = "inss";

/// The trained actor. `cargo xtask train inss` writes it.
static ACTOR: LazyLock<Network> = LazyLock::new(|| {
    let bytes = include_bytes!("inss/actor.bin");
    let actor = Network::from_bytes(bytes).expect("the committed weights are a network");
    assert_eq!(actor.widths().first(), Some(&INPUTS));
    assert_eq!(actor.widths().last(), Some(&OUTPUTS));
    actor
});

/// The decisions of the network on a group, each after the first with the memory that the one before uses.
const STEPS: usize = 2;

pub(crate) struct Inss;

impl Policy for Inss {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        place_by(&ACTOR, problem, options, budget)
    }
}

/// Makes the plan of an actor.
///
/// # Errors
/// If the budget does not suffice.
pub fn place_by(
    actor: &Network,
    problem: &Problem,
    options: &PlanningOptions,
    budget: &mut Budget<'_>,
) -> Result<Plan, PlaceError> {
    let classes = device_classes(problem);
    let mut parts: Vec<Vec<Part>> = classes.iter().map(|_| Vec::new()).collect();
    for (model, _) in problem.models() {
        budget.spend(problem.devices.len() as u64)?;
        if let Some((class, of_model)) = parts_of(problem, options, &classes, model) {
            parts[class].extend(of_model);
        }
    }
    let mut placed = Vec::new();
    for (class, parts) in classes.iter().zip(parts) {
        for cell in cells(class, parts) {
            budget.spend(cell.parts.len() as u64)?;
            placed.extend(cell.decide(actor));
        }
    }
    let mut plan = plan(problem, options, &placed);
    let candidates = Candidates::new(problem);
    for (model, _) in problem.models() {
        if let Some(infeasible) = candidates.infeasible(model) {
            plan.models[model.0].shortfall = Some(infeasible);
        }
    }
    Ok(plan)
}

/// A part of a model, for one replica.
#[derive(Clone, Debug)]
struct Part {
    model: ModelIndex,
    slot: Slot,
    /// The memory of a batch of one.
    memory: ByteCount,
}

/// Returns the class with the most requests per cost for a model, and its parts there; `None` if no class can run it.
fn parts_of(
    problem: &Problem,
    options: &PlanningOptions,
    classes: &[DeviceClass<'_>],
    model: ModelIndex,
) -> Option<(usize, Vec<Part>)> {
    let numbered = classes.iter().enumerate();
    let possible = numbered.filter_map(|(number, class)| {
        let traits = ModelTraits::new(problem, options, model, class.devices[0])?;
        Some((number, traits, traits.capacity / class.cost))
    });
    // `max_by` returns the last of equals: in reverse order that is the first one.
    let possible: Vec<_> = possible.collect();
    let (number, traits, _) = possible
        .into_iter()
        .rev()
        .max_by(|a, b| a.2.total_cmp(&b.2))?;
    let class = &classes[number];
    let rate = problem.models[model.0].rate.get();
    let most = class.devices.len() as f64;
    let count = (rate / traits.capacity).ceil().clamp(1.0, most);
    let profile = problem.profile(model, class.devices[0])?;
    let part = Part {
        model,
        slot: Slot {
            traits,
            rate: rate / count,
            backlog: 0.0,
        },
        memory: class.replica_memory(profile, 1),
    };
    Some((number, vec![part; count as usize]))
}

/// Some devices of a class, with the parts that they shall host.
#[derive(Debug)]
struct Cell {
    devices: Vec<DeviceIndex>,
    /// The memory of a device.
    memory: ByteCount,
    load: f64,
    parts: Vec<Part>,
}

/// Divides a class into cells as equal as can be, and its parts among them.
fn cells(class: &DeviceClass<'_>, mut parts: Vec<Part>) -> Vec<Cell> {
    let count = class.devices.len().div_ceil(DEVICES);
    let bounds = |index: usize| index * class.devices.len() / count;
    let mut cells: Vec<Cell> = (0..count)
        .map(|index| Cell {
            devices: class.devices[bounds(index)..bounds(index + 1)].to_vec(),
            memory: class.memory,
            load: 0.0,
            parts: Vec::new(),
        })
        .collect();
    // The sort is stable: parts with equal loads stay in the order of the models.
    parts.sort_by(|a, b| b.slot.load().total_cmp(&a.slot.load()));
    for part in parts {
        let per_device = |cell: &Cell| cell.load / cell.devices.len() as f64;
        let least = cells
            .iter_mut()
            .min_by(|a, b| per_device(a).total_cmp(&per_device(b)));
        let cell = least.expect("a class has devices");
        cell.load += part.slot.load();
        cell.parts.push(part);
    }
    cells
}

impl Cell {
    /// Places the parts on the devices, with the levels of their shares.
    fn decide(&self, actor: &Network) -> Vec<Placed> {
        let mut free = vec![self.memory; self.devices.len()];
        let groups = self.parts.len().div_ceil(MODELS);
        let mut placed = Vec::new();
        for group in 0..groups {
            // Every so many-th part: the groups have large and small ones alike.
            let parts: Vec<&Part> = self.parts.iter().skip(group).step_by(groups).collect();
            let mut decided = (Vec::new(), free.clone());
            for _ in 0..STEPS {
                decided = self.decide_group(actor, &parts, free.clone(), &decided.1);
            }
            placed.extend(decided.0);
            free = decided.1;
        }
        placed
    }

    /// Places a group. `free` is the memory that is left, and `seen` the one that the network sees; returns the memory that is left afterwards.
    fn decide_group(
        &self,
        actor: &Network,
        parts: &[&Part],
        mut free: Vec<ByteCount>,
        seen: &[ByteCount],
    ) -> (Vec<Placed>, Vec<ByteCount>) {
        let whole = self.memory.as_u64().max(1) as f64;
        let used = |left: &ByteCount| 1.0 - left.as_u64() as f64 / whole;
        let slots: Vec<Slot> = parts.iter().map(|part| part.slot).collect();
        let used: Vec<f64> = seen.iter().map(used).collect();
        let preferences = actor.outputs(&observation(&slots, &used));
        let mut placed = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let fits = |&device: &usize| free[device] >= part.memory;
            let devices = (0..self.devices.len()).filter(fits);
            let Some(device) = decision::preferred(&preferences[device_options(index)], devices)
            else {
                continue;
            };
            let level =
                decision::preferred(&preferences[level_options(index)], 0..LEVELS).unwrap_or(0);
            free[device] = free[device].saturating_sub(part.memory);
            placed.push(Placed {
                model: part.model,
                device: self.devices[device],
                level: if part.slot.rate > 0.0 { level } else { 0 },
            });
        }
        (placed, free)
    }
}

#[cfg(test)]
mod tests;
