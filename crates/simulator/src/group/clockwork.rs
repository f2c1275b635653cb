//! `clockwork`: everything is decided centrally and ahead of time, and weights are loaded from the host's memory when they are needed.
//!
//! A device computes one batch at a time. A *strategy* is a batch size for the first requests of a model; it has to begin by the earliest deadline in
//! the batch less its time. A device whose work ends within [`SCHEDULE_AHEAD`] gets the strategy that has to begin first, of all models whose weights it has,
//! if the batch is in time there. The order carries a window: a device that cannot begin it in time gives it back. A request that not even an idle device with
//! the weights answers in time is dropped.
//!
//! All weights are in the memory of the host. A device with fewer than [`LOADS_AT_A_TIME`] loads under way gets the weights of the model with the most
//! unserved demand ([`super::demand`]) that it does not have; the models that were not used for the longest time make room.
//!
//! Source: Gujarati et al., "Serving DNNs like Clockwork: Performance Predictability from the Bottom Up", OSDI 2020, sections 4.4 and 5, and its
//! released code: the constants, and the choice of a larger batch where the waiting requests fill it. The time of a batch is the largest of the last
//! ten over the profile's: [`super::estimates`].
//!
//! Deviations:
//! - The released code keeps a queue entry per request, size and device. Here the same order is found from the models' queues when a device is asked.
//! - It plans to the SLO less 5 ms for the network. Here the time on the network is a part of the estimate.
//! - It lowers its estimates with the clock of the GPU; the simulated one does not throttle.
//! - A load has no window: weights that come late are there for later requests.
//! - The weights of a replica of the plan are there at the start, as far as they fit. A model without `weights_mib` has the memory of its profile.
//! - Inputs and outputs take no memory, and nothing is reserved for a workspace.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{PlannedReplica, Time};

use super::{
    BatchOrder, ComputedBatch, GroupAction, GroupRequest, GroupServer,
    clockwork_device::{ClockworkDevice, Weights},
    deadline_queue::{Candidate, DeadlineQueue},
    demand::{Demand, unserved},
    device_clock::{DeviceClock, HeldBatch},
    estimates::Estimates,
    expirations::Expirations,
};
use crate::Scenario;

/// The time before the end of a device's work from which on it gets more. Source: the released code.
const SCHEDULE_AHEAD: Duration = Duration::from_millis(10);

/// The time after its expected begin within which a device may begin a batch. Source: the released code.
const WINDOW: Duration = Duration::from_millis(10);

/// The sizes of batches, in rows. Source: section 6.1.
const BATCH_SIZES: [u32; 5] = [1, 2, 4, 8, 16];

/// The longest computation of a batch of several requests. Source: the released code.
const LONGEST_BATCH: Duration = Duration::from_millis(25);

/// The most loads of a device that are under way. Source: the released code.
const LOADS_AT_A_TIME: usize = 2;

/// The time between two looks at the demand, unless a load ends: it changes with every request.
const DEMAND_INTERVAL: Duration = Duration::from_millis(1);

/// The scheduler of all models and devices.
#[derive(Debug)]
pub(super) struct Clockwork {
    estimates: Estimates,
    /// The SLO of each model.
    slos: Vec<Duration>,
    queues: Vec<DeadlineQueue>,
    /// The models with waiting requests.
    waiting: BTreeSet<usize>,
    devices: Vec<ClockworkDevice>,
    /// The memory of each model's weights on each device, in bytes; `None` where it cannot run.
    weights: Vec<Vec<Option<u64>>>,
    /// The first device of each kind that can run a model.
    kinds_of: Vec<Vec<usize>>,
    /// The times at which the first request of a model may have become hopeless.
    expirations: Expirations,
    dropped: Vec<GroupRequest>,
    next_batch: u64,
    /// The time of the next look at the demand.
    next_demand: Time,
    /// True while demand is unserved.
    loads_wanted: bool,
    /// The times at which to look at devices again.
    looks: BTreeSet<(Time, usize)>,
    /// The models with requests that have come since the last decision.
    arrived: BTreeSet<usize>,
    /// The devices that could begin a batch, where there was none that is in time.
    open: BTreeSet<usize>,
    /// The devices that have the weights of each model, or will have them.
    holders: Vec<BTreeSet<usize>>,
}

