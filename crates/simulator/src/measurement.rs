//! What a benchmark of a live gateway measures, told as a simulation tells it.

use packhorse_cluster::{ModelIndex, Time};

use crate::{
    ModelReport, Scenario, Schedule, Totals,
    report::{model_report, name},
    tally::ModelTally,
};

/// Counts what becomes of the requests of a [`Schedule`].
///
/// A latency is from the moment at which the request was due, not from the one at which it was sent: a client that falls behind
/// measures the wait that it causes (no coordinated omission).
#[derive(Debug)]
pub struct Measurement<'a> {
    scenario: &'a Scenario,
    schedule: &'a Schedule,
    models: Vec<ModelTally>,
}

impl<'a> Measurement<'a> {
    /// Before anything is sent.
    pub fn new(scenario: &'a Scenario, schedule: &'a Schedule) -> Self {
        let models = std::iter::repeat_with(ModelTally::default);
        let mut measurement = Self {
            scenario,
            schedule,
            models: models.take(scenario.problem.models.len()).collect(),
        };
        for &(due, model) in schedule.requests() {
            let counts = measurement.counts(model, due);
            measurement.models[model.0].offered += u64::from(counts);
        }
        measurement
    }

    fn counts(&self, model: ModelIndex, due: Time) -> bool {
        let (start, end) = self.schedule.window(model);
        (start..end).contains(&due)
    }

    /// A request was answered.
    pub fn answered(&mut self, model: ModelIndex, due: Time, now: Time) {
        if !self.counts(model, due) {
            return;
        }
        let slo = self.scenario.problem.models[model.0].slo;
        let tally = &mut self.models[model.0];
        tally.answered(now.saturating_since(due), slo);
        tally.last_answer = tally.last_answer.max(now);
    }

    /// The gateway refused a request, or let it expire.
    pub fn dropped(&mut self, model: ModelIndex) {
        self.models[model.0].dropped += 1;
    }

    /// A request came to nothing for another reason.
    pub fn lost(&mut self, model: ModelIndex) {
        self.models[model.0].lost += 1;
    }

    /// What has become of the requests, with what the gateway says of each model's mean batch.
    pub fn report(self, mean_batch: &[Option<f64>]) -> (Vec<ModelReport>, Totals) {
        let Self {
            scenario, schedule, ..
        } = self;
        let tallies = self.models.into_iter().zip(scenario.problem.models());
        let models: Vec<ModelReport> = tallies
            .map(|(tally, (i, model))| {
                let (start, end) = schedule.window(i);
                let window = end.saturating_since(start).as_secs_f64();
                ModelReport {
                    mean_batch: mean_batch.get(i.0).copied().flatten(),
                    ..model_report(name(&model.id), tally, window, start, end)
                }
            })
            .collect();
        let totals = Totals::of(&models);
        (models, totals)
    }
}
