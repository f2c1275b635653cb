//! The ready replicas of one model, and when each would finish a batch.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use packhorse_cluster::Time;
use packhorse_contention::ServiceTimes;

use crate::{
    BatchId, DeviceKey, ReplicaKey, ReplicaSpec,
    estimate::{Estimate, Overhead},
};

/// A replica that is ready, or draining.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    spec: ReplicaSpec,
    pub(crate) draining: bool,
    /// What it holds, in the order of dispatch.
    held: Vec<Held>,
    /// When it should be done with what it holds.
    busy_until: Time,
    estimate: Estimate,
}

/// A batch on its way to a replica, or there.
#[derive(Clone, Copy, Debug)]
struct Held {
    batch: BatchId,
    /// When it could start to compute, if nothing is before it.
    ready: Time,
    /// When it should be back.
    due: Time,
    /// What it takes by the profile.
    profiled: Duration,
}

/// What a worker says of a batch that it computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Computed {
    pub(crate) queue_wait: Duration,
    pub(crate) compute: Duration,
}

/// When a replica would finish a further batch, seen from one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast<'a> {
    now: Time,
    /// When the replica is done with what it holds.
    busy_until: Time,
    overhead: Overhead,
    slowdown: f64,
    service: &'a ServiceTimes,
}

impl Forecast<'_> {
    /// When a batch of `rows` rows would be back; `rows` at most [`Replica::rows_limit`].
    pub(crate) fn finish(&self, rows: u32) -> Time {
        self.finish_after(self.busy_until, rows)
    }

    /// The same for a replica that is busy until `busy_until`.
    fn finish_after(&self, busy_until: Time, rows: u32) -> Time {
        busy_until.max(self.now + self.overhead.of(rows)) + self.compute(rows)
    }

    /// How long a batch of `rows` rows computes.
    pub(crate) fn compute(&self, rows: u32) -> Duration {
        scale(self.service.of(rows), self.slowdown)
    }

    /// Rows per second in batches of `rows` rows.
    pub(crate) fn rate(&self, rows: u32) -> f64 {
        f64::from(rows) / self.compute(rows).as_secs_f64()
    }

    /// When a batch of `rows` rows would be back that goes behind one of `before` rows.
    pub(crate) fn finish_behind(&self, before: u32, rows: u32) -> Time {
        self.finish_after(self.finish(before), rows)
    }

    /// The most rows per second it gets through.
    pub(crate) fn best_rate(&self) -> f64 {
        self.service.best_rate() / self.slowdown
    }
}

