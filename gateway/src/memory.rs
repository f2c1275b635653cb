//! The memory budget of all inference requests, from a request's first byte to the last byte of its answer.
//!
//! A reservation stays with the bytes that it is for ([`Reservation::hold`]): it ends when the last of them is dropped, wherever that
//! is, so that a client that hangs up does not end it while its bytes are still queued.
//!
//! A model may hold at most twice as much as is free, and a tenant as much as its model has left of that. So one greedy tenant of one model gets
//! half of the budget, those of two models a third each, and two of one model two sevenths each. There is always room for another tenant of the
//! same model, and for another model at least a third of the budget. Source: A. K. Choudhury, E. L. Hahne, Dynamic queue length thresholds
//! for shared-memory packet switches, IEEE/ACM Transactions on Networking 6(2), 1998, with α = 2 for models; within a model with α = 1.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use packhorse_serving::TenantKey;

/// The fewest tenants of a model for which those that hold nothing are looked for.
const MIN_TENANTS: usize = 64;

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
pub(crate) struct ModelMemory(Arc<ModelBooks>);

#[derive(Debug)]
struct ModelBooks {
    budget: MemoryBudget,
    used: AtomicU64,
    tenants: Mutex<Tenants>,
}

/// The bytes that each tenant of a model holds.
#[derive(Debug, Default)]
struct Tenants {
    used: BTreeMap<TenantKey, Arc<AtomicU64>>,
    /// The number of tenants at which those that hold nothing are removed.
    sweep_at: usize,
}

/// The bytes that a tenant of a model holds. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct TenantMemory {
    model: ModelMemory,
    used: Arc<AtomicU64>,
}

/// The reason why a reservation cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryExhausted {
    /// All requests together hold the whole budget.
    #[error("the gateway's memory budget for requests is exhausted; retry later")]
    Budget,
    /// The tenant's requests hold as much as the others of the model leave of what is free.
    #[error(
        "the requests of this client to the model hold their share of the gateway's memory budget; retry later"
    )]
    TenantShare,
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
        ModelMemory(Arc::new(ModelBooks {
            budget: self.clone(),
            used: AtomicU64::default(),
            tenants: Mutex::default(),
        }))
    }
}

impl ModelMemory {
    /// Returns the books of a tenant.
    pub(crate) fn tenant(&self, tenant: TenantKey) -> TenantMemory {
        let tenants = self.0.tenants.lock();
        let mut tenants = tenants.unwrap_or_else(PoisonError::into_inner);
        TenantMemory {
            model: self.clone(),
            used: tenants.of(tenant),
        }
    }

    /// Returns an empty reservation, which is no tenant's.
    pub(crate) fn reservation(&self) -> Reservation {
        let nobody = TenantMemory {
            model: self.clone(),
            used: Arc::default(),
        };
        nobody.reservation()
    }
}

impl Tenants {
    fn of(&mut self, tenant: TenantKey) -> Arc<AtomicU64> {
        if let Some(used) = self.used.get(&tenant) {
            return Arc::clone(used);
        }
        if self.used.len() >= self.sweep_at {
            // Others have a clone only for as long as they hold something.
            self.used.retain(|_, used| Arc::strong_count(used) > 1);
            self.sweep_at = (2 * self.used.len()).max(MIN_TENANTS);
        }
        Arc::clone(self.used.entry(tenant).or_default())
    }
}

impl TenantMemory {
    /// Returns an empty reservation.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation {
            tenant: self.clone(),
            bytes: 0,
        }
    }

    /// Counts bytes of a model's memory as this tenant's, until they are dropped.
    pub(crate) fn charge(&self, bytes: Bytes) -> Bytes {
        let length = bytes.len() as u64;
        self.used.fetch_add(length, Relaxed);
        Bytes::from_owner(ChargedBytes {
            bytes,
            used: Arc::clone(&self.used),
        })
    }
}

/// Reserved bytes of the budget, which are released when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    tenant: TenantMemory,
    bytes: u64,
}

