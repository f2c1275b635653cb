//! The counters of a benchmark of a live gateway, whose report is that of a simulation.

use packhorse_cluster::{ModelIndex, Time};

use crate::{
    ArrivalSchedule, ModelReport, Scenario, Totals,
    counters::ModelCounters,
    report::{model_name, model_report},
};

/// The counters of the requests of an [`ArrivalSchedule`].
///
/// A latency is counted from the time at which the request was due, not from that at which it was sent: the wait that a client causes
/// by falling behind is a part of it (no coordinated omission).
#[derive(Debug)]
pub struct BenchCounters<'a> {
    scenario: &'a Scenario,
    schedule: &'a ArrivalSchedule,
    models: Vec<ModelCounters>,
}

impl<'a> BenchCounters<'a> {
    /// Returns the counters before any request has ended.
    pub fn new(scenario: &'a Scenario, schedule: &'a ArrivalSchedule) -> Self {
        let models = std::iter::repeat_with(ModelCounters::default);
        let mut counters = Self {
            scenario,
            schedule,
            models: models.take(scenario.problem.models.len()).collect(),
        };
        for &(due, model) in schedule.requests() {
            let counts = counters.counts(model, due);
            counters.models[model.0].offered += u64::from(counts);
        }
        counters
    }

    /// Returns true if the request is in its model's window.
    fn counts(&self, model: ModelIndex, due: Time) -> bool {
        let (start, end) = self.schedule.window(model);
        (start..end).contains(&due)
    }

    /// Counts a request that was answered.
    pub fn answered(&mut self, model: ModelIndex, due: Time, now: Time) {
        if !self.counts(model, due) {
            return;
        }
        let slo = self.scenario.problem.models[model.0].slo;
        let counters = &mut self.models[model.0];
        counters.answered(now.saturating_since(due), slo);
        counters.last_answer = counters.last_answer.max(now);
    }

    /// Counts a request that the gateway refused or let expire.
    pub fn dropped(&mut self, model: ModelIndex) {
        self.models[model.0].dropped += 1;
    }

    /// Counts a request that failed for another reason.
    pub fn lost(&mut self, model: ModelIndex) {
        self.models[model.0].lost += 1;
    }

    /// Returns the reports of the models, with the mean batch sizes that the gateway reports, and their totals.
    pub fn report(self, mean_batch: &[Option<f64>]) -> (Vec<ModelReport>, Totals) {
        let Self {
            scenario, schedule, ..
        } = self;
        let counters = self.models.into_iter().zip(scenario.problem.models());
        let models: Vec<ModelReport> = counters
            .map(|(counters, (i, model))| {
                let (start, end) = schedule.window(i);
                let window = end.saturating_since(start).as_secs_f64();
                ModelReport {
                    mean_batch: mean_batch.get(i.0).copied().flatten(),
                    ..model_report(model_name(&model.id), counters, window, start, end)
                }
            })
            .collect();
        let totals = Totals::from_models(&models);
        (models, totals)
    }
}
