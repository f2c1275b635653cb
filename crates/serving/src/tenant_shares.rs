//! The rows that a model has computed for each tenant of late.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

use crate::TenantKey;

/// The time after which a computed row counts half.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// The part of the largest share from which on a tenant has its fair share: shares are counted in whole batches.
const FAIR_PART: f64 = 0.9;
/// The weight from which on the shares are counted anew from weight 1.
const MAX_WEIGHT: f64 = 1e6;
/// The rows below which a tenant is forgotten.
const FORGOTTEN: f64 = 0.1;

/// The contention for a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contention {
    /// True if requests were left when the last batch went.
    pub(crate) leaves_requests: bool,
    /// The time from which on the requests that wait may be put in order again.
    pub(crate) order_from: Time,
}

/// The rows of each tenant, newer ones with more weight.
///
/// The weight of a row doubles with each half-life, so that shares are compared without being reduced first: the forward decay of
/// Cormode et al., "Forward Decay: A Practical Time Decay Model for Streaming Systems", ICDE 2009.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantShares {
    /// The time at which a row has weight 1.
    begin: Time,
    shares: BTreeMap<TenantKey, f64>,
    largest: f64,
}

impl TenantShares {
    /// Takes note of a tenant. Returns true if it is the second, so that there are several from now on.
    pub(crate) fn note(&mut self, tenant: TenantKey) -> bool {
        let was_shared = self.is_shared();
        self.shares.entry(tenant).or_default();
        !was_shared && self.is_shared()
    }

    /// Forgets all rows, and the tenants that have had none since this was done before and are not among those whose requests wait.
    pub(crate) fn begin(&mut self, now: Time, waiting: impl Iterator<Item = TenantKey>) {
        self.shares.retain(|_, share| *share > 0.0);
        self.shares.values_mut().for_each(|share| *share = 0.0);
        for tenant in waiting {
            self.note(tenant);
        }
        (self.begin, self.largest) = (now, 0.0);
    }

    /// Counts the requests of a batch, each by its tenant and its rows.
    pub(crate) fn add(&mut self, now: Time, requests: impl Iterator<Item = (TenantKey, u32)>) {
        let age = now.saturating_since(self.begin).as_secs_f64();
        let mut weight = (age / HALF_LIFE.as_secs_f64()).exp2();
        if weight > MAX_WEIGHT {
            self.begin_again(now, weight);
            weight = 1.0;
        }
        for (tenant, rows) in requests {
            let share = self.shares.entry(tenant).or_default();
            *share += weight * f64::from(rows);
            self.largest = self.largest.max(*share);
        }
    }

    /// Returns true if there are several tenants.
    pub(crate) fn is_shared(&self) -> bool {
        self.shares.len() > 1
    }

    /// Returns true if the tenant has no less of the model than any other one, and there are others.
    pub(crate) fn has_fair_share(&self, tenant: TenantKey) -> bool {
        let share = self.shares.get(&tenant).copied().unwrap_or(0.0);
        self.is_shared() && share >= FAIR_PART * self.largest
    }

    fn begin_again(&mut self, now: Time, weight: f64) {
        self.begin = now;
        self.largest /= weight;
        self.shares.retain(|_, share| {
            *share /= weight;
            *share >= FORGOTTEN
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantKey = TenantKey(1);
    const B: TenantKey = TenantKey(2);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_tenant_alone_has_no_share_to_keep() {
        let mut shares = TenantShares::default();
        assert!(!shares.has_fair_share(A));
        shares.add(at(0), [(A, 8)].into_iter());
        assert!(!shares.has_fair_share(A) && !shares.has_fair_share(B));
    }

    #[test]
    fn a_new_begin_keeps_those_who_wait_and_those_who_had_rows_since_the_last() {
        let mut shares = TenantShares::default();
        shares.note(B);
        shares.add(at(0), [(A, 8)].into_iter());
        shares.begin(at(1), [TenantKey(3)].into_iter());
        assert!(shares.shares.keys().eq([&A, &TenantKey(3)]));
        shares.add(at(1), [(TenantKey(3), 1)].into_iter());
        assert!(shares.has_fair_share(TenantKey(3)) && !shares.has_fair_share(A));
        shares.begin(at(2), std::iter::empty());
        assert!(shares.shares.keys().eq([&TenantKey(3)]));
    }

    #[test]
    fn the_tenant_with_the_most_rows_has_its_share_and_rows_of_long_ago_count_less() {
        let mut shares = TenantShares::default();
        shares.add(at(0), [(A, 16), (B, 8)].into_iter());
        assert!(shares.has_fair_share(A) && !shares.has_fair_share(B));
        // After two half-lives these four rows are worth 16 of the first ones.
        shares.add(at(4), [(B, 4)].into_iter());
        assert!(shares.has_fair_share(B) && !shares.has_fair_share(A));
        shares.add(at(4), [(A, 2)].into_iter());
        assert!(
            shares.has_fair_share(A) && shares.has_fair_share(B),
            "24 and 24"
        );
    }

    #[test]
    fn shares_keep_their_proportion_for_ever_and_tenants_of_long_ago_are_forgotten() {
        let mut shares = TenantShares::default();
        shares.add(at(0), [(TenantKey(3), 1000)].into_iter());
        for second in 0..100_000 {
            shares.add(at(second), [(A, 5), (B, 4)].into_iter());
        }
        assert!(shares.has_fair_share(A) && !shares.has_fair_share(B));
        assert_eq!(shares.shares.len(), 2);
        assert!(shares.largest.is_finite());
    }
}
