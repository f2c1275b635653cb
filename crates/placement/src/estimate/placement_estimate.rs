//! The fixed point of all replicas of a placement.
//!
//! The busy fraction of a replica depends on its speed, which depends on the busy fractions of its device's other replicas, which depend
//! on their arrival rates, which depend on the capacity of their models' replicas elsewhere. [`PlacementEstimate::solve`] iterates from
//! idle replicas upwards until the values change no more, for whole placements. A search changes one device at a time and
//! iterates only there first ([`PlacementEstimate::solve_device`]). The fraction of requests in time is no part of the iteration
//! and is computed after it.

use std::ops::Range;

use packhorse_cluster::{ComputeShare, PlannedReplica};

use super::{
    batch_costs::BatchCosts,
    deadline,
    demand::Demand,
    fixed_wait,
    inputs::EstimateInputs,
    model_estimate::ModelEstimate,
    neighbours::{ActiveNeighbours, Neighbour, RelativeSpeed},
    replica::{EstimatedReplica, ReplicaEstimate},
};

/// The iterations over a whole placement.
const SWEEPS: usize = 12;
/// The iterations over one device after a change.
const DEVICE_SWEEPS: usize = 3;
/// The batches that a replica holds at a time: one that it computes, and one in transmission.
const CREDITS: f64 = 2.0;
/// The factor by which the network and computing times of a batch grow, since two batches do not alternate without loss.
const ALTERNATION_LOSS: f64 = 1.15;

/// Replicas on devices, ordered by device, with the estimate of each model.
#[derive(Debug)]
pub(crate) struct PlacementEstimate<'w, 'a> {
    pub(crate) inputs: &'w EstimateInputs<'a>,
    replicas: Vec<EstimatedReplica>,
    /// The estimate of each model.
    models: Vec<ModelEstimate>,
    /// The indices of each model's replicas, during the iteration.
    by_model: Vec<Vec<usize>>,
    active: ActiveNeighbours,
    neighbours: Vec<Neighbour>,
    changed_models: Vec<usize>,
}

impl<'w, 'a> PlacementEstimate<'w, 'a> {
    /// Starts without replicas.
    pub(crate) fn new(inputs: &'w EstimateInputs<'a>) -> Self {
        let models = inputs.demands.iter();
        Self {
            inputs,
            replicas: Vec::new(),
            models: models.clone().map(|_| ModelEstimate::UNSERVED).collect(),
            by_model: models.map(|_| Vec::new()).collect(),
            active: ActiveNeighbours::default(),
            neighbours: Vec::new(),
            changed_models: Vec::new(),
        }
    }

    /// Estimates a placement. Replicas without a profile in the problem are left out.
    pub(crate) fn from_replicas(
        inputs: &'w EstimateInputs<'a>,
        replicas: &[PlannedReplica],
    ) -> Self {
        let mut estimate = Self::new(inputs);
        // In the order of the estimate, so that each is appended to all that are there.
        let mut by_device: Vec<&PlannedReplica> = replicas.iter().collect();
        by_device.sort_by_key(|replica| replica.device);
        for replica in by_device {
            let (device, model) = (replica.device.0, replica.model.0);
            if inputs
                .batch_costs(model, device)
                .is_some_and(|costs| replica.batch_size <= costs.largest_batch())
            {
                estimate.add_replica(device, model, replica.batch_size, replica.compute_share);
            }
        }
        estimate.solve();
        estimate
    }

    pub(crate) fn replicas(&self) -> &[EstimatedReplica] {
        &self.replicas
    }

    /// Returns the estimate of each model.
    pub(crate) fn models(&self) -> &[ModelEstimate] {
        &self.models
    }

    /// Returns the indices of a device's replicas.
    pub(crate) fn range(&self, device: usize) -> Range<usize> {
        let start = self
            .replicas
            .partition_point(|replica| replica.device < device);
        let length = self.replicas[start..].partition_point(|replica| replica.device == device);
        start..start + length
    }

    pub(crate) fn on_device(&self, device: usize) -> &[EstimatedReplica] {
        &self.replicas[self.range(device)]
    }

    /// Adds a replica behind the others of its device; the model must have a profile there.
    pub(crate) fn add_replica(
        &mut self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
    ) {
        let equal = self
            .on_device(device)
            .iter()
            .filter(|replica| replica.matches(model, batch, share));
        let running = self.inputs.running_replicas(device, model, batch, share);
        let is_new = equal.count() >= running;
        let replica = self.idle_replica(device, model, batch, share, is_new);
        let index = self.range(device).end;
        self.replicas.insert(index, replica);
        self.update_speeds(device);
    }

