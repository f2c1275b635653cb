//! The counts of a model in the last seconds: a ring with one element per second.

use std::{ops::RangeInclusive, time::Duration};

use packhorse_cluster::Time;

use super::latency_histogram::LatencyHistogram;

/// The longest window of a summary.
pub const LONGEST_WINDOW: Duration = Duration::from_mins(5);

/// The number of elements: the seconds of the longest window, the second that has begun, and one that other threads may still
/// write to.
const RING_SECONDS: usize = LONGEST_WINDOW.as_secs() as usize + 2;

/// The ring. Its memory is bounded: 0.7 KiB for each of the last seconds in which a request was answered.
#[derive(Debug)]
pub(super) struct SlidingWindow {
    ring: Vec<SecondCounts>,
    /// The time since which it counts.
    since: Time,
}

#[derive(Clone, Debug, Default)]
struct SecondCounts {
    second: u64,
    counts: WindowCounts,
    latencies: Option<Box<LatencyHistogram>>,
}

/// The counts of one second, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowCounts {
    /// The requests that arrived.
    pub(super) offered: u64,
    /// The requests that were answered.
    pub(super) answered: u64,
    /// The requests that were answered within the SLO.
    pub(super) in_time: u64,
    /// The requests that were refused on arrival.
    pub(super) refused: u64,
    /// The requests that were accepted and then expired in the queue.
    pub(super) expired: u64,
    /// The requests that failed, or were lost with their worker.
    pub(super) failed: u64,
    /// The batches that were computed.
    pub(super) batches: u64,
    /// The rows of these batches.
    pub(super) rows: u64,
}

/// The sums over a window.
#[derive(Debug)]
pub(super) struct WindowSummary {
    /// The counts.
    pub(super) counts: WindowCounts,
    /// The latencies of the answered requests.
    pub(super) latencies: LatencyHistogram,
    /// The length of the window, in seconds: never less than one.
    pub(super) seconds: f64,
}

impl SlidingWindow {
    pub(super) fn new(since: Time) -> Self {
        Self {
            ring: Vec::new(),
            since,
        }
    }

    fn current_second(&mut self, now: Time) -> &mut SecondCounts {
        // The ring is allocated at the first count: a model without requests takes no memory.
        self.ring.resize(RING_SECONDS, SecondCounts::default());
        let second = now.as_nanos() / 1_000_000_000;
        let current = &mut self.ring[(second % RING_SECONDS as u64) as usize];
        if current.second != second {
            current.second = second;
            current.counts = WindowCounts::default();
            if let Some(latencies) = &mut current.latencies {
                **latencies = LatencyHistogram::default();
            }
        }
        current
    }

    /// Changes the counts of the present second.
    pub(super) fn count(&mut self, now: Time, count: impl FnOnce(&mut WindowCounts)) {
        count(&mut self.current_second(now).counts);
    }

    /// Counts an answered request.
    pub(super) fn answered(&mut self, now: Time, latency: Duration, in_time: bool) {
        let current = self.current_second(now);
        current.counts.answered += 1;
        current.counts.in_time += u64::from(in_time);
        current.latencies.get_or_insert_default().add(latency);
    }

    /// Sums up these seconds since the start of the clock, as far as they are in the longest window.
    pub(super) fn sum(&self, seconds: RangeInclusive<u64>) -> (WindowCounts, LatencyHistogram) {
        let mut counts = WindowCounts::default();
        let mut latencies = LatencyHistogram::default();
        for second in self.ring.iter().filter(|one| seconds.contains(&one.second)) {
            counts.offered += second.counts.offered;
            counts.answered += second.counts.answered;
            counts.in_time += second.counts.in_time;
            counts.refused += second.counts.refused;
            counts.expired += second.counts.expired;
            counts.failed += second.counts.failed;
            counts.batches += second.counts.batches;
            counts.rows += second.counts.rows;
            if let Some(more) = &second.latencies {
                latencies.merge(more);
            }
        }
        (counts, latencies)
    }

    /// Sums up the last `window` in whole seconds, and the second that has begun.
    pub(super) fn summary(&self, now: Time, window: Duration) -> WindowSummary {
        let window = window.clamp(Duration::from_secs(1), LONGEST_WINDOW);
        let present = now.as_nanos() / 1_000_000_000;
        let first = present.saturating_sub(window.as_secs());
        let (counts, latencies) = self.sum(first..=u64::MAX);
        let begin = Time::from_nanos(first * 1_000_000_000).max(self.since);
        WindowSummary {
            counts,
            latencies,
            seconds: now.saturating_since(begin).as_secs_f64().max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_window_forgets_older_counts() {
        let mut window = SlidingWindow::new(Time::ZERO);
        for second in 0..20 {
            window.count(at(f64::from(second)), |counts| counts.offered += 10);
            window.answered(
                at(f64::from(second)),
                Duration::from_millis(5),
                second % 2 == 0,
            );
        }
        let last = window.summary(at(20.0), Duration::from_secs(10));
        assert_eq!(last.counts.offered, 100);
        assert_eq!(last.counts.answered, 10);
        assert_eq!(last.counts.in_time, 5);
        assert!((last.seconds - 10.0).abs() < 1e-9);
        let later = window.summary(at(1000.0), LONGEST_WINDOW);
        assert_eq!(later.counts, WindowCounts::default());
    }

    #[test]
    fn an_element_is_used_again_after_the_ring_has_turned() {
        let mut window = SlidingWindow::new(Time::ZERO);
        window.answered(at(1.0), Duration::from_millis(5), true);
        let turned = 1.0 + RING_SECONDS as f64;
        window.answered(at(turned), Duration::from_millis(50), true);
        let summary = window.summary(at(turned), Duration::from_secs(1));
        assert_eq!(summary.counts.answered, 1);
        assert!(summary.latencies.quantile(0.0).unwrap() > Duration::from_millis(40));
    }

    #[test]
    fn the_rates_of_a_young_model_are_over_its_age() {
        let mut window = SlidingWindow::new(at(100.0));
        window.count(at(101.0), |counts| counts.offered += 6);
        let summary = window.summary(at(103.0), LONGEST_WINDOW);
        assert!((summary.seconds - 3.0).abs() < 1e-9);
    }
}