/// Times beyond any clock stay there instead of panicking.
fn scale(time: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl Replica {
    fn new(now: Time, spec: ReplicaSpec) -> Self {
        Self {
            spec,
            draining: false,
            held: Vec::new(),
            busy_until: now,
            estimate: Estimate::new(now),
        }
    }

    fn has_credit(&self) -> bool {
        !self.draining && self.held.len() < self.spec.credits as usize
    }

    pub(crate) fn batch_size(&self) -> u32 {
        self.spec.batch_size
    }

    /// The most rows of one request here.
    pub(crate) fn rows_limit(&self) -> u32 {
        self.spec.service.largest()
    }

    pub(crate) fn device(&self) -> DeviceKey {
        self.spec.device
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = BatchId> {
        self.held.iter().map(|held| held.batch)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// It takes at most so many rows from now on.
    fn fits(&mut self, rows: u32) {
        self.spec.batch_size = self.spec.batch_size.min(rows);
        self.spec.service = self.spec.service.up_to(rows);
    }

    /// Compute time over the profile's, as observed.
    pub(crate) fn slowdown(&self, now: Time) -> f64 {
        self.estimate.slowdown(now)
    }

    /// When it should be done with what it holds, and what a batch of `rows` rows needs besides computing; `None` for one that holds
    /// nothing.
    pub(crate) fn occupied(&self, now: Time, rows: u32) -> Option<(Time, Duration)> {
        (!self.is_idle()).then(|| (self.busy_until, self.estimate.overhead(now).of(rows)))
    }

    /// What it should do with a further batch. It is not known exactly when a busy replica will be free: a batch that must be back in
    /// time should not be late more often than rarely.
    pub(crate) fn forecast(&self, now: Time) -> Forecast<'_> {
        let margin = if self.is_idle() {
            Duration::ZERO
        } else {
            self.estimate.margin(now)
        };
        Forecast {
            busy_until: self.busy_until + margin,
            ..self.expectation(now)
        }
    }

    /// The same without any margin.
    fn expectation(&self, now: Time) -> Forecast<'_> {
        Forecast {
            now,
            busy_until: self.busy_until,
            overhead: self.estimate.overhead(now),
            slowdown: self.estimate.slowdown(now),
            service: &self.spec.service,
        }
    }

    fn dispatched(&mut self, now: Time, batch: BatchId, rows: u32) {
        let expectation = self.expectation(now);
        let ready = now + expectation.overhead.of(rows);
        self.busy_until = expectation.finish(rows);
        self.held.push(Held {
            batch,
            ready,
            due: self.busy_until,
            profiled: self.spec.service.of(rows),
        });
    }

    fn returned(
        &mut self,
        now: Time,
        batch: BatchId,
        rows: u32,
        dispatched: Time,
        computed: Option<Computed>,
    ) {
        let place = self.held.iter().position(|held| held.batch == batch);
        let Held { due, profiled, .. } = self
            .held
            .remove(place.expect("it gives back what it holds"));
        if let Some(Computed {
            queue_wait,
            compute,
        }) = computed
        {
            let there = queue_wait.saturating_add(compute);
            let overhead = now.saturating_since(dispatched).saturating_sub(there);
            let error = now.saturating_since(due) + due.saturating_since(now);
            self.estimate
                .observe(now, rows, profiled, compute, overhead, error);
        }
        let slowdown = self.estimate.slowdown(now);
        let done = |free: Time, held: &Held| free.max(held.ready) + scale(held.profiled, slowdown);
        self.busy_until = self.held.iter().fold(now, done);
    }
}

/// The replicas of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    replicas: BTreeMap<ReplicaKey, Replica>,
    /// Those with a free credit, by when they should be done with what they hold.
    open: BTreeSet<(Time, ReplicaKey)>,
    /// Which one got the last batch; it may be gone.
    last: Option<ReplicaKey>,
    /// How many batches they got.
    batches: u64,
}

impl Fleet {
    pub(crate) fn add(&mut self, now: Time, key: ReplicaKey, spec: ReplicaSpec) {
        self.replicas.insert(key, Replica::new(now, spec));
        self.open.insert((now, key));
    }

    pub(crate) fn remove(&mut self, key: ReplicaKey) -> Option<Replica> {
        let replica = self.replicas.remove(&key)?;
        self.open.remove(&(replica.busy_until, key));
        Some(replica)
    }

    pub(crate) fn get(&self, key: ReplicaKey) -> Option<&Replica> {
        self.replicas.get(&key)
    }

    /// A replica gets no further batches.
    pub(crate) fn drain(&mut self, key: ReplicaKey) {
        self.change(key, |replica| replica.draining = true);
    }

    /// A replica takes at most so many rows from now on.
    pub(crate) fn fits(&mut self, key: ReplicaKey, rows: u32) {
        self.change(key, |replica| replica.fits(rows));
    }

    /// A replica gets a batch.
    pub(crate) fn dispatched(&mut self, now: Time, key: ReplicaKey, batch: BatchId, rows: u32) {
        self.change(key, |replica| replica.dispatched(now, batch, rows));
        self.last = Some(key);
        self.batches += 1;
    }

