//! `nexus`: squishy bin packing. Devices are shared in time: a node goes through its models once per duty cycle.
//!
//! With `L(b)` the time of a batch of `b` and `r` a model's rate, for every model in the problem's order:
//!
//! 1. *Saturate.* `B` is the largest batch with `2 · L(B) ≤ SLO` (a request that just missed a batch waits for a whole one). As
//!    many nodes as the rate fills, floor(r · L(B) / B), run nothing else.
//! 2. *Residual.* What is left of the rate takes the largest `b ≤ B` with `L(b) + b / r ≤ SLO`, a duty cycle `D = b / r` and an
//!    occupancy `L(b) / D`. Residuals are merged, the largest occupancy first: on a shared node `D` is the least of the members'
//!    duty cycles, member `i` has batches of `ceil(D · rᵢ)`, and it fits if `Σ Lᵢ(bᵢ) ≤ D`. A residual joins the node whose
//!    occupancy becomes the highest; if it fits none, it opens one.
//! 3. *Locality.* Nodes are laid onto devices so that models stay where they are, the node with the most models in place first;
//!    [`crate::swaps`] counts the rest. First come, first served: nodes beyond the devices are dropped, the last ones first.
//!
//! With [`PolicyOptions::nexus_published`] the wait of a residual batch is `(b − 1) / r`, and the duty cycle at most `SLO − L(b)`.
//!
//! Source: Shen et al., "Nexus: a GPU cluster engine for accelerating DNN-based video analysis", SOSP 2019, algorithm 1; the
//! locality and the fixed cluster are Nexus-on-Blox', "Implementing Inference scheduler in Blox", algorithm 1 and section 4.4.
//!
//! Where we deviate:
//! - Batches are any integer up to the largest profiled one, by the profile's interpolation.
//! - Memory is a limit. The published scheduler computes it and never looks.
//! - A rate so low that even one request may not wait for a second (`L(1) + 1 / r > SLO`) is served in batches of 1 with the
//!   duty cycle `SLO − L(1)`: the paper's formula would never serve it.
//! - A residual batch smaller than `B` may not keep up with its rate. It then fills a node alone, and the rest is a residual again.
//! - Devices of several kinds: a node is opened on the kind that gives most requests per cost (per device where no cost is given).
//! - The published margins (latency 1.15 · (mean + deviation), 2 ms for the network, pre- and postprocessing) are left out: our
//!   profiles are of a batch alone.

use std::time::Duration;

use packhorse_cluster::{
    DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem, RequestsPerSecond,
};

use self::sizes::Sizes;
use crate::{
    Budget, PlaceError, Policy, PolicyOptions,
    candidates::Candidates,
    classes::{Class, classes},
};

mod layout;
mod sizes;

pub(crate) const NAME: &str = "nexus";

/// Products and quotients of rounded times: what misses a limit by this part of it meets it.
const ROUNDING: f64 = 1e-9;

pub(crate) struct Nexus;

impl Policy for Nexus {
    fn place(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let mut packing = Packing::new(problem, options.nexus_published);
        let mut order: Vec<ModelIndex> = problem.models().map(|(model, _)| model).collect();
        // Those that expect no requests come after all others.
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

/// A rate that does not fill a node.
struct Residual {
    model: ModelIndex,
    rate: f64,
    /// On the class that it would open a node of.
    occupancy: f64,
}

struct Member {
    model: ModelIndex,
    rate: f64,
    batch: u32,
}

/// What a device will do, before it is said which one.
struct Node {
    class: usize,
    members: Vec<Member>,
    /// In seconds.
    duty: f64,
    /// Saturated nodes take nobody in.
    open: bool,
}

struct Packing<'a> {
    problem: &'a Problem,
    published: bool,
    classes: Vec<Class<'a>>,
    /// How many devices of each class are not taken yet.
    free: Vec<usize>,
    /// By model, then class.
    sizes: Vec<Vec<Option<Sizes>>>,
    nodes: Vec<Node>,
}

impl<'a> Packing<'a> {
    fn new(problem: &'a Problem, published: bool) -> Self {
        let classes = classes(problem);
        let of_model = |model| {
            classes
                .iter()
                .map(|class| Sizes::new(problem, model, class))
                .collect()
        };
        Self {
            sizes: problem.models().map(|(model, _)| of_model(model)).collect(),
            problem,
            published,
            free: classes.iter().map(|class| class.devices.len()).collect(),
            classes,
            nodes: Vec::new(),
        }
    }

