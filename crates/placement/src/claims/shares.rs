//! The shares of the devices' time that models claim.

use packhorse_cluster::{DemandedModel, ModelIndex, Problem, RequestsPerSecond};

use super::{needed, rate};
use crate::bound::least_cost;

/// The part of the devices' time that is shared out. Queues and neighbours take the rest.
const USABLE: f64 = 0.8;

/// The rates that models claim, in requests/s.
pub(super) struct Shares {
    /// The part of each model's need that its fair share of the devices carries.
    pub(super) fair: Vec<RequestsPerSecond>,
    /// The fair share, and the part of the rest of the rate that a model of a higher priority may take from the others.
    pub(super) entitled: Vec<RequestsPerSecond>,
}

impl Shares {
    /// Shares the time of the devices out, from the highest priority to the lowest: first what the models of a priority need, then what
    /// else they ask for, unless no model has a lower priority.
    pub(super) fn new(problem: &Problem, levels: &[usize]) -> Self {
        // What no device serves in time takes no time of one.
        let cost = |(index, model): (ModelIndex, &DemandedModel)| {
            let cost = least_cost(problem, index, model.latency_scale);
            if cost.is_finite() { cost } else { 0.0 }
        };
        let costs: Vec<f64> = problem.models().map(cost).collect();
        let mut left = USABLE * problem.devices.len() as f64;
        // Returns what the models of a level get of these demands.
        let mut share_out = |level: usize, demands: &[f64]| -> Vec<f64> {
            let is_member = |model: usize| levels[model] == level;
            let models = 0..demands.len();
            let times = models.filter(|model| is_member(*model));
            let mut times: Vec<f64> = times.map(|model| demands[model] * costs[model]).collect();
            let limit = max_min_level(&mut times, left.max(0.0));
            let shares = demands.iter().zip(&costs).enumerate();
            let shares = shares.map(|(model, (demand, cost))| match demand * cost > limit {
                _ if !is_member(model) => 0.0,
                true => limit / cost,
                false => *demand,
            });
            let shares: Vec<f64> = shares.collect();
            left -= shares
                .iter()
                .zip(&costs)
                .map(|(share, cost)| share * cost)
                .sum::<f64>();
            shares
        };
        let needs: Vec<f64> = problem.models.iter().map(needed).collect();
        let mut fair = vec![0.0; needs.len()];
        let mut more = vec![0.0; needs.len()];
        let lowest = levels.iter().copied().max().unwrap_or(0);
        for level in 0..=lowest {
            add(&mut fair, &share_out(level, &needs));
            if level < lowest {
                let models = problem.models.iter().zip(&needs);
                let rest = models.map(|(model, need)| model.rate.get() - need);
                let rest: Vec<f64> = rest.collect();
                add(&mut more, &share_out(level, &rest));
            }
        }
        let entitled = fair.iter().zip(&more).map(|(fair, more)| rate(fair + more));
        Self {
            entitled: entitled.collect(),
            fair: fair.into_iter().map(rate).collect(),
        }
    }
}

/// Adds the elements of a list to those of another.
fn add(sums: &mut [f64], list: &[f64]) {
    for (sum, element) in sums.iter_mut().zip(list) {
        *sum += element;
    }
}

/// Returns the limit of each demand with which their sum is at most `capacity`, and the smallest are served whole.
pub(super) fn max_min_level(demands: &mut [f64], capacity: f64) -> f64 {
    demands.sort_by(f64::total_cmp);
    let mut left = capacity;
    for (served, demand) in demands.iter().enumerate() {
        let level = left / (demands.len() - served) as f64;
        if *demand > level {
            return level;
        }
        left -= demand;
    }
    f64::INFINITY
}
