//! The mean slowdown of a replica whose neighbours are active for a part of the time.

use super::saturation::{BySaturation, SlowdownBesideSet};

/// The largest number of neighbours whose activity is enumerated: those of the highest mean utilisation. The others count as always
/// active at their mean utilisation.
const MAX_ENUMERATED: usize = 8;

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

impl ColocationSlowdown {
    /// Calculates the slowdown of a replica of the effective utilisation `own`. Neighbours are active independently of each other
    /// and of the replica. With `A` the set of active neighbours,
    ///
    /// ```text
    /// slowdown = 1 / E[ 1 / slowdown(A) ]
    /// ```
    ///
    /// because over a long time a replica progresses at its mean rate. [`SlowdownBesideSet`] has the slowdown beside a set.
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
            let beside = SlowdownBesideSet::new(own, others, contention);
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