    /// The class that gives most requests per cost, of those that the model can run on.
    fn best_class(
        &self,
        model: ModelIndex,
        allowed: impl Fn(usize, &Sizes) -> bool,
    ) -> Option<(usize, &Sizes)> {
        let sizes = self.sizes[model.0].iter().enumerate();
        let possible = sizes
            .filter_map(|(class, sizes)| Some((class, sizes.as_ref()?)))
            .filter(|&(class, sizes)| allowed(class, sizes));
        // The first one of equals: it comes last in reverse order.
        possible.rev().max_by(|a, b| {
            let value =
                |(class, sizes): &(usize, &Sizes)| sizes.throughput() / self.classes[*class].cost;
            value(a).total_cmp(&value(b))
        })
    }

    /// Fills nodes with the model alone while its rate fills one; returns what is left of the rate.
    fn saturate(&mut self, model: ModelIndex) -> f64 {
        let mut rate = self.problem.models[model.0].rate.get();
        loop {
            let full = self.best_class(model, |class, sizes| {
                self.free[class] > 0 && rate >= sizes.throughput() * (1.0 - ROUNDING)
            });
            let Some((class, sizes)) = full else {
                return rate;
            };
            let (batch, carried) = (sizes.saturated(), sizes.throughput());
            let duty = sizes.latency(batch);
            self.open(class, false, duty, model, carried, batch);
            rate = (rate - carried).max(0.0);
            if rate <= carried * ROUNDING {
                return 0.0;
            }
        }
    }

    fn open(
        &mut self,
        class: usize,
        open: bool,
        duty: f64,
        model: ModelIndex,
        rate: f64,
        batch: u32,
    ) {
        self.free[class] -= 1;
        self.nodes.push(Node {
            class,
            members: vec![Member { model, rate, batch }],
            duty,
            open,
        });
    }

    /// Cuts what is left of a rate into pieces that a node can carry each.
    fn residuals(&self, model: ModelIndex, mut rate: f64) -> Vec<Residual> {
        let served = self.nodes.iter().any(|node| node.members[0].model == model);
        let Some((_, sizes)) = self.best_class(model, |_, _| true) else {
            return Vec::new();
        };
        let mut pieces = Vec::new();
        while rate > 0.0 || (pieces.is_empty() && !served) {
            // There may be more left than a node carries: the devices it would fill are gone.
            let demand = sizes.demand(rate, self.published);
            let carried = f64::from(demand.batch) / sizes.latency(demand.batch);
            let piece = if demand.occupancy > 1.0 {
                carried.min(rate)
            } else {
                rate
            };
            pieces.push(Residual {
                model,
                rate: piece,
                occupancy: demand.occupancy.min(1.0),
            });
            if piece < carried * (1.0 - ROUNDING) || pieces.len() >= self.problem.devices.len() {
                break;
            }
            rate -= piece;
        }
        pieces
    }

    /// Puts a residual where occupancy becomes the highest, or opens a node.
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
        let Some((class, sizes)) = self.best_class(model, |class, _| self.free[class] > 0) else {
            return;
        };
        let demand = sizes.demand(rate, self.published);
        let latency = sizes.latency(demand.batch);
        let most = f64::from(demand.batch) / latency;
        self.open(
            class,
            true,
            demand.duty.max(latency),
            model,
            rate.min(most),
            demand.batch,
        );
    }