    /// Returns a replica without arrivals.
    fn idle_replica(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
        is_new: bool,
    ) -> EstimatedReplica {
        let costs = self
            .inputs
            .batch_costs(model, device)
            .expect("only replicas with a profile are added");
        let full = f64::from(batch);
        EstimatedReplica {
            device,
            model,
            batch,
            share,
            arrival_rate: 0.0,
            rows: full,
            backlog_rows: full,
            burst_rows: full,
            burst_utilization: costs.utilization(full, share),
            burst_speed: RelativeSpeed::ALONE,
            busy: 0.0,
            utilization: costs.utilization(full, share),
            backlog_utilization: costs.utilization(full, share),
            speed: RelativeSpeed::ALONE,
            capacity: full / costs.seconds(full, share),
            full_batch_seconds: costs.seconds(full, share),
            estimate: ReplicaEstimate::default(),
            is_new,
        }
    }

    /// Removes a replica by its index.
    pub(crate) fn remove_replica(&mut self, index: usize) {
        let EstimatedReplica {
            device,
            model,
            batch,
            share,
            is_new,
            ..
        } = self.replicas.remove(index);
        let range = self.range(device);
        // If some of several equal replicas run, those stay.
        let twin = self.replicas[range]
            .iter_mut()
            .find(|replica| replica.is_new && replica.matches(model, batch, share));
        if let Some(twin) = twin {
            twin.is_new = is_new;
        }
    }

    /// Copies the replicas and estimates of another placement of the same inputs.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.replicas.clone_from(&other.replicas);
        self.models.clone_from(&other.models);
    }

    /// Computes the fixed point of the whole placement. It starts from idle replicas whatever the state was, so that equal replicas
    /// have the same of several fixed points.
    pub(crate) fn solve(&mut self) {
        for index in 0..self.replicas.len() {
            let EstimatedReplica {
                device,
                model,
                batch,
                share,
                is_new,
                ..
            } = self.replicas[index];
            self.replicas[index] = self.idle_replica(device, model, batch, share, is_new);
        }
        self.index_by_model();
        for _ in 0..SWEEPS {
            self.distribute_all_arrivals();
            let mut device = 0;
            while let Some(next) = self.replicas.get(self.range(device).start) {
                device = next.device;
                self.update_speeds(device);
                device += 1;
            }
        }
        self.distribute_all_arrivals();
        (0..self.models.len()).for_each(|model| self.estimate_model(model, None));
    }

    /// Computes the fixed point of a device for the models that have replicas there, and for `removed`, those that had some. The state
    /// of other devices stays as it is.
    pub(crate) fn solve_device(&mut self, device: usize, removed: &[usize]) {
        let mut models = std::mem::take(&mut self.changed_models);
        models.clear();
        models.extend(
            self.on_device(device)
                .iter()
                .map(|replica| replica.model)
                .chain(removed.iter().copied()),
        );
        models.sort_unstable();
        models.dedup();
        self.index_by_model();
        for _ in 0..DEVICE_SWEEPS {
            for &model in &models {
                self.distribute_arrivals(model, Some(device));
            }
            self.update_speeds(device);
        }
        for &model in &models {
            self.distribute_arrivals(model, Some(device));
            self.estimate_model(model, Some(device));
        }
        self.changed_models = models;
    }

    /// Computes `by_model`, which holds until a replica is added or removed.
    fn index_by_model(&mut self) {
        self.by_model.iter_mut().for_each(Vec::clear);
        for (index, replica) in self.replicas.iter().enumerate() {
            self.by_model[replica.model].push(index);
        }
    }

    fn distribute_all_arrivals(&mut self) {
        (0..self.models.len()).for_each(|model| self.distribute_arrivals(model, None));
    }

    /// Updates the speeds and capacities of a device's replicas from their busy fractions.
    fn update_speeds(&mut self, device: usize) {
        let range = self.range(device);
        for index in range.clone() {
            let subject = self.replicas[index].model;
            let demand = &self.inputs.demands[subject];
            let is_same_model = |replica: &EstimatedReplica| replica.model == subject;
            self.set_neighbours(index, &range, |replica| (replica.busy, replica.utilization));
            let speed = self.active.relative_speed(self.replicas[index].utilization);
            let mut burst_speed = speed;
            if demand.mean_burst() > 1.0 {
                self.set_neighbours(index, &range, |replica| {
                    if is_same_model(replica) {
                        (1.0, replica.burst_utilization)
                    } else {
                        (replica.busy, replica.utilization)
                    }
                });
                let own = self.replicas[index].burst_utilization;
                burst_speed = self.active.relative_speed(own);
            }
            // A model whose requests wait has all its replicas busy.
            self.set_neighbours(index, &range, |replica| {
                let load = replica.arrival_rate / replica.capacity;
                let busy = if is_same_model(replica) {
                    1.0
                } else {
                    load.min(1.0)
                };
                (busy, replica.backlog_utilization)
            });
            let replica = &mut self.replicas[index];
            let costs = batch_costs(self.inputs, replica);
            replica.speed = speed;
            replica.burst_speed = burst_speed;
            let backlog_speed = self.active.relative_speed(replica.backlog_utilization).mean;
            replica.full_batch_seconds =
                costs.seconds(f64::from(replica.batch), replica.share) / backlog_speed;
            let rows = backlog_rows(replica, costs, demand, backlog_speed);
            // Fewer rows leave the neighbours more, who then have more rows: the step is halved against oscillation.
            replica.backlog_rows = f64::midpoint(replica.backlog_rows, rows);
            replica.backlog_utilization = costs.utilization(replica.backlog_rows, replica.share);
            let seconds = costs.seconds(replica.backlog_rows, replica.share) / backlog_speed;
            let network =
                demand.network_latency + demand.network_latency_per_row * replica.backlog_rows;
            replica.capacity = replica.backlog_rows
                / seconds.max((seconds + network) * ALTERNATION_LOSS / CREDITS);
        }
    }

    /// Sets the active neighbours of a replica. `activity` returns the busy fraction of a neighbour, and its utilisation then.
    fn set_neighbours(
        &mut self,
        index: usize,
        range: &Range<usize>,
        activity: impl Fn(&EstimatedReplica) -> (f64, f64),
    ) {
        let subject = &self.replicas[index];
        let neighbour = |other: usize| {
            let replica = &self.replicas[other];
            let (busy, utilization) = activity(replica);
            let sensitivity = self
                .inputs
                .sensitivity(replica.device, subject.model, replica.model);
            Neighbour {
                busy,
                utilization,
                slowdown: sensitivity.map(|sensitivity| sensitivity * utilization / 100.0),
            }
        };
        let others = range.clone().filter(|&other| other != index);
        self.neighbours.clear();
        self.neighbours.extend(others.map(neighbour));
        self.active.replace(&mut self.neighbours);
    }

    /// Distributes a model's arrivals over its replicas in proportion to their capacities. Updates only those on the `only` device, if
    /// one is given.
    fn distribute_arrivals(&mut self, model: usize, only: Option<usize>) {
        let demand = &self.inputs.demands[model];
        let indices = &self.by_model[model];
        let capacities = indices.iter().map(|&index| self.replicas[index].capacity);
        let capacity: f64 = capacities.sum();
        for &index in indices {
            let replica = &mut self.replicas[index];
            if only.is_none_or(|only| only == replica.device) {
                replica.arrival_rate = demand.rate * replica.capacity / capacity;
                update_load(replica, batch_costs(self.inputs, replica), demand);
            }
        }
    }

    /// Estimates a model from its replicas. Those not on the `only` device, if one is given, keep their estimates.
    fn estimate_model(&mut self, model: usize, only: Option<usize>) {
        let demand = &self.inputs.demands[model];
        let indices = &self.by_model[model];
        for &index in indices {
            let replica = &mut self.replicas[index];
            if only.is_none_or(|only| only == replica.device) {
                let costs = batch_costs(self.inputs, replica);
                replica.estimate = estimate_replica(replica, costs, demand, indices.len());
            }
        }
        let replicas = indices.iter().map(|&index| &self.replicas[index]);
        self.models[model] = ModelEstimate::from_replicas(demand, replicas);
    }
}

