//! The memory budget of the bodies of all requests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A number of bytes that all reservations share.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    used: Arc<AtomicU64>,
    limit: u64,
}

/// The error of a reservation that the budget does not suffice for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            used: Arc::default(),
            limit,
        }
    }

    /// Returns an empty reservation.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// Reserved bytes of the budget, which are released when this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Budget,
    bytes: u64,
}

impl Reservation {
    /// Reserves more bytes.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), Exhausted> {
        let before = self.budget.used.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        if before.saturating_add(bytes) <= self.budget.limit {
            return Ok(());
        }
        self.shrink(bytes);
        Err(Exhausted)
    }

    /// Releases reserved bytes.
    pub(super) fn shrink(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.budget.used.fetch_sub(bytes, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let budget = Budget::new(10);
        let mut first = budget.reservation();
        let mut second = budget.reservation();
        assert_eq!(first.grow(6), Ok(()));
        assert_eq!(second.grow(5), Err(Exhausted));
        assert_eq!(second.grow(4), Ok(()));
        assert_eq!(first.grow(1), Err(Exhausted));
        drop(second);
        assert_eq!(first.grow(4), Ok(()));
        drop(first);
        assert_eq!(budget.used.load(Relaxed), 0);
    }
}
