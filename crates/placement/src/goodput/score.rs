//! How good a placement is, as one number to be made as large as it can.
//!
//! With `f` the part of a model's requests that is in time, a little of which is counted at a higher rate than expected
//! (headroom), and `w` its part of all requests:
//!
//! * `goodput`: `Σ w f`;
//! * `max-min`: `1 - ‖1 - f‖₈ + 0.05 · Σ w f`, a smooth minimum first, then the sum;
//! * `blend`: the mean of both.
//!
//! Less what the placement costs: work that it need not do, replicas that it need not have, and what it has to start anew.

use crate::{
    Objective,
    estimate::{Fate, Outlook, World},
};

/// How much of a model's worth is for being served well if more comes than is expected.
const HEADROOM: f64 = 0.1;
/// The same for the worst served model, of `max-min`.
const ROOM: f64 = 0.8;
/// What keeping all devices busy all the time costs: of two placements that serve alike, the one that works less.
const WORK: f64 = 2e-3;
/// What a replica costs, so that none stands idle: as it is, and as a part of all that is asked of its model. One that serves less
/// of it is not worth its memory, and the time to start it.
const REPLICA: f64 = 2e-5;
const NEGLIGIBLE: f64 = 1e-3;
/// What it is worth to carry e times as much, however little is asked: of two placements that serve alike, the one that carries more.
const CAPACITY: f64 = 1e-4;
/// A profile is not so exact that batches of twice the size, which carry as much, did not carry more by this power of two.
const LARGER: f64 = 0.05;
/// What starting a replica costs in itself: nothing moves for less than an estimate is good for.
const MOVE: f64 = 1.5e-3;
/// While a replica loads, what it would carry is lost; a placement is taken to last this long, in seconds.
const LASTS: f64 = 600.0;
/// How sharply `max-min` looks at the worst served model.
const SHARPNESS: i32 = 8;
/// How much of the sum `max-min` counts.
const SUM: f64 = 0.05;

/// Weighs what becomes of each model.
#[derive(Debug)]
pub(super) struct Score {
    objective: Objective,
    /// By model: its part of all that is asked. Adds up to 1, or nothing is asked.
    weights: Vec<f64>,
    /// By model: its requests/s.
    rates: Vec<f64>,
    /// By model: what one request/s that a fresh replica carries costs.
    loading: Vec<f64>,
    devices: f64,
}

fn served(fate: &Fate) -> f64 {
    (1.0 - HEADROOM) * fate.sure + HEADROOM * fate.stressed
}

/// The same where the worst served model is looked at: all that are served alike are at their edge at once, and there the estimate
/// errs most.
fn served_with_room(fate: &Fate) -> f64 {
    (1.0 - ROOM) * fate.sure + ROOM * fate.stressed
}

impl Score {
    pub(super) fn new(world: &World<'_>, objective: Objective) -> Self {
        let total: f64 = world.demands.iter().map(|demand| demand.rate).sum();
        let total = total.max(f64::MIN_POSITIVE);
        let models = world.problem.models.iter();
        let rates: Vec<f64> = world.demands.iter().map(|demand| demand.rate).collect();
        Self {
            objective,
            weights: rates.iter().map(|rate| rate / total).collect(),
            rates,
            loading: models
                .map(|model| model.load_time.as_secs_f64() / LASTS / total)
                .collect(),
            devices: world.problem.devices.len().max(1) as f64,
        }
    }

    pub(super) fn of(&self, outlook: &Outlook<'_, '_>) -> f64 {
        let mut value = self.goal(outlook.fates()) + CAPACITY * self.capacity(outlook);
        for slot in outlook.slots() {
            value -= WORK * slot.busy * slot.utilization / 100.0 / self.devices
                + REPLICA
                + NEGLIGIBLE * self.weights[slot.model];
            if slot.fresh && outlook.world.is_running() {
                value -= MOVE + self.loading[slot.model] * slot.offered;
            }
        }
        value
    }

    /// How much more than what is asked is carried, in powers of e, in the mean over the requests.
    fn capacity(&self, outlook: &Outlook<'_, '_>) -> f64 {
        let mut value = 0.0;
        for (model, fate) in outlook.fates().iter().enumerate() {
            if self.rates[model] > 0.0 {
                value += self.weights[model] * (fate.capacity / self.rates[model]).ln_1p();
            }
        }
        for slot in outlook.slots() {
            if self.rates[slot.model] > 0.0 {
                let part = slot.offered / self.rates[slot.model];
                value += LARGER * self.weights[slot.model] * part * f64::from(slot.batch).ln();
            }
        }
        value
    }

    fn goal(&self, fates: &[Fate]) -> f64 {
        match self.objective {
            Objective::Goodput => self.sum(fates),
            Objective::MaxMin => self.least(fates),
            Objective::Blend => 0.5 * (self.sum(fates) + self.least(fates)),
        }
    }

    fn sum(&self, fates: &[Fate]) -> f64 {
        let worth = |(weight, fate): (&f64, &Fate)| weight * served(fate);
        self.weights.iter().zip(fates).map(worth).sum()
    }

    fn least(&self, fates: &[Fate]) -> f64 {
        let asked = self
            .weights
            .iter()
            .zip(fates)
            .filter(|(weight, _)| **weight > 0.0);
        let lacking: f64 = asked
            .map(|(_, fate)| (1.0 - served_with_room(fate)).powi(SHARPNESS))
            .sum();
        1.0 - lacking.powf(1.0 / f64::from(SHARPNESS)) + SUM * self.sum(fates)
    }

    /// What serving a bit more of a model is worth, relative to other models.
    pub(super) fn urgency(&self, model: usize, fates: &[Fate]) -> f64 {
        let weight = self.weights[model];
        let worst = (1.0 - served_with_room(&fates[model])).powi(SHARPNESS - 1) + SUM * weight;
        match self.objective {
            _ if weight <= 0.0 => 0.0,
            Objective::Goodput => weight,
            Objective::MaxMin => worst,
            Objective::Blend => 0.5 * (weight + worst),
        }
    }
}
