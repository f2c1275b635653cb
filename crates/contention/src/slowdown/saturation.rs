//! The slowdown beside a set of active neighbours, which differs between moments at which multiprocessors are free and those at which they are
//! not.

use crate::interference::proportional_rate;

/// The least factor by which active neighbours may lengthen a batch, whatever was learned.
const MIN_FACTOR: f64 = 0.2;

/// A value for the moments at which the active replicas of a device leave multiprocessors free, and one for those at which they need more than
/// it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BySaturation<T> {
    /// The value while multiprocessors are free.
    pub unsaturated: T,
    /// The value while there are too few.
    pub saturated: T,
}

impl<T> BySaturation<T> {
    /// Returns what `map` makes of each value.
    pub fn map<U>(self, map: impl Fn(T) -> U) -> BySaturation<U> {
        BySaturation {
            unsaturated: map(self.unsaturated),
            saturated: map(self.saturated),
        }
    }
}

impl BySaturation<f64> {
    /// Adds `weight` times other values.
    #[must_use]
    pub fn plus(self, other: Self, weight: f64) -> Self {
        Self {
            unsaturated: self.unsaturated + weight * other.unsaturated,
            saturated: self.saturated + weight * other.saturated,
        }
    }
}

/// The time of a batch over its time alone while a set of neighbours is active.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowdownBesideSet {
    /// The slowdown.
    pub slowdown: f64,
    /// The derivative of `slowdown` by a neighbour's sensitivity, per percent of the neighbour's utilisation.
    pub(super) derivative: BySaturation<f64>,
}

impl SlowdownBesideSet {
    /// Calculates the slowdown of a replica that uses `own` percent of the multiprocessors, beside neighbours that use `others` percent
    /// altogether. `contention` is `Σ θ · u / 100`, by which the neighbours slow it beyond the use of multiprocessors; the formula is that of
    /// [`crate::SlowdownModel`].
    #[inline]
    pub fn new(own: f64, others: f64, contention: BySaturation<f64>) -> Self {
        let factor = |contention: f64| (1.0 + contention).max(MIN_FACTOR);
        let is_free = |contention: f64| f64::from(1.0 + contention > MIN_FACTOR) / 100.0;
        // The part of the neighbours' use for which the device has multiprocessors.
        let spare = ((100.0 - own).max(0.0) / others.max(f64::MIN_POSITIVE)).min(1.0);
        let up_to_capacity = factor(spare * contention.unsaturated);
        let shared = 1.0 / proportional_rate(own + others, others > 0.0);
        let beyond_capacity = shared * factor(contention.saturated);
        if own + others <= 100.0 || up_to_capacity >= beyond_capacity {
            Self {
                slowdown: up_to_capacity,
                derivative: BySaturation {
                    unsaturated: spare * is_free(spare * contention.unsaturated),
                    saturated: 0.0,
                },
            }
        } else {
            Self {
                slowdown: beyond_capacity,
                derivative: BySaturation {
                    unsaturated: 0.0,
                    saturated: shared * is_free(contention.saturated),
                },
            }
        }
    }
}
