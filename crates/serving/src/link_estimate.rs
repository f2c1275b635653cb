//! The batches that a replica must have under way to be kept busy.
//!
//! A batch that travels alone takes some time to its worker and back; batches that travel one behind the other arrive at some
//! interval. The longer of that interval and of the compute time is the bottleneck: more batches under way than one per bottleneck
//! of a lone batch's round trip only wait. This is the bandwidth-delay product of a link, in batches. Whether the link transmits
//! batches together or one after the other is not assumed but shows in the interval: where it transmits one after the other, the
//! interval is the transmission time, however many are under way; where it transmits them together, a further batch shortens the
//! interval, until it is that of the computation.
//!
//! Source: Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979: the
//! best load of a path is the product of its bottleneck's rate and its delay without load; measured as in BBR (Cardwell et al., ACM
//! Queue 14(5), 2016). BBR reduces its load now and then to measure the delay; a replica's batches travel alone often enough, for
//! its load has gaps.

use std::time::Duration;

use packhorse_cluster::Time;

use crate::{ReplicaParameters, overhead_fit::OverheadFit};

/// The factor by which the product may be too small because of errors of measurement.
const TOLERANCE: f64 = 1.05;

/// The factor by which the shortest time on the way grows with every batch, so that a way that has become longer is noticed.
const AGEING: f64 = 1.01;

/// The multiple of the compute time from which on the interval of arrivals is the link's: those of a replica that is always busy come as fast as it
/// computes, for they are sent as others come back.
const BOTTLENECK: f64 = 1.25;

/// The times that batches take on the link to a replica, beside each other and alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkEstimate {
    /// The time on the way of batches that were sent when no other one was on its way.
    alone: OverheadFit,
    /// The time from the arrival of the batch before, or from the dispatch if that was later, to the arrival.
    interval: OverheadFit,
    /// The latest arrival of a batch, as late as if the way back were before it.
    last_arrival: Time,
    /// The shortest time on the way of any batch, in seconds, which counts less with every further one; `None` before the first.
    shortest: Option<f64>,
}

impl LinkEstimate {
    /// Adds an observation: a batch of `rows` rows was `overhead` on its way, there and back.
    pub(crate) fn observe(&mut self, rows: u32, dispatched: Time, overhead: Duration) {
        let (rows, arrival) = (f64::from(rows), dispatched + overhead);
        let before = self.shortest.map_or(f64::MAX, |shortest| shortest * AGEING);
        self.shortest = Some(overhead.as_secs_f64().min(before));
        if dispatched >= self.last_arrival {
            self.alone.observe(rows, overhead.as_secs_f64());
        }
        let begin = self.last_arrival.max(dispatched);
        let interval = arrival.saturating_since(begin).as_secs_f64();
        self.interval.observe(rows, interval);
        self.last_arrival = self.last_arrival.max(arrival);
    }

    /// Returns the number of batches of `rows` rows, each computed in `compute`, that keep the replica busy: those of the
    /// bandwidth-delay product, and one that waits.
    pub(crate) fn credits(&self, rows: u32, compute: Duration) -> u32 {
        let times = [self.alone, self.interval].map(|fit| fit.overhead(1.0).for_rows(rows));
        let [alone, interval] = times.map(|time| time.as_secs_f64());
        // A time of zero makes it no number, which is 0 here.
        let under_way = bandwidth_delay_product(alone, interval, compute.as_secs_f64()) as u32;
        under_way.saturating_add(1).clamp(
            ReplicaParameters::LEAST_CREDITS,
            ReplicaParameters::MOST_CREDITS,
        )
    }

    /// Returns true if batches of `rows` rows, each computed in `compute`, arrive more slowly than they are computed, and not for want of `credits`:
    /// a way that is too long for them is used better by larger batches.
    pub(crate) fn is_bottleneck(&self, rows: u32, compute: Duration, credits: u32) -> bool {
        let interval = self.interval.overhead(1.0).for_rows(rows);
        let (interval, compute) = (interval.as_secs_f64(), compute.as_secs_f64());
        let way = self.shortest.unwrap_or_default();
        interval > BOTTLENECK * compute
            && bandwidth_delay_product(way, interval, compute) < f64::from(credits)
    }
}

