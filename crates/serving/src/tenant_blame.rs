//! The tenants whose requests did a model harm of late, and what is done about it.
//!
//! - **Kept apart.** The requests of a tenant on one of which the model failed, or that were in a batch that was lost, share batches with no others.
//!   After a loss they go to one replica, until some of their batches are computed.
//! - **Paused.** A tenant that is known to have ended a worker, or had it hang, is refused for a while, each time for twice as long. Between the pauses it
//!   has one request at a time.
//!
//! A batch that is lost does not say who did it: a worker may end by itself, or its connection may break. A tenant is known to have done it if the batch
//! was its own, and a batch with requests of it was lost on another replica before, without having been computed since.
//!
//! All of it is forgotten as time passes, step by step. As many tenants as [`MOST`] are remembered.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

use crate::{ReplicaKey, RequestKey, TenantKey, division_budget::DivisionBudget};

/// The most tenants of a model that are remembered: each has shape classes of its own.
const MOST: u8 = 16;
/// The time for which a tenant is kept apart after the first harm; it doubles with each further one.
const FIRST_APART: Duration = Duration::from_secs(30);
/// The longest time for which a tenant is kept apart.
const LONGEST_APART: Duration = Duration::from_mins(10);
/// The first pause; it doubles with each further loss.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// The time without a loss, after a pause, after which one loss is forgotten: this, or as many pauses as [`FORGIVING_PAUSES`].
const FORGIVING_TIME: Duration = Duration::from_mins(1);
/// The number of pauses in [`FORGIVING_TIME`].
const FORGIVING_PAUSES: u32 = 4;
/// The most harms, and the most losses, of a tenant that count: with so many the longest time is reached.
const MOST_COUNTED: u32 = 7;
/// The batches of a tenant that must be computed before more than one replica takes them.
const TRUSTED_BATCHES: u32 = 8;
/// The time after which a tenant with one request at a time, of which one is under way, is asked to try again.
const TURN: Duration = Duration::from_secs(1);

/// The tenants that did a model harm.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantBlame {
    tenants: BTreeMap<TenantKey, Blamed>,
}

/// A tenant that did harm, or may have done it.
#[derive(Clone, Debug)]
struct Blamed {
    /// The number of its shape classes: no other tenant of the model has it.
    slot: u8,
    /// The number of times that it did harm, of which one is forgotten after each time apart.
    harms: u32,
    apart_until: Time,
    /// The requests that were lost with a batch, of which nothing was computed since.
    unexplained: u32,
    lost_on: Option<ReplicaKey>,
    /// The time of the last loss.
    lost_at: Time,
    /// The batches that were computed since the last loss.
    computed: u32,
    /// The workers that it is known to have ended.
    losses: u32,
    paused_until: Time,
    /// The time at which one of the losses is forgotten.
    forgives_at: Time,
    /// The one request that it may have.
    under_way: Option<RequestKey>,
    divisions: DivisionBudget,
}

/// The treatment of a tenant's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// They are like those of others.
    Usual,
    /// They share batches with no others; `on_one_replica` is true if they go to one replica.
    Apart { slot: u8, on_one_replica: bool },
    /// There is one at a time, on one replica; this is the last one.
    OneAtATime { last: Option<RequestKey> },
    /// They are refused for so long.
    Paused(Duration),
}

fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}

impl Blamed {
    fn new(slot: u8) -> Self {
        Self {
            slot,
            harms: 0,
            apart_until: Time::ZERO,
            unexplained: 0,
            lost_on: None,
            lost_at: Time::ZERO,
            computed: 0,
            losses: 0,
            paused_until: Time::ZERO,
            forgives_at: Time::ZERO,
            under_way: None,
            divisions: DivisionBudget::default(),
        }
    }

    fn pause(&self) -> Duration {
        doubled(FIRST_PAUSE, self.losses.saturating_sub(1), LONGEST_PAUSE)
    }

    fn keep_apart(&mut self, now: Time) {
        self.harms = (self.harms + 1).min(MOST_COUNTED);
        let apart = doubled(FIRST_APART, self.harms - 1, LONGEST_APART);
        self.apart_until = self.apart_until.max(now + apart);
    }

    /// Forgets what is old. Returns false if nothing is left.
    fn forget(&mut self, now: Time) -> bool {
        while self.losses > 0 && self.forgives_at <= now {
            self.losses -= 1;
            self.forgives_at += FORGIVING_TIME.max(self.pause() * FORGIVING_PAUSES);
        }
        while self.harms > 0 && self.apart_until <= now {
            self.harms -= 1;
            self.unexplained = 0;
            if self.harms > 0 {
                self.apart_until += doubled(FIRST_APART, self.harms - 1, LONGEST_APART);
            }
        }
        self.losses > 0 || self.harms > 0
    }
}