impl Reservation {
    /// Reserves more bytes.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), MemoryExhausted> {
        let before = self.add(bytes);
        let budget = &self.tenant.model.0.budget;
        let limit = budget.limit.saturating_sub(budget.kept.load(Relaxed));
        let free = limit.saturating_sub(before.all);
        let exhausted = if bytes > free {
            MemoryExhausted::Budget
        } else if !before.allows(bytes, free) {
            MemoryExhausted::TenantShare
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

    /// Returns the number of reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases reserved bytes.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let model = &self.tenant.model.0;
        self.tenant.used.fetch_sub(bytes, Relaxed);
        model.used.fetch_sub(bytes, Relaxed);
        model.budget.used.fetch_sub(bytes, Relaxed);
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
            tenant: self.tenant.clone(),
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

    /// Adds bytes, and returns what was held before.
    fn add(&mut self, bytes: u64) -> Held {
        self.bytes += bytes;
        let model = &self.tenant.model.0;
        Held {
            all: model.budget.used.fetch_add(bytes, Relaxed),
            model: model.used.fetch_add(bytes, Relaxed),
            tenant: self.tenant.used.fetch_add(bytes, Relaxed),
        }
    }
}

/// The bytes that are held.
struct Held {
    all: u64,
    model: u64,
    tenant: u64,
}

impl Held {
    /// Returns true if the tenant may hold this much more while so much is free.
    fn allows(&self, bytes: u64, free: u64) -> bool {
        let share = free.saturating_mul(2).checked_sub(self.model + bytes);
        share.is_some_and(|share| self.tenant + bytes <= share)
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

/// Bytes that a tenant's books count until they are dropped.
struct ChargedBytes {
    bytes: Bytes,
    used: Arc<AtomicU64>,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ChargedBytes {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANTS: [TenantKey; 3] = [TenantKey(1), TenantKey(2), TenantKey(3)];

    /// Reserves as much as a tenant gets, in small parts.
    fn fill(tenant: &TenantMemory) -> Reservation {
        let mut held = tenant.reservation();
        while held.grow(10).is_ok() {}
        held
    }

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
        let [greedy, also_greedy, modest] = [(); 3].map(|()| budget.model().tenant(TENANTS[0]));
        let first = fill(&greedy);
        assert!((590..=610).contains(&first.bytes), "{first:?}");
        let second = fill(&also_greedy);
        assert!((290..=310).contains(&second.bytes), "{second:?}");
        let mut third = modest.reservation();
        assert_eq!(third.grow(100), Ok(()));
        assert_eq!(
            greedy.reservation().grow(10),
            Err(MemoryExhausted::TenantShare)
        );
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_greedy_tenant_leaves_room_for_others_of_the_same_model() {
        let budget = MemoryBudget::new(1400);
        let model = budget.model();
        let [greedy, also_greedy, modest] = TENANTS.map(|tenant| model.tenant(tenant));
        let first = fill(&greedy);
        assert!((690..=710).contains(&first.bytes), "{first:?}");
        let mut second = modest.reservation();
        assert_eq!(second.grow(100), Ok(()));
        drop((first, second));
        // Whoever comes first has more until he releases some.
        let (mut first, mut second) = (greedy.reservation(), also_greedy.reservation());
        while first.grow(10).is_ok() | second.grow(10).is_ok() {}
        for held in [&first, &second] {
            assert!((390..=410).contains(&held.bytes), "{held:?}");
        }
        assert_eq!(modest.reservation().grow(100), Ok(()));
        assert_eq!(budget.model().reservation().grow(200), Ok(()));
        drop((first, second));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn many_greedy_tenants_of_a_model_leave_a_third_to_other_models_and_room_for_one_more() {
        let budget = MemoryBudget::new(30_000);
        let model = budget.model();
        let tenants = (0..50).map(|number| model.tenant(TenantKey(number)));
        let mut held: Vec<_> = tenants.map(|tenant| tenant.reservation()).collect();
        loop {
            let grown = held.iter_mut().map(|held| held.grow(1).is_ok());
            if grown.filter(|grown| *grown).count() == 0 {
                break;
            }
        }
        assert!(budget.used() <= 20_000, "{}", budget.used());
        let newcomer = model.tenant(TenantKey(50));
        assert_eq!(newcomer.reservation().grow(100), Ok(()));
        assert_eq!(budget.model().reservation().grow(9_000), Ok(()));
    }

    #[test]
    fn bytes_of_the_model_are_a_tenants_until_they_are_dropped() {
        let budget = MemoryBudget::new(1200);
        let model = budget.model();
        let [greedy, modest, _] = TENANTS.map(|tenant| model.tenant(tenant));
        let mut result = model.reservation();
        result.force(600);
        let charged = greedy.charge(Bytes::from(vec![0; 500]));
        let mut more = greedy.reservation();
        assert_eq!(more.grow(100), Err(MemoryExhausted::TenantShare));
        assert_eq!(modest.reservation().grow(100), Ok(()));
        drop(charged);
        assert_eq!(more.grow(100), Ok(()));
    }

    #[test]
    fn tenants_that_hold_nothing_take_no_memory() {
        let model = MemoryBudget::new(100).model();
        let held = model.tenant(TenantKey(0));
        for number in 1..10_000 {
            model.tenant(TenantKey(number));
        }
        let tenants = model.0.tenants.lock().unwrap();
        assert!(tenants.used.len() <= MIN_TENANTS, "{}", tenants.used.len());
        assert!(Arc::ptr_eq(&tenants.used[&TenantKey(0)], &held.used));
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
