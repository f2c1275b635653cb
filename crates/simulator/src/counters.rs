//! The counters of a run.

use std::time::Duration;

use packhorse_cluster::Time;
use packhorse_serving::RequestOutcome;

use crate::curves::BatchSizeSamples;

/// The times of a batch's stages, the same for all its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    /// Hand-over, transmission, and the return.
    pub(crate) network: Duration,
    pub(crate) worker_queue: Duration,
    pub(crate) compute: Duration,
}

/// The counters of a simulated run.
#[derive(Debug)]
pub(crate) struct RunCounters {
    warmup: Duration,
    window: Duration,
    pub(crate) models: Vec<ModelCounters>,
    /// The moves of weights; `None` if no device has a pool.
    pub(crate) pools: Option<PoolCounters>,
}

/// The moves of weights, over the whole run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolCounters {
    /// The weights that were copied to a device.
    pub(crate) loads: u64,
    /// The weights that made room for others.
    pub(crate) evictions: u64,
    /// The requests that came when no device had the weights of their model.
    pub(crate) cold_requests: u64,
}

/// The counters of a model's requests. Times are in milliseconds; those of stages, of which there are many, have fewer digits.
#[derive(Debug, Default)]
pub(crate) struct ModelCounters {
    /// The requests that arrived in the window.
    pub(crate) offered: u64,
    /// The requests that arrived in the window and were answered within the SLO.
    pub(crate) in_slo: u64,
    /// The requests that were refused or expired, over the whole run.
    pub(crate) dropped: u64,
    /// The requests that were accepted and lost with a worker, over the whole run.
    pub(crate) lost: u64,
    /// The batches that were sent, over the whole run.
    pub(crate) batches: u64,
    /// The requests in these batches.
    pub(crate) batched_requests: u64,
    pub(crate) batch_sizes: BatchSizeSamples,
    /// The time at which the last answer to a request of the window arrived.
    pub(crate) last_answer: Time,
    /// The latency of each request that arrived in the window and was answered.
    pub(crate) latency: Vec<f64>,
    /// The wait of each of these for a free credit.
    pub(crate) queue: Vec<f32>,
    /// The wait of each of these for the batch to fill.
    pub(crate) batch: Vec<f32>,
    /// The network time of each batch, with its number of such requests.
    pub(crate) network: Vec<(f32, u32)>,
    /// The wait of each batch at its worker, with its number of such requests.
    pub(crate) worker_queue: Vec<(f32, u32)>,
    /// The compute time of each batch, with its number of such requests.
    pub(crate) compute: Vec<(f32, u32)>,
}

fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

impl ModelCounters {
    /// Counts an answer to a request of the window.
    pub(crate) fn answered(&mut self, latency: Duration, slo: Duration) {
        self.in_slo += u64::from(latency <= slo);
        self.latency.push(millis(latency));
    }
}

impl RunCounters {
    pub(crate) fn new(models: usize, warmup: Duration, window: Duration) -> Self {
        let models = std::iter::repeat_with(ModelCounters::default)
            .take(models)
            .collect();
        Self {
            warmup,
            window,
            models,
            pools: None,
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

    pub(crate) fn request_arrived(&mut self, model: usize, now: Time) {
        let in_window = (self.window_start()..self.window_end()).contains(&now);
        self.models[model].offered += u64::from(in_window);
    }

    /// Counts a request that ended without an answer.
    pub(crate) fn request_ended(&mut self, model: usize, outcome: RequestOutcome) {
        let counters = &mut self.models[model];
        match outcome {
            RequestOutcome::Refused(_) | RequestOutcome::Expired => counters.dropped += 1,
            RequestOutcome::Lost | RequestOutcome::Failed => counters.lost += 1,
            // The engine reports only the requests without an answer.
            RequestOutcome::Answered | RequestOutcome::Cancelled => {}
        }
    }

    pub(crate) fn batch_sent(&mut self, model: usize, now: Time, requests: usize) {
        let counters = &mut self.models[model];
        counters.batches += 1;
        counters.batched_requests += requests as u64;
        counters.batch_sizes.push(now, requests);
    }

    /// Counts an answered batch. `requests` has the arrival of each request, its wait for a free credit, and its wait for the batch to
    /// fill.
    pub(crate) fn batch_answered(
        &mut self,
        model: usize,
        now: Time,
        slo: Duration,
        stages: Stages,
        requests: impl Iterator<Item = (Time, Duration, Duration)>,
    ) {
        let mut counted = 0;
        let window = self.window_start()..self.window_end();
        let counters = &mut self.models[model];
        for (arrived, queue, batch) in requests.filter(|request| window.contains(&request.0)) {
            counted += 1;
            counters.answered(now.saturating_since(arrived), slo);
            counters.queue.push(millis(queue) as f32);
            counters.batch.push(millis(batch) as f32);
        }
        if counted > 0 {
            counters.last_answer = now;
            let count_stage = |stage: &mut Vec<(f32, u32)>, time| {
                stage.push((millis(time) as f32, counted));
            };
            count_stage(&mut counters.network, stages.network);
            count_stage(&mut counters.worker_queue, stages.worker_queue);
            count_stage(&mut counters.compute, stages.compute);
        }
    }
}
