//! What becomes of the requests of one model: how they come to its replicas, in what batches, and how many are in time.
//!
//! **Split.** Late binding gives each of a model's `n` replicas what it can carry: `x = λ · μ / Σ μ` requests/s, with `μ` the
//! requests/s of its full batches beside its neighbours.
//!
//! **Batches.** A replica that works on while the next batch gathers takes batches of `b = y + e^(-y)` rows, `y = x · T(b)`: what comes
//! during a batch, or the first request after a time without any (M/D^[1,B]/1, from regeneration at the ends of batches). `T(b)`
//! is the solo time over the pace. It is busy `x · T(b) / b` of the time.
//!
//! **Phase.** A request finds all replicas busy with probability `q = busy^n`. Then it waits for a credit, up to `T / n`, behind the
//! batch that computes, `q · T`, before its own is computed, `T`; else for its own only. `D` less the way there and back must hold
//! that. Bursts make batches larger than the mean; what neighbours do makes `T` larger or smaller, each half of the time.
//!
//! **Queue.** Of what could be in time so, some waits too long behind others: [`super::queue`].

use super::{fixed_wait, outlook::Slot, queue::Pool, service::Service, world::Demand};

/// More than is expected is asked of a placement beside what is, so that of two that serve all the one with more room is better.
/// How much more, and how much that counts.
const STRESSES: [(f64, f64); 2] = [(1.15, 0.98), (1.6, 0.02)];

/// What becomes of a model's requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// The part that is answered in time.
    pub(crate) fraction: f64,
    /// The same if more came than is expected.
    pub(crate) stressed: f64,
    /// What of the fraction is lost because batches take too long, however few come.
    pub(crate) too_slow: f64,
    /// A latency that nearly all of those in time have, in seconds.
    pub(crate) latency: f64,
    /// Requests per second that its replicas carry in full batches.
    pub(crate) capacity: f64,
}

/// How a replica's requests fare if no queue forms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passage {
    /// The part that is in time.
    pub(super) prompt: f64,
    /// How much longer a request may wait than it has to, in seconds.
    pub(super) patience: f64,
    /// What the neighbours add to the dispersion.
    pub(super) jitter: f64,
    /// The latency of one that has to wait longest, in seconds.
    pub(super) latency: f64,
}

/// Has `offered` requests/s come to one of `count` replicas of a model.
pub(crate) fn come_to(
    slot: &mut Slot,
    service: &Service,
    demand: &Demand,
    offered: f64,
    count: f64,
) {
    slot.offered = offered;
    if let Some(wait) = demand.fixed_wait {
        fixed_wait::come_to(slot, service, demand, wait);
        return;
    }
    let (batch, pace) = (f64::from(slot.batch), slot.pace.mean);
    let rows = service.rows_for(offered / pace, slot.batch, slot.share);
    let during = offered * service.seconds(rows, slot.share) / pace;
    slot.rows = (during + (-during).exp()).clamp(1.0, batch);
    let time = service.seconds(slot.rows, slot.share) / pace;
    slot.busy = (offered * time / slot.rows).min(1.0);
    slot.utilization = service.utilization(slot.rows, slot.share);

    let burst = 0.5 * (demand.dispersion + 1.0);
    let rows = (slot.rows + (burst - 1.0).max(0.0)).min(batch);
    let time = service.seconds(rows, slot.share) / pace;
    let way = demand.way + demand.way_per_row * rows;
    let waits = slot.busy.powf(count);
    let prompt = |time: f64| {
        let room = demand.slo - way - time;
        if room <= 0.0 {
            return 0.0;
        }
        let in_time = ((room - waits * time) * count / time).clamp(0.0, 1.0);
        1.0 - waits + waits * in_time
    };
    let spread = slot.pace.spread.hypot(service.spread).min(0.9);
    slot.passage = Passage {
        prompt: 0.5 * (prompt(time / (1.0 - spread)) + prompt(time / (1.0 + spread))),
        patience: (demand.slo - way - time).max(0.0),
        jitter: spread * spread * batch,
        latency: way + time * (1.0 + waits + waits / count),
    };
}

impl Fate {
    pub(crate) const UNSERVED: Self = Self {
        fraction: 0.0,
        stressed: 0.0,
        too_slow: 0.0,
        latency: 0.0,
        capacity: 0.0,
    };

    /// Of a model with these replicas.
    pub(crate) fn of<'s>(demand: &Demand, slots: impl Iterator<Item = &'s Slot>) -> Self {
        let mut all = Passage::default();
        let mut capacity = 0.0;
        for slot in slots {
            capacity += slot.capacity;
            all.prompt += slot.capacity * slot.passage.prompt;
            all.patience += slot.capacity * slot.passage.patience;
            all.jitter += slot.capacity * slot.passage.jitter;
            all.latency += slot.capacity * slot.passage.latency;
        }
        if capacity <= 0.0 {
            return Self::UNSERVED;
        }
        let prompt = all.prompt / capacity;
        let asked = |stress: f64| {
            if demand.fixed_wait.is_some() {
                return prompt;
            }
            let pool = Pool {
                rate: demand.rate * stress,
                capacity,
                patience: all.patience / capacity,
                dispersion: demand.dispersion + all.jitter / capacity,
            };
            prompt * (1.0 - pool.loss())
        };
        Self {
            fraction: asked(1.0),
            stressed: STRESSES
                .iter()
                .map(|(stress, weight)| weight * asked(*stress))
                .sum(),
            too_slow: 1.0 - prompt,
            latency: (all.latency / capacity).min(demand.slo),
            capacity,
        }
    }

    /// Of a model of which a further part of the rate fares like `other`.
    pub(crate) fn and(self, part: f64, other: Self) -> Self {
        Self {
            fraction: self.fraction + part * other.fraction,
            stressed: self.stressed + part * other.stressed,
            too_slow: self.too_slow + part * other.too_slow,
            latency: self.latency.max(other.latency),
            capacity: self.capacity + other.capacity,
        }
    }
}
