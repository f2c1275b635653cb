//! The self-tuning loop, which reads latencies from a function.

use crate::tolerance::{CARRIED, round_up};

/// The batch size and the share from which the loop starts.
const START: OperatingPoint = OperatingPoint {
    batch: 1,
    share: 30.0,
};

/// The largest slack, as a fraction of the target, at which the loop changes nothing.
const MAX_SLACK: f64 = 0.10;

/// The largest number of rounds; a round consists of steps of the batch size and one step of the share.
const ROUNDS: usize = 5;

/// The largest number of steps of the batch size in a round.
const BATCH_STEPS: usize = 5;

/// The batch size and the compute share of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OperatingPoint {
    /// The batch size.
    pub(super) batch: u32,
    /// The share of the multiprocessors, in percent.
    pub(super) share: f64,
}

/// The target of a model, and its latency.
pub(super) struct TuningTarget<L> {
    /// The longest allowed time of a batch, in seconds.
    pub(super) limit: f64,
    /// The rate to carry, in requests per second.
    pub(super) rate: f64,
    /// The largest batch size.
    pub(super) max_batch: u32,
    /// The time of a batch in seconds, by batch size and share in percent.
    pub(super) latency: L,
}

impl<L: Fn(u32, f64) -> f64> TuningTarget<L> {
    /// Runs the loop: rounds until nothing changes, then the steps of the batch size once more.
    pub(super) fn tune(&self) -> OperatingPoint {
        let mut point = START;
        point.batch = point.batch.min(self.max_batch);
        for _ in 0..ROUNDS {
            let before = point;
            point.batch = self.tune_batch(point);
            point.share = self.step_share(point);
            if point == before {
                break;
            }
        }
        point.batch = self.tune_batch(point);
        point
    }

    fn tune_batch(&self, mut point: OperatingPoint) -> u32 {
        for _ in 0..BATCH_STEPS {
            let next = self.step_batch(point);
            if next == point.batch {
                break;
            }
            point.batch = next;
        }
        point.batch
    }

    fn step_batch(&self, OperatingPoint { batch, share }: OperatingPoint) -> u32 {
        let latency = (self.latency)(batch, share);
        let slack = self.limit - latency;
        if is_small(slack / self.limit) {
            return batch;
        }
        let next = f64::from(batch) * (1.0 + slack / latency);
        round_up(next).clamp(1.0, f64::from(self.max_batch)) as u32
    }

    fn step_share(&self, OperatingPoint { batch, share }: OperatingPoint) -> f64 {
        let latency = (self.latency)(batch, share);
        let throughput = f64::from(batch) / latency;
        let (slack, surplus) = (self.limit - latency, throughput - self.rate);
        if is_small(slack / self.limit) && is_small(surplus / self.rate) {
            return share;
        }
        let step = share * f64::max(slack.abs() / latency, surplus.abs() / throughput);
        let late = slack < 0.0 || surplus < 0.0;
        (share + if late { step } else { -step }).clamp(1.0, 100.0)
    }

