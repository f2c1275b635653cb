//! A request rate over time: constant between changes, each of which is a step or a linear ramp.

use std::time::Duration;

use packhorse_cluster::{RequestsPerSecond, Time};

/// A request rate that changes at given times, at once or linearly over some time, and is constant in between.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// The linear pieces from time 0 on, without gaps. The last one is constant.
    pieces: Vec<Piece>,
    /// The time at which the last change begins.
    last_change: Time,
}

/// A linear function of time until the next piece.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    from: Time,
    /// The rate at `from`.
    rate: RequestsPerSecond,
    /// The change of the rate per second, in requests/s.
    slope: f64,
}

impl Piece {
    /// The rate at a time from `from` on. Rounding never makes it negative.
    fn at(self, now: Time) -> f64 {
        let passed = now.saturating_since(self.from).as_secs_f64();
        (self.rate.get() + self.slope * passed).max(0.0)
    }

    /// The number of requests between two times: the area of a trapezium.
    fn requests_between(self, from: Time, until: Time) -> f64 {
        let seconds = until.saturating_since(from).as_secs_f64();
        f64::midpoint(self.at(from), self.at(until)) * seconds
    }

    /// The time from `now` until `requests` have arrived: the first zero of
    /// `slope / 2 · t² + at(now) · t − requests`, in the form that also holds for a slope of 0. `None` if they never arrive.
    fn time_until(self, now: Time, requests: f64) -> Option<Duration> {
        let rate = self.at(now);
        let end = (rate * rate + 2.0 * self.slope * requests).max(0.0).sqrt();
        // 0 requests at a rate of 0 give NaN here, and a time of 0.
        let seconds = (2.0 * requests / (rate + end)).max(0.0);
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl Rate {
    /// Returns a rate that never changes.
    pub fn constant(rate: RequestsPerSecond) -> Self {
        let piece = Piece {
            from: Time::ZERO,
            rate,
            slope: 0.0,
        };
        Self {
            pieces: vec![piece],
            last_change: Time::ZERO,
        }
    }

    /// Appends a change to the rate `to` that begins at `from` and is linear over the time `over`, or a step if that is zero. Appends
    /// nothing and returns false if it begins before the end of the last change, or if both are steps at the same time.
    pub fn append_change(&mut self, from: Time, over: Duration, to: RequestsPerSecond) -> bool {
        let constant = *self.pieces.last().expect("there is a first piece");
        if from < constant.from || over.is_zero() && from == self.last_change {
            return false;
        }
        if from == constant.from {
            self.pieces.pop();
        }
        if !over.is_zero() {
            let slope = (to.get() - constant.rate.get()) / over.as_secs_f64();
            self.pieces.push(Piece {
                from,
                slope,
                ..constant
            });
        }
        self.pieces.push(Piece {
            from: from + over,
            rate: to,
            slope: 0.0,
        });
        self.last_change = from;
        true
    }

    /// The rate at time 0.
    pub fn initial(&self) -> RequestsPerSecond {
        self.pieces[0].rate
    }

    /// Returns true if the rate never changes.
    pub fn is_constant(&self) -> bool {
        self.pieces.len() == 1
    }

    /// The rate at a time, in requests/s.
    pub fn at(&self, now: Time) -> f64 {
        self.pieces[self.piece_at(now)].at(now)
    }

    /// The number of requests between two times.
    pub fn requests_between(&self, from: Time, until: Time) -> f64 {
        let ends = self.pieces[1..].iter().map(|piece| piece.from);
        let ends = ends.chain([Time::MAX]);
        self.pieces
            .iter()
            .zip(ends)
            .map(|(piece, end)| (piece, piece.from.max(from), end.min(until)))
            .filter(|(_, from, until)| from < until)
            .map(|(piece, from, until)| piece.requests_between(from, until))
            .sum()
    }

    /// The index of the piece that contains a time.
    fn piece_at(&self, now: Time) -> usize {
        let begun = self.pieces.partition_point(|piece| piece.from <= now);
        begun.saturating_sub(1)
    }

    /// The time at which `requests`, which may be a fraction, have arrived since `from`. `None` if they never arrive.
    pub(crate) fn time_after(&self, from: Time, requests: f64) -> Option<Time> {
        let (mut now, mut remaining) = (from, requests);
        let mut index = self.piece_at(from);
        loop {
            let piece = self.pieces[index];
            if let Some(next) = self.pieces.get(index + 1) {
                let in_piece = piece.requests_between(now, next.from);
                if in_piece < remaining {
                    (now, remaining, index) = (next.from, remaining - in_piece, index + 1);
                    continue;
                }
            }
            return Some(now + piece.time_until(now, remaining)?);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn rps(rate: f64) -> RequestsPerSecond {
        RequestsPerSecond::new(rate).unwrap()
    }

    /// Returns a rate that starts with `first`. Each change has the millisecond at which it begins, the new rate, and its duration in
    /// milliseconds.
    fn rate(first: f64, changes: &[(u64, f64, u64)]) -> Rate {
        let mut rate = Rate::constant(rps(first));
        for &(from, to, over) in changes {
            assert!(rate.append_change(at(from), Duration::from_millis(over), rps(to)));
        }
        rate
    }

    #[test]
    fn the_time_after_requests_includes_the_steps_of_the_rate() {
        let steps = rate(2.0, &[(1000, 0.0, 0), (3000, 4.0, 0)]);
        assert_eq!(steps.time_after(Time::ZERO, 1.0), Some(at(500)));
        // Two until second 1, none until second 3, the other two in half a second.
        assert_eq!(steps.time_after(Time::ZERO, 2.0), Some(at(1000)));
        assert_eq!(steps.time_after(Time::ZERO, 4.0), Some(at(3500)));
        assert_eq!(steps.time_after(at(2000), 0.0), Some(at(2000)));
        assert_eq!(
            rate(2.0, &[(1000, 0.0, 0)]).time_after(Time::ZERO, 4.0),
            None
        );
    }

    #[test]
    fn the_time_after_requests_includes_the_ramps_of_the_rate() {
        // From 0 to 100 requests/s in ten seconds, and back in five: t²·5 until then, 500 in all, then 250.
        let ramps = rate(0.0, &[(0, 100.0, 10_000), (10_000, 0.0, 5000)]);
        assert_eq!(ramps.time_after(Time::ZERO, 125.0), Some(at(5000)));
        assert_eq!(ramps.time_after(at(5000), 195.0), Some(at(8000)));
        assert_eq!(ramps.time_after(Time::ZERO, 500.0), Some(at(10_000)));
        // At 12.5 s the rate is 50: a quarter of the ramp's requests are still to come.
        assert_eq!(ramps.time_after(Time::ZERO, 687.5), Some(at(12_500)));
        assert_eq!(ramps.time_after(Time::ZERO, 751.0), None);
        let rates = [0, 4000, 10_000, 12_500, 15_000, 99_000]
            .map(|millis| ramps.at(at(millis)).round() as u32);
        assert_eq!(rates, [0, 40, 100, 50, 0, 0]);
    }

    #[test]
    fn changes_that_overlap_are_refused() {
        let mut ramp = rate(10.0, &[(1000, 20.0, 4000)]);
        assert!(!ramp.append_change(at(4999), Duration::ZERO, rps(1.0)));
        assert!(!ramp.append_change(at(500), Duration::from_millis(1), rps(1.0)));
        // At its end a step may follow, and then a ramp, but not a second step.
        assert!(ramp.append_change(at(5000), Duration::ZERO, rps(1.0)));
        assert!(!ramp.append_change(at(5000), Duration::ZERO, rps(2.0)));
        assert!(ramp.append_change(at(5000), Duration::from_secs(1), rps(3.0)));
        assert_eq!(
            [4999, 5000, 5500, 6000].map(|t| ramp.at(at(t)).round() as u32),
            [20, 1, 2, 3]
        );
        let mut constant = rate(10.0, &[]);
        assert!(!constant.append_change(Time::ZERO, Duration::ZERO, rps(1.0)));
        assert!(constant.is_constant());
    }

    /// Rates with up to seven changes, with gaps between them.
    pub(crate) fn rates() -> impl Strategy<Value = Rate> {
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

    /// The integral of the rate as a Riemann sum of slices of a tenth of a millisecond.
    pub(crate) fn integral(rate: &Rate, from: Time, until: Time) -> f64 {
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
        fn the_requests_between_two_times_are_the_integral(
            rate in rates(), from in 0_u64..12_000, length in 0_u64..12_000,
        ) {
            let (from, until) = (at(from), at(from + length));
            let (exact, sum) = (rate.requests_between(from, until), integral(&rate, from, until));
            prop_assert!((exact - sum).abs() < 1e-4, "{exact} and {sum}");
        }

        #[test]
        fn the_integral_until_the_time_after_requests_is_their_number(
            rate in rates(), from in 0_u64..10_000, requests in 0.0..800.0,
        ) {
            let from = at(from);
            if let Some(until) = rate.time_after(from, requests).filter(|&until| until < at(60_000)) {
                // Changes are at whole milliseconds, which are edges of slices.
                let arrived = integral(&rate, from, until);
                prop_assert!((arrived - requests).abs() < 1e-4, "{arrived} of {requests} until {until:?}");
            } else {
                prop_assert!(integral(&rate, from, at(60_000)) < requests + 1e-4);
            }
        }
    }
}
