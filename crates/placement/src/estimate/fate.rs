//! What becomes of the requests of one model: how they come to its replicas, in what batches, and how many are in time.
//!
//! **Split.** Late binding gives each of a model's `n` replicas what it can carry: `x = λ · μ / Σ μ` requests/s, with `μ` the
//! requests/s of its batches behind a backlog, beside its neighbours.
//!
//! **Batches behind a backlog.** The dispatcher lets no batch grow so that its first request is late. Behind the batch that computes,
//! and with requests of bursts of `g` that are `1 / λ g` apart, a batch of `b` rows is in time while
//!
//! ```text
//! way(b) + 2 T(b) + (b - 1) min(1 / (λ g), T(b) / b) ≤ SLO
//! ```
//!
//! with `T(b)` the solo time over the pace (what comes slower than it is computed is no backlog): Nexus' two conditions at once (Shen et al., SOSP 2019, section 6.1 for batches that wait
//! behind another, algorithm 1 for those that gather first). The most such rows, at most the batch size, are what it carries then.
//!
//! **Batches.** A replica that works on while the next batch gathers takes batches of `b = y + e^(-y)` rows, `y = x · T(b)`: what comes
//! during a batch, or the first request after a time without any (M/D^[1,B]/1, from regeneration at the ends of batches), up to
//! those behind a backlog. It is busy `x · T(b) / b` of the time.
//!
//! **Phase.** A request finds all replicas busy with probability `q = busy^n`. Then it waits for a credit, up to `T / n`, and for
//! [`LEAD`] of a batch that the replica holds already, `q · T`, before its own is computed, `T`; else for its own only. `D` less the
//! way there and back must hold that. What neighbours do makes `T` larger or smaller, each half of the time.
//!
//! **Bursts.** Of `g` requests that come at once all but the first find what the first ones make: all the model's replicas busy at the
//! same time, with batches [`CLUMPS`] bursts larger if the dispatcher, which does not know of the siblings, takes them to be in time.
//!
//! **Queue.** Of what could be in time so, some waits too long behind others: [`super::queue`].

use super::{
    fixed_wait, outlook::Slot, queue::Pool, service::Service, sharing::Pace, world::Demand,
};

/// More than is expected is asked of a placement beside what is, so that of two that serve all the one with more room is better.
/// How much more, and how much that counts.
const STRESSES: [(f64, f64); 2] = [(1.15, 0.98), (1.6, 0.02)];
/// A batch is sent to a busy replica this part of its time before that is free, mostly: what waits until then may still join.
const LEAD: f64 = 0.25;
/// Bursts come in clumps: this many together count.
const CLUMPS: f64 = 3.0;

/// What becomes of a model's requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// The part that is answered in time.
    pub(crate) fraction: f64,
    /// The same if whoever finds all replicas busy waits for a whole batch before its own: what a placement is chosen by, for the
    /// fraction itself is near the edge where batches take half of the SLO.
    pub(crate) sure: f64,
    /// That if more came than is expected.
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
    /// The part that is in time behind a whole batch.
    pub(super) sure: f64,
    /// How much longer a request may wait than it has to, in seconds.
    pub(super) patience: f64,
    /// What the neighbours add to the dispersion.
    pub(super) jitter: f64,
    /// The latency of one that has to wait longest, in seconds.
    pub(super) latency: f64,
}

/// The most rows of a batch, at most `batch`, that is in time behind another one; at most `gap` seconds lie between its requests.
fn most_rows(batch: u32, gap: f64, demand: &Demand, seconds: impl Fn(f64) -> f64) -> f64 {
    let late = |rows: f64| {
        let way = demand.way + demand.way_per_row * rows;
        let time = seconds(rows);
        way + 2.0 * time + (rows - 1.0) * gap.min(time / rows) > demand.slo
    };
    // More rows are never less late; mostly none are.
    if !late(f64::from(batch)) {
        return f64::from(batch);
    }
    let (mut most, mut least_late) = (1, batch);
    while most + 1 < least_late {
        let middle = most.midpoint(least_late);
        if late(f64::from(middle)) {
            least_late = middle;
        } else {
            most = middle;
        }
    }
    f64::from(most)
}

/// Rows of a replica's batches behind a backlog.
pub(super) fn crowded_rows(slot: &Slot, service: &Service, demand: &Demand, pace: f64) -> f64 {
    if demand.fixed_wait.is_some() || demand.rate <= 0.0 {
        return f64::from(slot.batch);
    }
    let gap = 1.0 / (demand.rate * demand.burst());
    most_rows(slot.batch, gap, demand, |rows| {
        service.seconds(rows, slot.share) / pace
    })
}

