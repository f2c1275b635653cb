//! The mean slowdown of a replica whose neighbours are active for a part of the time.

use crate::{interference::proportional_rate, slowdown::BySaturation};

/// The largest number of neighbours whose activity is enumerated: those of the highest mean utilisation. The others count as always
/// active at their mean utilisation.
const MAX_ENUMERATED: usize = 8;
/// The least factor by which active neighbours may lengthen a batch, whatever was learned.
const MIN_FACTOR: f64 = 0.2;

/// A replica on the same device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Neighbour {
    /// Effective SM utilisation while it is active, in percent.
    pub(super) utilization: f64,
    /// The fraction of time in which it is active.
    pub(super) busy: f64,
    /// Relative slowdown that it causes per 100 % of its utilisation, beyond [`crate::Interference`].
    pub(super) sensitivity: BySaturation<f64>,
}

/// The mean slowdown of a replica beside its neighbours, and its gradient.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ColocationSlowdown {
    /// The time of a batch over its time alone.
    pub(super) slowdown: f64,
    /// The derivatives of `slowdown` by each neighbour's `sensitivity`, in the neighbours' order.
    pub(super) gradient: Vec<BySaturation<f64>>,
}

/// The time of a batch over its time alone while a set of neighbours is active.
struct SetSlowdown {
    slowdown: f64,
    /// The derivative of `slowdown` by a neighbour's sensitivity, per percent of the neighbour's utilisation.
    derivative: BySaturation<f64>,
}

impl SetSlowdown {
    /// Calculates the slowdown of a replica of the utilisation `own` beside neighbours of the utilisation `others`, which cause the relative
    /// slowdown `contention`.
    fn new(own: f64, others: f64, contention: BySaturation<f64>) -> Self {
        let factor = |contention: f64| (1.0 + contention).max(MIN_FACTOR);
        let is_free = |contention: f64| f64::from(1.0 + contention > MIN_FACTOR) / 100.0;
        // The part of the neighbours' use for which the device has multiprocessors.
        let spare = ((100.0 - own).max(0.0) / others.max(f64::MIN_POSITIVE)).min(1.0);
        let up_to_capacity = factor(spare * contention.unsaturated);
        let shared = 1.0 / proportional_rate(own + others, others > 0.0);
        let beyond_capacity = shared * factor(contention.saturated);
        if own + others <= 100.0 || up_to_capacity >= beyond_capacity {
            Self {
                slowdown: up_to_capacity,
                derivative: BySaturation {
                    unsaturated: spare * is_free(spare * contention.unsaturated),
                    saturated: 0.0,
                },
            }
        } else {
            Self {
                slowdown: beyond_capacity,
                derivative: BySaturation {
                    unsaturated: 0.0,
                    saturated: shared * is_free(contention.saturated),
                },
            }
        }
    }
}

impl ColocationSlowdown {
    /// Calculates the slowdown of a replica of the effective utilisation `own`. Neighbours are active independently of each other
    /// and of the replica. With `A` the set of active neighbours,
    ///
    /// ```text
    /// slowdown = 1 / E[ 1 / slowdown(A) ]
    /// ```
    ///
    /// because over a long time a replica progresses at its mean rate. [`crate::SlowdownModel`] has the slowdown beside a set.
    pub(super) fn new(own: f64, neighbours: &[Neighbour]) -> Self {
        let mut order: Vec<usize> = (0..neighbours.len()).collect();
        let mean_utilization = |i: &usize| neighbours[*i].busy * neighbours[*i].utilization;
        order.sort_by(|a, b| mean_utilization(b).total_cmp(&mean_utilization(a)));
        let (enumerated, rest) = order.split_at(order.len().min(MAX_ENUMERATED));
        let background: f64 = rest.iter().map(mean_utilization).sum();
        let mut rate = 0.0;
        let mut rate_gradient = vec![BySaturation::default(); neighbours.len()];
        for set in 0_u32..1 << enumerated.len() {
            let is_active = |bit: usize| set >> bit & 1 == 1;
            let mut probability = 1.0;
            let mut others = background;
            let mut contention = BySaturation::default();
            for (bit, i) in enumerated.iter().enumerate() {
                let neighbour = &neighbours[*i];
                if is_active(bit) {
                    probability *= neighbour.busy;
                    others += neighbour.utilization;
                    contention =
                        contention.plus(neighbour.sensitivity, neighbour.utilization / 100.0);
                } else {
                    probability *= 1.0 - neighbour.busy;
                }
            }
            let beside = SetSlowdown::new(own, others, contention);
            rate += probability / beside.slowdown;
            let weight = probability / (beside.slowdown * beside.slowdown);
            let enumerated = enumerated.iter().enumerate();
            for (_, i) in enumerated.filter(|(bit, _)| is_active(*bit)) {
                let gradient = &mut rate_gradient[*i];
                *gradient = gradient.plus(beside.derivative, weight * neighbours[*i].utilization);
            }
        }
        let slowdown = 1.0 / rate;
        let by_sensitivity = |derivative: &BySaturation<f64>| {
            BySaturation::default().plus(*derivative, slowdown * slowdown)
        };
        Self {
            slowdown,
            gradient: rate_gradient.iter().map(by_sensitivity).collect(),
        }
    }
}
