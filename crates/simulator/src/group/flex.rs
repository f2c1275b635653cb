//! `flex` and `flex-np`: the largest batch of all models goes first, and stops a much smaller one.
//!
//! Each model has a queue by deadline. Its *candidate* on a device is the largest batch that would be back before the earliest deadline in it. An
//! idle device gets the largest candidate of its models. If a request arrives and no device of its model is idle, the
//! candidate of its model stops the smallest batch that a device computes for whichever model, provided that it is at least λ = 3.03 times
//! as large ([`LAMBDA`]). The requests of the stopped batch wait again; what was computed of it is lost. `flex-np` stops nothing.
//! A request that not even an idle device answers in time is dropped.
//!
//! A batch stops at an exit point between two layers: [`EXIT_POINTS`]. Under `flex` every batch bears their cost, under `flex-np` none.
//!
//! Source: Zhang et al., "SHEPHERD: Serving DNNs in the Wild", NSDI 2023, section 5 (Flex), from published reading notes; λ and the order of steps from
//! third-party simulators. The groups are those of the plan (`herd`): a device's models are those with a replica there.
//!
//! Deviations:
//! - *Every batch is in time by its own estimate*, which the third-party simulators do not check.
//! - *The first request of a batch.* A request that is nearly due would make the batch behind it small. The candidate begins with whichever request allows the largest
//!   batch, and leaves those before it for another device.
//! - The paper compares batches of models with similar times, which Herd's affinity sets ensure, by their size. So it is here, whatever the plan.
//! - A device counts as idle when the batch would arrive just as the one before it is done, as in the engine's disciplines.
//! - The source of the times is the profile, corrected by the last observations: [`super::estimates`].
//! - The notes give no numbers for the exit points. Ours are assumed.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use packhorse_cluster::{PlannedReplica, Time};

use super::{
    BatchOrder, ComputedBatch, ExitPoints, GroupAction, GroupRequest, GroupServer,
    deadline_queue::{Candidate, DeadlineQueue},
    device_clock::{DeviceClock, HeldBatch},
    estimates::Estimates,
    expirations::Expirations,
};
use crate::Scenario;

/// The size of a batch that stops another one, over the size of that one. Source: the third-party simulators.
const LAMBDA: f64 = 3.03;

/// The exit points of every batch under `flex`. Assumed: a layer or a few take a millisecond, and a look at a flag in the host's memory
/// takes ten microseconds.
pub(super) const EXIT_POINTS: ExitPoints = ExitPoints {
    interval: Duration::from_millis(1),
    cost: Duration::from_micros(10),
};

/// The scheduler of all models and devices of a plan.
#[derive(Debug)]
pub(super) struct Flex {
    estimates: Estimates,
    /// The exit points; `None` if batches are not stopped.
    exit_points: Option<ExitPoints>,
    queues: Vec<DeadlineQueue>,
    devices: Vec<FlexDevice>,
    /// The devices of each model, ascending.
    devices_of: Vec<Vec<usize>>,
    /// The first device of each kind of these.
    kinds_of: Vec<Vec<usize>>,
    /// The times at which to look at devices again.
    looks: BTreeSet<(Time, usize)>,
    /// The times at which the first request of a model may have become hopeless.
    expirations: Expirations,
    /// The models with requests that have arrived since the last decision.
    arrived: BTreeSet<usize>,
    /// The requests that cannot be answered in time.
    dropped: Vec<GroupRequest>,
    next_batch: u64,
}

/// A device with the models that have a replica there.
#[derive(Debug, Default)]
struct FlexDevice {
    /// The models with their largest batches, in rows.
    models: Vec<(usize, u32)>,
    clock: DeviceClock,
    /// The time at which to look at the device again; `None` if an event must come first.
    look: Option<Time>,
}

/// A batch that can be sent to a device.
#[derive(Clone, Copy, Debug)]
struct Choice {
    model: usize,
    candidate: Candidate,
}