/// Has `offered` requests/s come to one of a model's replicas.
pub(super) fn come_to(slot: &mut Slot, service: &Service, demand: &Demand, offered: f64) {
    slot.offered = offered;
    if let Some(wait) = demand.fixed_wait {
        fixed_wait::come_to(slot, service, demand, wait);
        return;
    }
    let (share, most) = (slot.share, slot.most_rows);
    let pace = slot.pace.mean;
    let seconds = |rows: f64| service.seconds(rows, share) / pace;
    let rows = service.rows_for(offered / pace, most as u32, share);
    let during = offered * seconds(rows);
    slot.rows = (during + (-during).exp()).clamp(1.0, most);
    slot.busy = (offered * seconds(slot.rows) / slot.rows).min(1.0);
    slot.utilization = service.utilization(slot.rows, share);

    let burst = demand.burst();
    slot.burst_rows = slot.rows;
    if burst > 1.0 {
        let believed = most_rows(slot.batch, 0.0, demand, seconds);
        let gathered = slot.rows + CLUMPS * (burst - 1.0);
        slot.burst_rows = gathered.min(believed).max(slot.rows);
    }
    slot.burst_utilization = service.utilization(slot.burst_rows, share);
}

impl Passage {
    /// Of what comes to one of `count` replicas of a model.
    pub(super) fn of(slot: &Slot, service: &Service, demand: &Demand, count: f64) -> Self {
        if let Some(wait) = demand.fixed_wait {
            return fixed_wait::passage(slot, service, demand, wait);
        }
        let seconds = |rows: f64, pace: f64| service.seconds(rows, slot.share) / pace;
        let waits = slot.busy.powf(count);
        // Of batches of so many rows, if a request that waits does so behind this part of a batch, for the first of so many replicas.
        let in_time = |rows: f64, at: Pace, behind: f64, first_of: f64| {
            let spread = at.spread.hypot(service.spread).min(0.9);
            let at_pace = |pace: f64| {
                let time = seconds(rows, pace);
                let room = demand.slo - demand.way - demand.way_per_row * rows - time;
                if room <= 0.0 {
                    return 0.0;
                }
                let phase = (room - behind * waits * time) * first_of / time;
                1.0 - waits + waits * phase.clamp(0.0, 1.0)
            };
            0.5 * (at_pace(at.mean * (1.0 - spread)) + at_pace(at.mean * (1.0 + spread)))
        };
        let burst = demand.burst();
        let prompt = |behind: f64| {
            let calm = in_time(slot.rows, slot.pace, behind, count);
            if burst > 1.0 {
                let bursting = in_time(slot.burst_rows, slot.burst_pace, behind, 1.0);
                return bursting + (calm - bursting) / burst;
            }
            calm
        };
        let time = seconds(slot.burst_rows, slot.pace.mean);
        let way = demand.way + demand.way_per_row * slot.burst_rows;
        let spread = slot.pace.spread.hypot(service.spread).min(0.9);
        Self {
            prompt: prompt(LEAD),
            sure: prompt(1.0),
            patience: (demand.slo - way - time).max(0.0),
            jitter: spread * spread * slot.most_rows,
            latency: way + time * (1.0 + waits + waits / count),
        }
    }
}

impl Fate {
    pub(crate) const UNSERVED: Self = Self {
        fraction: 0.0,
        sure: 0.0,
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
            all.sure += slot.capacity * slot.passage.sure;
            all.patience += slot.capacity * slot.passage.patience;
            all.jitter += slot.capacity * slot.passage.jitter;
            all.latency += slot.capacity * slot.passage.latency;
        }
        if capacity <= 0.0 {
            return Self::UNSERVED;
        }
        let (prompt, sure) = (all.prompt / capacity, all.sure / capacity);
        let kept = |stress: f64| {
            if demand.fixed_wait.is_some() {
                return 1.0;
            }
            let pool = Pool {
                rate: demand.rate * stress,
                capacity,
                patience: all.patience / capacity,
                dispersion: demand.dispersion + all.jitter / capacity,
            };
            1.0 - pool.loss()
        };
        let as_expected = kept(1.0);
        let stressed = STRESSES.iter();
        Self {
            fraction: prompt * as_expected,
            sure: sure * as_expected,
            stressed: sure
                * stressed
                    .map(|(stress, weight)| weight * kept(*stress))
                    .sum::<f64>(),
            too_slow: 1.0 - prompt,
            latency: (all.latency / capacity).min(demand.slo),
            capacity,
        }
    }

    /// Of a model of which a further part of the rate fares like `other`.
    pub(crate) fn and(self, part: f64, other: Self) -> Self {
        Self {
            fraction: self.fraction + part * other.fraction,
            sure: self.sure + part * other.sure,
            stressed: self.stressed + part * other.stressed,
            too_slow: self.too_slow + part * other.too_slow,
            latency: self.latency.max(other.latency),
            capacity: self.capacity + other.capacity,
        }
    }
}
