//! The search for the smallest cluster that serves everything, for users without a fixed cluster.
//!
//! A policy *serves all* on a cluster if it predicts a goodput of at least the rate for every model. [`smallest_cluster`] searches for the
//! cheapest such cluster: the one with the lowest cost per hour if every kind of device has a cost, else the one with the fewest devices.
//! Among equally expensive clusters it prefers fewer devices, then more devices of the earlier kinds.
//!
//! 1. *Feasibility.* Every model is tried alone on 1, 2, 4, … devices of each kind. A model that does not reach its rate is reported as
//!    one that no cluster serves.
//! 2. *Exhaustive search.* Clusters are tried in ascending order of price, and the first that serves all is the result. This is correct
//!    for every policy, whereas bisection alone is not: many heuristics serve less on more devices (Usher replicates by multiples).
//! 3. *Bisection*, after 256 clusters failed. Each kind alone and all kinds in equal numbers are doubled until everything is served.
//!    Beginning with the cheapest of these, the number of devices of each kind, the most expensive first, is reduced by bisection to the
//!    fewest that still serve all. The result cannot give up a device of any kind by bisection, but it need not be the cheapest cluster:
//!    [`SmallestCluster::exhaustive`] is false.
//!
//! Devices on which the plan places nothing are removed. A policy may serve all on some devices of one kind only in a plan for more of them, of which
//! it leaves some empty. So each kind is searched alone, too, and no cluster of several kinds costs more than one of a single kind.
//!
//! Source: the setting of Usher (section 3.3) and iGniter (algorithm 1), which open devices as they need them. The thesis calls it the
//! non-fixed cluster (section 5.2.1).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use packhorse_cluster::{
    Device, DeviceIndex, DeviceKind, ModelId, NodeName, Plan, Problem, Shortfall,
};

use crate::{Budget, PlaceError, PlanningOptions, PolicyEntry, tolerance::CARRIED};

/// The number of clusters that the exhaustive search tries.
const EXHAUSTIVE: usize = 256;

/// A cluster on which a policy serves all.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallestCluster {
    /// The problem with the devices of the cluster, in the order of their kinds.
    pub problem: Problem,
    /// The plan of the policy.
    pub plan: Plan,
    /// True if every cheaper cluster was tried.
    pub exhaustive: bool,
}

/// The reason why there is no smallest cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SmallestClusterError {
    /// The template has no device, or the limit is 0.
    #[error("there is no device whose kind could be chosen")]
    NoDevices,
    /// The policy made no plan.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Some models do not reach their rate, however many devices there are.
    #[error("no cluster of up to {limit} devices serves every model: {}", with_reasons(.models))]
    Unserved {
        /// The largest number of devices that was tried.
        limit: usize,
        /// The models with the reasons.
        models: Vec<(ModelId, Shortfall)>,
    },
}

fn with_reasons(models: &[(ModelId, Shortfall)]) -> String {
    let models: Vec<String> = models
        .iter()
        .map(|(model, reason)| format!("{model} ({reason})"))
        .collect();
    models.join("; ")
}

/// Returns the smallest cluster of at most `limit` devices, of the kinds in `template`, on which the policy serves all. The number of
/// devices in the template, their nodes and their running replicas do not matter. `on_trial` is called before each trial with the number
/// of devices of each kind.
///
/// # Errors
/// If there is no such cluster, the policy fails, or the budget does not suffice.
pub fn smallest_cluster(
    policy: &PolicyEntry,
    template: &Problem,
    limit: usize,
    options: &PlanningOptions,
    budget: &mut Budget<'_>,
    on_trial: &mut dyn FnMut(&[usize]),
) -> Result<SmallestCluster, SmallestClusterError> {
    let mut search = Search {
        policy,
        kinds: one_of_each_kind(template),
        template,
        limit,
        options,
        budget,
        trial_steps: None,
        failed: BTreeSet::new(),
        on_trial,
    };
    let (mut found, exhaustive) = search.cheapest()?;
    if search.kinds.len() > 1 {
        let is_only = |kind: usize, counts: &Counts| counts.iter().sum::<usize>() == counts[kind];
        for kind in 0..search.kinds.len() {
            // This is the result of its kind alone.
            if exhaustive && is_only(kind, &found.counts) {
                continue;
            }
            let of_kind = search.cheapest_of_kind(kind)?;
            let is_cheaper = |other: &Trial| search.rank(other.used()) < search.rank(found.used());
            if let Some(cheaper) = of_kind.filter(is_cheaper) {
                found = cheaper;
            }
        }
    }
    Ok(found.into_cluster(exhaustive))
}

