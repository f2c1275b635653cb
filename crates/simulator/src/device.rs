//! A device on which replicas compute: batches wait at their replica, first in, first out; those that compute at the same time
//! slow each other.
//!
//! Replicas that the plan gives a duty cycle share the device in time: one batch of theirs computes at a time, and then it is the
//! turn of the next of them that has one waiting, in the plan's order. A turn that nobody takes costs no time, so that a cycle
//! lasts as long as its batches do and no longer. That is what the backend of Nexus does, which goes through its models back to
//! back and does not wait a duty cycle out (uwsampl/nexus, the backend's GPU executor). Replicas without a duty cycle
//! on the same device compute beside them.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::Time;
use packhorse_contention::{Active, Interference};
use packhorse_serving::BatchId;

/// A batch at a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) batch: BatchId,
    /// What it takes alone on the whole device.
    pub(crate) alone: Duration,
    pub(crate) active: Active,
}

/// The device, with its replicas by their place on it.
#[derive(Debug)]
pub(crate) struct Device {
    interference: Interference,
    waiting: Vec<VecDeque<Work>>,
    /// Which replicas take turns.
    takes_turns: Vec<bool>,
    /// What is being computed; ordered by replica.
    running: Vec<Running>,
    /// Until when `running` is up to date.
    at: Time,
    /// Real time over simulated time while a fault slows the device.
    slowed: f64,
    /// Counts the changes of `running`, so that an announced completion can be told from an outdated one.
    revision: u64,
    scratch: Vec<Active>,
}

#[derive(Debug)]
struct Running {
    replica: usize,
    work: Work,
    /// Seconds of solo work left.
    left: f64,
    rate: f64,
    started: Time,
}

/// A batch that is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Computed {
    pub(crate) batch: BatchId,
    pub(crate) started: Time,
}

impl Device {
    pub(crate) fn new(interference: Interference) -> Self {
        Self {
            interference,
            waiting: Vec::new(),
            takes_turns: Vec::new(),
            running: Vec::new(),
            at: Time::ZERO,
            slowed: 1.0,
            revision: 0,
            scratch: Vec::new(),
        }
    }

    /// A place for one more replica; with `takes_turns` its batches wait for those of others that do.
    pub(crate) fn add(&mut self, takes_turns: bool) -> usize {
        self.waiting.push(VecDeque::new());
        self.takes_turns.push(takes_turns);
        self.waiting.len() - 1
    }

    /// A batch arrives at a replica.
    pub(crate) fn arrive(&mut self, now: Time, replica: usize, work: Work) {
        self.waiting[replica].push_back(work);
        let holds_up = |running: &Running| {
            running.replica == replica
                || self.takes_turns[replica] && self.takes_turns[running.replica]
        };
        if !self.running.iter().any(holds_up) {
            self.advance(now);
            self.start(now, replica);
            self.settle();
        }
    }

    /// The next completion if nothing changes before, and the revision that it is valid for.
    pub(crate) fn next(&self) -> Option<(Time, u64)> {
        let left = self
            .running
            .iter()
            .map(|running| running.left / running.rate)
            .min_by(f64::total_cmp)?;
        // Never early, so that the batch is over when the event comes.
        let nanos = (left * self.slowed * 1e9).ceil().min(1e18);
        Some((self.at + Duration::from_nanos(nanos as u64), self.revision))
    }

    /// Ends what is over now, and starts what waits behind it. Nothing for an outdated revision.
    pub(crate) fn complete(&mut self, now: Time, revision: u64, done: &mut Vec<Computed>) {
        if revision != self.revision {
            return;
        }
        self.advance(now);
        let mut i = 0;
        while i < self.running.len() {
            // A nanosecond is what rounding can leave.
            if self.running[i].left > 1e-9 {
                i += 1;
                continue;
            }
            let running = self.running.remove(i);
            done.push(Computed {
                batch: running.work.batch,
                started: running.started,
            });
            if let Some(next) = self.next_after(running.replica) {
                self.start(now, next);
                // What starts has work left: it need not be looked at, and whoever stood behind it does.
                i += usize::from(next <= running.replica);
            }
        }
        self.settle();
    }