impl TenantBlame {
    /// Returns true if no tenant is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Returns true if the tenant is remembered.
    pub(crate) fn knows(&self, tenant: TenantKey) -> bool {
        self.tenants.contains_key(&tenant)
    }

    /// Returns the treatment of a tenant's requests.
    pub(crate) fn treatment(&mut self, now: Time, tenant: TenantKey) -> Treatment {
        let Some(blamed) = self.tenants.get_mut(&tenant) else {
            return Treatment::Usual;
        };
        if !blamed.forget(now) {
            self.tenants.remove(&tenant);
            return Treatment::Usual;
        }
        if blamed.losses == 0 {
            Treatment::Apart {
                slot: blamed.slot,
                on_one_replica: blamed.unexplained > 0 && blamed.computed < TRUSTED_BATCHES,
            }
        } else if now < blamed.paused_until {
            Treatment::Paused(blamed.paused_until.saturating_since(now))
        } else {
            Treatment::OneAtATime {
                last: blamed.under_way,
            }
        }
    }

    /// Returns the time after which a tenant with a request under way may send the next one.
    pub(crate) fn turn() -> Duration {
        TURN
    }

    /// Notes the one request that a tenant has.
    pub(crate) fn begin(&mut self, tenant: TenantKey, request: RequestKey) {
        if let Some(blamed) = self.tenants.get_mut(&tenant) {
            blamed.under_way = Some(request);
        }
    }

    /// Notes that the model failed on a request of the tenant alone.
    pub(crate) fn threw(&mut self, now: Time, tenant: TenantKey) {
        self.entry(now, tenant).keep_apart(now);
    }

    /// Notes that a batch with requests of several tenants was lost, of which these are some of the tenant's.
    pub(crate) fn lost_with_others(
        &mut self,
        now: Time,
        tenant: TenantKey,
        replica: ReplicaKey,
        requests: u32,
    ) {
        let blamed = self.entry(now, tenant);
        blamed.keep_apart(now);
        blamed.unexplained = blamed.unexplained.saturating_add(requests);
        blamed.lost_on = Some(replica);
        blamed.lost_at = now;
        blamed.computed = 0;
    }

    /// Notes that a batch with requests of this tenant only was lost, which was dispatched then. Returns the number of such losses and the pause that
    /// the tenant must make, if it is known to have done it. Replicas that are lost together, as with their node, say no more than one.
    pub(crate) fn lost(
        &mut self,
        now: Time,
        dispatched: Time,
        tenant: TenantKey,
        replica: ReplicaKey,
        requests: u32,
    ) -> Option<(u32, Duration)> {
        let blamed = self.entry(now, tenant);
        let is_another = dispatched >= blamed.lost_at;
        let lost_before = blamed.unexplained > 0 && blamed.lost_on != Some(replica) && is_another;
        if blamed.losses > 0 && !is_another {
            return None;
        }
        if blamed.losses == 0 && !lost_before {
            self.lost_with_others(now, tenant, replica, requests);
            return None;
        }
        blamed.keep_apart(now);
        blamed.unexplained = 0;
        blamed.lost_on = Some(replica);
        blamed.lost_at = now;
        blamed.losses = (blamed.losses + 1).min(MOST_COUNTED);
        let pause = blamed.pause();
        blamed.paused_until = now + pause;
        blamed.forgives_at = now + pause + FORGIVING_TIME.max(pause * FORGIVING_PAUSES);
        Some((blamed.losses, pause))
    }

    /// Notes that a batch with requests of this tenant only was computed, of which so many had been lost before.
    pub(crate) fn computed(&mut self, tenant: TenantKey, lost_before: u32) {
        if let Some(blamed) = self.tenants.get_mut(&tenant) {
            blamed.computed = blamed.computed.saturating_add(1);
            blamed.unexplained = blamed.unexplained.saturating_sub(lost_before);
            if blamed.unexplained == 0 && lost_before > 0 && blamed.harms == 1 {
                // What was lost with it is innocent, and so is it.
                blamed.harms = 0;
            }
        }
    }

    /// Returns true if the tenant is known to have ended workers.
    pub(crate) fn has_ended_workers(&self, tenant: TenantKey) -> bool {
        let blamed = self.tenants.get(&tenant);
        blamed.is_some_and(|blamed| blamed.losses > 0)
    }

    /// Returns the budget for divisions of a tenant that is kept apart.
    pub(crate) fn divisions(&mut self, tenant: TenantKey) -> Option<&mut DivisionBudget> {
        self.tenants
            .get_mut(&tenant)
            .map(|blamed| &mut blamed.divisions)
    }