/// A strategy that a device can carry out in time.
#[derive(Clone, Copy, Debug)]
struct Strategy {
    /// The latest time at which it must begin.
    latest: Time,
    model: usize,
    candidate: Candidate,
}

impl Clockwork {
    pub(super) fn new(scenario: &Scenario, plan: &[PlannedReplica]) -> Self {
        let problem = &scenario.problem;
        let models = problem.models.len();
        let weights = (0..models).map(|model| {
            let on_device = |device| scenario.weights(model, device);
            (0..problem.devices.len()).map(on_device).collect()
        });
        let devices = problem.devices.iter().enumerate();
        let devices = devices.map(|(number, device)| ClockworkDevice {
            clock: DeviceClock::default(),
            weights: BTreeMap::new(),
            free_bytes: device.memory.as_u64(),
            host_link: scenario.host_link(number),
            link_free: Time::ZERO,
            loads: 0,
            look: None,
        });
        let weights: Vec<Vec<Option<u64>>> = weights.collect();
        let estimates = Estimates::new(scenario, None);
        let kinds_of = weights.iter().map(|weights| {
            let able = weights.iter().enumerate();
            let able = able.filter(|(_, weights)| weights.is_some());
            estimates.first_of_each_kind(able.map(|(device, _)| device))
        });
        let mut clockwork = Self {
            kinds_of: kinds_of.collect(),
            estimates,
            slos: problem.models.iter().map(|model| model.slo).collect(),
            queues: vec![DeadlineQueue::default(); models],
            waiting: BTreeSet::new(),
            devices: devices.collect(),
            weights,
            expirations: Expirations::new(models),
            dropped: Vec::new(),
            next_batch: 0,
            next_demand: Time::ZERO,
            loads_wanted: false,
            looks: BTreeSet::new(),
            arrived: BTreeSet::new(),
            open: (0..problem.devices.len()).collect(),
            holders: vec![BTreeSet::new(); models],
        };
        for replica in plan {
            clockwork.place(replica.model.0, replica.device.0);
        }
        clockwork
    }

    /// Puts the weights of a model on a device at the start, if they fit.
    fn place(&mut self, model: usize, number: usize) {
        let Some(bytes) = self.weights[model][number] else {
            return;
        };
        let device = &mut self.devices[number];
        if bytes > device.free_bytes || device.weights.contains_key(&model) {
            return;
        }
        device.free_bytes -= bytes;
        let placed = Weights {
            bytes,
            loaded: true,
            used: Time::ZERO,
            batches: 0,
        };
        device.weights.insert(model, placed);
        self.holders[model].insert(number);
    }

    fn least_time(&self, model: usize) -> Option<Duration> {
        self.estimates.least(model, &self.kinds_of[model])
    }

    fn enqueue(&mut self, now: Time, request: GroupRequest) {
        let model = request.model;
        let Some(least) = self.least_time(model) else {
            self.dropped.push(request);
            return;
        };
        self.queues[model].insert(request);
        self.waiting.insert(model);
        self.arrived.insert(model);
        self.expirations.add(now, model, request.deadline, least);
    }

    /// Drops the requests that not even an idle device with the weights answers in time.
    fn expire(&mut self, now: Time) {
        while let Some(model) = self.expirations.pop(now) {
            let Some(least) = self.least_time(model) else {
                continue;
            };
            self.drop_due_before(model, now + least);
            if let Some(due) = self.queues[model].first_due()
                && self.expirations.has_none(model)
            {
                self.expirations.add(now, model, due, least);
                self.arrived.insert(model);
            }
        }
    }

    fn drop_due_before(&mut self, model: usize, time: Time) {
        while let Some(request) = self.queues[model].pop_due_before(time) {
            self.dropped.push(request);
        }
        if self.queues[model].is_empty() {
            self.waiting.remove(&model);
        }
    }