    /// Who computes next where `replica` has just finished: the next in turn, or itself.
    fn next_after(&self, replica: usize) -> Option<usize> {
        if !self.takes_turns[replica] {
            return (!self.waiting[replica].is_empty()).then_some(replica);
        }
        let everybody = 0..self.waiting.len();
        let in_turn = everybody.clone().skip(replica + 1).chain(everybody);
        in_turn
            .take(self.waiting.len())
            .find(|&next| self.takes_turns[next] && !self.waiting[next].is_empty())
    }

    /// From now on everything takes `factor` times as long.
    pub(crate) fn slow(&mut self, now: Time, factor: f64) {
        self.advance(now);
        self.slowed = factor;
        self.revision += 1;
    }

    /// Throws everything away that is here.
    pub(crate) fn clear(&mut self, now: Time) {
        self.advance(now);
        self.running.clear();
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.revision += 1;
    }

    fn advance(&mut self, now: Time) {
        let passed = now.saturating_since(self.at).as_secs_f64() / self.slowed;
        for running in &mut self.running {
            running.left -= passed * running.rate;
        }
        self.at = now;
    }

    fn start(&mut self, now: Time, replica: usize) {
        let work = self.waiting[replica]
            .pop_front()
            .expect("the caller saw one");
        let left = work.alone.as_secs_f64();
        let place = self
            .running
            .partition_point(|running| running.replica < replica);
        self.running.insert(
            place,
            Running {
                replica,
                work,
                left,
                rate: 1.0,
                started: now,
            },
        );
    }