    /// The node with the residual on it, and its occupancy; `None` if that does not fit.
    fn merge(&self, node: &Node, residual: &Residual) -> Option<(f64, Node)> {
        let class = &self.classes[node.class];
        let sizes = |model: ModelIndex| self.sizes[model.0][node.class].as_ref();
        let is_new = node
            .members
            .iter()
            .all(|member| member.model != residual.model);
        if !node.open || !is_new {
            return None;
        }
        let duty = node.duty.min(
            sizes(residual.model)?
                .demand(residual.rate, self.published)
                .duty,
        );
        let rates = node
            .members
            .iter()
            .map(|member| (member.model, member.rate));
        let (mut members, mut busy, mut memory) = (Vec::new(), 0.0, 0_u64);
        for (model, rate) in rates.chain([(residual.model, residual.rate)]) {
            let sizes = sizes(model)?;
            // A batch that is a rounding error over an integer is that integer.
            let batch = (duty * rate - 1e-6).ceil().max(1.0);
            if batch > f64::from(sizes.saturated()) {
                return None;
            }
            let batch = batch as u32;
            busy += sizes.latency(batch);
            memory = memory.saturating_add(sizes.memory(batch).as_u64());
            members.push(Member { model, rate, batch });
        }
        if busy > duty * (1.0 + ROUNDING) || memory > class.memory.as_u64() {
            return None;
        }
        let merged = Node {
            class: node.class,
            members,
            duty,
            open: true,
        };
        Some((busy / duty, merged))
    }

    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, "");
        let mut carried = vec![0.0; self.problem.models.len()];
        for (number, class) in self.classes.iter().enumerate() {
            let nodes: Vec<&Node> = self
                .nodes
                .iter()
                .filter(|node| node.class == number)
                .collect();
            let models: Vec<Vec<ModelIndex>> = nodes
                .iter()
                .map(|node| node.members.iter().map(|member| member.model).collect())
                .collect();
            let devices = layout::lay_out(self.problem, &class.devices, &models);
            for (node, device) in nodes.into_iter().zip(devices) {
                for member in &node.members {
                    carried[member.model.0] += member.rate;
                    plan.replicas.push(planned(node, member, device));
                }
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        let candidates = Candidates::new(self.problem);
        for (model, _) in self.problem.models() {
            let replicas = plan
                .replicas
                .iter()
                .filter(|replica| replica.model == model)
                .count();
            plan.models[model.0] = self.forecast(&candidates, model, replicas, carried[model.0]);
        }
        plan
    }

    fn forecast(
        &self,
        candidates: &Candidates<'_>,
        model: ModelIndex,
        replicas: usize,
        carried: f64,
    ) -> ModelForecast {
        let rate = self.problem.models[model.0].rate;
        let shortfall = if replicas == 0 {
            let unfit = candidates.unfit(model);
            let possible = self.sizes[model.0].iter().any(Option::is_some);
            Some(unfit.unwrap_or_else(|| {
                if possible {
                    "no device is left".to_owned()
                } else {
                    "no device has the memory for a batch that leaves a request the time to wait for another one".to_owned()
                }
            }))
        } else if carried < rate.get() * (1.0 - ROUNDING) {
            Some(format!(
                "{replicas} replicas carry {carried:.1} of {rate} requests/s, and no device is left for more"
            ))
        } else {
            None
        };
        let goodput = RequestsPerSecond::new(carried.min(rate.get()));
        ModelForecast {
            goodput: goodput.expect("between zero and a rate"),
            latency: None,
            shortfall,
        }
    }
}

fn planned(node: &Node, member: &Member, device: DeviceIndex) -> PlannedReplica {
    PlannedReplica {
        model: member.model,
        device,
        batch_size: member.batch,
        compute_share: None,
        // An SLO may be as long as a duration can be, and a rate as low.
        duty_cycle: Some(Duration::try_from_secs_f64(node.duty).unwrap_or(Duration::MAX)),
    }
}