/// Returns a cluster near another one on which the policy serves all and that can give up no device. It is found sooner than by
/// [`smallest_cluster`], of which it is the result where more devices never serve less.
///
/// From the other cluster, or from one device if it has none, the search moves by 1, 2, 4, … devices, and then bisects. If the other
/// cluster is too small and there are several kinds of devices, the search begins anew.
///
/// No trial has more than `trial_steps` steps, unless the policy makes no plan with them. With more, a policy may find a plan on fewer
/// devices.
///
/// # Errors
/// If there is no such cluster, the policy fails, or the budget does not suffice.
pub(crate) fn smallest_cluster_near(
    policy: &PolicyEntry,
    template: &Problem,
    near: &BTreeMap<DeviceKind, usize>,
    limit: usize,
    trial_steps: u64,
    options: &PlanningOptions,
    budget: &mut Budget<'_>,
) -> Result<SmallestCluster, SmallestClusterError> {
    let mut search = Search {
        policy,
        kinds: one_of_each_kind(template),
        template,
        limit,
        options,
        budget,
        trial_steps: Some(trial_steps),
        failed: BTreeSet::new(),
        on_trial: &mut |_| {},
    };
    search.check_models_alone()?;
    let of_kind = |kind: &Device| near.get(&kind.kind).copied().unwrap_or_default();
    let mut counts: Counts = search.kinds.iter().map(of_kind).collect();
    if !(1..=limit).contains(&counts.iter().sum()) {
        counts.fill(0);
        counts[0] = 1;
    }
    let near = search.try_cluster(template, counts)?;
    let found = match near.counts.as_slice() {
        _ if near.serves_all() => search.shrink(near)?,
        [count] => search.grow(*count)?,
        _ => search.bisect()?,
    };
    Ok(found.into_cluster(false))
}

/// Returns the first device of each kind.
fn one_of_each_kind(template: &Problem) -> Vec<Device> {
    let mut kinds: Vec<Device> = Vec::new();
    for device in &template.devices {
        let is_equal = |kind: &Device| {
            (
                &kind.kind,
                kind.memory,
                kind.multiprocessors,
                kind.cost_per_hour,
            ) == (
                &device.kind,
                device.memory,
                device.multiprocessors,
                device.cost_per_hour,
            )
        };
        if !kinds.iter().any(is_equal) {
            kinds.push(device.clone());
        }
    }
    kinds
}

/// The number of devices of each kind.
type Counts = Vec<usize>;

/// The order of a cluster among others: by price, then by number of devices, then with more devices of the earlier kinds first.
type Rank = (u128, usize, Reverse<Counts>);

struct Search<'a, 'b> {
    policy: &'a PolicyEntry,
    kinds: Vec<Device>,
    template: &'a Problem,
    limit: usize,
    options: &'a PlanningOptions,
    budget: &'a mut Budget<'b>,
    /// The most steps of a trial; none for those of the budget.
    trial_steps: Option<u64>,
    /// The clusters that do not serve all models of the template.
    failed: BTreeSet<Counts>,
    on_trial: &'a mut dyn FnMut(&[usize]),
}

/// A cluster that was tried, with the policy's plan.
struct Trial {
    counts: Counts,
    problem: Problem,
    plan: Plan,
}

/// The result of the exhaustive search.
enum EnumerationResult {
    /// The first cluster that serves all.
    Found(Trial),
    /// The last cluster that was tried, if not all were tried before; none within the limit serves all.
    NotFound(Option<Trial>),
    /// There are more clusters than the search tries.
    TooMany,
}

impl Search<'_, '_> {
    /// Finds the cheapest cluster. The second value is true if every cheaper one was tried.
    fn cheapest(&mut self) -> Result<(Trial, bool), SmallestClusterError> {
        self.check_models_alone()?;
        match self.enumerate()? {
            EnumerationResult::Found(found) => Ok((found, true)),
            EnumerationResult::NotFound(last) => Err(last.map_or_else(
                || SmallestClusterError::Unserved {
                    limit: self.limit,
                    models: Vec::new(),
                },
                |last| self.unserved(&last),
            )),
            EnumerationResult::TooMany => Ok((self.bisect()?, false)),
        }
    }

