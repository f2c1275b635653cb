//! The memory budget of all inference requests, from a request's first byte to the last byte of its answer.
//!
//! A reservation stays with the bytes that it is for ([`Reservation::hold`]): it ends when the last of them is dropped, wherever that
//! is, so that a client that hangs up does not end it while its bytes are still queued.
//!
//! One model may hold at most as much as is free. So a model alone gets half of the budget, two greedy ones get a third each, and
//! there is always room for another. Source: A. K. Choudhury, E. L. Hahne, Dynamic queue length thresholds for shared-memory packet
//! switches, IEEE/ACM Transactions on Networking 6(2), 1998, with α = 1.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

/// A number of bytes that all reservations share.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    used: Arc<AtomicU64>,
    /// The bytes of kept pages that no request uses.
    kept: Arc<AtomicU64>,
    limit: u64,
}

/// The part of the budget that one model holds. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ModelMemory {
    budget: MemoryBudget,
    used: Arc<AtomicU64>,
}

/// The reason why a reservation cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryExhausted {
    /// All requests together hold the whole budget.
    #[error("the gateway's memory budget for requests is exhausted; retry later")]
    Budget,
    /// The model's requests hold as much as is free.
    #[error("the requests of the model hold its share of the gateway's memory budget; retry later")]
    ModelShare,
}

impl MemoryBudget {
    /// Creates a budget of this many bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            used: Arc::default(),
            kept: Arc::default(),
            limit,
        }
    }

    /// Returns the bytes that are reserved.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the size of the budget, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that stay in memory without a request.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Counts bytes that stay in memory without a request.
    pub(crate) fn keep(&self, bytes: u64) {
        self.kept.fetch_add(bytes, Relaxed);
    }

    /// Counts kept bytes no more: a request uses them, or they are gone.
    pub(crate) fn use_kept(&self, bytes: u64) {
        self.kept.fetch_sub(bytes, Relaxed);
    }

    /// Returns the books of a model that holds nothing.
    pub(crate) fn model(&self) -> ModelMemory {
        ModelMemory {
            budget: self.clone(),
            used: Arc::default(),
        }
    }
}

impl ModelMemory {
    /// Returns an empty reservation.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation {
            model: self.clone(),
            bytes: 0,
        }
    }
}

/// Reserved bytes of the budget, which are released when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    model: ModelMemory,
    bytes: u64,
}

impl Reservation {
    /// Reserves more bytes.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), MemoryExhausted> {
        let (all, model) = self.add(bytes);
        let budget = &self.model.budget;
        let limit = budget.limit.saturating_sub(budget.kept.load(Relaxed));
        let exhausted = if all.saturating_add(bytes) > limit {
            MemoryExhausted::Budget
        } else if model.saturating_add(bytes) > limit.saturating_sub(all) {
            MemoryExhausted::ModelShare
        } else {
            return Ok(());
        };
        self.shrink(bytes);
        Err(exhausted)
    }

    /// Reserves bytes that are in memory already, whatever the limit: what is refused until they are released is new.
    pub(crate) fn force(&mut self, bytes: u64) {
        self.add(bytes);
    }

    /// Releases reserved bytes.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.model.used.fetch_sub(bytes, Relaxed);
        self.model.budget.used.fetch_sub(bytes, Relaxed);
    }

    /// Reserves more bytes, or releases some, so that it is this many.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), MemoryExhausted> {
        if bytes > self.bytes {
            self.grow(bytes - self.bytes)
        } else {
            self.shrink(self.bytes - bytes);
            Ok(())
        }
    }

    /// Makes a part of the reservation one of its own.
    #[must_use]
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        self.bytes -= bytes;
        Self {
            model: self.model.clone(),
            bytes,
        }
    }

    /// Returns the bytes so that the reservation lasts until they, all their clones and slices, and those of further calls are dropped.
    pub(crate) fn hold(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        Bytes::from_owner(HeldBytes {
            bytes,
            _reservation: Arc::clone(self),
        })
    }

    /// Adds bytes, and returns what all and what the model held before.
    fn add(&mut self, bytes: u64) -> (u64, u64) {
        self.bytes += bytes;
        let all = self.model.budget.used.fetch_add(bytes, Relaxed);
        (all, self.model.used.fetch_add(bytes, Relaxed))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

struct HeldBytes {
    bytes: Bytes,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let budget = MemoryBudget::new(10);
        let [one, other] = [budget.model(), budget.model()];
        let [mut first, mut second] = [one.reservation(), other.reservation()];
        assert_eq!(first.grow(5), Ok(()));
        assert_eq!(second.grow(6), Err(MemoryExhausted::Budget));
        assert_eq!(second.grow(5), Ok(()));
        assert_eq!(first.grow(1), Err(MemoryExhausted::Budget));
        drop(second);
        assert_eq!(budget.used(), 5);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_greedy_model_leaves_room_for_others() {
        let budget = MemoryBudget::new(1200);
        let [greedy, also_greedy, modest] = [(); 3].map(|()| budget.model());
        let fill = |model: &ModelMemory| {
            let mut held = model.reservation();
            while held.grow(10).is_ok() {}
            held
        };
        let first = fill(&greedy);
        assert!((590..=610).contains(&first.bytes), "{first:?}");
        let second = fill(&also_greedy);
        assert!((290..=310).contains(&second.bytes), "{second:?}");
        let mut third = modest.reservation();
        assert_eq!(third.grow(100), Ok(()));
        assert_eq!(
            greedy.reservation().grow(10),
            Err(MemoryExhausted::ModelShare)
        );
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_reservation_lasts_as_long_as_any_slice_of_its_bytes() {
        let budget = MemoryBudget::new(100);
        let mut whole = budget.model().reservation();
        whole.grow(60).unwrap();
        let part = Arc::new(whole.split(50));
        drop(whole);
        assert_eq!(budget.used(), 50);
        let [one, other] =
            [&b"twenty"[..], b"thirty"].map(|text| part.hold(Bytes::from_static(text)));
        drop(part);
        let slice = other.slice(2..4);
        drop((one, other));
        assert_eq!(budget.used(), 50);
        assert_eq!(slice, "ir");
        drop(slice);
        assert_eq!(budget.used(), 0);
    }
}