impl Flex {
    pub(super) fn new(
        scenario: &Scenario,
        plan: &[PlannedReplica],
        exit_points: Option<ExitPoints>,
    ) -> Self {
        let estimates = Estimates::new(scenario, exit_points);
        let models = scenario.problem.models.len();
        let mut devices = Vec::new();
        devices.resize_with(scenario.problem.devices.len(), FlexDevice::default);
        let mut devices_of: Vec<Vec<usize>> = vec![Vec::new(); models];
        for replica in plan {
            let (model, device) = (replica.model.0, replica.device.0);
            let rows = replica.batch_size.min(estimates.most_rows(model, device));
            let on_device = &mut devices[device].models;
            let known = on_device.iter_mut().find(|known| known.0 == model);
            if let Some(known) = known {
                known.1 = known.1.max(rows);
            } else {
                on_device.push((model, rows));
                devices_of[model].push(device);
            }
        }
        for devices in &mut devices_of {
            devices.sort_unstable();
        }
        let kinds_of = devices_of.iter();
        let kinds_of =
            kinds_of.map(|devices| estimates.first_of_each_kind(devices.iter().copied()));
        Self {
            kinds_of: kinds_of.collect(),
            queues: vec![DeadlineQueue::default(); models],
            estimates,
            exit_points,
            devices,
            devices_of,
            looks: BTreeSet::new(),
            expirations: Expirations::new(models),
            arrived: BTreeSet::new(),
            dropped: Vec::new(),
            next_batch: 0,
        }
    }

    fn least_time(&self, model: usize) -> Option<Duration> {
        self.estimates.least(model, &self.kinds_of[model])
    }

    fn enqueue(&mut self, now: Time, request: GroupRequest) {
        let Some(least) = self.least_time(request.model) else {
            self.dropped.push(request);
            return;
        };
        self.queues[request.model].insert(request);
        self.expirations
            .add(now, request.model, request.deadline, least);
    }

    /// Drops the requests that not even an idle device answers in time.
    fn expire(&mut self, now: Time) {
        while let Some(model) = self.expirations.pop(now) {
            let Some(least) = self.least_time(model) else {
                continue;
            };
            while let Some(request) = self.queues[model].pop_due_before(now + least) {
                self.dropped.push(request);
            }
            if let Some(due) = self.queues[model].first_due()
                && self.expirations.has_none(model)
            {
                self.expirations.add(now, model, due, least);
                self.arrived.insert(model);
            }
        }
    }

    fn look_at(&mut self, device: usize, at: Option<Time>) {
        let look = &mut self.devices[device].look;
        if let Some(before) = look.take() {
            self.looks.remove(&(before, device));
        }
        *look = at;
        self.looks.extend(at.map(|at| (at, device)));
    }

    /// Returns the largest candidate of a device's models, of equal ones the one that is due first.
    fn choose(&self, now: Time, device: usize) -> Option<Choice> {
        let free = self.devices[device].clock.free_at(now);
        let waiting = self.devices[device].models.iter();
        let waiting = waiting.filter(|(model, _)| !self.queues[*model].is_empty());
        let choices = waiting.filter_map(|&(model, limit)| {
            let finish = |rows| self.estimates.finish(now, free, (model, device), rows);
            let candidate = self.queues[model].largest(limit, finish)?;
            Some(Choice { model, candidate })
        });
        choices.max_by_key(|choice| {
            let Candidate { rows, due, .. } = choice.candidate;
            (rows, Reverse(due), Reverse(choice.model))
        })
    }

    /// Sends a device its next batch, or sets the time at which to look at it again.
    fn fill(&mut self, now: Time, device: usize, actions: &mut Vec<GroupAction>) {
        self.look_at(device, None);
        // One batch is computed, and the next one is on its way at most.
        if self.devices[device].clock.held().len() > 1 {
            return;
        }
        let Some(choice) = self.choose(now, device) else {
            self.look_when_needed(now, device);
            return;
        };
        let rows = choice.candidate.rows;
        let overhead = self.estimates.overhead(choice.model, rows);
        let free = self.devices[device].clock.free_at(now);
        let idle = free.saturating_sub(overhead);
        let holds = !self.devices[device].clock.held().is_empty();
        if holds && idle > now {
            self.look_at(device, Some(idle));
            return;
        }
        self.send(now, device, choice, None, actions);
        self.fill(now, device, actions);
    }

    /// Sets the time at which a further batch can be sent to a busy device.
    fn look_when_needed(&mut self, now: Time, device: usize) {
        let FlexDevice { clock, models, .. } = &self.devices[device];
        if clock.held().is_empty() {
            return;
        }
        let overheads = models
            .iter()
            .map(|&(model, limit)| self.estimates.overhead(model, limit));
        let longest = overheads.max().unwrap_or_default();
        let idle = clock.free_at(now).saturating_sub(longest);
        if idle > now {
            self.look_at(device, Some(idle));
        }
    }

