//! The sum of a metric over the kernels of a batch, over time.

use std::time::Duration;

use packhorse_cluster::{Percent, Time};

/// An interval of time in which no kernel starts or ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The start of the interval.
    pub start: Time,
    /// The length of the interval; not zero.
    pub duration: Duration,
    /// The sum over the kernels that run in the interval, at most 100; zero if none runs.
    pub value: Percent,
}

/// The sum of a metric over overlapping kernels, from the first start to the last end: a bar chart like those of Figures 5.3 and 5.4.
/// Its intervals are bounded by the starts and ends of kernels and have no gaps.
///
/// Source: thesis, section 5.3.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    intervals: Vec<Interval>,
}

impl Timeline {
    /// Creates the timeline of kernels with their start, duration and metric, in any order; `None` if their durations are all zero.
    pub(crate) fn new(
        kernels: impl IntoIterator<Item = (Time, Duration, Percent)>,
    ) -> Option<Self> {
        let mut changes: Vec<(Time, i32, f64)> = Vec::new();
        for (start, duration, value) in kernels {
            changes.push((start, 1, value.get()));
            changes.push((start + duration, -1, -value.get()));
        }
        changes.sort_by_key(|(time, ..)| *time);
        let mut intervals = Vec::new();
        let (mut running, mut sum) = (0, 0.0);
        for (index, (time, count, value)) in changes.iter().enumerate() {
            running += count;
            // No kernel runs: drop the rounding error of the sum.
            sum = if running == 0 { 0.0 } else { sum + value };
            let next = changes.get(index + 1).map_or(*time, |(next, ..)| *next);
            if next > *time {
                intervals.push(Interval {
                    start: *time,
                    duration: next.saturating_since(*time),
                    value: Percent::clamped(sum),
                });
            }
        }
        (!intervals.is_empty()).then_some(Self { intervals })
    }

    /// Returns the intervals in the order of time, at least one.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Returns the highest sum over any set of overlapping kernels, which is Usher's Creq. Source: thesis, equation 5.3.
    pub fn max(&self) -> Percent {
        let values = self.intervals.iter().map(|interval| interval.value.get());
        Percent::clamped(values.fold(0.0, f64::max))
    }

    /// Returns the mean over time, including pauses between kernels: the sum of every interval's length times its value, divided by the
    /// total time. Source: thesis, section 5.3.1.
    pub fn mean(&self) -> Percent {
        let nanos = |interval: &Interval| interval.duration.as_nanos() as f64;
        let weighted = |interval: &Interval| nanos(interval) * interval.value.get();
        let total: f64 = self.intervals.iter().map(nanos).sum();
        Percent::clamped(self.intervals.iter().map(weighted).sum::<f64>() / total)
    }

    /// Returns the time from the first start to the last end.
    pub fn duration(&self) -> Duration {
        self.intervals
            .iter()
            .map(|interval| interval.duration)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timeline(kernels: &[(u64, u64, f64)]) -> Option<Timeline> {
        Timeline::new(kernels.iter().map(|&(start, nanos, value)| {
            let value = Percent::new(value).unwrap();
            (Time::from_nanos(start), Duration::from_nanos(nanos), value)
        }))
    }

    fn bars(timeline: &Timeline) -> Vec<(u64, u64, f64)> {
        let bar = |interval: &Interval| {
            let length = interval.duration.as_nanos() as u64;
            (interval.start.as_nanos(), length, interval.value.get())
        };
        timeline.intervals().iter().map(bar).collect()
    }

    #[test]
    fn kernels_that_overlap_add_up_and_pauses_count() {
        // 10..40 at 50 %, 30..60 at 20 %, a pause, 80..90 at 100 %; given in another order.
        let timeline = timeline(&[(80, 10, 100.0), (10, 30, 50.0), (30, 30, 20.0)]).unwrap();
        let expected = [
            (10, 20, 50.0),
            (30, 10, 70.0),
            (40, 20, 20.0),
            (60, 20, 0.0),
            (80, 10, 100.0),
        ];
        assert_eq!(bars(&timeline), expected);
        assert_eq!(timeline.max(), Percent::clamped(100.0));
        // (20 * 50 + 10 * 70 + 20 * 20 + 20 * 0 + 10 * 100) / 80
        assert_eq!(timeline.mean(), Percent::clamped(38.75));
        assert_eq!(timeline.duration(), Duration::from_nanos(80));
    }

    #[test]
    fn kernels_back_to_back_do_not_overlap() {
        let timeline = timeline(&[(10, 10, 60.0), (0, 10, 70.0)]).unwrap();
        assert_eq!(bars(&timeline), [(0, 10, 70.0), (10, 10, 60.0)]);
        assert_eq!(timeline.max(), Percent::clamped(70.0));
    }

    #[test]
    fn sums_are_at_most_100() {
        let timeline = timeline(&[(0, 10, 80.0), (5, 10, 80.0)]).unwrap();
        assert_eq!(
            bars(&timeline),
            [(0, 5, 80.0), (5, 5, 100.0), (10, 5, 80.0)]
        );
    }

    #[test]
    fn kernels_without_duration_have_no_timeline_and_change_none() {
        assert_eq!(timeline(&[]), None);
        assert_eq!(timeline(&[(5, 0, 50.0)]), None);
        let with = timeline(&[(0, 10, 30.0), (10, 0, 50.0), (10, 10, 30.0)]).unwrap();
        assert_eq!(with.max(), Percent::clamped(30.0));
        assert_eq!(with.mean(), Percent::clamped(30.0));
    }

    proptest! {
        #[test]
        fn the_mean_is_the_kernels_own_weighted_sum_over_the_whole_time(
            kernels in proptest::collection::vec((0_u64..10_000, 1_u64..1000, 0.0..5.0), 1..20),
        ) {
            // At most 19 kernels of under 5 %: no sum reaches 100.
            let timeline = timeline(&kernels).unwrap();
            let first = kernels.iter().map(|kernel| kernel.0).min().unwrap();
            let last = kernels.iter().map(|kernel| kernel.0 + kernel.1).max().unwrap();
            prop_assert_eq!(timeline.duration(), Duration::from_nanos(last - first));
            let weighted: f64 = kernels.iter().map(|(_, nanos, value)| *nanos as f64 * value).sum();
            let mean = weighted / (last - first) as f64;
            prop_assert!((timeline.mean().get() - mean).abs() < 1e-6);
            let highest = kernels.iter().map(|kernel| kernel.2).fold(0.0, f64::max);
            prop_assert!(timeline.max().get() >= highest - 1e-9);
            prop_assert!(timeline.mean().get() <= timeline.max().get() + 1e-9);
            for pair in timeline.intervals().windows(2) {
                prop_assert_eq!(pair[0].start + pair[0].duration, pair[1].start);
            }
        }
    }
}
