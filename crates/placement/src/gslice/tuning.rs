//! The self-tuning loop, against a model of latency.

/// The batch size and the share that a model starts from.
const START: Setting = Setting {
    batch: 1,
    share: 30.0,
};

/// Slack from 0 to this part of the target is left alone.
const SLACK: f64 = 0.10;

/// Steps of batch sizes and of shares in turns, so often.
const ROUNDS: usize = 5;

/// Steps of batch sizes in a round.
const BATCH_STEPS: usize = 5;

/// A batch size and a share of the multiprocessors in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) batch: u32,
    pub(super) share: f64,
}

/// What a model shall reach, and what it would.
pub(super) struct Target<L> {
    /// The longest that a batch may take, in seconds.
    pub(super) limit: f64,
    /// In requests per second.
    pub(super) rate: f64,
    /// The largest batch size.
    pub(super) most: u32,
    /// Seconds of a batch under a share in percent.
    pub(super) latency: L,
}

impl<L: Fn(u32, f64) -> f64> Target<L> {
    /// The loop: rounds of steps of the batch size and one of the share, until nothing changes, then batch size once more.
    pub(super) fn tune(&self) -> Setting {
        let mut setting = START;
        setting.batch = setting.batch.min(self.most);
        for _ in 0..ROUNDS {
            let before = setting;
            setting.batch = self.tune_batch(setting);
            setting.share = self.step_share(setting);
            if setting == before {
                break;
            }
        }
        setting.batch = self.tune_batch(setting);
        setting
    }

    fn tune_batch(&self, mut setting: Setting) -> u32 {
        for _ in 0..BATCH_STEPS {
            let next = self.step_batch(setting);
            if next == setting.batch {
                break;
            }
            setting.batch = next;
        }
        setting.batch
    }

    fn step_batch(&self, Setting { batch, share }: Setting) -> u32 {
        let latency = (self.latency)(batch, share);
        let slack = self.limit - latency;
        if is_small(slack / self.limit) {
            return batch;
        }
        let next = f64::from(batch) * (1.0 + slack / latency);
        // A step that is a rounding error over an integer is that integer.
        (next - 1e-9).ceil().clamp(1.0, f64::from(self.most)) as u32
    }

    fn step_share(&self, Setting { batch, share }: Setting) -> f64 {
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

    /// Where the loop has come to, made one that can be given: a whole percentage, and if it is late or short of the rate, a batch
    /// within the limit and the least share with which that carries the rate. `None` if not even a whole device is in time.
    pub(super) fn settle(&self, Setting { batch, share }: Setting) -> Option<Setting> {
        let share = (share - 1e-9).ceil().clamp(1.0, 100.0);
        let tuned = |most| {
            let batch = self.largest_batch(most, share)?;
            self.carries(Setting { batch, share })
        };
        if let Some(setting) = tuned(batch) {
            return Some(setting);
        }
        let with = |percent: u8| {
            let share = f64::from(percent);
            let batch = self.largest_batch(self.most, share)?;
            self.carries(Setting { batch, share })
        };
        // More share makes nothing slower: the least that is enough is between one that is not and one that is.
        let (mut least, mut most) = (share as u8, 100);
        while least < most {
            let middle = least.midpoint(most);
            if with(middle).is_some() {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        with(most)
    }

    fn carries(&self, setting: Setting) -> Option<Setting> {
        let enough = self.throughput(setting) >= self.rate * (1.0 - 1e-9);
        enough.then_some(setting)
    }

    /// With a share that is given: the batch size tuned to it, within the limit; `None` if even 1 takes longer.
    pub(super) fn under(&self, share: f64) -> Option<Setting> {
        let batch = self.tune_batch(Setting { batch: 1, share });
        let batch = self.largest_batch(batch, share)?;
        Some(Setting { batch, share })
    }

    /// The largest batch size up to `most` that is within the limit.
    pub(super) fn largest_batch(&self, most: u32, share: f64) -> Option<u32> {
        (1..=most)
            .rev()
            .find(|batch| (self.latency)(*batch, share) <= self.limit)
    }

    /// Requests per second of full batches.
    pub(super) fn throughput(&self, Setting { batch, share }: Setting) -> f64 {
        f64::from(batch) / (self.latency)(batch, share)
    }
}

fn is_small(slack: f64) -> bool {
    0.0 < slack && slack < SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of b takes (4 + b) · 100 / share milliseconds.
    fn target(limit_ms: f64, rate: f64) -> Target<impl Fn(u32, f64) -> f64> {
        Target {
            limit: limit_ms / 1e3,
            rate,
            most: 32,
            latency: |batch, share| (4.0 + f64::from(batch)) / 10.0 / share,
        }
    }

    #[test]
    fn a_step_of_the_batch_size_is_in_proportion_to_the_slack() {
        let target = target(100.0, 10.0);
        let step = |batch, share| target.step_batch(Setting { batch, share });
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
        let setting = Setting {
            batch: 6,
            share: 20.0,
        };
        // 6 take 50 ms: 120/s. At a limit of 60 ms and a rate of 100/s there are 10/50 and 20/120 to spare: a fifth less.
        let share = target(60.0, 100.0).step_share(setting);
        assert!((share - 16.0).abs() < 1e-9, "{share}");
        // At a rate of 150/s 30/120 are missing, more than 10/50: a quarter more.
        let share = target(60.0, 150.0).step_share(setting);
        assert!((share - 25.0).abs() < 1e-9, "{share}");
        // 52 ms and 115/s are slack of 2/52 and 5/115.
        let share = target(52.0, 115.0).step_share(setting);
        assert!((share - 20.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn a_round_of_the_loop_by_hand() {
        // From 1 and 30 %: batches of 6, 18, 25 as above, which stay. 25 take 96.67 ms: 258.6/s, where 240 are wanted: both within
        // 10 %, so nothing changes any more.
        let tuned = target(100.0, 240.0).tune();
        assert_eq!(
            tuned,
            Setting {
                batch: 25,
                share: 30.0
            }
        );
    }

    #[test]
    fn what_the_loop_leaves_late_is_made_smaller_or_gets_more() {
        let target = target(100.0, 10.0);
        let late = Setting {
            batch: 32,
            share: 29.5,
        };
        // 30 %: 26 take 100 ms.
        let settled = target.settle(late).unwrap();
        assert_eq!((settled.batch, settled.share), (26, 30.0));
        // 1 takes 500 / 5 = 100 ms at 5 %: 10/s, as many as are wanted.
        let starved = Setting {
            batch: 3,
            share: 1.0,
        };
        let settled = target.settle(starved).unwrap();
        assert_eq!((settled.batch, settled.share), (1, 5.0));
        assert_eq!(target.under(4.0), None);
    }

    #[test]
    fn what_the_loop_leaves_short_gets_the_share_that_carries_the_rate() {
        // b within 100 ms are s - 4, in (4 + b) · 100 / s ms: 10 · (s - 4) requests/s, 120 at 16 %.
        let short = Setting {
            batch: 2,
            share: 10.0,
        };
        let settled = target(100.0, 120.0).settle(short).unwrap();
        assert_eq!((settled.batch, settled.share), (12, 16.0));
        // More than the whole device carries: 32 in 36 ms are 889/s.
        assert_eq!(target(100.0, 900.0).settle(short), None);
    }
}
