//! How fast a replica progresses beside others that are active now and then.
//!
//! While the replicas of a set `A` compute beside replica `k`, it progresses at
//!
//! ```text
//! rate_k(A) = min(1, 100 / (u_k + Σ_A u_j)) / (1 + Σ_A θ_kj · u_j / 100)
//! ```
//!
//! of its solo speed: the rule of `packhorse_contention::Interference`, and what was learned beyond it (`SlowdownModel`). Others
//! are taken to be active independently of each other, each with the probability that it is busy; the pace is the mean over all
//! sets. Independence is consistent with the rule: where everybody uses the whole device, `busy_k · pace_k` summed over the replicas
//! is exactly the probability that anybody is busy, so that work is neither made nor lost.

/// Another replica of the same device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    /// The part of the time in which it computes.
    pub(crate) busy: f64,
    /// What it uses of the device then, in percent.
    pub(crate) utilization: f64,
    /// `θ · u / 100` of the subject beside it.
    pub(crate) extra: f64,
}

/// The progress of a replica, relative to its solo speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) mean: f64,
    /// Standard deviation over the sets of neighbours, relative to the mean.
    pub(crate) spread: f64,
}

impl Pace {
    pub(crate) const ALONE: Self = Self {
        mean: 1.0,
        spread: 0.0,
    };
}

/// Neighbours whose sets are told apart; beyond, those that vary least count with their mean.
const TOLD_APART: usize = 5;

/// Neighbours that may be active together.
#[derive(Clone, Copy, Debug)]
struct Set {
    used: f64,
    extra: f64,
    probability: f64,
}

/// The company of one replica.
#[derive(Debug, Default)]
pub(crate) struct Company {
    sets: Vec<Set>,
    /// If all are active.
    most: f64,
    extra: bool,
}

impl Company {
    /// Takes the place of what was there.
    pub(crate) fn gather(&mut self, neighbours: &mut [Neighbour]) {
        self.most = neighbours.iter().map(|other| other.utilization).sum();
        self.extra = neighbours.iter().any(|other| other.extra > 0.0);
        let spread =
            |other: &Neighbour| other.busy * (1.0 - other.busy) * other.utilization.powi(2);
        if neighbours.len() > TOLD_APART {
            neighbours.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
        }
        let (apart, steady) = neighbours.split_at(neighbours.len().min(TOLD_APART));
        self.sets.clear();
        self.sets.push(Set {
            used: steady
                .iter()
                .map(|other| other.busy * other.utilization)
                .sum(),
            extra: steady.iter().map(|other| other.busy * other.extra).sum(),
            probability: 1.0,
        });
        for other in apart {
            for i in 0..self.sets.len() {
                let without = &mut self.sets[i];
                let with = Set {
                    used: without.used + other.utilization,
                    extra: without.extra + other.extra,
                    probability: without.probability * other.busy,
                };
                without.probability *= 1.0 - other.busy;
                self.sets.push(with);
            }
        }
    }

    /// The pace of a replica that uses `own` percent, in this company.
    pub(crate) fn pace(&self, own: f64) -> Pace {
        if own + self.most <= 100.0 && !self.extra {
            return Pace::ALONE;
        }
        let (mut mean, mut square) = (0.0, 0.0);
        for set in &self.sets {
            let rate = f64::min(1.0, 100.0 / (own + set.used)) / (1.0 + set.extra);
            mean += set.probability * rate;
            square += set.probability * rate * rate;
        }
        let variance = (square / (mean * mean) - 1.0).max(0.0);
        Pace {
            mean,
            spread: variance.sqrt(),
        }
    }
}
