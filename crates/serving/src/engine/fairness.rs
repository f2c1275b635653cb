//! Tenants share a contended model: the requests of one that has its fair share of it wait behind those of the others.
//!
//! A model is contended as long as more requests wait than a batch takes, or it is overloaded. Then a request of a tenant for which it computed the
//! most rows of late, or nearly, is put behind all requests of tenants with fewer; where the queue is full, its last request gives its place to one
//! of theirs. A tenant that asks for less than its share is then served as if it were alone with the others that do, and those that ask for
//! more get equal parts of the rest (max-min fairness). A tenant that has had its share is not starved: as the others get more than it has
//! had of late, its turn comes. Among the requests of either kind, without contention, and with one tenant, the discipline decides alone.
//!
//! Rows count from the begin of the contention: who used the model while nobody waited has taken nothing from anybody. As shares change, the requests that
//! wait are put in order again.
//!
//! Source: the share of the past as a priority, as in decay-usage scheduling (Hellerstein, "Achieving Service Rate Objectives with Decay
//! Usage Scheduling", IEEE TSE 1993, section 2), per request in place of per process.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{Engine, Model};
use crate::{
    ModelKey, Request, TenantKey,
    queue::{QueuedRequest, Ticket},
};

/// The rank by which requests of tenants with their fair share stand behind the others. Larger than any deadline is away.
const BEHIND: u64 = 1 << 62;

/// The least time after which the requests that wait are put in order again, and what each of them adds to it: so that it takes a small part of the time.
const ORDER_AGAIN_AFTER: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_micros(10));

impl Model {
    /// Returns true if tenants share the model as this file says: it is contended, and there are several.
    pub(super) fn is_shared_fairly(&self, now: Time) -> bool {
        (self.contention.leaves_requests || self.is_overloaded(now)) && self.shares.is_shared()
    }

    /// Takes note of the rows of a batch, each by its tenant, which has left the queue.
    pub(super) fn share(&mut self, now: Time, rows: impl Iterator<Item = (TenantKey, u32)>) {
        let leaves_requests = self.queue.len() > 0;
        if leaves_requests && !self.contention.leaves_requests {
            let waiting = self.queue.iter().map(|waiting| waiting.request.tenant);
            self.shares.begin(now, waiting);
            self.contention.order_from = now;
        }
        self.contention.leaves_requests = leaves_requests;
        self.shares.add(now, rows);
    }
}

impl Engine {
    /// Returns true if requests of a tenant stand before those of others: the model is contended, and computed less for it than for
    /// another one.
    pub fn stands_before_others(&self, now: Time, model: ModelKey, tenant: TenantKey) -> bool {
        self.models.get(&model).is_some_and(|model| {
            model.is_shared_fairly(now) && !model.shares.has_fair_share(tenant)
        })
    }

    /// Returns the rank of a request in its queue: the discipline's, behind those of other tenants if its own has its fair share.
    pub(super) fn rank(&self, now: Time, request: &Request) -> u64 {
        let rank = self.discipline.rank(request);
        let model = self.models.get(&request.model);
        let stands_behind = |model: &Model| {
            model.is_shared_fairly(now) && model.shares.has_fair_share(request.tenant)
        };
        if model.is_some_and(stands_behind) {
            rank.saturating_add(BEHIND)
        } else {
            rank
        }
    }

    /// Takes note of the tenant of a request that waits. The second puts all in order.
    pub(super) fn note_tenant(&mut self, now: Time, key: ModelKey, tenant: TenantKey) {
        let model = self.model_mut(key);
        if model.shares.note(tenant) {
            model.contention.order_from = now;
            self.order_again(now, key);
        }
    }

    /// Puts the waiting requests of a model in order again, if tenants share it and some time has passed.
    pub(super) fn order_again(&mut self, now: Time, key: ModelKey) {
        let model = &self.models[&key];
        if now < model.contention.order_from || !model.is_shared_fairly(now) {
            return;
        }
        let moved = model.queue.iter().filter_map(|waiting| {
            let ranked = self.ranked(now, *waiting);
            (ranked.ticket != waiting.ticket).then_some((waiting.ticket, ranked))
        });
        let moved: Vec<(Ticket, QueuedRequest)> = moved.collect();
        let (least, each) = ORDER_AGAIN_AFTER;
        let waiting = u32::try_from(model.queue.len()).unwrap_or(u32::MAX);
        self.model_mut(key).contention.order_from = now + least + each * waiting;
        for (ticket, ranked) in moved {
            let model = self.model_mut(key);
            model.queue.remove(ticket).expect("it waits");
            self.insert_into_queue(ranked);
        }
    }

    /// Returns a request that is to wait again, with the rank that it has now.
    pub(super) fn ranked(&self, now: Time, waiting: QueuedRequest) -> QueuedRequest {
        let rank = self.rank(now, &waiting.request);
        let ticket = Ticket {
            rank,
            ..waiting.ticket
        };
        QueuedRequest { ticket, ..waiting }
    }

    /// Drops the last request of a full queue if its tenant has its fair share and the one of the request has not. Returns true
    /// if it did.
    pub(super) fn make_room(&mut self, now: Time, request: &Request, rank: u64) -> bool {
        let last = self.models.get(&request.model).and_then(last_behind);
        let Some(last) = last.filter(|_| rank < BEHIND) else {
            return false;
        };
        self.mark_overloaded(now, request.model);
        self.expire(now, request.model, last);
        true
    }
}

/// Returns the last waiting request if it stands behind those of other tenants.
fn last_behind(model: &Model) -> Option<Ticket> {
    let last = model.queue.iter().next_back()?;
    (last.ticket.rank >= BEHIND && last.attempts == 0).then_some(last.ticket)
}
