//! The goodputs of models by a placement at the rates that they claim, and the served models that it deprives.

use std::cmp::Ordering;

use packhorse_cluster::{PlannedReplica, Problem};

use crate::goodput;

/// The part of a claim that a plan may miss: the error of the estimate.
pub(super) const TOLERANCE: f64 = 0.05;
/// The rate of a model that gets as good as no requests, in requests/s.
pub(super) const IDLE: f64 = 0.02;
/// The part of its goodput from which a model that loses it is deprived; what is less is worth a better plan.
const MAX_LOSS: f64 = 0.1;

/// The problem with the rates that models claim.
pub(super) struct Demands {
    /// With the fair share of each need as the rate.
    pub(super) fair: Problem,
    /// With the need of each model as the rate, whatever is fair.
    pub(super) needed: Problem,
    /// With all that each model claims as the rate: its fair share, and what it may take from models of a lower priority.
    pub(super) entitled: Problem,
    /// The number of the priorities above that of each model which other models have.
    pub(super) levels: Vec<usize>,
}

/// The goodputs of the models by a placement.
#[derive(Clone, Debug)]
pub(super) struct Goodputs {
    /// The number of replicas.
    pub(super) replicas: Vec<usize>,
    /// The goodput at the fair shares, in requests/s.
    pub(super) fair: Vec<f64>,
    /// The goodput at the rates that are needed, in requests/s.
    pub(super) needed: Vec<f64>,
    /// The goodput at all that is claimed, in requests/s.
    pub(super) entitled: Vec<f64>,
}

impl Demands {
    /// Returns the goodputs of the models by these replicas.
    pub(super) fn goodputs(&self, replicas: &[PlannedReplica]) -> Goodputs {
        let mut counts = vec![0; self.fair.models.len()];
        for replica in replicas {
            counts[replica.model.0] += 1;
        }
        let fair = goodputs(&self.fair, replicas);
        // Models of one priority may take nothing from each other beyond their fair shares.
        let entitled = if self.levels.iter().all(|level| *level == 0) {
            fair.clone()
        } else {
            goodputs(&self.entitled, replicas)
        };
        Goodputs {
            replicas: counts,
            needed: goodputs(&self.needed, replicas),
            fair,
            entitled,
        }
    }

    /// Returns true if a model that has a replica now loses, by another placement, what it is measured to need to models that have no claim to it.
    /// A claim to it has a model of a higher priority, or one of the same priority that lacks its fair share, as long as the model keeps its own or
    /// is no worse off. A plan that admits newcomers gives nobody else more of a reservation at the cost of a need.
    pub(super) fn is_deprived(
        &self,
        model: usize,
        admits_newcomers: bool,
        now: &Goodputs,
        then: &Goodputs,
    ) -> bool {
        let is_known = self.needed.models[model].need.is_some();
        if !is_known || now.replicas[model] == 0 {
            return false;
        }
        let is_gone = then.replicas[model] == 0;
        if !is_gone && !loses(now.needed[model], then.needed[model]) {
            return false;
        }
        let has_first_replica = |other: usize| now.replicas[other] == 0 && then.replicas[other] > 0;
        let has_more = |now: &[f64], then: &[f64], problem: &Problem, other: usize| {
            then[other] - now[other] > IDLE.max(TOLERANCE * problem.models[other].rate.get())
        };
        let gets_more = |other: usize| has_more(&now.fair, &then.fair, &self.fair, other);
        let reserves_more = |other: usize| {
            let may_reserve = !admits_newcomers || now.replicas[other] == 0;
            may_reserve && has_more(&now.entitled, &then.entitled, &self.entitled, other)
        };
        let part = |of: usize| then.fair[of] / self.fair.models[of].rate.get();
        let keeps_share = |other: usize| {
            let is_no_worse_off = part(model) >= part(other) - MAX_LOSS;
            !is_gone && (is_no_worse_off || !loses(now.fair[model], then.fair[model]))
        };
        let mut others = 0..self.levels.len();
        let has_claim = others.any(|other| match self.levels[other].cmp(&self.levels[model]) {
            Ordering::Less => {
                is_gone && has_first_replica(other) || gets_more(other) || reserves_more(other)
            }
            Ordering::Equal => other != model && gets_more(other) && keeps_share(other),
            Ordering::Greater => false,
        });
        !has_claim
    }
}

/// Returns true if a goodput falls by more than a plan may take.
fn loses(now: f64, then: f64) -> bool {
    then < now * (1.0 - MAX_LOSS) && now - then > IDLE
}

fn goodputs(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<f64> {
    let forecasts = goodput::estimate(problem, replicas);
    forecasts.iter().map(|model| model.goodput.get()).collect()
}
