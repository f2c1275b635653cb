//! A replica of the pool: the batches that it holds, and a forecast of when it would finish a further one.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::Time;
use packhorse_contention::ServiceTimes;

use crate::{
    BatchKey, DeviceKey, DeviceSharing, PoolMember, ReplicaParameters,
    adaptive_batch::AdaptiveBatch, health::Health, link_estimate::LinkEstimate,
    memory_limits::MemoryLimits, overhead_fit::Overhead, speed_estimate::SpeedEstimate,
};

/// The most batches for each of which the time of its end is calculated anew when one before it has come back. More are held only
/// where credits do not limit them.
const FORECAST_BATCHES: usize = ReplicaParameters::MOST_CREDITS as usize;

/// A replica that is ready or draining.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    parameters: ReplicaParameters,
    /// The numbers of rows of a batch, from that which gets most rows per second done to that which gets least.
    sizes_by_rate: Vec<u32>,
    /// The group of the replicas of its pool with equal service times.
    pub(crate) group: usize,
    pub(crate) draining: bool,
    pub(crate) health: Health,
    pub(crate) memory_limits: MemoryLimits,
    /// The batches that it holds, in the order of dispatch.
    held: VecDeque<HeldBatch>,
    /// The time at which it should be done with the batches that it holds.
    busy_until: Time,
    /// False while another replica, with which it shares the device in time, has the turn.
    turn: bool,
    /// The time at which the device should be done with the batches of the replicas with which it is shared in time.
    device_busy_until: Time,
    estimate: SpeedEstimate,
    link: LinkEstimate,
    /// The most batches that it may hold at a time.
    credits: u32,
    adaptive_batch: AdaptiveBatch,
}

/// A batch on its way to a replica, or there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBatch {
    pub(crate) batch: BatchKey,
    /// The earliest time at which it could start to compute, if no batch were before it.
    pub(crate) ready: Time,
    /// The time at which it should be back.
    pub(crate) due: Time,
    /// The expected compute time.
    pub(crate) compute: Duration,
    /// The compute time by the profile.
    profiled: Duration,
    /// True if it may end the worker: nothing is sent behind it.
    is_risky: bool,
}

/// The times that a worker measured of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerTimes {
    pub(crate) queue_wait: Duration,
    pub(crate) compute: Duration,
}

/// A forecast, made at one moment, of when a replica would finish a further batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast<'a> {
    now: Time,
    /// The time at which the replica is done with the batches that it holds.
    busy_until: Time,
    overhead: Overhead,
    slowdown: f64,
    service: &'a ServiceTimes,
}

impl Forecast<'_> {
    /// Returns the time at which a batch of `rows` rows would be back; `rows` is at most [`Replica::rows_limit`].
    pub(crate) fn finish(&self, rows: u32) -> Time {
        self.finish_after(self.busy_until, rows)
    }

    /// Returns the time at which a batch of `rows` rows would be back from a replica that is busy until `busy_until`.
    pub(crate) fn finish_after(&self, busy_until: Time, rows: u32) -> Time {
        busy_until.max(self.now + self.overhead.for_rows(rows)) + self.compute(rows)
    }

    /// Returns the time from sending a batch of `rows` rows until it can start.
    pub(crate) fn overhead(&self, rows: u32) -> Duration {
        self.overhead.for_rows(rows)
    }

    /// Returns the latest time at which a batch of `rows` rows can be sent to be back at `due`, if it does not wait behind others.
    pub(crate) fn latest_dispatch(&self, due: Time, rows: u32) -> Time {
        let needed = self.overhead.for_rows(rows) + self.compute(rows);
        due.saturating_sub(needed)
    }

    /// Returns the compute time of a batch of `rows` rows.
    pub(crate) fn compute(&self, rows: u32) -> Duration {
        scale(self.service.batch_time(rows), self.slowdown)
    }

    /// Returns the rows per second in batches of `rows` rows.
    pub(crate) fn rate(&self, rows: u32) -> f64 {
        f64::from(rows) / self.compute(rows).as_secs_f64()
    }

    /// Returns the time at which a batch of `rows` rows would be back that follows one of `before` rows.
    pub(crate) fn finish_behind(&self, before: u32, rows: u32) -> Time {
        self.finish_after(self.finish(before), rows)
    }

    /// Returns the most rows per second that the replica computes.
    pub(crate) fn best_rate(&self) -> f64 {
        self.service.max_throughput() / self.slowdown
    }
}

