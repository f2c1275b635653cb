//! The treatment of tenants whose requests did a model harm: see [`crate::tenant_blame`].
//!
//! It protects a model's other tenants. Where there are none, nobody is treated differently: all clients without a key behind one proxy are one tenant.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

use super::{Engine, Model};
use crate::{
    Action, ModelKey, Refusal, ReplicaKey, Request, RequestOutcome, TenantKey,
    queue::{QueuedRequest, Ticket},
    tenant_blame::{TenantBlame, Treatment},
};

impl Model {
    /// Returns the treatment of a tenant's requests.
    fn treatment(&mut self, now: Time, tenant: TenantKey) -> Treatment {
        if self.blame.is_empty() || !self.shares.is_shared() {
            return Treatment::Usual;
        }
        self.blame.treatment(now, tenant)
    }

    /// Returns the replica that takes the requests of a tenant which go to one only: another one for each tenant, as far as possible.
    fn only_replica(&self, tenant: TenantKey) -> Option<ReplicaKey> {
        let replicas = self.pool.serving().count() as u64;
        let nth = tenant.0.checked_rem(replicas)?;
        let mut serving = self.pool.serving().map(|(key, _)| key);
        serving.nth(usize::try_from(nth).unwrap_or_default())
    }
}

impl Engine {
    /// Returns true if a tenant did a model harm of late.
    pub fn is_blamed(&self, model: ModelKey, tenant: TenantKey) -> bool {
        let model = self.models.get(&model);
        model.is_some_and(|model| model.blame.knows(tenant))
    }

    /// Refuses a request of a tenant that is paused, or has one at a time and has it.
    pub(super) fn check_blame(&mut self, now: Time, request: &Request) -> Result<(), Refusal> {
        let Some(model) = self.models.get_mut(&request.model) else {
            return Ok(());
        };
        let retry_after = match model.treatment(now, request.tenant) {
            Treatment::Usual | Treatment::Apart { .. } => return Ok(()),
            Treatment::Paused(left) => left,
            Treatment::OneAtATime { last } => {
                if last.is_none_or(|last| !self.locations.contains_key(&last)) {
                    return Ok(());
                }
                TenantBlame::turn()
            }
        };
        Err(Refusal::TenantPaused { retry_after })
    }

    /// Keeps a request that is accepted away from those of others, if its tenant did harm.
    pub(super) fn keep_apart(&mut self, now: Time, mut waiting: QueuedRequest) -> QueuedRequest {
        let Request {
            id, model, tenant, ..
        } = waiting.request;
        let model = self.model_mut(model);
        match model.treatment(now, tenant) {
            Treatment::Usual | Treatment::Paused(_) => waiting,
            Treatment::Apart {
                slot,
                on_one_replica,
            } => {
                waiting.request.class = waiting.request.class.apart(slot);
                if on_one_replica {
                    waiting.only_on = model.only_replica(tenant);
                }
                waiting
            }
            Treatment::OneAtATime { .. } => {
                model.blame.begin(tenant, id);
                waiting.only_on = model.only_replica(tenant);
                waiting.alone()
            }
        }
    }

    /// Blames the tenants of a batch that was lost with the replica that computed it, or hung there.
    pub(super) fn blame_for_loss(
        &mut self,
        now: Time,
        model_key: ModelKey,
        replica: ReplicaKey,
        dispatched: Time,
        requests: &[QueuedRequest],
    ) {
        let model = self.model_mut(model_key);
        let tenants = || requests.iter().map(|waiting| waiting.request.tenant);
        let Some(first) = tenants().next() else {
            return;
        };
        let mut counts: BTreeMap<TenantKey, u32> = BTreeMap::new();
        for tenant in tenants() {
            *counts.entry(tenant).or_default() += 1;
        }
        if counts.len() > 1 {
            for (tenant, count) in counts {
                model.blame.lost_with_others(now, tenant, replica, count);
            }
            return;
        }
        let count = counts[&first];
        let Some((losses, pause)) = model.blame.lost(now, dispatched, first, replica, count) else {
            return;
        };
        if model.shares.is_shared() {
            self.pause_tenant(now, model_key, first, losses, pause);
        }
    }

    /// Ends the waiting requests of a tenant that is paused.
    fn pause_tenant(
        &mut self,
        now: Time,
        key: ModelKey,
        tenant: TenantKey,
        losses: u32,
        pause: Duration,
    ) {
        self.actions.push_back(Action::TenantPaused {
            model: key,
            tenant,
            losses,
            pause,
        });
        let waiting = self.models[&key].queue.iter();
        let tickets: Vec<Ticket> = waiting
            .filter(|waiting| waiting.request.tenant == tenant)
            .map(|waiting| waiting.ticket)
            .collect();
        for ticket in tickets {
            let waiting = self.model_mut(key).queue.remove(ticket);
            let waiting = waiting.expect("just seen");
            self.books.queued -= 1;
            self.finish(waiting.request.id, RequestOutcome::Lost);
        }
        self.pooled_queue_changed(now, key);
    }

    /// Returns false if a request that was lost with its worker shall not end another one: its tenant is known for that.
    pub(super) fn may_end_workers(&self, waiting: &QueuedRequest) -> bool {
        let model = self.models.get(&waiting.request.model);
        model.is_some_and(|model| {
            !model.shares.is_shared() || !model.blame.has_ended_workers(waiting.request.tenant)
        })
    }

    /// Keeps a request that was lost with its worker on one replica, with the others of its tenant.
    pub(super) fn on_one_replica(&self, mut waiting: QueuedRequest) -> QueuedRequest {
        let model = self.models.get(&waiting.request.model);
        let model = model.filter(|model| model.shares.is_shared());
        waiting.only_on = model.and_then(|model| model.only_replica(waiting.request.tenant));
        waiting
    }

    /// Notes that a batch was computed: what was lost before, and was not to blame, clears its tenant.
    pub(super) fn clear_blame(&mut self, key: ModelKey, requests: &[QueuedRequest]) {
        let Some(model) = self.models.get_mut(&key) else {
            return;
        };
        let Some(first) = requests.first().filter(|_| !model.blame.is_empty()) else {
            return;
        };
        let tenant = first.request.tenant;
        if requests
            .iter()
            .all(|waiting| waiting.request.tenant == tenant)
        {
            let lost = requests.iter().filter(|waiting| waiting.losses > 0);
            let lost = u32::try_from(lost.count()).unwrap_or(u32::MAX);
            model.blame.computed(tenant, lost);
        }
    }
}