    fn send(
        &mut self,
        now: Time,
        device: usize,
        choice: Choice,
        preempts: Option<u64>,
        actions: &mut Vec<GroupAction>,
    ) {
        let (model, rows) = (choice.model, choice.candidate.rows);
        let requests = self.queues[model].take(choice.candidate);
        let batch = self.next_batch;
        self.next_batch += 1;
        self.devices[device].clock.push(HeldBatch {
            batch,
            model,
            requests: requests.clone(),
            there: now + self.estimates.overhead(model, rows),
            compute: self.estimates.compute(model, device, rows),
        });
        actions.push(GroupAction::Start(BatchOrder {
            batch,
            device,
            model,
            requests,
            latest: None,
            preempts,
        }));
    }

    /// Has the candidate of a model stop the smallest batch that is small enough.
    fn preempt(
        &mut self,
        now: Time,
        model: usize,
        exit: ExitPoints,
        actions: &mut Vec<GroupAction>,
    ) {
        let waiting = self.queues[model].len() as f64;
        let small_enough = |rows: usize, other: f64| other >= LAMBDA * rows as f64;
        let limit = |device: usize| {
            let models = self.devices[device].models.iter();
            let of_model = models.filter(|known| known.0 == model);
            of_model.map(|known| known.1).max().unwrap_or_default()
        };
        let running = self.devices_of[model].iter().filter_map(|&device| {
            let held = self.devices[device].clock.held();
            let rows = held.front()?.requests.len();
            let most = waiting.min(f64::from(limit(device)));
            let stops = held.len() == 1 && small_enough(rows, most);
            stops.then(|| (rows, device, limit(device)))
        });
        let mut running: Vec<(usize, usize, u32)> = running.collect();
        running.sort_unstable();
        for (rows, device, limit) in running {
            // It begins at the exit point after it has arrived.
            let wait = exit.interval + exit.cost;
            let free = |rows| now + self.estimates.overhead(model, rows) + wait;
            let finish = |rows| {
                self.estimates
                    .finish(now, free(rows), (model, device), rows)
            };
            let Some(candidate) = self.queues[model].largest(limit, finish) else {
                return;
            };
            let clock = &self.devices[device].clock;
            // Otherwise it would be done anyway.
            let stops = free(candidate.rows) < clock.free_at(now);
            if !stops || !small_enough(rows, f64::from(candidate.rows)) {
                continue;
            }
            let stopped = clock.held()[0].batch;
            let at = free(candidate.rows);
            let removed = self.devices[device].clock.remove(stopped, at);
            let choice = Choice { model, candidate };
            self.send(now, device, choice, Some(stopped), actions);
            for request in removed.into_iter().flat_map(|removed| removed.requests) {
                self.enqueue(now, request);
            }
            self.look_when_needed(now, device);
            return;
        }
    }
}

impl GroupServer for Flex {
    fn request_arrived(&mut self, now: Time, request: GroupRequest) {
        self.enqueue(now, request);
        self.arrived.insert(request.model);
    }

    fn batch_computed(&mut self, now: Time, batch: ComputedBatch) {
        let ComputedBatch {
            device,
            model,
            rows,
            compute,
            ..
        } = batch;
        self.estimates.observe(model, device, rows, compute);
        self.devices[device].clock.remove(batch.batch, batch.at);
        self.look_at(device, Some(now));
    }

    fn batch_rejected(&mut self, _: Time, _: usize, _: u64) {
        unreachable!("no batch has a latest time")
    }

    fn model_loaded(&mut self, _: Time, _: usize, _: usize) {
        unreachable!("the models of the plan stay where they are")
    }

    fn decide(&mut self, now: Time, actions: &mut Vec<GroupAction>) {
        self.expire(now);
        while let Some(&(at, device)) = self.looks.first()
            && at <= now
        {
            self.fill(now, device, actions);
        }
        for model in std::mem::take(&mut self.arrived) {
            for place in 0..self.devices_of[model].len() {
                let device = self.devices_of[model][place];
                if self.queues[model].is_empty() {
                    break;
                }
                // Otherwise it takes no batch before that time.
                if self.devices[device].look.is_none() {
                    self.fill(now, device, actions);
                }
            }
            if let Some(exit_points) = self.exit_points {
                self.preempt(now, model, exit_points, actions);
            }
        }
        self.expire(now);
        actions.extend(self.dropped.drain(..).map(GroupAction::Drop));
    }

    fn wake(&self) -> Option<Time> {
        let look = self.looks.first().map(|look| look.0);
        let expiration = self.expirations.next();
        look.into_iter().chain(expiration).min()
    }
}
