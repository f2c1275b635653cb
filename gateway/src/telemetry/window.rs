//! How a model fared in the last seconds: a ring of one slot per second.

use std::time::Duration;

use packhorse_cluster::Time;

use super::latency::Latencies;

/// The longest window that can be asked for.
pub const LONGEST_WINDOW: Duration = Duration::from_mins(5);

/// The seconds of the longest window, the one that has begun, and one that other threads may still write to.
const SLOTS: usize = LONGEST_WINDOW.as_secs() as usize + 2;

/// The ring. Its memory is bounded: 0.7 KiB for each of the last seconds in which something was answered.
#[derive(Debug)]
pub(super) struct Window {
    slots: Vec<Slot>,
    /// Since when it is kept.
    since: Time,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    second: u64,
    counts: Counts,
    latencies: Option<Box<Latencies>>,
}

/// What is counted in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Requests that arrived.
    pub(super) offered: u64,
    /// Requests that were answered.
    pub(super) answered: u64,
    /// Of these, within the SLO.
    pub(super) in_time: u64,
    /// Requests refused or expired.
    pub(super) dropped: u64,
    /// Batches that were computed.
    pub(super) batches: u64,
    /// Rows in them.
    pub(super) rows: u64,
}

/// A window as it is reported.
#[derive(Debug)]
pub(super) struct Summary {
    /// The sums over it.
    pub(super) counts: Counts,
    /// The latencies of the answered.
    pub(super) latencies: Latencies,
    /// The seconds it covers: never less than one.
    pub(super) seconds: f64,
}

impl Window {
    pub(super) fn new(since: Time) -> Self {
        Self {
            slots: Vec::new(),
            since,
        }
    }

    fn slot(&mut self, now: Time) -> &mut Slot {
        // A model that was never asked for costs nothing.
        self.slots.resize(SLOTS, Slot::default());
        let second = now.as_nanos() / 1_000_000_000;
        let slot = &mut self.slots[(second % SLOTS as u64) as usize];
        if slot.second != second {
            slot.second = second;
            slot.counts = Counts::default();
            if let Some(latencies) = &mut slot.latencies {
                **latencies = Latencies::default();
            }
        }
        slot
    }

    /// Counts in the present second.
    pub(super) fn count(&mut self, now: Time, count: impl FnOnce(&mut Counts)) {
        count(&mut self.slot(now).counts);
    }

    /// Counts an answer.
    pub(super) fn answered(&mut self, now: Time, latency: Duration, in_time: bool) {
        let slot = self.slot(now);
        slot.counts.answered += 1;
        slot.counts.in_time += u64::from(in_time);
        slot.latencies.get_or_insert_default().add(latency);
    }

    /// The last `window` in whole seconds, and the second that has begun.
    pub(super) fn summary(&self, now: Time, window: Duration) -> Summary {
        let window = window.clamp(Duration::from_secs(1), LONGEST_WINDOW);
        let present = now.as_nanos() / 1_000_000_000;
        let first = present.saturating_sub(window.as_secs());
        let mut counts = Counts::default();
        let mut latencies = Latencies::default();
        for slot in self.slots.iter().filter(|slot| slot.second >= first) {
            counts.offered += slot.counts.offered;
            counts.answered += slot.counts.answered;
            counts.in_time += slot.counts.in_time;
            counts.dropped += slot.counts.dropped;
            counts.batches += slot.counts.batches;
            counts.rows += slot.counts.rows;
            if let Some(more) = &slot.latencies {
                latencies.merge(more);
            }
        }
        let begin = Time::from_nanos(first * 1_000_000_000).max(self.since);
        Summary {
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
    fn a_window_forgets_what_is_older() {
        let mut window = Window::new(Time::ZERO);
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
        assert_eq!(later.counts, Counts::default());
    }

    #[test]
    fn a_slot_is_used_again_after_the_ring_has_turned() {
        let mut window = Window::new(Time::ZERO);
        window.answered(at(1.0), Duration::from_millis(5), true);
        let turned = 1.0 + SLOTS as f64;
        window.answered(at(turned), Duration::from_millis(50), true);
        let summary = window.summary(at(turned), Duration::from_secs(1));
        assert_eq!(summary.counts.answered, 1);
        assert!(summary.latencies.quantile(0.0).unwrap() > Duration::from_millis(40));
    }

    #[test]
    fn the_rates_of_a_young_model_are_over_its_age() {
        let mut window = Window::new(at(100.0));
        window.count(at(101.0), |counts| counts.offered += 6);
        let summary = window.summary(at(103.0), LONGEST_WINDOW);
        assert!((summary.seconds - 3.0).abs() < 1e-9);
    }
}
