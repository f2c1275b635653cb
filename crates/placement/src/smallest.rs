//! The smallest cluster that serves everything: how many devices of which kinds a policy needs, for whoever has no fixed cluster.
//!
//! A policy *serves all* on a cluster if it predicts every model's goodput to reach its rate there. [`smallest_cluster`] looks for
//! the cheapest cluster on which it does: the least cost per hour where every kind of device has a cost, else the fewest devices;
//! of equally dear ones the one with fewer devices, then with more of the earlier kinds.
//!
//! 1. *Can it be done at all?* Every model is tried by itself, on 1, 2, 4, … devices of each kind. One that does not reach its
//!    rate so, is taken for one that never does.
//! 2. *Exhaustively.* Clusters are tried from the cheapest on; the first that serves all is the answer, whatever the policy: many
//!    heuristics serve less on more devices (Usher replicates by multiples), so that bisection alone would not be honest.
//! 3. *By bisection*, where 256 clusters failed: each kind by itself and all kinds in equal numbers, doubled until
//!    everything is served; from the cheapest of these, kind by kind, the dearest first, as few as still serve all. That is a
//!    cluster from which no kind can give a device by bisection, and not certainly the cheapest: [`Cluster::exhaustive`] says which.
//!
//! A device on which the plan places nothing is dropped.
//!
//! Source: the setting of Usher (section 3.3) and iGniter (algorithm 1), which open devices as they need them; the thesis calls it
//! the non-fixed cluster (section 5.2.1).

use std::{cmp::Reverse, collections::BTreeSet};

use packhorse_cluster::{Device, DeviceIndex, ModelId, NodeName, Plan, Problem, RequestsPerSecond};

use crate::{Budget, PlaceError, PolicyEntry, PolicyOptions};

/// So many clusters are tried one by one, from the cheapest on.
const EXHAUSTIVE: usize = 256;
/// Rates are quotients of rounded times: a rate is reached if this much of it is.
const REACHED: f64 = 1.0 - 1e-9;

/// A cluster on which a policy serves all.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The problem with the devices of the cluster, in the order of their kinds.
    pub problem: Problem,
    /// What the policy places on them.
    pub plan: Plan,
    /// Whether every cheaper cluster was tried.
    pub exhaustive: bool,
}

/// Why there is no smallest cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SmallestError {
    /// There is no kind of device to choose from.
    #[error("there is no device whose kind could be chosen")]
    NoDevices,
    /// The policy gave no plan.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Some models do not reach their rate, however many devices there are.
    #[error("no cluster of up to {limit} devices serves every model: {}", shown(.models))]
    Unserved {
        /// The most devices that were tried.
        limit: usize,
        /// Which models, and why.
        models: Vec<(ModelId, String)>,
    },
}

fn shown(models: &[(ModelId, String)]) -> String {
    let models: Vec<String> = models
        .iter()
        .map(|(model, why)| format!("{model} ({why})"))
        .collect();
    models.join("; ")
}

/// The smallest cluster of at most `limit` devices, of the kinds in `template`, on which the policy serves all; how many devices the
/// template has of each kind, what runs on them, and their nodes do not matter. `tried` is told of every cluster before it is
/// tried: how many devices of each kind.
///
/// # Errors
/// If there is none, the policy fails, or the budget does not suffice.
pub fn smallest_cluster(
    policy: &PolicyEntry,
    template: &Problem,
    limit: usize,
    options: &PolicyOptions,
    budget: &mut Budget<'_>,
    tried: &mut dyn FnMut(&[usize]),
) -> Result<Cluster, SmallestError> {
    let mut search = Search {
        policy,
        kinds: kinds(template),
        template,
        limit,
        options,
        budget,
        tried,
    };
    if search.kinds.is_empty() || limit == 0 {
        return Err(SmallestError::NoDevices);
    }
    search.check_alone()?;
    let (found, exhaustive) = match search.exhaustively()? {
        Enumerated::Found(found) => (found, true),
        Enumerated::Nothing(last) => return Err(search.unserved(&last)),
        Enumerated::TooMany => (search.by_bisection()?, false),
    };
    let (problem, plan) = without_idle(found.problem, found.plan);
    Ok(Cluster {
        problem,
        plan,
        exhaustive,
    })
}