    /// Returns what is known of a tenant. If there are too many, the one that did the least harm makes room.
    fn entry(&mut self, now: Time, tenant: TenantKey) -> &mut Blamed {
        if !self.tenants.contains_key(&tenant) {
            self.tenants.retain(|_, blamed| blamed.forget(now));
            let least = |(key, blamed): (&TenantKey, &Blamed)| {
                (blamed.losses, blamed.harms, blamed.apart_until, *key)
            };
            if self.tenants.len() >= usize::from(MOST)
                && let Some((.., least)) = self.tenants.iter().map(least).min()
            {
                self.tenants.remove(&least);
            }
        }
        let is_free = |slot: &u8| self.tenants.values().all(|blamed| blamed.slot != *slot);
        let slot = (0..MOST).find(is_free).unwrap_or(MOST);
        self.tenants
            .entry(tenant)
            .or_insert_with(|| Blamed::new(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantKey = TenantKey(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_loss_on_another_replica_pauses_a_tenant_and_each_further_one_for_twice_as_long() {
        let mut blame = TenantBlame::default();
        assert_eq!(blame.lost(at(0), at(0), A, ReplicaKey(0), 1), None);
        let on_one = Treatment::Apart {
            slot: 0,
            on_one_replica: true,
        };
        assert_eq!(blame.treatment(at(0), A), on_one);
        // The same replica again may be its own fault.
        assert_eq!(blame.lost(at(1), at(1), A, ReplicaKey(0), 1), None);
        assert_eq!(
            blame.lost(at(2), at(2), A, ReplicaKey(1), 1),
            Some((1, FIRST_PAUSE))
        );
        let paused = Treatment::Paused(Duration::from_secs(1));
        assert_eq!(blame.treatment(at(6), A), paused);
        let one = Treatment::OneAtATime { last: None };
        assert_eq!(blame.treatment(at(7), A), one);
        let next = blame.lost(at(8), at(8), A, ReplicaKey(1), 1);
        assert_eq!(next, Some((2, 2 * FIRST_PAUSE)));
    }

    #[test]
    fn what_was_lost_and_is_computed_elsewhere_was_innocent() {
        let mut blame = TenantBlame::default();
        blame.lost_with_others(at(0), A, ReplicaKey(0), 2);
        blame.computed(A, 1);
        assert_ne!(blame.treatment(at(0), A), Treatment::Usual);
        blame.computed(A, 1);
        assert_eq!(blame.treatment(at(0), A), Treatment::Usual);
        assert!(blame.is_empty());
    }

    #[test]
    fn everything_is_forgotten_step_by_step() {
        let mut blame = TenantBlame::default();
        blame.lost(at(0), at(0), A, ReplicaKey(0), 1);
        for loss in 1..5 {
            assert!(
                blame
                    .lost(at(loss), at(loss), A, ReplicaKey(1), 1)
                    .is_some()
            );
        }
        let mut seen = Vec::new();
        for second in 0..3600 {
            let losses = blame.tenants.get(&A).map_or(0, |blamed| blamed.losses);
            if seen.last() != Some(&losses) {
                seen.push(losses);
            }
            blame.treatment(at(4 + second), A);
        }
        assert_eq!(seen, [4, 3, 2, 1, 0]);
        assert!(blame.is_empty());
    }

    #[test]
    fn the_memory_of_tenants_is_bounded_and_keeps_the_worst() {
        let mut blame = TenantBlame::default();
        blame.lost(at(0), at(0), A, ReplicaKey(0), 1);
        blame.lost(at(0), at(0), A, ReplicaKey(1), 1);
        for tenant in 2..1000 {
            blame.threw(at(1), TenantKey(tenant));
        }
        assert_eq!(blame.tenants.len(), usize::from(MOST));
        assert!(blame.has_ended_workers(A));
        let slots: std::collections::BTreeSet<u8> =
            blame.tenants.values().map(|blamed| blamed.slot).collect();
        assert_eq!(slots.len(), usize::from(MOST));
    }

    #[test]
    fn replicas_that_are_lost_together_say_no_more_than_one() {
        let mut blame = TenantBlame::default();
        for replica in 0..8 {
            // All were dispatched before the first was lost.
            assert_eq!(blame.lost(at(5), at(4), A, ReplicaKey(replica), 1), None);
        }
        assert!(!blame.has_ended_workers(A));
        // One that was dispatched since is another matter, and what was under way beside it is not.
        assert!(blame.lost(at(7), at(6), A, ReplicaKey(8), 1).is_some());
        assert_eq!(blame.lost(at(7), at(6), A, ReplicaKey(9), 1), None);
    }
}