    /// Returns the strategy that has to begin first, of those that a device carries out in time.
    fn choose(&self, now: Time, device: usize) -> Option<Strategy> {
        let ClockworkDevice { clock, weights, .. } = &self.devices[device];
        let free = clock.free_at(now);
        let there = self.waiting.iter().copied();
        let there = there.filter(|model| weights.get(model).is_some_and(|weights| weights.loaded));
        let strategies = there.filter_map(|model| {
            let sizes = BATCH_SIZES.into_iter();
            let sizes = sizes.take_while(|&rows| self.allows(model, device, rows));
            let of_sizes = sizes.filter_map(|rows| {
                let finish = self.estimates.finish(now, free, (model, device), rows);
                let candidate = self.queues[model].first_in_time(rows, finish)?;
                let compute = self.estimates.compute(model, device, rows);
                let latest = candidate.due.saturating_sub(compute);
                Some(Strategy {
                    latest,
                    model,
                    candidate,
                })
            });
            of_sizes.min_by_key(|strategy| (strategy.latest, Reverse(strategy.candidate.rows)))
        });
        let first = strategies.min_by_key(|strategy| (strategy.latest, strategy.model))?;
        Some(self.enlarged(now, free, device, first))
    }

    /// Returns true if a batch of `rows` rows is small and short enough.
    fn allows(&self, model: usize, device: usize, rows: u32) -> bool {
        rows <= self.estimates.most_rows(model, device)
            && (rows == 1 || self.estimates.compute(model, device, rows) <= LONGEST_BATCH)
    }

