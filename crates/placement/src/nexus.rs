//! `nexus`: squishy bin packing. Devices are shared in time: a node computes one batch of each of its models per duty cycle.
//!
//! `L(b)` is the time of a batch of `b` and `r` the rate of a model. For every model in the problem's order:
//!
//! 1. *Saturate.* `B` is the largest batch with `2 · L(B) ≤ SLO`, because a request that just missed a batch waits for a whole one. The
//!    rate fills floor(r · L(B) / B) nodes, which serve this model only.
//! 2. *Residual.* The remaining rate gets the largest `b ≤ B` with `L(b) + b / r ≤ SLO`, a duty cycle `D = b / r` and an occupancy
//!    `L(b) / D`. Residuals are merged in descending order of occupancy: on a shared node `D` is the smallest of the members' duty
//!    cycles, member `i` has batches of `ceil(D · rᵢ)`, and the residual fits if `Σ Lᵢ(bᵢ) ≤ D`. A residual joins the node whose
//!    occupancy becomes the highest, or opens a new node if it fits on none.
//! 3. *Locality.* Nodes are assigned to devices such that models stay on their devices, beginning with the node that finds the most of
//!    its models on one device. The last nodes are dropped if there are not enough devices: first come, first served.
//!
//! With [`packhorse_cluster::PolicyOptions::nexus_published`] the wait of a residual batch is `(b − 1) / r`, and the duty cycle is at
//! most `SLO − L(b)`.
//!
//! Source: Shen et al., "Nexus: a GPU cluster engine for accelerating DNN-based video analysis", SOSP 2019, algorithm 1. The locality
//! and the fixed cluster are from Nexus-on-Blox, "Implementing Inference scheduler in Blox", algorithm 1 and section 4.4.
//!
//! Deviations:
//! - Batches are any integer up to the largest profiled one, with latencies interpolated from the profile.
//! - Memory is a limit. The published scheduler computes it but does not use it.
//! - A rate so low that a request may not wait for a second one (`L(1) + 1 / r > SLO`) is served in batches of 1 with the duty cycle
//!   `SLO − L(1)`. The paper's formula would never serve it.
//! - A residual batch smaller than `B` may be too slow for its rate. It then fills a node alone, and the rest is another residual.
//! - Devices of several kinds: a node is opened on the kind with the most requests per cost (per device if no cost is given).
//! - The published margins (latency 1.15 · (mean + deviation), 2 ms for the network, pre- and postprocessing) are left out, because our
//!   profiles contain only the time of the batch.

use packhorse_cluster::{
    ByteCount, DeviceIndex, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond, Shortfall,
};

use self::batch_table::BatchTable;
use crate::{
    Budget, PlaceError, PlanningOptions, Policy,
    candidates::Candidates,
    device_classes::{DeviceClass, device_classes},
    duty_cycle::{BatchTimes as _, Turn, planned_duration, turns},
    forecast::forecast,
    tolerance::ROUNDING,
};

mod batch_table;
mod layout;

pub(crate) const NAME: &str = "nexus";

pub(crate) struct Nexus;

impl Policy for Nexus {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let mut packing = Packing::new(problem, options.policy.nexus_published);
        let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
        // Models without expected requests come last.
        order.sort_by_key(|model| problem.models[model.0].rate == RequestsPerSecond::ZERO);
        let mut residuals = Vec::new();
        for &model in &order {
            budget.spend(problem.devices.len() as u64)?;
            let rate = packing.saturate(model);
            residuals.extend(packing.residuals(model, rate));
        }
        residuals.sort_by(|a, b| b.occupancy.total_cmp(&a.occupancy));
        for residual in &residuals {
            budget.spend(packing.nodes.len() as u64 + 1)?;
            packing.pack(residual);
        }
        Ok(packing.into_plan())
    }
}

/// A part of a model's rate that does not fill a node.
struct Residual {
    model: ModelIndex,
    /// The rate in requests per second.
    rate: f64,
    /// The occupancy of a node of its own on the model's best class.
    occupancy: f64,
}

