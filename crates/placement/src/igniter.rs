//! `igniter`: the fewest devices on which an analytical model of interference keeps every model within its SLO.
//!
//! Every model has one batch size `b` and a share `r` of the multiprocessors, in percent; `T = SLO / 2`, the other half being the
//! time until a batch is full. [`IgniterCoefficients`] has the latency model (section 3 of the paper).
//!
//! 1. *Batch and lower bound* (theorem 1). `b = ceil(T · λ · B / (B + d_in · λ))`, the batch that arrives and is copied in within
//!    `T`, with `λ` the rate, `d_in` the bytes of an input and `B` the bus' bytes per second. The share with which that batch is
//!    computed within `T` by itself is, rounded up to the device's unit, `r = (k₁b² + k₂b + k₃) / (T − t_sch − copying − k₅) − k₄`.
//! 2. *Too much for a device* (from the published code). A model with `r > 100` gets devices of its own, with the largest batch that
//!    takes at most `T` on all of one, each for 90 % of its throughput, until the rest of its rate has `r ≤ 100`.
//! 3. *Placement* (algorithms 1 and 2). Models by `r`, largest first. On every open device a model is tried with its `r`; while any
//!    of the device's models takes longer than `T`, each of those gets one unit more. Of the devices where that ends with at most
//!    100 % in sum, the one where the sum of shares grew least beyond the model's own `r`; if there is none, a new device.
//!
//! On a fixed cluster this is best effort (thesis 5.1.5): devices are filled in the order the algorithm opened them, and those
//! beyond the cluster are left out. Predicted goodput is the model's throughput under interference, up to the rate.
//!
//! Source: Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud", TPDS
//! 2023, and its published code (icloud-ecnu/igniter).
//!
//! Where we deviate:
//! - A batch is at most the model's largest and at most 32, the largest that was measured; the published code has no limit there.
//! - Where `T` is over before the computation starts (`T ≤ t_sch + copying + k₅`), the batch is made smaller until it is not; the
//!   published code divides by zero or less there.
//! - Dedicated devices have the batch they were computed for; the published code writes another one, by a slip of an index.
//! - A device has its memory as a limit, where the profiles know it: the published code has none.
//! - A rate above what the placed replicas have as throughput is said: the published code does not look.
//! - Devices of several kinds: a model is placed on the first kind, in the devices' order, that it has coefficients for.
//! - The shadow servers that the published system starts are not placement and left out.

use std::time::Duration;

use packhorse_cluster::{
    ComputeShare, DemandedModel, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
    RequestsPerSecond,
};

pub use self::coefficients::{CoefficientsError, IgniterCoefficients};
use self::{
    latency::{Prediction, Workload},
    sizing::Size,
};
use crate::{
    Budget, PlaceError, Policy, PolicyOptions, Predictor,
    candidates::Candidates,
    classes::{Class, classes},
};

mod coefficients;
mod latency;
mod least_squares;
mod sizing;
#[cfg(test)]
mod tests;

pub(crate) const NAME: &str = "igniter";

/// Sums of shares are sums of decimal numbers.
const ROUNDING: f64 = 1e-9;

pub(crate) struct Igniter;

impl Policy for Igniter {
    fn place(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let none = IgniterCoefficients::default();
        let coefficients = options.igniter_coefficients.as_ref().unwrap_or(&none);
        let mut placement = Placement::new(problem, coefficients);
        let mut waiting = Vec::new();
        for (model, _) in problem.models() {
            match placement.prepare(model) {
                Ok(item) => waiting.extend(item),
                Err(why) => placement.shortfalls[model.0] = Some(why),
            }
        }
        waiting.sort_by(|a, b| b.share.total_cmp(&a.share));
        for item in waiting {
            budget.spend(placement.nodes.len() as u64 + 1)?;
            placement.put(item);
        }
        Ok(placement.into_plan())
    }

    fn predictor(&self) -> Option<&dyn Predictor> {
        Some(self)
    }
}