    /// Returns the largest batch from the first request of a strategy on that is still in time.
    fn enlarged(&self, now: Time, free: Time, device: usize, strategy: Strategy) -> Strategy {
        let Strategy {
            model, candidate, ..
        } = strategy;
        let waiting = self.queues[model].len() - candidate.first;
        let larger = BATCH_SIZES.into_iter().filter(|&rows| {
            rows > candidate.rows
                && rows as usize <= waiting
                && self.allows(model, device, rows)
                && self.estimates.finish(now, free, (model, device), rows) <= candidate.due
        });
        let rows = larger.max().unwrap_or(candidate.rows);
        Strategy {
            candidate: Candidate { rows, ..candidate },
            ..strategy
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

    /// Gives batches to the devices whose state has changed, and to those that can begin one of a model with new requests.
    fn schedule(&mut self, now: Time, actions: &mut Vec<GroupAction>) {
        while let Some(&(at, device)) = self.looks.first()
            && at <= now
        {
            self.fill(now, device, actions);
        }
        for model in std::mem::take(&mut self.arrived) {
            let open = self.open.intersection(&self.holders[model]).copied();
            let open: Vec<usize> = open.take(self.queues[model].len()).collect();
            for device in open {
                self.fill(now, device, actions);
            }
        }
    }

    /// Gives a device batches up to [`SCHEDULE_AHEAD`] ahead.
    fn fill(&mut self, now: Time, device: usize, actions: &mut Vec<GroupAction>) {
        self.look_at(device, None);
        loop {
            let free = self.devices[device].clock.free_at(now);
            if free >= now + SCHEDULE_AHEAD {
                self.open.remove(&device);
                // A nanosecond after the work ends within the time ahead.
                let ahead = SCHEDULE_AHEAD.saturating_sub(Duration::from_nanos(1));
                let look = free.saturating_sub(ahead);
                self.look_at(device, Some(look));
                return;
            }
            let Some(strategy) = self.choose(now, device) else {
                self.open.insert(device);
                return;
            };
            self.send(now, device, strategy, actions);
        }
    }

    fn send(
        &mut self,
        now: Time,
        device: usize,
        strategy: Strategy,
        actions: &mut Vec<GroupAction>,
    ) {
        let Strategy {
            model, candidate, ..
        } = strategy;
        let requests = self.queues[model].take(candidate);
        if self.queues[model].is_empty() {
            self.waiting.remove(&model);
        }
        let there = now + self.estimates.overhead(model, candidate.rows);
        let batch = self.next_batch;
        self.next_batch += 1;
        let on = &mut self.devices[device];
        let begin = on.clock.free_at(now).max(there);
        on.clock.push(HeldBatch {
            batch,
            model,
            requests: requests.clone(),
            there,
            compute: self.estimates.compute(model, device, candidate.rows),
        });
        let weights = on.weights.get_mut(&model).expect("the weights are there");
        weights.used = begin;
        weights.batches += 1;
        actions.push(GroupAction::Start(BatchOrder {
            batch,
            device,
            model,
            requests,
            latest: Some(begin + WINDOW),
            preempts: None,
        }));
    }

    /// Starts loads on devices that can take one.
    fn load(&mut self, now: Time, actions: &mut Vec<GroupAction>) {
        if now < self.next_demand {
            return;
        }
        self.next_demand = now + DEMAND_INTERVAL;
        let mut wanted = unserved(&self.demands(), self.devices.len());
        for device in 0..self.devices.len() {
            while !wanted.is_empty() && self.devices[device].loads < LOADS_AT_A_TIME {
                let mut models = wanted.iter().map(|demand| demand.0);
                if !models.any(|model| self.start_load(now, device, model, actions)) {
                    break;
                }
                wanted = unserved(&self.demands(), self.devices.len());
            }
        }
        self.loads_wanted = !wanted.is_empty();
    }

    /// Returns the demand of the waiting requests.
    fn demands(&self) -> Vec<Demand> {
        let demand = |&model: &usize| {
            let device = self.kinds_of[model][0];
            let sizes = BATCH_SIZES.into_iter();
            let rows = sizes.take_while(|&rows| self.allows(model, device, rows));
            let rows = rows.last().unwrap_or(1);
            let compute = self.estimates.compute(model, device, rows).as_secs_f64();
            Demand {
                model,
                devices: self.queues[model].len() as f64 * compute
                    / f64::from(rows)
                    / self.slos[model].as_secs_f64(),
                holders: self.holders[model].iter().copied().collect(),
            }
        };
        self.waiting.iter().map(demand).collect()
    }

    /// Starts the load of a model's weights on a device. Returns false if they are there, do not fit, or come too late for all that wait.
    fn start_load(
        &mut self,
        now: Time,
        device: usize,
        model: usize,
        actions: &mut Vec<GroupAction>,
    ) -> bool {
        let Some(bytes) = self.weights[model][device] else {
            return false;
        };
        let on = &self.devices[device];
        let time = Duration::from_secs_f64(bytes as f64 / on.host_link);
        let done = on.link_free.max(now) + time;
        let answered = done + self.estimates.alone(model, device);
        let in_time = self.queues[model]
            .last_due()
            .is_some_and(|due| answered <= due);
        if on.weights.contains_key(&model) || !in_time {
            return false;
        }
        let Some(evicted) = on.room_for(bytes) else {
            return false;
        };
        let on = &mut self.devices[device];
        for old in evicted {
            let removed = on.weights.remove(&old);
            self.holders[old].remove(&device);
            on.free_bytes += removed.map_or(0, |removed| removed.bytes);
            actions.push(GroupAction::Unload { device, model: old });
        }
        on.free_bytes -= bytes;
        on.link_free = done;
        on.loads += 1;
        let coming = Weights {
            bytes,
            loaded: false,
            used: now,
            batches: 0,
        };
        on.weights.insert(model, coming);
        self.holders[model].insert(device);
        actions.push(GroupAction::Load { device, model });
        true
    }

    /// Removes a batch with which a device was done at `at`, or that it did not begin.
    fn remove(&mut self, device: usize, batch: u64, at: Time) -> Vec<GroupRequest> {
        let on = &mut self.devices[device];
        let Some(held) = on.clock.remove(batch, at) else {
            return Vec::new();
        };
        if let Some(weights) = on.weights.get_mut(&held.model) {
            weights.batches -= 1;
        }
        held.requests
    }
}

impl GroupServer for Clockwork {
    fn request_arrived(&mut self, now: Time, request: GroupRequest) {
        self.enqueue(now, request);
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
        self.remove(device, batch.batch, batch.at);
        self.look_at(device, Some(now));
    }

    fn batch_rejected(&mut self, now: Time, device: usize, batch: u64) {
        for request in self.remove(device, batch, now) {
            self.enqueue(now, request);
        }
        self.look_at(device, Some(now));
    }

    fn model_loaded(&mut self, now: Time, device: usize, model: usize) {
        let on = &mut self.devices[device];
        on.loads -= 1;
        if let Some(weights) = on.weights.get_mut(&model) {
            (weights.loaded, weights.used) = (true, now);
        }
        self.next_demand = now;
        self.look_at(device, Some(now));
    }

    fn decide(&mut self, now: Time, actions: &mut Vec<GroupAction>) {
        self.expire(now);
        self.schedule(now, actions);
        self.load(now, actions);
        actions.extend(self.dropped.drain(..).map(GroupAction::Drop));
    }

    fn wake(&self) -> Option<Time> {
        let look = self.looks.first().map(|look| look.0);
        let expiration = self.expirations.next();
        let demand = Some(self.next_demand).filter(|_| self.loads_wanted);
        look.into_iter().chain(expiration).chain(demand).min()
    }
}