/// The work of one device, before a device is assigned.
struct Node {
    class: usize,
    /// The batches of each duty cycle.
    turns: Vec<Turn>,
    /// The duty cycle in seconds.
    duty: f64,
    /// False if the node is saturated by one model.
    open: bool,
}

/// A plan in progress.
struct Packing<'a> {
    problem: &'a Problem,
    /// True to compute the wait for a residual batch like the published code.
    published: bool,
    classes: Vec<DeviceClass<'a>>,
    /// The number of devices of each class without a node.
    free: Vec<usize>,
    /// The batches that a model can have, by model, then class; `None` if it has none there.
    tables: Vec<Vec<Option<BatchTable>>>,
    nodes: Vec<Node>,
}

impl<'a> Packing<'a> {
    fn new(problem: &'a Problem, published: bool) -> Self {
        let classes = device_classes(problem);
        let tables = |model| {
            classes
                .iter()
                .map(|class| BatchTable::new(problem, model, class))
                .collect()
        };
        Self {
            tables: problem.models().map(|(model, _)| tables(model)).collect(),
            problem,
            published,
            free: classes.iter().map(|class| class.devices.len()).collect(),
            classes,
            nodes: Vec::new(),
        }
    }

    /// Returns the allowed class with the most requests per cost, and the model's batches there.
    fn best_class(
        &self,
        model: ModelIndex,
        allowed: impl Fn(usize, &BatchTable) -> bool,
    ) -> Option<(usize, &BatchTable)> {
        let tables = self.tables[model.0].iter().enumerate();
        let possible = tables
            .filter_map(|(class, table)| Some((class, table.as_ref()?)))
            .filter(|&(class, table)| allowed(class, table));
        // `max_by` returns the last of equals: in reverse order that is the first one.
        possible.rev().max_by(|a, b| {
            let per_cost = |(class, table): &(usize, &BatchTable)| {
                table.throughput() / self.classes[*class].cost
            };
            per_cost(a).total_cmp(&per_cost(b))
        })
    }

    /// Opens nodes for the model alone as long as its rate fills one, and returns the remaining rate.
    fn saturate(&mut self, model: ModelIndex) -> f64 {
        let mut rate = self.problem.models[model.0].rate.get();
        loop {
            let filled = self.best_class(model, |class, table| {
                self.free[class] > 0 && rate >= table.throughput() * (1.0 - ROUNDING)
            });
            let Some((class, table)) = filled else {
                return rate;
            };
            let (batch_size, carried) = (table.largest_batch(), table.throughput());
            let duty = table.seconds(batch_size);
            let turn = Turn {
                model,
                rate: carried,
                batch_size,
            };
            self.open_node(class, false, duty, turn);
            rate = (rate - carried).max(0.0);
            if rate <= carried * ROUNDING {
                return 0.0;
            }
        }
    }

    fn open_node(&mut self, class: usize, open: bool, duty: f64, turn: Turn) {
        self.free[class] -= 1;
        self.nodes.push(Node {
            class,
            turns: vec![turn],
            duty,
            open,
        });
    }

    /// Divides the remaining rate of a model into residuals that one node each can carry.
    fn residuals(&self, model: ModelIndex, mut rate: f64) -> Vec<Residual> {
        let served = self.nodes.iter().any(|node| node.turns[0].model == model);
        let Some((_, table)) = self.best_class(model, |_, _| true) else {
            return Vec::new();
        };
        let mut residuals = Vec::new();
        while rate > 0.0 || (residuals.is_empty() && !served) {
            // The rate may be more than a node carries if no device is free to be saturated.
            let batch = table.residual_batch(rate, self.published);
            let carried = f64::from(batch.size) / table.seconds(batch.size);
            let part = if batch.occupancy > 1.0 {
                carried.min(rate)
            } else {
                rate
            };
            residuals.push(Residual {
                model,
                rate: part,
                occupancy: batch.occupancy.min(1.0),
            });
            if part < carried * (1.0 - ROUNDING) || residuals.len() >= self.problem.devices.len() {
                break;
            }
            rate -= part;
        }
        residuals
    }