    /// A replica gives a batch of `rows` rows back, with what the worker says of it if it was computed.
    pub(crate) fn returned(
        &mut self,
        now: Time,
        key: ReplicaKey,
        batch: BatchId,
        rows: u32,
        dispatched: Time,
        computed: Option<Computed>,
    ) {
        self.change(key, |replica| {
            replica.returned(now, batch, rows, dispatched, computed);
        });
    }

    fn change(&mut self, key: ReplicaKey, change: impl FnOnce(&mut Replica)) {
        let replica = self.replicas.get_mut(&key);
        let replica = replica.expect("only replicas that are there are asked of");
        self.open.remove(&(replica.busy_until, key));
        change(replica);
        if replica.has_credit() {
            self.open.insert((replica.busy_until, key));
        }
    }

    /// How many batches they got so far.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = ReplicaKey> {
        self.replicas.keys().copied()
    }

    /// Those that take work, now or once a credit is free.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.replicas
            .iter()
            .filter(|(_, replica)| !replica.draining)
            .map(|(key, replica)| (*key, replica))
    }

    /// Those with a free credit, the one that is done first with what it holds first.
    pub(crate) fn open(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.open.iter().map(|(_, key)| (*key, &self.replicas[key]))
    }

    /// All that take work, beginning behind the one that got the last batch.
    pub(crate) fn in_turn(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        let after = self.last.map_or(Unbounded, Excluded);
        self.replicas
            .range((after, Unbounded))
            .chain(&self.replicas)
            .filter(|(_, replica)| !replica.draining)
            .map(|(key, replica)| (*key, replica))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelKey;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Time {
        Time::ZERO + MS * millis
    }

    fn replica() -> Replica {
        let service = ServiceTimes::from_times(vec![MS * 10, MS * 12, MS * 14, MS * 16]);
        Replica::new(
            Time::ZERO,
            ReplicaSpec {
                model: ModelKey(0),
                batch_size: 4,
                credits: 2,
                service,
                device: DeviceKey(0),
            },
        )
    }

    #[test]
    fn a_batch_finishes_after_those_before_it() {
        let mut replica = replica();
        assert_eq!(replica.forecast(at(5)).finish(1), at(15));
        replica.dispatched(at(5), BatchId(0), 1);
        assert!(replica.has_credit());
        assert_eq!(replica.forecast(at(6)).finish(4), at(31));
        replica.dispatched(at(6), BatchId(1), 4);
        assert!(!replica.has_credit());
        // The first one came back early: the second one starts early.
        replica.returned(at(10), BatchId(0), 1, at(5), None);
        assert_eq!(replica.forecast(at(10)).finish(1), at(36));
        // It is overdue: the next one can start at any moment.
        assert_eq!(replica.forecast(at(40)).finish(1), at(50));
    }

    fn computed(queue_wait: u32) -> Computed {
        Computed {
            queue_wait: MS * queue_wait,
            compute: MS * 10,
        }
    }

    #[test]
    fn to_wait_behind_another_batch_is_not_taken_for_the_way() {
        let mut replica = replica();
        replica.dispatched(at(0), BatchId(0), 1);
        replica.dispatched(at(0), BatchId(1), 1);
        replica.returned(at(15), BatchId(0), 1, at(0), Some(computed(0)));
        replica.returned(at(25), BatchId(1), 1, at(0), Some(computed(10)));
        assert_eq!(replica.estimate.overhead(at(25)).of(1), MS * 5);
    }

    #[test]
    fn a_batch_that_is_still_on_its_way_cannot_start_when_the_one_before_it_is_done() {
        let mut replica = replica();
        replica.dispatched(at(0), BatchId(0), 1);
        replica.returned(at(40), BatchId(0), 1, at(0), Some(computed(0)));
        // The way takes 30 ms, three times what computing does.
        replica.dispatched(at(40), BatchId(1), 1);
        replica.dispatched(at(60), BatchId(2), 1);
        replica.returned(at(80), BatchId(1), 1, at(40), Some(computed(0)));
        assert_eq!(replica.busy_until, at(100));
    }
}
