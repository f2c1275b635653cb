//! Tenants share an overloaded model: the requests of one that has its fair share of it wait behind those of the others.
//!
//! While a model is overloaded, a request of a tenant for which it computed the most rows of late, or nearly, is put behind all requests of
//! tenants with fewer; where the queue is full, its last request gives its place to one of theirs. A tenant that asks for less than its share
//! is then served as if it were alone with the others that do, and those that ask for more get equal parts of the rest (max-min fairness). A
//! tenant that has had its share is not starved: as the others get more than it has had of late, its turn comes. Among the
//! requests of either kind, without an overload, and with one tenant, the discipline decides alone.
//!
//! Source: the share of the past as a priority, as in decay-usage scheduling (Hellerstein, "Achieving Service Rate Objectives with Decay
//! Usage Scheduling", IEEE TSE 1993, section 2), per request in place of per process.

use packhorse_cluster::Time;

use super::{Engine, Model};
use crate::{
    ModelKey, Request, TenantKey,
    queue::{QueuedRequest, Ticket},
};

/// The rank by which requests of tenants with their fair share stand behind the others. Larger than any deadline is away.
const BEHIND: u64 = 1 << 62;

impl Model {
    /// Returns true if tenants share the model as this file says: it is overloaded, and there are several.
    pub(super) fn is_shared_fairly(&self, now: Time) -> bool {
        self.is_overloaded(now) && self.shares.is_shared()
    }
}

impl Engine {
    /// Returns true if requests of a tenant stand before those of others: the model is overloaded, and computed less for it than for
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