    /// Adds a residual to the node whose occupancy becomes the highest, or opens a node for it.
    fn pack(&mut self, residual: &Residual) {
        let mut best: Option<(f64, usize, Node)> = None;
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some((occupancy, merged)) = self.merge(node, residual)
                && best.as_ref().is_none_or(|(most, ..)| occupancy > *most)
            {
                best = Some((occupancy, number, merged));
            }
        }
        if let Some((_, number, merged)) = best {
            self.nodes[number] = merged;
            return;
        }
        let Residual { model, rate, .. } = *residual;
        let Some((class, table)) = self.best_class(model, |class, _| self.free[class] > 0) else {
            return;
        };
        let batch = table.residual_batch(rate, self.published);
        let latency = table.seconds(batch.size);
        let throughput = f64::from(batch.size) / latency;
        let turn = Turn {
            model,
            rate: rate.min(throughput),
            batch_size: batch.size,
        };
        self.open_node(class, true, batch.duty.max(latency), turn);
    }

    /// Returns the node with the residual added, and its occupancy; `None` if the residual does not fit.
    fn merge(&self, node: &Node, residual: &Residual) -> Option<(f64, Node)> {
        let table = |model: ModelIndex| self.tables[model.0][node.class].as_ref();
        let is_new = node.turns.iter().all(|turn| turn.model != residual.model);
        if !node.open || !is_new {
            return None;
        }
        let batch = table(residual.model)?.residual_batch(residual.rate, self.published);
        let duty = node.duty.min(batch.duty);
        let rates = node.turns.iter().map(|turn| (turn.model, turn.rate));
        let rates = rates.chain([(residual.model, residual.rate)]);
        let (turns, busy) = turns(duty, rates, table)?;
        let memory = |turn: &Turn| Some(table(turn.model)?.memory(turn.batch_size));
        let memory: ByteCount = turns.iter().filter_map(memory).sum();
        let merged = Node {
            class: node.class,
            turns,
            duty,
            open: true,
        };
        (memory <= self.classes[node.class].memory).then_some((busy / duty, merged))
    }

    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, &Shortfall::NoDeviceLeft);
        let mut carried = vec![0.0; self.problem.models.len()];
        for (number, class) in self.classes.iter().enumerate() {
            let nodes: Vec<&Node> = self
                .nodes
                .iter()
                .filter(|node| node.class == number)
                .collect();
            let models: Vec<Vec<ModelIndex>> = nodes
                .iter()
                .map(|node| node.turns.iter().map(|turn| turn.model).collect())
                .collect();
            let devices = layout::assign_devices(self.problem, &class.devices, &models);
            for (node, device) in nodes.into_iter().zip(devices) {
                for turn in &node.turns {
                    carried[turn.model.0] += turn.rate;
                    plan.replicas.push(planned(node, turn, device));
                }
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let candidates = Candidates::new(self.problem);
        for (model, demanded) in self.problem.models() {
            let replicas = plan.replicas.iter();
            let replicas = replicas.filter(|replica| replica.model == model).count();
            let rate = demanded.rate;
            plan.models[model.0] = forecast(
                rate,
                replicas,
                carried[model.0],
                || self.unplaced(&candidates, model),
                |goodput| Shortfall::NoDeviceLeftForMore {
                    replicas,
                    goodput,
                    rate,
                },
            );
        }
        plan
    }

    /// Returns the reason why a model has no replica.
    fn unplaced(&self, candidates: &Candidates<'_>, model: ModelIndex) -> Shortfall {
        let possible = self.tables[model.0].iter().any(Option::is_some);
        let no_node = if possible {
            Shortfall::NoDeviceLeft
        } else {
            Shortfall::NoMemoryWithinHalfSlo
        };
        candidates.infeasible(model).unwrap_or(no_node)
    }
}

fn planned(node: &Node, turn: &Turn, device: DeviceIndex) -> PlannedReplica {
    PlannedReplica {
        model: turn.model,
        device,
        batch_size: turn.batch_size,
        compute_share: None,
        duty_cycle: Some(planned_duration(node.duty)),
        memory: None,
        backbone: None,
        pool: None,
    }
}
