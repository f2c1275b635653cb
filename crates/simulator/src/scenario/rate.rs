//! A rate of requests over time: constant between changes, each of which happens at once or takes a while.

use std::time::Duration;

use packhorse_cluster::{RequestsPerSecond, Time};

/// A rate of requests that changes at given moments, at once or linearly over some time, and is constant in between.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// From the start on, without gaps; the last one is level.
    pieces: Vec<Piece>,
    /// When the last change begins.
    last: Time,
}

/// The rate until the next piece.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    from: Time,
    /// At `from`.
    rate: RequestsPerSecond,
    /// By how many requests/s it grows in a second.
    slope: f64,
}

impl Piece {
    /// The rate at a moment from `from` on. A fall to 0 ends there, whatever rounding says.
    fn at(self, now: Time) -> f64 {
        let passed = now.saturating_since(self.from).as_secs_f64();
        (self.rate.get() + self.slope * passed).max(0.0)
    }

    /// How many requests come between two moments: the area of a trapezium.
    fn between(self, from: Time, until: Time) -> f64 {
        let seconds = until.saturating_since(from).as_secs_f64();
        f64::midpoint(self.at(from), self.at(until)) * seconds
    }

    /// How long it takes from `now` until `requests` have come: the first zero of
    /// `slope / 2 · t² + at(now) · t − requests`, in the form that also holds for a slope of 0. `None` if they never come.
    fn wait(self, now: Time, requests: f64) -> Option<Duration> {
        let rate = self.at(now);
        let end = (rate * rate + 2.0 * self.slope * requests).max(0.0).sqrt();
        // No requests at no rate are no number, and come at once.
        let seconds = (2.0 * requests / (rate + end)).max(0.0);
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl Rate {
    /// The same rate for ever.
    pub fn constant(rate: RequestsPerSecond) -> Self {
        let piece = Piece {
            from: Time::ZERO,
            rate,
            slope: 0.0,
        };
        Self {
            pieces: vec![piece],
            last: Time::ZERO,
        }
    }

    /// Appends a change: from `from` on to the rate `to`, linearly `over` so much time, or at once for zero. `false`, and nothing is
    /// appended, if it begins before the last change is over, or changes at once what was just changed at once.
    pub fn change(&mut self, from: Time, over: Duration, to: RequestsPerSecond) -> bool {
        let level = *self.pieces.last().expect("there is a first one");
        if from < level.from || over.is_zero() && from == self.last {
            return false;
        }
        if from == level.from {
            self.pieces.pop();
        }
        if !over.is_zero() {
            let slope = (to.get() - level.rate.get()) / over.as_secs_f64();
            self.pieces.push(Piece {
                from,
                slope,
                ..level
            });
        }
        self.pieces.push(Piece {
            from: from + over,
            rate: to,
            slope: 0.0,
        });
        self.last = from;
        true
    }

    /// The rate at the start.
    pub fn initial(&self) -> RequestsPerSecond {
        self.pieces[0].rate
    }

    /// Whether it never changes.
    pub fn is_constant(&self) -> bool {
        self.pieces.len() == 1
    }

    /// How many requests per second come at a moment.
    pub fn at(&self, now: Time) -> f64 {
        self.pieces[self.place(now)].at(now)
    }

    /// The piece that a moment lies in.
    fn place(&self, now: Time) -> usize {
        let begun = self.pieces.partition_point(|piece| piece.from <= now);
        begun.saturating_sub(1)
    }

    /// When `requests` (a fraction, mostly) have come since `from`. `None` if that is never.
    pub(crate) fn after(&self, from: Time, requests: f64) -> Option<Time> {
        let (mut now, mut left) = (from, requests);
        let mut place = self.place(from);
        loop {
            let piece = self.pieces[place];
            if let Some(next) = self.pieces.get(place + 1) {
                let room = piece.between(now, next.from);
                if room < left {
                    (now, left, place) = (next.from, left - room, place + 1);
                    continue;
                }
            }
            return Some(now + piece.wait(now, left)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Arrivals, arrivals::Source};

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn rps(rate: f64) -> RequestsPerSecond {
        RequestsPerSecond::new(rate).unwrap()
    }

    /// Starts with `first`; then from which millisecond on to which rate, over how many milliseconds.
    fn rate(first: f64, changes: &[(u64, f64, u64)]) -> Rate {
        let mut rate = Rate::constant(rps(first));
        for &(from, to, over) in changes {
            assert!(rate.change(at(from), Duration::from_millis(over), rps(to)));
        }
        rate
    }

    #[test]
    fn a_gap_goes_through_the_steps_of_the_rate() {
        let steps = rate(2.0, &[(1000, 0.0, 0), (3000, 4.0, 0)]);
        assert_eq!(steps.after(Time::ZERO, 1.0), Some(at(500)));
        // Two until second 1, none until second 3, the other two in half a second.
        assert_eq!(steps.after(Time::ZERO, 2.0), Some(at(1000)));
        assert_eq!(steps.after(Time::ZERO, 4.0), Some(at(3500)));
        assert_eq!(steps.after(at(2000), 0.0), Some(at(2000)));
        assert_eq!(rate(2.0, &[(1000, 0.0, 0)]).after(Time::ZERO, 4.0), None);
    }

    #[test]
    fn a_gap_goes_up_and_down_the_ramps_of_the_rate() {
        // From 0 to 100 requests/s in ten seconds, and back in five: t²·5 until then, 500 in all, then 250.
        let ramps = rate(0.0, &[(0, 100.0, 10_000), (10_000, 0.0, 5000)]);
        assert_eq!(ramps.after(Time::ZERO, 125.0), Some(at(5000)));
        assert_eq!(ramps.after(at(5000), 195.0), Some(at(8000)));
        assert_eq!(ramps.after(Time::ZERO, 500.0), Some(at(10_000)));
        // At 12.5 s the rate is 50: a quarter of the fall is to come.
        assert_eq!(ramps.after(Time::ZERO, 687.5), Some(at(12_500)));
        assert_eq!(ramps.after(Time::ZERO, 751.0), None);
        let rates = [0, 4000, 10_000, 12_500, 15_000, 99_000]
            .map(|millis| ramps.at(at(millis)).round() as u32);
        assert_eq!(rates, [0, 40, 100, 50, 0, 0]);
    }

    #[test]
    fn changes_follow_each_other_and_do_not_overlap() {
        let mut ramp = rate(10.0, &[(1000, 20.0, 4000)]);
        assert!(!ramp.change(at(4999), Duration::ZERO, rps(1.0)));
        assert!(!ramp.change(at(500), Duration::from_millis(1), rps(1.0)));
        // At its end the rate may jump, and from there rise; but it does not jump twice.
        assert!(ramp.change(at(5000), Duration::ZERO, rps(1.0)));
        assert!(!ramp.change(at(5000), Duration::ZERO, rps(2.0)));
        assert!(ramp.change(at(5000), Duration::from_secs(1), rps(3.0)));
        assert_eq!(
            [4999, 5000, 5500, 6000].map(|t| ramp.at(at(t)).round() as u32),
            [20, 1, 2, 3]
        );
        let mut constant = rate(10.0, &[]);
        assert!(!constant.change(Time::ZERO, Duration::ZERO, rps(1.0)));
        assert!(constant.is_constant());
    }

    /// A first rate and changes that follow each other: after which gap, to which rate, over how long.
    fn rates() -> impl Strategy<Value = Rate> {
        let change = (1_u64..3000, 0.0..500.0, prop_oneof![Just(0), 1_u64..5000]);
        (0.0..500.0, prop::collection::vec(change, 0..8)).prop_map(|(first, changes)| {
            let mut from = 0;
            let changes = changes.into_iter().map(|(gap, to, over)| {
                let begins = from + gap;
                from = begins + over;
                (begins, to, over)
            });
            rate(first, &changes.collect::<Vec<_>>())
        })
    }

    /// The integral of the rate, by its definition: in slices of a tenth of a millisecond.
    fn integral(rate: &Rate, from: Time, until: Time) -> f64 {
        let slice = Duration::from_micros(100);
        let mut sum = 0.0;
        let mut now = from;
        while now < until {
            let next = (now + slice).min(until);
            let length = next.saturating_since(now);
            sum += rate.at(now + length / 2) * length.as_secs_f64();
            now = next;
        }
        sum
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn so_many_requests_have_come_when_they_are_said_to(
            rate in rates(), from in 0_u64..10_000, requests in 0.0..800.0,
        ) {
            let from = at(from);
            if let Some(until) = rate.after(from, requests).filter(|&until| until < at(60_000)) {
                let come = integral(&rate, from, until);
                // Changes lie on whole milliseconds and so on the edges of slices, but for those after a start within one.
                prop_assert!((come - requests).abs() < 1e-4, "{come} of {requests} until {until:?}");
            } else {
                prop_assert!(integral(&rate, from, at(60_000)) < requests + 1e-4);
            }
        }

        /// Poisson arrivals at a rate over time: in any interval as many as its integral, give or take six times its root.
        #[test]
        fn in_any_interval_as_many_arrive_as_the_integral_says(
            rate in rates(), seed in any::<u64>(), from in 0_u64..10_000, length in 1_u64..10_000,
        ) {
            let (from, until) = (at(from), at(from + length));
            let mut source = Source::new(&Arrivals::Poisson, 0, &rate, Duration::ZERO, seed);
            let arrivals = std::iter::from_fn(|| source.next());
            let come = arrivals.take_while(|&now| now < until).filter(|&now| now >= from).count();
            let expected = integral(&rate, from, until);
            prop_assert!((come as f64 - expected).abs() < 6.0 * expected.sqrt() + 6.0, "{come} for {expected}");
        }
    }
}