    /// Works the rates out anew, after a change of who runs.
    fn settle(&mut self) {
        self.revision += 1;
        self.scratch.clear();
        self.scratch
            .extend(self.running.iter().map(|running| running.work.active));
        for (running, rate) in self
            .running
            .iter_mut()
            .zip(self.interference.rates(&self.scratch))
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

    fn work(batch: u64, millis: u32, utilization: f64) -> Work {
        let sm_utilization = Percent::new(utilization).unwrap();
        Work {
            batch: BatchId(batch),
            alone: MS * millis,
            active: Active {
                sm_utilization,
                compute_share: None,
            },
        }
    }

    fn device(takes_turns: &[bool]) -> Device {
        let mut device = Device::new(Interference::default());
        for takes_turns in takes_turns {
            device.add(*takes_turns);
        }
        device
    }

    /// All completions: in rounded milliseconds, the batch and when it was started.
    fn run(device: &mut Device) -> Vec<(u64, u64, u64)> {
        let millis = |time: Time| (time.as_secs_f64() * 1e3).round() as u64;
        let mut told = Vec::new();
        while let Some((now, revision)) = device.next() {
            let mut done = Vec::new();
            device.complete(now, revision, &mut done);
            assert!(!done.is_empty(), "an event that changes nothing");
            told.extend(
                done.iter()
                    .map(|done| (millis(now), done.batch.0, millis(done.started))),
            );
        }
        told
    }

    #[test]
    fn batches_of_a_replica_follow_each_other_and_those_of_two_share() {
        let mut device = device(&[false; 2]);
        device.arrive(at(0), 0, work(0, 10, 100.0));
        device.arrive(at(1), 0, work(1, 10, 100.0));
        device.arrive(at(5), 1, work(2, 10, 100.0));
        // Alone until 5; then both at half speed: the first one is over at 15, the third has 5 left. The second starts then, the
        // third is over at 25, and the second, of which 5 are left, alone at 30.
        assert_eq!(run(&mut device), [(15, 0, 0), (25, 2, 5), (30, 1, 15)]);
    }

    #[test]
    fn who_leaves_room_slows_nobody() {
        let mut device = device(&[false; 2]);
        device.arrive(at(0), 0, work(0, 10, 40.0));
        device.arrive(at(0), 1, work(1, 10, 60.0));
        assert_eq!(run(&mut device), [(10, 0, 0), (10, 1, 0)]);
    }

    #[test]
    fn a_slowed_device_takes_longer_and_a_cleared_one_forgets() {
        let mut device = device(&[false; 1]);
        device.arrive(at(0), 0, work(0, 10, 40.0));
        device.slow(at(5), 3.0);
        device.slow(at(11), 1.0);
        assert_eq!(run(&mut device), [(14, 0, 0)]);
        device.arrive(at(20), 0, work(1, 10, 40.0));
        device.clear(at(21));
        assert_eq!(device.next(), None);
    }

    #[test]
    fn work_is_conserved_when_everybody_wants_the_whole_device() {
        let mut device = device(&[false; 4]);
        for replica in 0..4 {
            let millis = u32::try_from(replica).unwrap() + 1;
            device.arrive(at(0), replica, work(u64::from(millis), 10 * millis, 100.0));
        }
        // Processor sharing: 4·10, then 3·10 more, 2·10 more, 10 more.
        assert_eq!(
            run(&mut device),
            [(40, 1, 0), (70, 2, 0), (90, 3, 0), (100, 4, 0)]
        );
    }

    #[test]
    fn replicas_with_a_duty_cycle_take_turns_without_waiting_for_who_has_nothing() {
        let mut device = device(&[true; 3]);
        device.arrive(at(0), 0, work(0, 10, 100.0));
        device.arrive(at(0), 0, work(1, 10, 100.0));
        device.arrive(at(3), 2, work(2, 20, 100.0));
        // One after the other at full speed; the second replica never has a batch, and nobody waits for it.
        assert_eq!(run(&mut device), [(10, 0, 0), (30, 2, 10), (40, 1, 30)]);
    }

    #[test]
    fn who_has_no_duty_cycle_computes_beside_those_that_take_turns() {
        let mut device = device(&[true, false, true]);
        device.arrive(at(0), 0, work(0, 10, 100.0));
        device.arrive(at(0), 1, work(1, 10, 100.0));
        device.arrive(at(0), 2, work(2, 10, 100.0));
        // Two at half speed until 20, then the third alone.
        assert_eq!(run(&mut device), [(20, 0, 0), (20, 1, 0), (30, 2, 20)]);
    }

    /// M/D/1 with processor sharing: every arrival gets a replica of its own that wants the whole device. The mean time in the
    /// system is s / (1 − ρ), whatever the distribution of s.
    #[test]
    fn shared_processors_delay_as_the_formula_says() {
        let mut device = Device::new(Interference::default());
        let replicas: Vec<usize> = (0..64).map(|_| device.add(false)).collect();
        let mut idle = replicas.clone();
        let mut random = crate::random::Generator::new(3, 0);
        let mut arrived = std::collections::BTreeMap::new();
        let (mut total, mut count) = (Duration::ZERO, 0_u32);
        let mut next = Time::ZERO;
        let mut done = Vec::new();
        for batch in 0..400_000 {
            next += Duration::from_secs_f64(random.exponential() / 70.0);
            while let Some((at, revision)) = device.next().filter(|one| one.0 <= next) {
                device.complete(at, revision, &mut done);
                for computed in done.drain(..) {
                    let (since, replica) = arrived.remove(&computed.batch).unwrap();
                    total += at.saturating_since(since);
                    count += 1;
                    idle.push(replica);
                }
            }
            let replica = idle.pop().expect("64 are never needed at a time");
            arrived.insert(BatchId(batch), (next, replica));
            device.arrive(next, replica, work(batch, 10, 100.0));
        }
        let (mean, expected) = (total.as_secs_f64() / f64::from(count), 0.010 / 0.3);
        assert!(
            (mean / expected - 1.0).abs() < 0.02,
            "{mean} s, expected {expected} s"
        );
    }
}
