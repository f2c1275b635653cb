//! The speed of a replica beside others that are active some of the time.
//!
//! While the replicas of a set `A` compute beside replica `k`, its time is its solo time multiplied by
//! `packhorse_contention::SlowdownBesideSet`, which has the rule of `Interference` and the slowdown learned beyond it. The others
//! are assumed to be active independently of each other, each with the probability that it is busy; the relative speed is the mean over
//! all sets. Independence is consistent with the rule: where every replica uses the whole device, `busy_k · speed_k` summed over the
//! replicas is exactly the probability that one is busy, so that work is neither made nor lost.

use packhorse_contention::{BySaturation, SlowdownBesideSet};

/// Another replica of the same device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    /// The fraction of time in which it computes.
    pub(crate) busy: f64,
    /// Percent of the device that it uses while it computes.
    pub(crate) utilization: f64,
    /// The relative slowdown that it causes beyond the use of multiprocessors: `θ · u / 100`.
    pub(crate) slowdown: BySaturation<f64>,
}

/// The speed of a replica relative to its solo speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RelativeSpeed {
    /// The mean over the sets of active neighbours.
    pub(crate) mean: f64,
    /// Coefficient of variation over the sets of active neighbours.
    pub(crate) variation: f64,
}

impl RelativeSpeed {
    /// The speed of a replica without neighbours.
    pub(crate) const ALONE: Self = Self {
        mean: 1.0,
        variation: 0.0,
    };
}

/// The most neighbours whose sets are enumerated. Of more, those with the least variance count with their mean.
const MAX_ENUMERATED: usize = 5;

/// A set of neighbours that are active together.
#[derive(Clone, Copy, Debug)]
struct ActiveSet {
    utilization: f64,
    slowdown: BySaturation<f64>,
    probability: f64,
}

/// The distribution of the active neighbours of one replica.
#[derive(Debug, Default)]
pub(crate) struct ActiveNeighbours {
    sets: Vec<ActiveSet>,
    /// Utilisation in percent if all are active.
    total_utilization: f64,
    /// True if a neighbour causes a slowdown beyond its utilisation.
    has_slowdown: bool,
}

impl ActiveNeighbours {
    /// Replaces the neighbours.
    pub(crate) fn replace(&mut self, neighbours: &mut [Neighbour]) {
        self.total_utilization = neighbours.iter().map(|other| other.utilization).sum();
        self.has_slowdown = neighbours
            .iter()
            .any(|other| other.slowdown.unsaturated > 0.0 || other.slowdown.saturated > 0.0);
        let variance =
            |other: &Neighbour| other.busy * (1.0 - other.busy) * other.utilization.powi(2);
        if neighbours.len() > MAX_ENUMERATED {
            neighbours.sort_by(|a, b| variance(b).total_cmp(&variance(a)));
        }
        let (enumerated, averaged) = neighbours.split_at(neighbours.len().min(MAX_ENUMERATED));
        self.sets.clear();
        let mut always = ActiveSet {
            utilization: 0.0,
            slowdown: BySaturation::default(),
            probability: 1.0,
        };
        for other in averaged {
            always.utilization += other.busy * other.utilization;
            always.slowdown = always.slowdown.plus(other.slowdown, other.busy);
        }
        self.sets.push(always);
        for other in enumerated {
            for i in 0..self.sets.len() {
                let without = &mut self.sets[i];
                let with = ActiveSet {
                    utilization: without.utilization + other.utilization,
                    slowdown: without.slowdown.plus(other.slowdown, 1.0),
                    probability: without.probability * other.busy,
                };
                without.probability *= 1.0 - other.busy;
                self.sets.push(with);
            }
        }
    }

    /// Returns the speed of a replica that uses `own` percent of the device, beside the neighbours.
    pub(crate) fn relative_speed(&self, own: f64) -> RelativeSpeed {
        if own + self.total_utilization <= 100.0 && !self.has_slowdown {
            return RelativeSpeed::ALONE;
        }
        let (mut mean, mut square) = (0.0, 0.0);
        for set in &self.sets {
            let beside = SlowdownBesideSet::new(own, set.utilization, set.slowdown);
            let rate = 1.0 / beside.slowdown;
            mean += set.probability * rate;
            square += set.probability * rate * rate;
        }
        let variance = (square / (mean * mean) - 1.0).max(0.0);
        RelativeSpeed {
            mean,
            variation: variance.sqrt(),
        }
    }
}