fn batch_costs<'w>(inputs: &'w EstimateInputs<'_>, replica: &EstimatedReplica) -> &'w BatchCosts {
    let costs = inputs.batch_costs(replica.model, replica.device);
    costs.expect("only replicas with a profile are added")
}

/// Returns the rows of a replica's batches in the backlog state.
fn backlog_rows(
    replica: &EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    speed: f64,
) -> f64 {
    match demand.fixed_wait {
        Some(_) => f64::from(replica.batch),
        None => deadline::backlog_rows(replica, costs, demand, speed),
    }
}

/// Computes a replica's batches and busy fraction from its arrival rate.
fn update_load(replica: &mut EstimatedReplica, costs: &BatchCosts, demand: &Demand) {
    match demand.fixed_wait {
        Some(wait) => fixed_wait::update_load(replica, costs, demand, wait),
        None => deadline::update_load(replica, costs, demand),
    }
}

/// Estimates the times of the requests of one of `count` replicas of a model.
fn estimate_replica(
    replica: &EstimatedReplica,
    costs: &BatchCosts,
    demand: &Demand,
    count: usize,
) -> ReplicaEstimate {
    match demand.fixed_wait {
        Some(wait) => fixed_wait::estimate(replica, costs, demand, wait),
        None => deadline::estimate(replica, costs, demand, count as f64),
    }
}
