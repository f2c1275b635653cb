//! A device in virtual time that computes the batches of its replicas. Batches wait at their replica, first in, first out; batches that
//! compute at the same time slow each other.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::Time;

use crate::{ComputeDemand, Interference};

/// A batch for a replica of a [`SharedDevice`].
#[derive(Clone, Copy, Debug)]
pub struct QueuedBatch<B> {
    /// The batch's number.
    pub batch: B,
    /// The time that it takes alone on the whole device.
    pub solo_time: Duration,
    /// The compute time of the device that it takes.
    pub demand: ComputeDemand,
}

/// A device that its replicas share, by [`Interference`]. The replicas are numbered in the order in which they were added; `B` is the
/// caller's number of a batch.
#[derive(Clone, Debug)]
pub struct SharedDevice<B> {
    interference: Interference,
    /// The waiting batches of each replica.
    queues: Vec<VecDeque<QueuedBatch<B>>>,
    /// The batches that are being computed, ordered by replica.
    running: Vec<RunningBatch<B>>,
    /// The time up to which the progress of `running` is accounted for.
    updated: Time,
    /// The time for which any batch was computed, up to `updated`.
    busy: Duration,
    /// The factor by which a fault slows the device; 1 without one.
    slowdown: f64,
    /// The number of changes of `running`, by which outdated completions are recognised.
    revision: u64,
    /// An empty list, kept for its memory.
    demands: Vec<ComputeDemand>,
}

#[derive(Clone, Debug)]
struct RunningBatch<B> {
    replica: usize,
    batch: QueuedBatch<B>,
    /// The remaining seconds alone on the whole device.
    remaining: f64,
    rate: f64,
    started: Time,
}

/// A batch that a [`SharedDevice`] has computed.
#[derive(Clone, Copy, Debug)]
pub struct CompletedBatch<B> {
    /// The batch's number.
    pub batch: B,
    /// The time at which it began to compute.
    pub started: Time,
}

impl<B: Copy> SharedDevice<B> {
    /// Returns a device without replicas.
    pub fn new(interference: Interference) -> Self {
        Self {
            interference,
            queues: Vec::new(),
            running: Vec::new(),
            updated: Time::ZERO,
            busy: Duration::ZERO,
            slowdown: 1.0,
            revision: 0,
            demands: Vec::new(),
        }
    }

    /// Adds a replica and returns its number.
    pub fn add_replica(&mut self) -> usize {
        self.queues.push(VecDeque::new());
        self.queues.len() - 1
    }

    /// Appends a batch to a replica's queue, and starts it if none is before it.
    pub fn enqueue(&mut self, now: Time, replica: usize, batch: QueuedBatch<B>) {
        self.queues[replica].push_back(batch);
        if !self
            .running
            .iter()
            .any(|running| running.replica == replica)
        {
            self.advance(now);
            self.start(now, replica);
            self.update_rates();
        }
    }

    /// Returns the time of the next completion if nothing changes before, and the revision for which it is valid.
    pub fn next_completion(&self) -> Option<(Time, u64)> {
        let remaining = self
            .running
            .iter()
            .map(|running| running.remaining / running.rate)
            .min_by(f64::total_cmp)?;
        // Rounded up, so that the batch is complete at that time.
        let nanos = (remaining * self.slowdown * 1e9).ceil().min(1e18);
        let at = self.updated + Duration::from_nanos(nanos as u64);
        Some((at, self.revision))
    }

    /// Removes the batches that are complete now, and starts the next ones. Does nothing for an outdated revision.
    pub fn complete(&mut self, now: Time, revision: u64, done: &mut Vec<CompletedBatch<B>>) {
        if revision != self.revision {
            return;
        }
        self.advance(now);
        let mut i = 0;
        while i < self.running.len() {
            // Rounding leaves up to a nanosecond.
            if self.running[i].remaining > 1e-9 {
                i += 1;
                continue;
            }
            let running = self.running.remove(i);
            done.push(CompletedBatch {
                batch: running.batch.batch,
                started: running.started,
            });
            if !self.queues[running.replica].is_empty() {
                // The started batch takes its place, and is not complete.
                self.start(now, running.replica);
                i += 1;
            }
        }
        self.update_rates();
    }

    /// Makes all batches take `factor` times as long from now on.
    pub fn set_slowdown(&mut self, now: Time, factor: f64) {
        self.advance(now);
        self.slowdown = factor;
        self.revision += 1;
    }

    /// Removes the batches of a replica, whose number is not used again.
    pub fn clear_replica(&mut self, now: Time, replica: usize) {
        self.queues[replica].clear();
        if self
            .running
            .iter()
            .any(|running| running.replica == replica)
        {
            self.advance(now);
            self.running.retain(|running| running.replica != replica);
            self.update_rates();
        }
    }

    /// Returns the time for which the device has computed any batch.
    pub fn busy_time(&self, now: Time) -> Duration {
        if self.running.is_empty() {
            return self.busy;
        }
        self.busy + now.saturating_since(self.updated)
    }

    fn advance(&mut self, now: Time) {
        self.busy = self.busy_time(now);
        let passed = now.saturating_since(self.updated).as_secs_f64() / self.slowdown;
        for running in &mut self.running {
            running.remaining -= passed * running.rate;
        }
        self.updated = now;
    }

    fn start(&mut self, now: Time, replica: usize) {
        let batch = self.queues[replica]
            .pop_front()
            .expect("the caller has checked that a batch waits");
        let index = self
            .running
            .partition_point(|running| running.replica < replica);
        self.running.insert(
            index,
            RunningBatch {
                replica,
                batch,
                remaining: batch.solo_time.as_secs_f64(),
                rate: 1.0,
                started: now,
            },
        );
    }

