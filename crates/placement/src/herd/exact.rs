//! The groups with the largest smallest burst tolerance, by integer linear programming.

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Solution as _, Variable, variable};

use super::{Cluster, Group, LARGEST_GROUP, Stream};
use crate::{Budget, PlaceError, milp::solver, tolerance::round_up};

/// The largest burst tolerance that counts: a bound for the solver's numbers.
const LARGEST_TOLERANCE: f64 = 1e3;

/// The weight of the mean served part of the streams in the objective, beside the smallest tolerance.
pub(super) const SERVED_WEIGHT: f64 = 1e-3;

/// The units into which a device's memory is divided. What models need is rounded up to whole units: a solver, which meets limits
/// within tolerances, cannot exceed a sum of whole numbers.
const MEMORY_UNITS: f64 = 1e5;

/// A group that the program may use: that of a stream, which stands first in it. Groups of equal devices are interchangeable, and a
/// program that numbered them otherwise would find each plan once for every order of its groups.
struct PossibleGroup {
    class: usize,
    /// The largest size.
    most: f64,
    size: Variable,
    /// The variables `x` of the streams of the first one's affinity set, from it on, that the class can serve.
    members: BTreeMap<usize, Variable>,
}

/// Returns the groups of an optimum. A stream without a device is in none.
pub(super) fn groups(
    cluster: &Cluster<'_>,
    budget: &mut Budget<'_>,
) -> Result<Vec<Group>, PlaceError> {
    if cluster.streams.is_empty() {
        return Ok(Vec::new());
    }
    let mut variables = ProblemVariables::new();
    let mut constraints: Vec<Constraint> = Vec::new();
    let mut possible: Vec<PossibleGroup> = Vec::new();
    for (number, class) in cluster.classes.iter().enumerate() {
        let most = class.devices.len().min(LARGEST_GROUP) as f64;
        let mut all = Expression::default();
        for (first, stream) in cluster.streams.iter().enumerate() {
            if stream.on_class[number].is_none() {
                continue;
            }
            let size = variables.add(variable().integer().min(0.0).max(most));
            let mut memory = Expression::default();
            let mut members = BTreeMap::new();
            for (i, other) in cluster.streams.iter().enumerate().skip(first) {
                let Some(on_class) = other.on_class[number].filter(|_| other.set == stream.set)
                else {
                    continue;
                };
                let member = variables.add(variable().binary());
                let part = on_class.memory.as_u64() as f64 / class.memory.as_u64().max(1) as f64;
                memory.add_mul(round_up(part * MEMORY_UNITS), member);
                members.insert(i, member);
            }
            constraints.push(memory.leq(MEMORY_UNITS));
            for member in members.values().skip(1) {
                constraints.push((*member - members[&first]).leq(0.0));
            }
            constraints.push((size - most * members[&first]).leq(0.0));
            all += size;
            possible.push(PossibleGroup {
                class: number,
                most,
                size,
                members,
            });
        }
        constraints.push(all.leq(class.devices.len() as f64));
    }
    let smallest = variables.add(variable().min(0.0).max(highest_bound(cluster)));
    let mut objective: Expression = smallest.into();
    for i in 0..cluster.streams.len() {
        let (mut memberships, mut tolerance) = (Expression::default(), Expression::default());
        for group in &possible {
            let Some(&member) = group.members.get(&i) else {
                continue;
            };
            memberships += member;
            // The product of size and membership.
            let devices = variables.add(variable().min(0.0).max(group.most));
            constraints.push((devices - group.size).leq(0.0));
            constraints.push((devices - group.most * member).leq(0.0));
            let on_class = cluster.streams[i].on_class[group.class];
            let load = on_class.expect("it is a possible member").load;
            tolerance.add_mul(load.recip().min(LARGEST_TOLERANCE), devices);
        }
        // A cluster that lacks the memory leaves streams without a group.
        constraints.push(memberships.leq(1.0));
        constraints.push((smallest - tolerance.clone()).leq(0.0));
        let served = variables.add(variable().min(0.0).max(1.0));
        constraints.push((served - tolerance).leq(0.0));
        objective.add_mul(SERVED_WEIGHT / cluster.streams.len() as f64, served);
    }
    let solution = solver::solve(variables.maximise(objective), constraints, budget)?;
    let group = |possible: &PossibleGroup| Group {
        class: possible.class,
        streams: possible
            .members
            .iter()
            .filter(|(_, member)| solution.value(**member) > 0.5)
            .map(|(stream, _)| *stream)
            .collect(),
        size: solution.value(possible.size).round().max(0.0) as usize,
    };
    let groups = possible.iter().map(group);
    Ok(groups
        .filter(|group| group.size > 0 && !group.streams.is_empty())
        .collect())
}

/// Returns a number that the smallest tolerance cannot exceed: that of the stream that gains least from a whole group.
fn highest_bound(cluster: &Cluster<'_>) -> f64 {
    let best = |stream: &Stream| {
        let on_classes = stream.on_class.iter().zip(&cluster.classes);
        let tolerances = on_classes.filter_map(|(on_class, class)| {
            Some(class.devices.len().min(LARGEST_GROUP) as f64 / (*on_class)?.load)
        });
        tolerances.fold(0.0, f64::max)
    };
    let bounds = cluster.streams.iter().map(best);
    bounds.fold(LARGEST_TOLERANCE, f64::min)
}
