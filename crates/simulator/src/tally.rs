//! What is counted during a run.

use std::time::Duration;

use packhorse_cluster::Time;
use packhorse_serving::Outcome;

use crate::{ReplanningReport, curves::Samples};

/// The stages of a batch, the same for all its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    /// Hand-over, transmission, and the way back.
    pub(crate) network: Duration,
    pub(crate) worker_queue: Duration,
    pub(crate) compute: Duration,
}

/// Counts per model. Times are kept in milliseconds; those of stages, of which there are many, with fewer digits.
#[derive(Debug)]
pub(crate) struct Tally {
    warmup: Duration,
    window: Duration,
    pub(crate) models: Vec<ModelTally>,
    pub(crate) replanning: Option<ReplanningReport>,
}

/// What became of the requests of a model.
#[derive(Debug, Default)]
pub(crate) struct ModelTally {
    /// Arrived in the window.
    pub(crate) offered: u64,
    /// Of these, answered within the SLO.
    pub(crate) good: u64,
    /// Refused or expired, over the whole run.
    pub(crate) dropped: u64,
    /// Accepted, and then lost with a worker, over the whole run.
    pub(crate) lost: u64,
    /// Over the whole run.
    pub(crate) batches: u64,
    pub(crate) batched: u64,
    pub(crate) batch_sizes: Samples,
    /// When the last request of the window was answered.
    pub(crate) last_answer: Time,
    /// Of those that arrived in the window and were answered.
    pub(crate) latency: Vec<f64>,
    pub(crate) queue: Vec<f32>,
    pub(crate) batch: Vec<f32>,
    /// With the number of requests that they count for.
    pub(crate) network: Vec<(f32, u32)>,
    pub(crate) worker_queue: Vec<(f32, u32)>,
    pub(crate) compute: Vec<(f32, u32)>,
}

fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

impl ModelTally {
    /// A request that counts was answered.
    pub(crate) fn answered(&mut self, latency: Duration, slo: Duration) {
        self.good += u64::from(latency <= slo);
        self.latency.push(millis(latency));
    }
}

impl Tally {
    pub(crate) fn new(models: usize, warmup: Duration, window: Duration) -> Self {
        let models = std::iter::repeat_with(ModelTally::default)
            .take(models)
            .collect();
        Self {
            warmup,
            window,
            models,
            replanning: None,
        }
    }

    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    pub(crate) fn window_start(&self) -> Time {
        Time::ZERO + self.warmup
    }

    pub(crate) fn window_end(&self) -> Time {
        self.window_start() + self.window
    }

    fn counts(&self, arrived: Time) -> bool {
        (self.window_start()..self.window_end()).contains(&arrived)
    }

    pub(crate) fn arrived(&mut self, model: usize, now: Time) {
        self.models[model].offered += u64::from(self.counts(now));
    }

    /// A request ended without an answer.
    pub(crate) fn ended(&mut self, model: usize, outcome: Outcome) {
        let tally = &mut self.models[model];
        match outcome {
            Outcome::Refused(_) | Outcome::Expired => tally.dropped += 1,
            Outcome::Lost | Outcome::Failed => tally.lost += 1,
        }
    }

    pub(crate) fn dispatched(&mut self, model: usize, now: Time, requests: usize) {
        let tally = &mut self.models[model];
        tally.batches += 1;
        tally.batched += requests as u64;
        tally.batch_sizes.push(now, requests);
    }

    /// A batch was answered; of each request: when it arrived, how long it waited for a replica, and then for the batch.
    pub(crate) fn answered(
        &mut self,
        model: usize,
        now: Time,
        slo: Duration,
        stages: Stages,
        requests: impl Iterator<Item = (Time, Duration, Duration)>,
    ) {
        let mut counted = 0;
        let window = self.window_start()..self.window_end();
        let tally = &mut self.models[model];
        for (arrived, queue, batch) in requests.filter(|request| window.contains(&request.0)) {
            counted += 1;
            tally.answered(now.saturating_since(arrived), slo);
            tally.queue.push(millis(queue) as f32);
            tally.batch.push(millis(batch) as f32);
        }
        if counted > 0 {
            tally.last_answer = now;
            tally.network.push((millis(stages.network) as f32, counted));
            tally
                .worker_queue
                .push((millis(stages.worker_queue) as f32, counted));
            tally.compute.push((millis(stages.compute) as f32, counted));
        }
    }
}
