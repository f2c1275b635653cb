//! The shares of the devices' time that models claim.

use std::collections::BTreeSet;

use packhorse_cluster::{DemandedModel, DeviceIndex, ModelIndex, Problem, RequestsPerSecond};

use crate::{bound::least_cost, candidates::Candidates};

/// The part of the devices' time that is shared out. Queues and neighbours take the rest.
const USABLE: f64 = 0.8;

/// The rates that models claim, in requests/s.
pub(super) struct Shares {
    /// The part of each model's need that its fair share of the devices carries.
    pub(super) fair: Vec<RequestsPerSecond>,
    /// The fair share, and the part of the rest of the rate that a model of a higher priority may take from the others.
    pub(super) entitled: Vec<RequestsPerSecond>,
    /// The group of the devices that can serve each model; none for a model that no device can serve.
    groups: Vec<Option<usize>>,
}

/// The devices that can serve the same models.
struct Group {
    /// The devices.
    devices: BTreeSet<DeviceIndex>,
    /// The groups whose devices are all of this one.
    within: Vec<usize>,
    /// The time of the devices that nobody has got yet, in seconds per second.
    left: f64,
}

impl Shares {
    /// Shares the time of the devices out, from the highest priority to the lowest: first what the models of a priority need, then what
    /// else they ask for, unless no model has a lower priority. A model gets time only of devices that can serve it.
    pub(super) fn new(problem: &Problem, levels: &[usize]) -> Self {
        let models = problem.models();
        let costs = models.map(|(index, model)| least_cost(problem, index, model.latency_scale));
        let mut costs: Vec<f64> = costs.collect();
        let (mut groups, of_models) = groups(problem, &costs);
        // What no device serves takes no time of one.
        for (cost, group) in costs.iter_mut().zip(&of_models) {
            if group.is_none() {
                *cost = 0.0;
            }
        }
        // Returns what the models of a level get of these demands.
        let mut share_out = |level: usize, demands: &[f64]| -> Vec<f64> {
            let models = demands.iter().zip(levels);
            let of_level = models.map(|(demand, of)| if *of == level { *demand } else { 0.0 });
            let mut shares: Vec<f64> = of_level.collect();
            // Groups within others come first, so that the others divide what is left beside them.
            for group in &groups {
                let is_member = |model: usize| {
                    let of = of_models[model];
                    levels[model] == level && of.is_some_and(|of| group.within.contains(&of))
                };
                let members: Vec<usize> = (0..shares.len()).filter(|m| is_member(*m)).collect();
                let times = members.iter().map(|model| shares[*model] * costs[*model]);
                let limit = max_min_level(&mut times.collect::<Vec<_>>(), group.left.max(0.0));
                for model in members {
                    if shares[model] * costs[model] > limit {
                        shares[model] = limit / costs[model];
                    }
                }
            }
            for group in &mut groups {
                let models = shares.iter().zip(&costs).zip(&of_models);
                let used = models.map(|((share, cost), of)| match of {
                    Some(of) if group.within.contains(of) => share * cost,
                    _ => 0.0,
                });
                group.left -= used.sum::<f64>();
            }
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
            groups: of_models,
        }
    }

    /// Returns true if some device can serve a model.
    pub(super) fn is_reachable(&self, model: usize) -> bool {
        self.groups[model].is_some()
    }
}

/// Returns the groups of devices, those within others first, and the group of each model, whose requests cost these times in seconds. The last group has the devices of all others. Where
/// neither of two groups is within the other, their models may be given more than these devices have together.
fn groups(problem: &Problem, costs: &[f64]) -> (Vec<Group>, Vec<Option<usize>>) {
    let candidates = Candidates::new(problem);
    let serving = |(model, cost): (usize, &f64)| -> BTreeSet<DeviceIndex> {
        let model = ModelIndex(model);
        let devices = problem.devices().filter(|_| cost.is_finite());
        let devices = devices.filter(|(device, of)| {
            let mut sizes = candidates.on_device(model, *device).iter();
            sizes.any(|size| size.memory.is_none_or(|memory| memory <= of.memory))
        });
        devices.map(|(device, _)| device).collect()
    };
    let serving: Vec<BTreeSet<DeviceIndex>> = costs.iter().enumerate().map(serving).collect();
    let all: BTreeSet<DeviceIndex> = serving.iter().flatten().copied().collect();
    let distinct: BTreeSet<&BTreeSet<DeviceIndex>> = serving.iter().chain([&all]).collect();
    let mut distinct: Vec<_> = distinct.into_iter().filter(|set| !set.is_empty()).collect();
    distinct.sort_by_key(|devices| devices.len());
    let group = |devices: &&BTreeSet<DeviceIndex>| Group {
        devices: (*devices).clone(),
        within: (0..distinct.len())
            .filter(|other| distinct[*other].is_subset(devices))
            .collect(),
        left: USABLE * devices.len() as f64,
    };
    let groups: Vec<Group> = distinct.iter().map(group).collect();
    let of_model =
        |devices: &BTreeSet<DeviceIndex>| groups.iter().position(|group| group.devices == *devices);
    let of_models = serving.iter().map(of_model).collect();
    (groups, of_models)
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

/// Returns a number as a rate; none for a number that is no rate.
pub(super) fn rate(number: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(number).unwrap_or(RequestsPerSecond::ZERO)
}

/// Returns the part of a model's rate that no other model of its priority may take; the rate where no need is known.
pub(super) fn needed(model: &DemandedModel) -> f64 {
    let rate = model.rate.get();
    model.need.map_or(rate, |need| need.get().min(rate))
}