/// Returns the number of batches on their way or in computation that occupy the bottleneck, of these times in seconds.
fn bandwidth_delay_product(way: f64, interval: f64, compute: f64) -> f64 {
    (way + compute) / compute.max(interval) * TOLERANCE
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the estimate for a replica that always has as many batches as it has credits, at most `most`, each of which takes `latency` and then
    /// `transmission` on its way, where batches are transmitted one after the other if `queues`.
    fn observed(
        latency: Duration,
        transmission: Duration,
        compute: Duration,
        queues: bool,
        most: u32,
    ) -> LinkEstimate {
        let mut estimate = LinkEstimate::default();
        let mut away: VecDeque<(Time, Time, Time)> = VecDeque::new();
        let (mut now, mut link_free, mut computed) = (Time::ZERO, Time::ZERO, Time::ZERO);
        for _ in 0..200 {
            while away.len() < estimate.credits(8, compute).min(most) as usize {
                let begin = if queues { link_free.max(now) } else { now };
                link_free = begin + transmission;
                let arrival = link_free + latency;
                computed = computed.max(arrival) + compute;
                away.push_back((now, arrival, computed));
            }
            let (dispatched, arrival, answered) = away.pop_front().expect("just filled");
            now = answered;
            estimate.observe(8, dispatched, arrival.saturating_since(dispatched));
        }
        estimate
    }

    fn credits(latency: Duration, transmission: Duration, compute: Duration, queues: bool) -> u32 {
        observed(latency, transmission, compute, queues, u32::MAX).credits(8, compute)
    }

    #[test]
    fn a_link_is_the_bottleneck_where_it_transmits_more_slowly_than_its_replica_computes() {
        let is_bottleneck = |latency, transmission, queues, most| {
            let estimate = observed(MS * latency, MS * transmission, MS * 10, queues, most);
            estimate.is_bottleneck(8, MS * 10, most)
        };
        assert!(is_bottleneck(1, 34, true, 16));
        assert!(is_bottleneck(100, 15, true, 16));
        assert!(!is_bottleneck(1, 8, true, 16));
        // What is transmitted together arrives as fast as it is computed.
        assert!(!is_bottleneck(1, 34, false, 16));
        assert!(!is_bottleneck(35, 0, true, 16));
        // A worker that takes two batches waits for a long way, not for the link.
        assert!(!is_bottleneck(100, 0, true, 2));
        assert!(!is_bottleneck(1, 34, false, 2));
    }

    #[test]
    fn a_short_way_needs_one_batch_that_computes_and_one_that_travels() {
        for queues in [false, true] {
            assert_eq!(credits(MS / 10, MS / 10, MS * 10, queues), 2);
            assert_eq!(credits(MS, MS * 8, MS * 10, queues), 2);
            assert_eq!(credits(Duration::ZERO, Duration::ZERO, MS, queues), 2);
        }
    }

    #[test]
    fn a_long_way_needs_as_many_as_are_computed_while_one_travels() {
        // One more than travel over compute, rounded up.
        assert_eq!(credits(MS * 35, Duration::ZERO, MS * 10, true), 5);
        assert_eq!(credits(MS, MS * 34, MS * 10, false), 5);
        assert_eq!(credits(MS * 14, MS * 4, MS * 10, true), 3);
        assert_eq!(
            credits(MS * 1000, Duration::ZERO, MS, true),
            ReplicaParameters::MOST_CREDITS
        );
    }

    #[test]
    fn where_the_link_is_the_bottleneck_no_further_batches_wait_for_it() {
        assert_eq!(credits(MS, MS * 34, MS * 10, true), 2);
        assert_eq!(credits(MS, MS * 34, MS, true), 2);
    }

    #[test]
    fn without_observations_there_are_the_fewest() {
        assert_eq!(LinkEstimate::default().credits(8, MS), 2);
        assert_eq!(LinkEstimate::default().credits(8, Duration::ZERO), 2);
    }
}
