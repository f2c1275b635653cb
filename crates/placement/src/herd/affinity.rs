//! Affinity sets: models whose batches take similar times, and may share a group.
//!
//! A batch of `b` of model `i` takes `α_i · b + β_i`. The affinity of model 1 to model 2 bounds the goodput that an optimal schedule may have
//! over one that serves the largest batch first, when batches of 1 are in the way of 2:
//!
//! ```text
//! (α₁ + β₁) / α₂                                                     if α₂ + β₂ − β₁ ≤ 0
//! min((α₁ + β₁) / α₂, max(α₁ / (α₂ + β₂ − β₁), α₁ / α₂))             otherwise
//! ```
//!
//! A model joins the first set to all of whose members its affinity is at most [`BOUND`], and opens a set if there is none.

use packhorse_cluster::{Problem, Profile};

use super::Stream;
use crate::{device_classes::DeviceClass, igniter::least_squares::fit_line};

/// The largest affinity of a model to the members of its set. The third-party simulators have 1.3 or 1.5.
const BOUND: f64 = 1.5;

/// The factor by which the bound grows while there are more sets than devices.
const GROWTH: f64 = 1.5;

/// The time of a batch in seconds: per row, and of an empty one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) per_row: f64,
    pub(super) empty: f64,
}

impl Line {
    /// Fits the rows of a profile. Measurement errors may give a negative coefficient, which is zero here.
    fn fit(profile: &Profile) -> Self {
        let rows = profile.whole();
        let points = rows
            .iter()
            .map(|row| (f64::from(row.batch_size), row.latency.as_secs_f64()));
        // One row says nothing about an empty batch.
        let proportional = [
            rows[0].latency.as_secs_f64() / f64::from(rows[0].batch_size),
            0.0,
        ];
        let [per_row, empty] = fit_line(points).unwrap_or(proportional);
        Self {
            per_row: per_row.max(0.0),
            empty: empty.max(0.0),
        }
    }

    /// Returns the affinity to another model; infinite if batches of the other take no time per row.
    pub(super) fn affinity_to(self, other: Self) -> f64 {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::INFINITY };
        let single = ratio(self.per_row + self.empty, other.per_row);
        let left = other.per_row + other.empty - self.empty;
        if left <= 0.0 {
            return single;
        }
        let per_row = ratio(self.per_row, other.per_row);
        single.min(ratio(self.per_row, left).max(per_row))
    }
}

/// Numbers the affinity sets of the streams: at most as many sets as there are devices.
pub(super) fn divide(problem: &Problem, classes: &[DeviceClass<'_>], streams: &mut [Stream]) {
    let line = |stream: &Stream| {
        let possible = classes.iter().zip(&stream.on_class);
        let mut possible = possible.filter(|(_, on_class)| on_class.is_some());
        let (class, _) = possible.next().expect("a stream runs on a class");
        let id = &problem.models[stream.model.0].id;
        let profile = problem.profiles.get(id, class.kind);
        Line::fit(profile.expect("it runs there"))
    };
    let lines: Vec<Line> = streams.iter().map(line).collect();
    let mut bound = BOUND;
    let mut sets = sets_within(&lines, bound);
    while sets
        .iter()
        .max()
        .is_some_and(|last| *last >= problem.devices.len())
    {
        bound *= GROWTH;
        sets = sets_within(&lines, bound);
    }
    for (stream, set) in streams.iter_mut().zip(sets) {
        stream.set = set;
    }
}

/// Returns the number of each model's set. With an infinite bound there is one set.
pub(super) fn sets_within(lines: &[Line], bound: f64) -> Vec<usize> {
    let mut sets: Vec<Vec<Line>> = Vec::new();
    let number = |line: &Line| {
        let joins = |set: &Vec<Line>| set.iter().all(|member| line.affinity_to(*member) <= bound);
        if let Some(found) = sets.iter().position(joins) {
            sets[found].push(*line);
            return found;
        }
        sets.push(vec![*line]);
        sets.len() - 1
    };
    lines.iter().map(number).collect()
}
