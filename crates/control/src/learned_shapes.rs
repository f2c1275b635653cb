//! The sizes that the inputs of clients have, and the shapes with which models are measured because of them.
//!
//! A signature with variable dimensions says nothing of their usual size, and the time of a batch depends on it. A model whose registration says no
//! usual shapes is measured with an assumed size first, and again once its requests are known to have another one.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{InputShapes, ModelId, Program, Time};

use crate::shape_counts::ShapeCounts;

/// The number of rows that must be known before a model is measured for them.
const MIN_ROWS: f64 = 100.0;
/// The number of rows of which the mean size is kept, if a sample has few.
const WINDOW_ROWS: f64 = 1000.0;
/// The number of samples of which the mean size is kept, if they have many rows.
const WINDOW_SAMPLES: f64 = 10.0;
/// The deviation of a dimension's mean size from the measured one, relative to it, above which the model is measured again. With it the times
/// of a profile are wrong by about as much.
const DEVIATION: f64 = 0.25;
/// The largest deviation, relative to the mean size, of a shape that stands for it.
const REPRESENTATIVE: f64 = 0.1;
/// The number of successive samples of deviation after which a model is measured again.
const DEVIATING_SAMPLES: u32 = 2;
/// The shortest time between two measurements of a model for its requests. It doubles with each, because sizes that come and go are no
/// reason to measure for ever.
const FIRST_INTERVAL: Duration = Duration::from_mins(5);
/// The longest such time.
const MAX_INTERVAL: Duration = Duration::from_hours(1);

/// The sizes of the inputs of all models with variable ones, and the shapes that were learned from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearnedShapes {
    models: BTreeMap<ModelId, LearnedShape>,
}

/// The sizes of a model's inputs.
#[derive(Clone, Debug, Default)]
struct LearnedShape {
    /// The counts of the last sample.
    counted: ShapeCounts,
    /// The rows that the mean is of.
    rows: f64,
    /// The sums of the sizes over these rows.
    sums: Vec<f64>,
    /// The number of successive samples in which the mean was away from the profile.
    deviating: u32,
    /// The shapes that the model is measured with; none before its requests have been others than the assumed ones.
    shapes: Option<InputShapes>,
    /// Shapes that the program could not be measured with.
    refused: Option<InputShapes>,
    /// The time before which the model is not measured again.
    not_before: Time,
    /// The number of measurements for its requests.
    measured: u32,
}

impl LearnedShape {
    /// Adds what was counted since the last sample. Returns false if there was nothing.
    fn add(&mut self, counts: &ShapeCounts) -> bool {
        let (rows, sums) = counts.since(&self.counted);
        self.counted.clone_from(counts);
        if rows == 0 {
            return false;
        }
        if self.sums.len() != sums.len() {
            (self.rows, self.sums) = (0.0, vec![0.0; sums.len()]);
        }
        let rows = rows as f64;
        let window = WINDOW_ROWS.max((WINDOW_SAMPLES - 1.0) * rows);
        let kept = if self.rows > window {
            window / self.rows
        } else {
            1.0
        };
        self.rows = self.rows * kept + rows;
        for (sum, new) in self.sums.iter_mut().zip(sums) {
            *sum = *sum * kept + new as f64;
        }
        true
    }

    fn mean(&self) -> Vec<f64> {
        self.sums.iter().map(|sum| sum / self.rows).collect()
    }

    /// Returns the shapes that stand for the requests: those of a batch that came, if there is one near the mean, because some programs take only some
    /// sizes; else the mean.
    fn representative(&self, program: &Program) -> Option<InputShapes> {
        let mean = self.mean();
        let came = self.counted.nearest(&mean);
        let of_came = came.and_then(|sizes| InputShapes::with_sizes(program, sizes));
        if came.is_some_and(|sizes| !deviates(sizes, &mean, REPRESENTATIVE)) {
            return of_came;
        }
        let rounded: Vec<u64> = mean
            .iter()
            .map(|size| size.round().max(1.0) as u64)
            .collect();
        let of_mean = InputShapes::with_sizes(program, &rounded)?;
        let is_valid = of_mean.as_typical_of(program).validate().is_ok();
        if is_valid && self.refused.as_ref() != Some(&of_mean) {
            Some(of_mean)
        } else {
            of_came
        }
    }
}

