//! Duty cycles, in which the models of a time-shared device take turns.

use std::time::Duration;

use packhorse_cluster::ModelIndex;

use crate::tolerance::ROUNDING;

/// The batches that a model can have on a whole device.
pub(crate) trait BatchTimes {
    /// Returns the largest batch size.
    fn largest_batch(&self) -> u32;

    /// Returns the time of a batch of at most the largest size, in seconds.
    fn seconds(&self, batch_size: u32) -> f64;
}

/// One batch of a model in each duty cycle.
pub(crate) struct Turn {
    pub(crate) model: ModelIndex,
    /// The rate that the turn serves, in requests per second.
    pub(crate) rate: f64,
    /// The requests that arrive in a duty cycle, rounded up.
    pub(crate) batch_size: u32,
}

/// Returns the turns that serve the rates of some models in a duty cycle of `duty` seconds, and the sum of their times. Returns `None`
/// if a batch is too large for its model, or the batches take longer than the duty cycle.
pub(crate) fn turns<'a, T: BatchTimes + 'a>(
    duty: f64,
    rates: impl Iterator<Item = (ModelIndex, f64)>,
    times: impl Fn(ModelIndex) -> Option<&'a T>,
) -> Option<(Vec<Turn>, f64)> {
    let (mut turns, mut busy) = (Vec::new(), 0.0);
    for (model, rate) in rates {
        let times = times(model)?;
        // A product that exceeds an integer by a rounding error counts as that integer.
        let batch_size = (duty * rate - 1e-6).ceil().max(1.0);
        if batch_size > f64::from(times.largest_batch()) {
            return None;
        }
        let batch_size = batch_size as u32;
        busy += times.seconds(batch_size);
        turns.push(Turn {
            model,
            rate,
            batch_size,
        });
    }
    (busy <= duty * (1.0 + ROUNDING)).then_some((turns, busy))
}

/// Returns a duty cycle for a plan. A duty cycle that is too long for a duration, because of a very long SLO or a very low rate, becomes
/// the longest duration.
pub(crate) fn planned_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