    /// Recalculates the rates after a change of `running`.
    fn update_rates(&mut self) {
        self.revision += 1;
        self.demands.clear();
        self.demands
            .extend(self.running.iter().map(|running| running.batch.demand));
        for (running, rate) in self
            .running
            .iter_mut()
            .zip(self.interference.rates(&self.demands))
        {
            running.rate = rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Percent;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u32) -> Time {
        Time::ZERO + MS * millis
    }

    fn batch(number: u64, millis: u32, utilization: f64) -> QueuedBatch<u64> {
        let sm_utilization = Percent::new(utilization).unwrap();
        QueuedBatch {
            batch: number,
            solo_time: MS * millis,
            demand: ComputeDemand {
                sm_utilization,
                compute_share: None,
            },
        }
    }

    fn device(replicas: usize) -> SharedDevice<u64> {
        let mut device = SharedDevice::new(Interference::default());
        for _ in 0..replicas {
            device.add_replica();
        }
        device
    }

    /// Runs until all batches are complete. Returns the rounded milliseconds of each completion, the batch, and those of its start.
    fn run(device: &mut SharedDevice<u64>) -> Vec<(u64, u64, u64)> {
        let millis = |time: Time| (time.as_secs_f64() * 1e3).round() as u64;
        let mut completions = Vec::new();
        while let Some((now, revision)) = device.next_completion() {
            let mut done = Vec::new();
            device.complete(now, revision, &mut done);
            assert!(!done.is_empty(), "an event that changes nothing");
            completions.extend(
                done.iter()
                    .map(|done| (millis(now), done.batch, millis(done.started))),
            );
        }
        completions
    }

    #[test]
    fn batches_of_a_replica_follow_each_other_and_those_of_two_share() {
        let mut device = device(2);
        device.enqueue(at(0), 0, batch(0, 10, 100.0));
        device.enqueue(at(1), 0, batch(1, 10, 100.0));
        device.enqueue(at(5), 1, batch(2, 10, 100.0));
        // Alone until 5; then both at half speed: the first is complete at 15, with 5 of the third remaining. The second starts then;
        // the third is complete at 25, and the second, of which 5 remain, alone at 30.
        assert_eq!(run(&mut device), [(15, 0, 0), (25, 2, 5), (30, 1, 15)]);
    }

    #[test]
    fn batches_that_fit_together_do_not_slow_each_other() {
        let mut device = device(2);
        device.enqueue(at(0), 0, batch(0, 10, 40.0));
        device.enqueue(at(0), 1, batch(1, 10, 60.0));
        assert_eq!(run(&mut device), [(10, 0, 0), (10, 1, 0)]);
    }

    #[test]
    fn a_slowed_device_takes_longer_and_a_cleared_one_has_no_batches() {
        let mut device = device(1);
        device.enqueue(at(0), 0, batch(0, 10, 40.0));
        device.set_slowdown(at(5), 3.0);
        device.set_slowdown(at(11), 1.0);
        assert_eq!(run(&mut device), [(14, 0, 0)]);
        device.enqueue(at(20), 0, batch(1, 10, 40.0));
        device.clear_replica(at(21), 0);
        assert_eq!(device.next_completion(), None);
    }

    #[test]
    fn work_is_conserved_when_each_replica_uses_the_whole_device() {
        let mut device = device(4);
        for replica in 0..4 {
            let millis = u32::try_from(replica).unwrap() + 1;
            device.enqueue(at(0), replica, batch(u64::from(millis), 10 * millis, 100.0));
        }
        // Processor sharing: 4·10, then 3·10 more, 2·10 more, 10 more.
        assert_eq!(
            run(&mut device),
            [(40, 1, 0), (70, 2, 0), (90, 3, 0), (100, 4, 0)]
        );
    }

    /// M/D/1 with processor sharing: every arrival has a replica of its own that uses the whole device. The mean time in the
    /// system is s / (1 − ρ) for any distribution of s.
    #[test]
    fn processor_sharing_has_the_mean_delay_of_the_formula() {
        let mut device = SharedDevice::new(Interference::default());
        let replicas: Vec<usize> = (0..64).map(|_| device.add_replica()).collect();
        let mut idle = replicas.clone();
        let mut random = 3_u64;
        let mut exponential = || {
            // Knuth's multiplier; the upper bits are random enough.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
            -(1.0 - unit).ln()
        };
        let mut arrived = std::collections::BTreeMap::new();
        let (mut total, mut count) = (Duration::ZERO, 0_u32);
        let mut next = Time::ZERO;
        let mut done = Vec::new();
        for number in 0..400_000 {
            next += Duration::from_secs_f64(exponential() / 70.0);
            while let Some((at, revision)) = device
                .next_completion()
                .filter(|completion| completion.0 <= next)
            {
                device.complete(at, revision, &mut done);
                for computed in done.drain(..) {
                    let (since, replica) = arrived.remove(&computed.batch).unwrap();
                    total += at.saturating_since(since);
                    count += 1;
                    idle.push(replica);
                }
            }
            let replica = idle.pop().expect("at most 64 batches at a time");
            arrived.insert(number, (next, replica));
            device.enqueue(next, replica, batch(number, 10, 100.0));
        }
        let (mean, expected) = (total.as_secs_f64() / f64::from(count), 0.010 / 0.3);
        assert!(
            (mean / expected - 1.0).abs() < 0.02,
            "{mean} s, expected {expected} s"
        );
    }
}