/// One device of each kind, in the order of their first.
fn kinds(template: &Problem) -> Vec<Device> {
    let mut kinds: Vec<Device> = Vec::new();
    for device in &template.devices {
        let alike = |kind: &Device| {
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
        if !kinds.iter().any(alike) {
            kinds.push(device.clone());
        }
    }
    kinds
}

/// How many devices of each kind.
type Counts = Vec<usize>;

/// A cluster's order among others: price, devices, and the more of the earlier kinds the sooner.
type Rank = (u128, usize, Reverse<Counts>);

struct Search<'a, 'b> {
    policy: &'a PolicyEntry,
    kinds: Vec<Device>,
    template: &'a Problem,
    limit: usize,
    options: &'a PolicyOptions,
    budget: &'a mut Budget<'b>,
    tried: &'a mut dyn FnMut(&[usize]),
}

/// A cluster that was tried.
struct Tried {
    counts: Counts,
    problem: Problem,
    plan: Plan,
}

enum Enumerated {
    /// The first that serves all.
    Found(Tried),
    /// There are no more clusters within the limit; the last one.
    Nothing(Tried),
    /// More than are tried one by one.
    TooMany,
}

impl Search<'_, '_> {
    /// Refuses models that do not even reach their rate by themselves.
    fn check_alone(&mut self) -> Result<(), SmallestError> {
        let mut never = Vec::new();
        for model in &self.template.models {
            let alone = Problem {
                models: vec![model.clone()],
                ..self.template.clone()
            };
            let mut each = 1;
            loop {
                let counts = vec![each; self.kinds.len()];
                let tried = self.ask(&alone, counts)?;
                if tried.serves_all() {
                    break;
                }
                if each >= self.limit {
                    never.extend(tried.short());
                    break;
                }
                each = self.limit.min(each * 2);
            }
        }
        if never.is_empty() {
            return Ok(());
        }
        Err(SmallestError::Unserved {
            limit: self.limit,
            models: never,
        })
    }

    /// From the cheapest cluster on. Every cluster is made once, of the one without its last device.
    fn exhaustively(&mut self) -> Result<Enumerated, SmallestError> {
        let nothing = vec![0; self.kinds.len()];
        let mut waiting: BTreeSet<Rank> = self.with_one_more(&nothing).collect();
        let mut last = None;
        for _ in 0..EXHAUSTIVE {
            let Some((_, devices, Reverse(counts))) = waiting.pop_first() else {
                break;
            };
            if devices < self.limit {
                waiting.extend(self.with_one_more(&counts).collect::<Vec<_>>());
            }
            let tried = self.ask(self.template, counts)?;
            if tried.serves_all() {
                return Ok(Enumerated::Found(tried));
            }
            last = Some(tried);
        }
        match last {
            Some(last) if waiting.is_empty() => Ok(Enumerated::Nothing(last)),
            _ => Ok(Enumerated::TooMany),
        }
    }

    fn with_one_more(&self, counts: &[usize]) -> impl Iterator<Item = Rank> {
        let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        (last..counts.len()).map(move |kind| {
            let mut more = counts.to_vec();
            more[kind] += 1;
            self.rank(more)
        })
    }

    fn by_bisection(&mut self) -> Result<Tried, SmallestError> {
        let kinds = self.kinds.len();
        let mut directions = vec![vec![1; kinds]];
        if kinds > 1 {
            directions.extend((0..kinds).map(|kind| unit(kinds, kind)));
        }
        let mut best: Option<Tried> = None;
        let mut furthest = None;
        for direction in directions {
            let tried = self.doubled(&direction)?;
            let cheaper =
                |best: &Tried| self.rank(tried.counts.clone()) < self.rank(best.counts.clone());
            if !tried.serves_all() {
                furthest.get_or_insert(tried);
            } else if best.as_ref().is_none_or(cheaper) {
                best = Some(tried);
            }
        }
        let Some(mut best) = best else {
            let furthest = furthest.expect("there is a direction, and it served all or did not");
            return Err(self.unserved(&furthest));
        };
        let mut dearest_first: Vec<usize> = (0..kinds).collect();
        dearest_first.sort_by_key(|&kind| Reverse(self.price(&unit(kinds, kind))));
        loop {
            let before = best.counts.clone();
            for &kind in &dearest_first {
                best = self.with_fewest(best, kind)?;
            }
            if best.counts == before {
                return Ok(best);
            }
        }
    }

    /// Multiples of a cluster, doubled until one serves all; else the last within the limit.
    fn doubled(&mut self, direction: &[usize]) -> Result<Tried, SmallestError> {
        let times = |factor: usize| direction.iter().map(|count| count * factor).collect();
        let most = self.limit / direction.iter().sum::<usize>();
        let mut factor = 1;
        loop {
            let tried = self.ask(self.template, times(factor))?;
            if factor >= most || tried.serves_all() {
                return Ok(tried);
            }
            factor = most.min(factor * 2);
        }
    }

    /// With as few devices of a kind as bisection finds to serve all.
    fn with_fewest(&mut self, mut best: Tried, kind: usize) -> Result<Tried, SmallestError> {
        let mut too_few = None;
        loop {
            let enough = best.counts[kind];
            let least = too_few.map_or(0, |count: usize| count + 1);
            if least >= enough {
                return Ok(best);
            }
            let mut counts = best.counts.clone();
            counts[kind] = least.midpoint(enough - 1);
            let middle = counts[kind];
            if counts.iter().all(|&count| count == 0) {
                too_few = Some(middle);
                continue;
            }
            let tried = self.ask(self.template, counts)?;
            if tried.serves_all() {
                best = tried;
            } else {
                too_few = Some(middle);
            }
        }
    }

    fn ask(&mut self, problem: &Problem, counts: Counts) -> Result<Tried, SmallestError> {
        (self.tried)(&counts);
        let mut devices = Vec::new();
        for (kind, &count) in self.kinds.iter().zip(&counts) {
            for _ in 0..count {
                devices.push(Device {
                    node: node(devices.len()),
                    ..kind.clone()
                });
            }
        }
        let problem = Problem {
            devices,
            current: Vec::new(),
            ..problem.clone()
        };
        let plan = self
            .policy
            .place_with(&problem, self.options, self.budget)?;
        Ok(Tried {
            counts,
            problem,
            plan,
        })
    }

    /// Per hour in millionths, or in devices.
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

    fn unserved(&self, tried: &Tried) -> SmallestError {
        SmallestError::Unserved {
            limit: self.limit,
            models: tried.short(),
        }
    }
}

impl Tried {
    fn serves_all(&self) -> bool {
        self.unreached().next().is_none()
    }

    /// The models that do not reach their rate, by index.
    fn unreached(&self) -> impl Iterator<Item = usize> {
        let models = self.problem.models.iter().zip(&self.plan.models);
        models
            .enumerate()
            .filter(|(_, (model, forecast))| forecast.goodput.get() < model.rate.get() * REACHED)
            .map(|(index, _)| index)
    }

    /// The models that do not reach their rate, and why.
    fn short(&self) -> Vec<(ModelId, String)> {
        let why = |index: usize| {
            let (model, forecast) = (&self.problem.models[index], &self.plan.models[index]);
            let goodput: RequestsPerSecond = forecast.goodput;
            let no_word = || format!("{goodput} of {} requests/s", model.rate);
            (
                model.id.clone(),
                forecast.shortfall.clone().unwrap_or_else(no_word),
            )
        };
        self.unreached().map(why).collect()
    }
}

fn unit(kinds: usize, kind: usize) -> Counts {
    (0..kinds).map(|other| usize::from(other == kind)).collect()
}

/// Every device is in a node of its own: nobody knows yet how they will be built in.
fn node(number: usize) -> NodeName {
    let name = format!("node{number}");
    name.parse().expect("a letter and digits are a name")
}

/// Without the devices on which nothing is placed.
fn without_idle(mut problem: Problem, mut plan: Plan) -> (Problem, Plan) {
    let used: BTreeSet<DeviceIndex> = plan.replicas.iter().map(|replica| replica.device).collect();
    let numbers: Vec<DeviceIndex> = used.into_iter().collect();
    problem.devices = numbers
        .iter()
        .enumerate()
        .map(|(number, device)| Device {
            node: node(number),
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