fn sizes_by_rate(service: &ServiceTimes) -> Vec<u32> {
    let rate = |rows: u32| f64::from(rows) / service.batch_time(rows).as_secs_f64();
    let mut sizes: Vec<u32> = (1..=service.max_rows()).collect();
    sizes.sort_by(|a, b| rate(*b).total_cmp(&rate(*a)));
    sizes
}

/// Multiplies a duration. A product beyond the largest duration becomes that one instead of a panic.
fn scale(time: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl Replica {
    pub(crate) fn new(now: Time, parameters: ReplicaParameters, group: usize) -> Self {
        Self {
            sizes_by_rate: sizes_by_rate(&parameters.service),
            credits: parameters.in_flight.min(ReplicaParameters::LEAST_CREDITS),
            group,
            draining: false,
            health: Health::default(),
            memory_limits: MemoryLimits::default(),
            held: VecDeque::new(),
            busy_until: now,
            turn: !matches!(parameters.sharing, DeviceSharing::Pool(_)),
            device_busy_until: Time::ZERO,
            estimate: SpeedEstimate::new(now),
            link: LinkEstimate::default(),
            adaptive_batch: AdaptiveBatch::new(),
            parameters,
        }
    }

    /// Returns true if it takes a further batch now.
    pub(crate) fn has_credit(&self) -> bool {
        self.is_serving() && self.turn && !self.is_full()
    }

    /// Returns the most rows that requests share in one batch. A probe is not shared.
    pub(crate) fn batch_size(&self) -> u32 {
        if self.health.is_probed() {
            1
        } else {
            self.parameters.batch_size
        }
    }

    /// Returns the most rows that requests with rows of this many bytes share in one batch.
    pub(crate) fn batch_size_of(&self, now: Time, bytes_per_row: u64) -> u32 {
        self.batch_size()
            .min(self.memory_limits.rows(now, bytes_per_row))
    }

    /// Returns true if batches of `rows` rows are transmitted to it more slowly than it computes them.
    pub(crate) fn waits_for_link(&self, now: Time, rows: u32) -> bool {
        let compute = self.expectation(now).compute(rows);
        let credits = (self.parameters.in_flight).min(ReplicaParameters::MOST_CREDITS);
        !self.parameters.shares_memory && self.link.is_bottleneck(rows, compute, credits)
    }

    /// Returns the most rows that the last batches within the objective, and the late ones, allow: see [`AdaptiveBatch`].
    pub(crate) fn adaptive_rows(&self) -> u32 {
        self.adaptive_batch.rows()
    }

    /// Takes note of a batch of `rows` rows that was back within the objective of its requests, or late.
    pub(crate) fn adapt_batch(&mut self, rows: u32, in_time: bool) {
        self.adaptive_batch.observe(rows, in_time);
    }

    /// Returns the numbers of rows of a batch, from that which gets most rows per second done to that which gets least.
    pub(crate) fn sizes_by_rate(&self) -> &[u32] {
        &self.sizes_by_rate
    }

    /// Returns the most rows of one request.
    pub(crate) fn rows_limit(&self) -> u32 {
        self.parameters.service.max_rows()
    }

    pub(crate) fn device(&self) -> DeviceKey {
        self.parameters.device
    }

    pub(crate) fn is_time_shared(&self) -> bool {
        self.parameters.sharing == DeviceSharing::Turns
    }

    pub(crate) fn set_time_shared(&mut self, time_shared: bool) {
        self.parameters.sharing = DeviceSharing::by_turns(time_shared);
        self.turn = true;
        self.device_busy_until = Time::ZERO;
    }

    /// Returns its place in its device's pool; `None` if it is in none.
    pub(crate) fn pool_member(&self) -> Option<&PoolMember> {
        match &self.parameters.sharing {
            DeviceSharing::Pool(member) => Some(member),
            DeviceSharing::Concurrent | DeviceSharing::Turns => None,
        }
    }

    /// Returns true if the device may have a further batch of it now. The device counts the batches.
    pub(crate) fn takes_pooled(&self) -> bool {
        self.is_serving()
            && !self.is_being_probed()
            && !self.held.back().is_some_and(|last| last.is_risky)
    }

    /// Returns false while it waits for its turn on the device.
    pub(crate) fn has_turn(&self) -> bool {
        self.turn
    }

    pub(crate) fn set_turn(&mut self, turn: bool) {
        self.turn = turn;
    }

    /// Sets the time at which the device should be done with the batches of the replicas with which it is shared in time.
    pub(crate) fn set_device_busy_until(&mut self, until: Time) {
        self.device_busy_until = until;
    }

    /// Returns the time at which a further batch could start to compute, were it there.
    pub(crate) fn free_at(&self) -> Time {
        self.busy_until.max(self.device_busy_until)
    }

    /// Returns true if it takes work, now or once a credit is free.
    pub(crate) fn is_serving(&self) -> bool {
        !self.draining && !self.health.is_ejected()
    }

    /// Returns true if it holds the batch that shows if it is healthy again.
    pub(crate) fn is_being_probed(&self) -> bool {
        self.health.is_probed() && !self.held.is_empty()
    }

    /// Returns the most batches that it may hold at a time.
    pub(crate) fn credits(&self) -> u32 {
        if self.health.is_probed() {
            1
        } else {
            self.credits
        }
    }

    /// Returns true if it holds as many batches as it has credits, or one that may end its worker.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= self.credits() as usize
            || self.held.back().is_some_and(|last| last.is_risky)
    }

    /// Returns the overhead and the compute time of a further batch of `rows` rows.
    pub(crate) fn overhead_and_compute(&self, now: Time, rows: u32) -> (Duration, Duration) {
        let expectation = self.expectation(now);
        (
            expectation.overhead.for_rows(rows),
            expectation.compute(rows),
        )
    }

    pub(crate) fn held_batches(&self) -> impl Iterator<Item = HeldBatch> {
        self.held.iter().copied()
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = BatchKey> {
        self.held.iter().map(|held| held.batch)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Lowers the most rows of a batch. A limit above the present one changes nothing.
    pub(crate) fn lower_batch_limit(&mut self, rows: u32) {
        self.parameters.batch_size = self.parameters.batch_size.min(rows);
        self.parameters.service = self.parameters.service.limited_to(rows);
        self.sizes_by_rate = sizes_by_rate(&self.parameters.service);
    }

    /// Returns the observed compute time divided by the profile's.
    pub(crate) fn slowdown(&self, now: Time) -> f64 {
        self.estimate.slowdown(now)
    }

    /// Returns the time at which it should be done with the batches that it holds, and the overhead of a further batch of `rows`
    /// rows; `None` if it holds no batch.
    pub(crate) fn busy_until_and_overhead(&self, now: Time, rows: u32) -> Option<(Time, Duration)> {
        (!self.is_idle()).then(|| (self.busy_until, self.estimate.overhead(now).for_rows(rows)))
    }

    /// Returns the forecast for a further batch. The time at which a busy replica will be free is uncertain: the forecast
    /// contains a margin, so that a batch that must be back in time is rarely late.
    pub(crate) fn forecast(&self, now: Time) -> Forecast<'_> {
        let margin = if self.is_idle() && self.device_busy_until <= now {
            Duration::ZERO
        } else {
            self.estimate.margin(now)
        };
        Forecast {
            busy_until: self.free_at() + margin,
            ..self.expectation(now)
        }
    }

    /// Returns the time by which a batch may miss its expected end, and which it rarely exceeds.
    pub(crate) fn margin(&self, now: Time) -> Duration {
        self.estimate.margin(now)
    }

    /// Returns the margin if the last batches have shown it.
    pub(crate) fn known_margin(&self, now: Time) -> Option<Duration> {
        self.estimate.known_margin(now)
    }

    /// Returns the forecast without a margin.
    pub(crate) fn expectation(&self, now: Time) -> Forecast<'_> {
        let (slowdown, overhead) = self.estimate.slowdown_and_overhead(now);
        Forecast {
            now,
            busy_until: self.free_at(),
            overhead,
            slowdown,
            service: &self.parameters.service,
        }
    }

    /// Adds a batch and returns what is expected of it. Behind one that `is_risky` the replica takes none.
    pub(crate) fn add_batch(
        &mut self,
        now: Time,
        batch: BatchKey,
        rows: u32,
        is_risky: bool,
    ) -> HeldBatch {
        // It starts when it is there, whatever the plan of the device's turns was.
        let expectation = Forecast {
            busy_until: self.busy_until,
            ..self.expectation(now)
        };
        let (due, compute) = (expectation.finish(rows), expectation.compute(rows));
        let held = HeldBatch {
            batch,
            ready: now + expectation.overhead.for_rows(rows),
            due,
            compute,
            profiled: self.parameters.service.batch_time(rows),
            is_risky,
        };
        self.busy_until = due;
        self.held.push_back(held);
        held
    }

    pub(crate) fn remove_batch(
        &mut self,
        now: Time,
        batch: BatchKey,
        rows: u32,
        dispatched: Time,
        times: Option<WorkerTimes>,
    ) {
        let place = self.held.iter().position(|held| held.batch == batch);
        let HeldBatch { due, profiled, .. } = place
            .and_then(|place| self.held.remove(place))
            .expect("the replica holds the batch");
        if let Some(WorkerTimes {
            queue_wait,
            compute,
        }) = times
        {
            let there = queue_wait.saturating_add(compute);
            let overhead = now.saturating_since(dispatched).saturating_sub(there);
            let error = now.saturating_since(due) + due.saturating_since(now);
            self.estimate
                .observe(now, rows, profiled, compute, overhead, error);
            self.link.observe(rows, dispatched, overhead);
            // Its limit may have been lowered since the batch was sent.
            let rows = rows.min(self.rows_limit());
            let compute = self.expectation(now).compute(rows);
            let credits = self.link.credits(rows, compute);
            self.credits = self.parameters.in_flight.min(credits);
        }
        if self.held.len() > FORECAST_BATCHES {
            // Those behind it start as much earlier or later as it came back.
            let busy_until = self.busy_until + now.saturating_since(due);
            self.busy_until = busy_until
                .saturating_sub(due.saturating_since(now))
                .max(now);
            return;
        }
        let slowdown = self.estimate.slowdown(now);
        let done =
            |free: Time, held: &HeldBatch| free.max(held.ready) + scale(held.profiled, slowdown);
        self.busy_until = self.held.iter().fold(now, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceSharing, ModelKey};

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Time {
        Time::ZERO + MS * millis
    }

    fn replica() -> Replica {
        let service = ServiceTimes::from_times(vec![MS * 10, MS * 12, MS * 14, MS * 16]);
        Replica::new(
            Time::ZERO,
            ReplicaParameters {
                model: ModelKey(0),
                batch_size: 4,
                in_flight: 2,
                service,
                device: DeviceKey(0),
                sharing: DeviceSharing::Concurrent,
                shares_memory: false,
            },
            0,
        )
    }

    #[test]
    fn a_batch_finishes_after_those_before_it() {
        let mut replica = replica();
        assert_eq!(replica.forecast(at(5)).finish(1), at(15));
        replica.add_batch(at(5), BatchKey(0), 1, false);
        assert!(replica.has_credit());
        assert_eq!(replica.forecast(at(6)).finish(4), at(31));
        replica.add_batch(at(6), BatchKey(1), 4, false);
        assert!(!replica.has_credit());
        // The first batch came back early: the second one starts early.
        replica.remove_batch(at(10), BatchKey(0), 1, at(5), None);
        assert_eq!(replica.forecast(at(10)).finish(1), at(36));
        // The second batch is overdue: the next one can start at any moment.
        assert_eq!(replica.forecast(at(40)).finish(1), at(50));
    }

    fn times(queue_wait: u32) -> WorkerTimes {
        WorkerTimes {
            queue_wait: MS * queue_wait,
            compute: MS * 10,
        }
    }

    #[test]
    fn waiting_behind_another_batch_does_not_count_as_overhead() {
        let mut replica = replica();
        replica.add_batch(at(0), BatchKey(0), 1, false);
        replica.add_batch(at(0), BatchKey(1), 1, false);
        replica.remove_batch(at(15), BatchKey(0), 1, at(0), Some(times(0)));
        replica.remove_batch(at(25), BatchKey(1), 1, at(0), Some(times(10)));
        assert_eq!(replica.estimate.overhead(at(25)).for_rows(1), MS * 5);
    }

    #[test]
    fn a_batch_that_is_still_on_its_way_cannot_start_when_the_one_before_it_is_done() {
        let mut replica = replica();
        replica.add_batch(at(0), BatchKey(0), 1, false);
        replica.remove_batch(at(40), BatchKey(0), 1, at(0), Some(times(0)));
        // The overhead is 30 ms, three times the compute time.
        replica.add_batch(at(40), BatchKey(1), 1, false);
        replica.add_batch(at(60), BatchKey(2), 1, false);
        replica.remove_batch(at(80), BatchKey(1), 1, at(40), Some(times(0)));
        assert_eq!(replica.busy_until, at(100));
    }
}