/// A model with its batch size and share.
#[derive(Clone)]
struct Item<'a> {
    model: ModelIndex,
    class: usize,
    /// The longest that a batch may take, in milliseconds.
    limit: f64,
    workload: Workload<'a>,
    share: f64,
}

/// A device that the algorithm has opened.
struct Node<'a> {
    class: usize,
    items: Vec<Item<'a>>,
    /// Of a model that needs all of it.
    dedicated: bool,
}

struct Placement<'a> {
    problem: &'a Problem,
    coefficients: &'a IgniterCoefficients,
    candidates: Candidates<'a>,
    classes: Vec<Class<'a>>,
    nodes: Vec<Node<'a>>,
    shortfalls: Vec<Option<String>>,
}

impl<'a> Placement<'a> {
    fn new(problem: &'a Problem, coefficients: &'a IgniterCoefficients) -> Self {
        Self {
            problem,
            coefficients,
            candidates: Candidates::new(problem),
            classes: classes(problem),
            nodes: Vec::new(),
            shortfalls: vec![None; problem.models.len()],
        }
    }

    /// Gives a model its batch size and share, and devices of its own for what is too much for one; returns what is left.
    fn prepare(&mut self, model: ModelIndex) -> Result<Option<Item<'a>>, String> {
        if let Some(unfit) = self.candidates.unfit(model) {
            return Err(unfit);
        }
        let demanded = &self.problem.models[model.0];
        let found = self.classes.iter().enumerate().find_map(|(number, class)| {
            Some((
                number,
                self.coefficients.workload(&demanded.id, class.kind)?,
            ))
        });
        let Some((class, (hardware, known))) = found else {
            return Err("there are no iGniter coefficients for it".to_owned());
        };
        let limit = demanded.slo.as_secs_f64() * 1e3 / 2.0;
        let too_slow = || {
            format!(
                "no batch size takes less than half of the SLO of {:?}",
                demanded.slo
            )
        };
        let most = self.largest_batch(demanded, class).ok_or_else(|| {
            "no device of a kind with coefficients has the memory for a batch within its SLO"
                .to_owned()
        })?;
        let size = |rate| sizing::size(hardware, known, limit, rate, most);
        let item = |Size { batch, share }: Size| Item {
            model,
            class,
            limit,
            workload: Workload {
                hardware,
                model: known,
                batch,
            },
            share,
        };
        let mut rate = demanded.rate.get();
        let mut wanted = size(rate).ok_or_else(too_slow)?;
        if wanted.share > 100.0 {
            let (whole, capacity) =
                sizing::whole_device(hardware, known, limit, most).ok_or_else(too_slow)?;
            // No more devices than there are: what is beyond them is left out in any case.
            let devices = self.classes[class].devices.len();
            let mut opened = 0;
            while wanted.share > 100.0 && opened < devices {
                self.nodes.push(Node {
                    class,
                    items: vec![item(whole)],
                    dedicated: true,
                });
                opened += 1;
                rate -= capacity;
                if rate <= 0.0 {
                    return Ok(None);
                }
                wanted = size(rate).ok_or_else(too_slow)?;
            }
            if wanted.share > 100.0 {
                return Ok(None);
            }
        }
        Ok(Some(item(wanted)))
    }

    /// The largest batch that the model takes and the profile has within the SLO and the device's memory.
    fn largest_batch(&self, demanded: &DemandedModel, class: usize) -> Option<u32> {
        let class = &self.classes[class];
        let profile = self.problem.profiles.get(&demanded.id, class.kind)?;
        let fits = |&batch: &u32| {
            let memory = profile.memory(batch).unwrap_or_default();
            profile.latency(batch) <= demanded.slo && memory <= class.memory
        };
        let most = sizing::LARGEST_BATCH.min(demanded.max_batch_size);
        (1..=most).rev().find(fits)
    }

    /// Puts a model where the shares grow least, or on a new device.
    fn put(&mut self, item: Item<'a>) {
        let mut best: Option<(f64, usize, Vec<Item<'a>>)> = None;
        for (number, node) in self.nodes.iter().enumerate() {
            if node.dedicated || node.class != item.class {
                continue;
            }
            let before: f64 = node.items.iter().map(|item| item.share).sum();
            if let Some(items) = self.grown(node, &item) {
                let after: f64 = items.iter().map(|item| item.share).sum();
                let growth = after - before - item.share;
                if best
                    .as_ref()
                    .is_none_or(|(least, ..)| growth < least - ROUNDING)
                {
                    best = Some((growth, number, items));
                }
            }
        }
        match best {
            Some((_, number, items)) => self.nodes[number].items = items,
            None => self.nodes.push(Node {
                class: item.class,
                items: vec![item],
                dedicated: false,
            }),
        }
    }

    /// The node with the model, shares grown until everybody is in time; `None` if there is not so much to give.
    fn grown(&self, node: &Node<'a>, item: &Item<'a>) -> Option<Vec<Item<'a>>> {
        let mut items = node.items.clone();
        items.push(item.clone());
        let memory: packhorse_cluster::ByteCount = items
            .iter()
            .filter_map(|item| {
                let id = &self.problem.models[item.model.0].id;
                let profile = self
                    .problem
                    .profiles
                    .get(id, self.classes[item.class].kind)?;
                profile.memory(item.workload.batch)
            })
            .sum();
        if memory > self.classes[node.class].memory {
            return None;
        }
        let unit = item.workload.hardware.share_unit;
        loop {
            if items.iter().map(|item| item.share).sum::<f64>() > 100.0 + ROUNDING {
                return None;
            }
            let late: Vec<bool> = predict(&items)
                .iter()
                .zip(&items)
                .map(|(prediction, item)| prediction.latency_ms > item.limit)
                .collect();
            if !late.contains(&true) {
                return Some(items);
            }
            for (item, late) in items.iter_mut().zip(late) {
                item.share += if late { unit } else { 0.0 };
            }
        }
    }

    /// Lays the nodes onto devices in the order they were opened, as far as there are devices.
    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, "no device is left");
        let mut carried = vec![0.0; self.problem.models.len()];
        let mut latency = vec![None; self.problem.models.len()];
        let mut free: Vec<_> = self
            .classes
            .iter()
            .map(|class| class.devices.iter())
            .collect();
        for node in &self.nodes {
            let Some(&device) = free[node.class].next() else {
                continue;
            };
            for (item, prediction) in node.items.iter().zip(predict(&node.items)) {
                carried[item.model.0] += prediction.throughput;
                let predicted = Duration::from_secs_f64(prediction.latency_ms / 1e3);
                latency[item.model.0] = latency[item.model.0].max(Some(predicted));
                plan.replicas.push(PlannedReplica {
                    model: item.model,
                    device,
                    batch_size: item.workload.batch,
                    compute_share: ComputeShare::new(item.share.min(100.0)).ok(),
                    duty_cycle: None,
                });
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        for (model, demanded) in self.problem.models() {
            let (carried, rate) = (carried[model.0], demanded.rate);
            let served = latency[model.0].is_some();
            let unknown = self.shortfalls[model.0].clone();
            let shortfall = if !served {
                Some(unknown.unwrap_or_else(|| "no device is left".to_owned()))
            } else if carried < rate.get() * (1.0 - ROUNDING) {
                Some(format!(
                    "its replicas carry {carried:.1} of {rate} requests/s"
                ))
            } else {
                None
            };
            plan.models[model.0] = ModelForecast {
                goodput: RequestsPerSecond::new(carried.min(rate.get()))
                    .expect("between zero and a rate"),
                latency: latency[model.0],
                shortfall,
            };
        }
        plan
    }
}

fn predict(items: &[Item<'_>]) -> Vec<Prediction> {
    let loads: Vec<(Workload<'_>, f64)> = items
        .iter()
        .map(|item| (item.workload, item.share))
        .collect();
    latency::predict(&loads)
}
