//! The mean slowdown of a replica whose neighbours are active for a part of the time.

use crate::interference::proportional_rate;

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
    pub(super) sensitivity: f64,
}

/// The mean slowdown of a replica beside its neighbours, and its gradient.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ColocationSlowdown {
    /// The time of a batch over its time alone.
    pub(super) slowdown: f64,
    /// The derivatives of `slowdown` by each neighbour's `sensitivity`, in the neighbours' order.
    pub(super) gradient: Vec<f64>,
}

impl ColocationSlowdown {
    /// Calculates the slowdown of a replica of the effective utilisation `own`. Neighbours are active independently of each other
    /// and of the replica. With `A` the set of active neighbours,
    ///
    /// ```text
    /// slowdown = 1 / E[ proportional_rate(A) / (1 + Σ_{j ∈ A} sensitivityⱼ · uⱼ / 100) ]
    /// ```
    ///
    /// because over a long time a replica progresses at its mean rate.
    pub(super) fn new(own: f64, neighbours: &[Neighbour]) -> Self {
        let mut order: Vec<usize> = (0..neighbours.len()).collect();
        let mean_utilization = |i: &usize| neighbours[*i].busy * neighbours[*i].utilization;
        order.sort_by(|a, b| mean_utilization(b).total_cmp(&mean_utilization(a)));
        let (enumerated, rest) = order.split_at(order.len().min(MAX_ENUMERATED));
        let background: f64 = rest.iter().map(mean_utilization).sum();
        let mut rate = 0.0;
        let mut rate_gradient = vec![0.0; neighbours.len()];
        for active in 0_u32..1 << enumerated.len() {
            let is_active = |bit: usize| active >> bit & 1 == 1;
            let mut probability = 1.0;
            let mut total = own + background;
            let mut factor = 1.0;
            for (bit, i) in enumerated.iter().enumerate() {
                let neighbour = &neighbours[*i];
                if is_active(bit) {
                    probability *= neighbour.busy;
                    total += neighbour.utilization;
                    factor += neighbour.sensitivity * neighbour.utilization / 100.0;
                } else {
                    probability *= 1.0 - neighbour.busy;
                }
            }
            let weighted = probability * proportional_rate(total, active != 0 || background > 0.0);
            rate += weighted / factor.max(MIN_FACTOR);
            if factor > MIN_FACTOR {
                let active = enumerated
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| is_active(*bit));
                for (_, i) in active {
                    rate_gradient[*i] +=
                        weighted * neighbours[*i].utilization / 100.0 / (factor * factor);
                }
            }
        }
        let slowdown = 1.0 / rate;
        Self {
            slowdown,
            gradient: rate_gradient
                .iter()
                .map(|derivative| derivative * slowdown * slowdown)
                .collect(),
        }
    }
}
