//! What company costs on average where neighbours come and go.

use crate::interference::contention;

/// How many neighbours are told apart; beside more, the least demanding count as always there with their mean utilisation.
const TOLD_APART: usize = 8;
/// Company does not make anything five times as fast, whatever was learned.
const LEAST_FACTOR: f64 = 0.2;

/// A neighbour of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Companion {
    /// What it takes of the device while it is active, in percent.
    pub(super) utilization: f64,
    /// The fraction of time in which it is.
    pub(super) busy: f64,
    /// How much longer the replica takes per 100 % of its utilisation, beyond the physics.
    pub(super) extra: f64,
}

/// How long a replica takes beside its neighbours, relative to alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Company {
    /// The slowdown.
    pub(super) slowdown: f64,
    /// Its derivative by the extra of each neighbour, in their order.
    pub(super) by_extra: Vec<f64>,
}

impl Company {
    /// Neighbours are active independently of each other and of the replica, whose own utilisation is `own`: with `A` the set of
    /// those active,
    ///
    /// ```text
    /// slowdown = 1 / E[ contention(A) / (1 + Σ_{j ∈ A} extraⱼ · uⱼ / 100) ]
    /// ```
    ///
    /// for over a long time a replica gets its mean rate of progress.
    pub(super) fn of(own: f64, neighbours: &[Companion]) -> Self {
        let mut order: Vec<usize> = (0..neighbours.len()).collect();
        let demand = |i: &usize| neighbours[*i].busy * neighbours[*i].utilization;
        order.sort_by(|a, b| demand(b).total_cmp(&demand(a)));
        let (apart, rest) = order.split_at(order.len().min(TOLD_APART));
        let background: f64 = rest.iter().map(demand).sum();
        let mut rate = 0.0;
        let mut slope = vec![0.0; neighbours.len()];
        for active in 0_u32..1 << apart.len() {
            let is_active = |bit: usize| active >> bit & 1 == 1;
            let mut probability = 1.0;
            let mut total = own + background;
            let mut factor = 1.0;
            for (bit, i) in apart.iter().enumerate() {
                let neighbour = &neighbours[*i];
                if is_active(bit) {
                    probability *= neighbour.busy;
                    total += neighbour.utilization;
                    factor += neighbour.extra * neighbour.utilization / 100.0;
                } else {
                    probability *= 1.0 - neighbour.busy;
                }
            }
            let share = probability * contention(total, active != 0 || background > 0.0);
            rate += share / factor.max(LEAST_FACTOR);
            if factor > LEAST_FACTOR {
                let active = apart.iter().enumerate().filter(|(bit, _)| is_active(*bit));
                for (_, i) in active {
                    slope[*i] += share * neighbours[*i].utilization / 100.0 / (factor * factor);
                }
            }
        }
        let slowdown = 1.0 / rate;
        Self {
            slowdown,
            by_extra: slope
                .iter()
                .map(|slope| slope * slowdown * slowdown)
                .collect(),
        }
    }
}