    /// Turns the result of the loop into one that can be planned: the share becomes a whole percentage, and if the result is late or short
    /// of the rate, it becomes a batch within the limit with the smallest share that carries the rate. `None` if not even a whole device
    /// does.
    pub(super) fn settle(
        &self,
        OperatingPoint { batch, share }: OperatingPoint,
    ) -> Option<OperatingPoint> {
        let share = round_up(share).clamp(1.0, 100.0);
        let sufficient = |max_batch, share| {
            let batch = self.largest_batch(max_batch, share)?;
            let point = OperatingPoint { batch, share };
            (self.throughput(point) >= self.rate * CARRIED).then_some(point)
        };
        if let Some(point) = sufficient(batch, share) {
            return Some(point);
        }
        let with_share = |percent: u8| sufficient(self.max_batch, f64::from(percent));
        // A larger share makes no batch slower: bisection finds the smallest sufficient one.
        let (mut least, mut most) = (share as u8, 100);
        while least < most {
            let middle = least.midpoint(most);
            if with_share(middle).is_some() {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        with_share(most)
    }

    /// Tunes the batch size to a given share, within the limit; `None` if even a batch of 1 takes longer.
    pub(super) fn under(&self, share: f64) -> Option<OperatingPoint> {
        let batch = self.tune_batch(OperatingPoint { batch: 1, share });
        let batch = self.largest_batch(batch, share)?;
        Some(OperatingPoint { batch, share })
    }

    /// Returns the largest batch size up to `max_batch` that is within the limit.
    pub(super) fn largest_batch(&self, max_batch: u32, share: f64) -> Option<u32> {
        (1..=max_batch)
            .rev()
            .find(|batch| (self.latency)(*batch, share) <= self.limit)
    }

    /// Returns the throughput of full batches, in requests per second.
    pub(super) fn throughput(&self, OperatingPoint { batch, share }: OperatingPoint) -> f64 {
        f64::from(batch) / (self.latency)(batch, share)
    }
}

fn is_small(slack: f64) -> bool {
    0.0 < slack && slack < MAX_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a target with batches of b that take (4 + b) · 100 / share milliseconds.
    fn target(limit_ms: f64, rate: f64) -> TuningTarget<impl Fn(u32, f64) -> f64> {
        TuningTarget {
            limit: limit_ms / 1e3,
            rate,
            max_batch: 32,
            latency: |batch, share| (4.0 + f64::from(batch)) / 10.0 / share,
        }
    }

    #[test]
    fn a_step_of_the_batch_size_is_in_proportion_to_the_slack() {
        let target = target(100.0, 10.0);
        let step = |batch, share| target.step_batch(OperatingPoint { batch, share });
        // 5 · 100 / 30 = 16.67 ms, slack 83.33 ms, five times that: 1 + 5.
        assert_eq!(step(1, 30.0), 6);
        // 33.33 ms, slack twice that: 6 + 12.
        assert_eq!(step(6, 30.0), 18);
        // 73.33 ms, slack 26.67 ms: 18 + 6.55, rounded up.
        assert_eq!(step(18, 30.0), 25);
        // 96.67 ms: slack of 3.33 % stays.
        assert_eq!(step(25, 30.0), 25);
        // 32 take 120 ms: 32 - 32 · 20 / 120 = 26.67, rounded up.
        assert_eq!(step(32, 30.0), 27);
        assert_eq!(step(1, 0.1), 1);
    }

    #[test]
    fn a_step_of_the_share_follows_the_larger_slack() {
        let point = OperatingPoint {
            batch: 6,
            share: 20.0,
        };
        // 6 take 50 ms: 120/s. At a limit of 60 ms and a rate of 100/s there are 10/50 and 20/120 to spare: a fifth less.
        let share = target(60.0, 100.0).step_share(point);
        assert!((share - 16.0).abs() < 1e-9, "{share}");
        // At a rate of 150/s 30/120 are missing, more than 10/50: a quarter more.
        let share = target(60.0, 150.0).step_share(point);
        assert!((share - 25.0).abs() < 1e-9, "{share}");
        // 52 ms and 115/s are slack of 2/52 and 5/115.
        let share = target(52.0, 115.0).step_share(point);
        assert!((share - 20.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn a_round_of_the_loop_by_hand() {
        // From 1 and 30 %: batches of 6, 18, 25 as above, which stay. 25 take 96.67 ms: 258.6/s, where 240 are wanted: both within
        // 10 %, so nothing changes any more.
        let tuned = target(100.0, 240.0).tune();
        assert_eq!(
            tuned,
            OperatingPoint {
                batch: 25,
                share: 30.0
            }
        );
    }

    #[test]
    fn a_late_result_of_the_loop_gets_a_smaller_batch_or_a_larger_share() {
        let target = target(100.0, 10.0);
        let late = OperatingPoint {
            batch: 32,
            share: 29.5,
        };
        // 30 %: 26 take 100 ms.
        let settled = target.settle(late).unwrap();
        assert_eq!((settled.batch, settled.share), (26, 30.0));
        // 1 takes 500 / 5 = 100 ms at 5 %: 10/s, as many as are wanted.
        let starved = OperatingPoint {
            batch: 3,
            share: 1.0,
        };
        let settled = target.settle(starved).unwrap();
        assert_eq!((settled.batch, settled.share), (1, 5.0));
        assert_eq!(target.under(4.0), None);
    }

    #[test]
    fn a_result_of_the_loop_below_the_rate_gets_the_share_that_carries_it() {
        // The largest batch within 100 ms is s - 4, which takes (4 + b) · 100 / s ms: 10 · (s - 4) requests/s, 120 at 16 %.
        let short = OperatingPoint {
            batch: 2,
            share: 10.0,
        };
        let settled = target(100.0, 120.0).settle(short).unwrap();
        assert_eq!((settled.batch, settled.share), (12, 16.0));
        // A whole device carries less: batches of 32 in 36 ms are 889/s.
        assert_eq!(target(100.0, 900.0).settle(short), None);
    }
}