/// Returns true if a mean size is further away from a size than the part `most` of it.
fn deviates(sizes: &[u64], mean: &[f64], most: f64) -> bool {
    let ratio = |(size, mean): (&u64, &f64)| mean.max(1.0) / (*size).max(1) as f64;
    sizes.len() != mean.len()
        || sizes
            .iter()
            .zip(mean)
            .any(|pair| ratio(pair).ln().abs() > most.ln_1p())
}

impl LearnedShapes {
    /// Restores the shapes that a model's profile was measured with, where they are not those that it would be measured with at first.
    pub(crate) fn restore<'a>(
        &mut self,
        model: &ModelId,
        program: &Program,
        mut measured: impl Iterator<Item = &'a InputShapes>,
    ) {
        if !is_learned_for(program) {
            return;
        }
        let first = InputShapes::tried(program);
        let learned = measured.find(|shapes| {
            **shapes != first
                && shapes.sizes(program).is_some()
                && shapes.as_typical_of(program).validate().is_ok()
        });
        if let Some(shapes) = learned {
            self.models.entry(model.clone()).or_default().shapes = Some(shapes.clone());
        }
    }

    /// Returns the shapes that a model is measured with because of its requests; `None` if that is as its registration says.
    pub(crate) fn get(&self, model: &ModelId) -> Option<&InputShapes> {
        self.models.get(model)?.shapes.as_ref()
    }

    /// Takes the counts of a sample. `measured` are the shapes of the model's profiles. Returns true if the model is to be measured with
    /// other shapes from now on: those that [`LearnedShapes::get`] returns.
    pub(crate) fn sample<'a>(
        &mut self,
        now: Time,
        model: &ModelId,
        program: &Program,
        counts: &ShapeCounts,
        measured: impl Iterator<Item = &'a InputShapes>,
    ) -> bool {
        if !is_learned_for(program) || counts.sums.len() != program.variable_dims().count() {
            return false;
        }
        let learned = self.models.entry(model.clone()).or_default();
        if !learned.add(counts) {
            return false;
        }
        let mean = learned.mean();
        let sizes: Vec<Vec<u64>> = measured
            .filter_map(|shapes| shapes.sizes(program))
            .collect();
        if !sizes.iter().any(|sizes| deviates(sizes, &mean, DEVIATION)) {
            learned.deviating = 0;
            return false;
        }
        learned.deviating = learned.deviating.saturating_add(1);
        if learned.rows < MIN_ROWS
            || learned.deviating < DEVIATING_SAMPLES
            || now < learned.not_before
        {
            return false;
        }
        let Some(shapes) = learned.representative(program) else {
            return false;
        };
        let chosen = shapes.sizes(program);
        if learned.refused.as_ref() == Some(&shapes)
            || sizes.iter().all(|sizes| Some(sizes) == chosen.as_ref())
        {
            return false;
        }
        let interval = FIRST_INTERVAL.saturating_mul(1 << learned.measured.min(8));
        learned.not_before = now + interval.min(MAX_INTERVAL);
        learned.measured = learned.measured.saturating_add(1);
        learned.deviating = 0;
        learned.shapes = Some(shapes);
        true
    }

    /// Returns true if the requests of a model are known to have inputs of about these shapes.
    pub(crate) fn agrees(&self, model: &ModelId, program: &Program, shapes: &InputShapes) -> bool {
        let learned = self.models.get(model);
        let known = learned.filter(|learned| learned.rows >= MIN_ROWS);
        let sizes = shapes.sizes(program);
        known
            .zip(sizes)
            .is_some_and(|(learned, sizes)| !deviates(&sizes, &learned.mean(), DEVIATION))
    }

    /// Notes that a model could not be measured with its learned shapes.
    pub(crate) fn refused(&mut self, model: &ModelId) {
        if let Some(learned) = self.models.get_mut(model) {
            learned.refused = learned.shapes.take();
        }
    }

    /// Removes a model.
    pub(crate) fn remove(&mut self, model: &ModelId) {
        self.models.remove(model);
    }
}

/// Returns true if the shapes of a program's inputs vary, and its registration does not say the usual ones.
pub(crate) fn is_learned_for(program: &Program) -> bool {
    program.has_variable_inputs() && !program.says_typical_shapes()
}

#[cfg(test)]
mod tests;