    /// Finds the cheapest cluster of one kind; `None` if there is none. Those that failed are not tried again.
    fn cheapest_of_kind(&mut self, kind: usize) -> Result<Option<Trial>, SmallestClusterError> {
        let count = self.kinds.len();
        let of_kind = |number: usize| -> Counts {
            let others = (0..count).map(|other| if other == kind { number } else { 0 });
            others.collect()
        };
        let failed =
            (1..=self.limit.min(EXHAUSTIVE)).filter(|n| self.failed.contains(&of_kind(*n)));
        let failed = failed.map(|number| vec![number]).collect();
        let on_trial = &mut *self.on_trial;
        let mut alone = Search {
            policy: self.policy,
            kinds: vec![self.kinds[kind].clone()],
            template: self.template,
            limit: self.limit,
            options: self.options,
            budget: &mut *self.budget,
            trial_steps: self.trial_steps,
            failed,
            on_trial: &mut |counts| on_trial(&of_kind(counts[0])),
        };
        match alone.cheapest() {
            Ok((mut found, _)) => {
                found.counts = of_kind(found.counts[0]);
                Ok(Some(found))
            }
            Err(SmallestClusterError::Unserved { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that there are devices, and that every model reaches its rate alone.
    fn check_models_alone(&mut self) -> Result<(), SmallestClusterError> {
        if self.kinds.is_empty() || self.limit == 0 {
            return Err(SmallestClusterError::NoDevices);
        }
        let mut unserved = Vec::new();
        for model in &self.template.models {
            let alone = Problem {
                models: vec![model.clone()],
                ..self.template.clone()
            };
            let mut each = 1;
            loop {
                let counts = vec![each; self.kinds.len()];
                let trial = self.try_cluster(&alone, counts)?;
                if trial.serves_all() {
                    break;
                }
                if each >= self.limit {
                    unserved.extend(trial.unserved_models());
                    break;
                }
                each = self.limit.min(each * 2);
            }
        }
        if unserved.is_empty() {
            return Ok(());
        }
        Err(SmallestClusterError::Unserved {
            limit: self.limit,
            models: unserved,
        })
    }

    /// Tries the clusters in ascending order of price. Each cluster is generated once, from the cluster without its last device.
    fn enumerate(&mut self) -> Result<EnumerationResult, SmallestClusterError> {
        let empty = vec![0; self.kinds.len()];
        let mut waiting: BTreeSet<Rank> = self.with_one_more(&empty).collect();
        let mut last = None;
        for _ in 0..EXHAUSTIVE {
            let Some((_, devices, Reverse(counts))) = waiting.pop_first() else {
                break;
            };
            if devices < self.limit {
                waiting.extend(self.with_one_more(&counts).collect::<Vec<_>>());
            }
            if self.failed.contains(&counts) {
                continue;
            }
            let trial = self.try_cluster(self.template, counts)?;
            if trial.serves_all() {
                return Ok(EnumerationResult::Found(trial));
            }
            self.failed.insert(trial.counts.clone());
            last = Some(trial);
        }
        Ok(if waiting.is_empty() {
            EnumerationResult::NotFound(last)
        } else {
            EnumerationResult::TooMany
        })
    }

    /// Returns the clusters with one more device of the last kind or a later one.
    fn with_one_more(&self, counts: &[usize]) -> impl Iterator<Item = Rank> {
        let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        (last..counts.len()).map(move |kind| {
            let mut more = counts.to_vec();
            more[kind] += 1;
            self.rank(more)
        })
    }

    /// Finds a small cluster by doubling and bisection.
    fn bisect(&mut self) -> Result<Trial, SmallestClusterError> {
        let kinds = self.kinds.len();
        let mut directions = vec![vec![1; kinds]];
        if kinds > 1 {
            directions.extend((0..kinds).map(|kind| unit(kinds, kind)));
        }
        let mut best: Option<Trial> = None;
        let mut largest = None;
        for direction in directions {
            let trial = self.double(&direction)?;
            let cheaper =
                |best: &Trial| self.rank(trial.counts.clone()) < self.rank(best.counts.clone());
            if !trial.serves_all() {
                largest.get_or_insert(trial);
            } else if best.as_ref().is_none_or(cheaper) {
                best = Some(trial);
            }
        }
        let Some(mut best) = best else {
            let largest = largest.expect("there is a direction, and it served all or did not");
            return Err(self.unserved(&largest));
        };
        loop {
            let before = best.counts.clone();
            for kind in self.most_expensive_first() {
                best = self.with_fewest(best, kind)?;
            }
            if best.counts == before {
                return Ok(best);
            }
        }
    }

    /// Tries multiples of a cluster, doubled until one serves all, and returns that one or the last one within the limit.
    fn double(&mut self, direction: &[usize]) -> Result<Trial, SmallestClusterError> {
        let multiple = |factor: usize| direction.iter().map(|count| count * factor).collect();
        let most = self.limit / direction.iter().sum::<usize>();
        let mut factor = 1;
        loop {
            let trial = self.try_cluster(self.template, multiple(factor))?;
            if factor >= most || trial.serves_all() {
                return Ok(trial);
            }
            factor = most.min(factor * 2);
        }
    }

    /// Reduces the devices of a kind to the fewest with which bisection finds that the cluster serves all.
    fn with_fewest(&mut self, best: Trial, kind: usize) -> Result<Trial, SmallestClusterError> {
        self.with_fewer(best, kind, None, None)
    }

    /// Reduces the devices of a kind to the fewest that are found: by `step`, which doubles as long as the cluster serves all, and, after
    /// that or without a step, by bisection down to more than `too_few`.
    fn with_fewer(
        &mut self,
        mut best: Trial,
        kind: usize,
        mut too_few: Option<usize>,
        mut step: Option<usize>,
    ) -> Result<Trial, SmallestClusterError> {
        loop {
            let enough = best.counts[kind];
            let least = too_few.map_or(0, |count: usize| count + 1);
            if least >= enough {
                return Ok(best);
            }
            let mut counts = best.counts.clone();
            counts[kind] = match (too_few, step) {
                (None, Some(step)) => enough.saturating_sub(step),
                _ => least.midpoint(enough - 1),
            };
            let tried = counts[kind];
            if counts.iter().all(|&count| count == 0) {
                too_few = Some(tried);
                continue;
            }
            let trial = self.try_cluster(self.template, counts)?;
            if trial.serves_all() {
                best = trial;
                step = step.map(|step| step * 2);
            } else {
                too_few = Some(tried);
            }
        }
    }

    /// Removes devices from a cluster that serves all, the most expensive kind first, until it can give up none.
    fn shrink(&mut self, mut best: Trial) -> Result<Trial, SmallestClusterError> {
        let kinds = self.kinds.len();
        loop {
            let before = best.counts.clone();
            for kind in self.most_expensive_first() {
                best = self.with_fewer(best, kind, None, Some(1))?;
            }
            if kinds == 1 || best.counts == before {
                return Ok(best);
            }
        }
    }

    /// Adds devices of the only kind to a number that is too small, until the cluster serves all.
    fn grow(&mut self, mut too_few: usize) -> Result<Trial, SmallestClusterError> {
        let mut step = 1;
        loop {
            let trial = self.try_cluster(self.template, vec![self.limit.min(too_few + step)])?;
            if trial.serves_all() {
                return self.with_fewer(trial, 0, Some(too_few), None);
            }
            if trial.counts[0] >= self.limit {
                return Err(self.unserved(&trial));
            }
            too_few = trial.counts[0];
            step *= 2;
        }
    }

    fn most_expensive_first(&self) -> Vec<usize> {
        let count = self.kinds.len();
        let mut kinds: Vec<usize> = (0..count).collect();
        kinds.sort_by_key(|&kind| Reverse(self.price(&unit(count, kind))));
        kinds
    }

    /// Makes the policy's plan for a problem on a cluster.
    fn try_cluster(
        &mut self,
        problem: &Problem,
        counts: Counts,
    ) -> Result<Trial, SmallestClusterError> {
        (self.on_trial)(&counts);
        let mut devices = Vec::new();
        for (kind, &count) in self.kinds.iter().zip(&counts) {
            for _ in 0..count {
                devices.push(Device {
                    node: node_name(devices.len()),
                    ..kind.clone()
                });
            }
        }
        let problem = Problem {
            devices,
            current: Vec::new(),
            ..problem.clone()
        };
        let plan = self.place(&problem)?;
        Ok(Trial {
            counts,
            problem,
            plan,
        })
    }

    /// Makes the policy's plan with the steps of a trial or, if these do not suffice for any, with all.
    fn place(&mut self, problem: &Problem) -> Result<Plan, PlaceError> {
        if let Some(steps) = self.trial_steps {
            let mut part = self.budget.part(steps);
            let placed = self.policy.place_with(problem, self.options, &mut part);
            if placed != Err(PlaceError::OutOfSteps) {
                return placed;
            }
        }
        self.policy.place_with(problem, self.options, self.budget)
    }

    /// Returns the price of a cluster: its cost per hour in millionths, or its number of devices in millions if a kind has no cost.
    fn price(&self, counts: &[usize]) -> u128 {
        let costs: Option<Vec<f64>> = self.kinds.iter().map(|kind| kind.cost_per_hour).collect();
        let costs = costs.unwrap_or_else(|| vec![1.0; counts.len()]);
        let millionths = |cost: f64| (cost * 1e6).round() as u128;
        costs
            .iter()
            .zip(counts)
            .map(|(&cost, &count)| millionths(cost) * count as u128)
            .sum()
    }

    fn rank(&self, counts: Counts) -> Rank {
        (self.price(&counts), counts.iter().sum(), Reverse(counts))
    }

    fn unserved(&self, trial: &Trial) -> SmallestClusterError {
        SmallestClusterError::Unserved {
            limit: self.limit,
            models: trial.unserved_models(),
        }
    }
}

impl Trial {
    /// Returns the number of devices of each kind on which the plan places something.
    fn used(&self) -> Counts {
        let used: BTreeSet<DeviceIndex> = { self.plan.replicas.iter() }
            .map(|replica| replica.device)
            .collect();
        let mut first = 0;
        let of_kind = |count: &usize| {
            let devices = DeviceIndex(first)..DeviceIndex(first + count);
            first += count;
            used.range(devices).count()
        };
        self.counts.iter().map(of_kind).collect()
    }

    /// Returns the cluster without the devices on which the plan places nothing.
    fn into_cluster(self, exhaustive: bool) -> SmallestCluster {
        let (problem, plan) = without_unused_devices(self.problem, self.plan);
        SmallestCluster {
            problem,
            plan,
            exhaustive,
        }
    }

    fn serves_all(&self) -> bool {
        self.unserved_indices().next().is_none()
    }

    /// Returns the indices of the models that do not reach their rate.
    fn unserved_indices(&self) -> impl Iterator<Item = usize> {
        let models = self.problem.models.iter().zip(&self.plan.models);
        models
            .enumerate()
            .filter(|(_, (model, forecast))| forecast.goodput.get() < model.rate.get() * CARRIED)
            .map(|(index, _)| index)
    }

    /// Returns the models that do not reach their rate, with the reasons.
    fn unserved_models(&self) -> Vec<(ModelId, Shortfall)> {
        let with_reason = |index: usize| {
            let (model, forecast) = (&self.problem.models[index], &self.plan.models[index]);
            let unexplained = Shortfall::Unexplained {
                goodput: forecast.goodput,
                rate: model.rate,
            };
            (
                model.id.clone(),
                forecast.shortfall.clone().unwrap_or(unexplained),
            )
        };
        self.unserved_indices().map(with_reason).collect()
    }
}

/// Returns a cluster of one device of a kind.
fn unit(kinds: usize, kind: usize) -> Counts {
    (0..kinds).map(|other| usize::from(other == kind)).collect()
}

/// Returns the name of a device's own node, as the devices of a cluster to be built have no nodes yet.
fn node_name(number: usize) -> NodeName {
    let name = format!("node{number}");
    name.parse().expect("a letter and digits are a name")
}

/// Removes the devices on which nothing is placed.
fn without_unused_devices(mut problem: Problem, mut plan: Plan) -> (Problem, Plan) {
    let used: BTreeSet<DeviceIndex> = plan.replicas.iter().map(|replica| replica.device).collect();
    let numbers: Vec<DeviceIndex> = used.into_iter().collect();
    problem.devices = numbers
        .iter()
        .enumerate()
        .map(|(number, device)| Device {
            node: node_name(number),
            ..problem.devices[device.0].clone()
        })
        .collect();
    for replica in &mut plan.replicas {
        let number = numbers
            .binary_search(&replica.device)
            .expect("it is one of those used");
        replica.device = DeviceIndex(number);
    }
    (problem, plan)
}
