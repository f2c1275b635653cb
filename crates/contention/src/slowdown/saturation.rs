//! What differs between moments at which multiprocessors are free and those at which they are not.

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
