//! A quantity of kernels over the time of a batch.

use std::time::Duration;

use packhorse_cluster::{Percent, Time};

use crate::launch::percent;

/// A stretch of time in which no kernel begins or ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// When it begins.
    pub start: Time,
    /// How long it lasts; not zero.
    pub duration: Duration,
    /// The sum over the kernels that run in it; zero where none does. A device has no more than all it has: sums above 100 are 100.
    pub value: Percent,
}

/// The sum of a quantity over the kernels that overlap, from the first start to the last end: a bar chart like those of Figures 5.3
/// and 5.4. Its intervals are bounded by the starts and ends of kernels and leave no gap between them.
/// Source: thesis, section 5.3.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    intervals: Vec<Interval>,
}

impl Timeline {
    /// Of kernels with start, duration and quantity each, in any order; `None` if they take no time.
    pub(crate) fn of(kernels: impl IntoIterator<Item = (Time, Duration, Percent)>) -> Option<Self> {
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
            // Nothing runs: what rounding may have left is no quantity.
            sum = if running == 0 { 0.0 } else { sum + value };
            let next = changes.get(index + 1).map_or(*time, |(next, ..)| *next);
            if next > *time {
                intervals.push(Interval {
                    start: *time,
                    duration: next.saturating_since(*time),
                    value: percent(sum),
                });
            }
        }
        (!intervals.is_empty()).then_some(Self { intervals })
    }

    /// In the order of time, at least one.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// The highest sum over any set of overlapping kernels: Usher's Creq. Source: thesis, equation 5.3.
    pub fn max(&self) -> Percent {
        let values = self.intervals.iter().map(|interval| interval.value.get());
        percent(values.fold(0.0, f64::max))
    }

    /// The mean weighted by duration, pauses between kernels included: the sum of every interval's length times its value, over the
    /// total time. Source: thesis, section 5.3.1.
    pub fn mean(&self) -> Percent {
        let nanos = |interval: &Interval| interval.duration.as_nanos() as f64;
        let weighted = |interval: &Interval| nanos(interval) * interval.value.get();
        let total: f64 = self.intervals.iter().map(nanos).sum();
        percent(self.intervals.iter().map(weighted).sum::<f64>() / total)
    }

    /// From the first start to the last end.
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
        Timeline::of(kernels.iter().map(|&(start, nanos, value)| {
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
        assert_eq!(timeline.max(), percent(100.0));
        // (20 * 50 + 10 * 70 + 20 * 20 + 20 * 0 + 10 * 100) / 80
        assert_eq!(timeline.mean(), percent(38.75));
        assert_eq!(timeline.duration(), Duration::from_nanos(80));
    }

    #[test]
    fn kernels_back_to_back_do_not_overlap() {
        let timeline = timeline(&[(10, 10, 60.0), (0, 10, 70.0)]).unwrap();
        assert_eq!(bars(&timeline), [(0, 10, 70.0), (10, 10, 60.0)]);
        assert_eq!(timeline.max(), percent(70.0));
    }

    #[test]
    fn a_device_has_no_more_than_all_it_has() {
        let timeline = timeline(&[(0, 10, 80.0), (5, 10, 80.0)]).unwrap();
        assert_eq!(
            bars(&timeline),
            [(0, 5, 80.0), (5, 5, 100.0), (10, 5, 80.0)]
        );
    }

    #[test]
    fn kernels_without_time_are_no_time_line_and_change_none() {
        assert_eq!(timeline(&[]), None);
        assert_eq!(timeline(&[(5, 0, 50.0)]), None);
        let with = timeline(&[(0, 10, 30.0), (10, 0, 50.0), (10, 10, 30.0)]).unwrap();
        assert_eq!(with.max(), percent(30.0));
        assert_eq!(with.mean(), percent(30.0));
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
