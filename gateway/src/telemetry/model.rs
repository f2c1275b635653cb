//! What is measured of one model version.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_api::ModelGoodput;
use packhorse_cluster::{ModelId, Time};
use prometheus_client::metrics::histogram::Histogram;

use super::window::Window;
use crate::driver::Clock;

/// How many and how long in all: what Triton's statistics are made of.
#[derive(Debug, Default)]
pub struct Tally {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Tally {
    fn add(&self, count: u64, each: Duration) {
        self.count.fetch_add(count, Relaxed);
        let nanos = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos.saturating_mul(count), Relaxed);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// How long in all, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos.load(Relaxed)
    }
}

/// Where a request's time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// From the head of the HTTP request to the whole, valid request.
    Receive,
    /// Until the last request of its batch was there.
    Batch,
    /// From then until the batch was sent.
    Queue,
    /// To the worker and back.
    Network,
    /// In the worker, before anything was done with it.
    WorkerQueue,
    /// Into the device's memory.
    CopyIn,
    /// The module itself.
    Compute,
    /// Out of the device's memory.
    CopyOut,
}

impl Stage {
    pub(super) const ALL: [(Self, &'static str); 8] = [
        (Self::Receive, "receive"),
        (Self::Batch, "batch"),
        (Self::Queue, "queue"),
        (Self::Network, "network"),
        (Self::WorkerQueue, "worker_queue"),
        (Self::CopyIn, "copy_in"),
        (Self::Compute, "compute"),
        (Self::CopyOut, "copy_out"),
    ];
}

/// How a valid request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the model's answer.
    Answered,
    /// Never accepted.
    Refused,
    /// Accepted, but the deadline passed in the queue.
    Expired,
    /// Its worker or model was gone.
    Lost,
    /// The module threw, or answered another shape than it declares.
    Failed,
    /// Its client went away.
    Cancelled,
}

/// Triton's reasons of a failure.
pub(super) const FAILURE_REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Why a request missed its SLO.
pub(super) const MISS_CAUSES: [&str; 5] = ["late", "refused", "expired", "lost", "failed"];

/// The stages of a batch that came back, as its worker measured them, and how long it was away in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTimes {
    pub(crate) away: Duration,
    pub(crate) worker_queue: Duration,
    pub(crate) copy_in: Duration,
    pub(crate) compute: Duration,
    pub(crate) copy_out: Duration,
}

/// The counters, histograms and windows of one model version.
#[derive(Debug)]
pub struct ModelTelemetry {
    pub(super) model: ModelId,
    clock: Clock,
    /// Answered, with the time from the request's head to the answer.
    pub(super) success: Tally,
    /// By [`FAILURE_REASONS`].
    pub(super) failures: [Tally; FAILURE_REASONS.len()],
    pub(super) queue: Tally,
    pub(super) compute_input: Tally,
    pub(super) compute_infer: Tally,
    pub(super) compute_output: Tally,
    /// Rows computed.
    pub(super) inferences: AtomicU64,
    /// Batches computed.
    pub(super) executions: AtomicU64,
    /// Requests in the queue.
    pub(super) pending: AtomicU64,
    pub(super) slo_met: AtomicU64,
    /// By [`MISS_CAUSES`].
    pub(super) slo_missed: [AtomicU64; MISS_CAUSES.len()],
    /// By [`Stage::ALL`].
    pub(super) stages: [Histogram; Stage::ALL.len()],
    last_inference: AtomicU64,
    window: Mutex<Window>,
}

/// 0.1 ms to 60 s in steps of about 2.5: the range of an SLO.
const STAGE_BUCKETS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

impl ModelTelemetry {
    pub(super) fn new(model: ModelId, clock: Clock) -> Self {
        Self {
            model,
            clock,
            success: Tally::default(),
            failures: Default::default(),
            queue: Tally::default(),
            compute_input: Tally::default(),
            compute_infer: Tally::default(),
            compute_output: Tally::default(),
            inferences: AtomicU64::new(0),
            executions: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            slo_met: AtomicU64::new(0),
            slo_missed: Default::default(),
            stages: std::array::from_fn(|_| Histogram::new(STAGE_BUCKETS)),
            last_inference: AtomicU64::new(0),
            window: Mutex::new(Window::new(clock.now())),
        }
    }

    /// A valid request is there whose head arrived at `arrived`.
    pub(crate) fn begin(self: &Arc<Self>, arrived: Time, slo: Duration) -> RequestMeter {
        let now = self.clock.now();
        self.observe(Stage::Receive, now.saturating_since(arrived));
        self.in_window(|window| window.count(now, |counts| counts.offered += 1));
        RequestMeter {
            model: Arc::clone(self),
            arrived,
            slo,
            ended: false,
        }
    }

    /// How many requests wait now.
    pub(crate) fn pending(&self, requests: usize) {
        self.pending.store(requests as u64, Relaxed);
    }

    /// A request was `waited` in the queue when its batch was sent, the last `filled` of it after the last of the batch was there.
    pub(crate) fn dispatched(&self, waited: Duration, filled: Duration) {
        self.queue.add(1, waited);
        self.observe(Stage::Batch, waited.saturating_sub(filled));
        self.observe(Stage::Queue, filled);
    }

    /// A batch of so many requests and rows was computed.
    pub(crate) fn computed(&self, now: Time, requests: u64, rows: u64, times: BatchTimes) {
        self.executions.fetch_add(1, Relaxed);
        self.inferences.fetch_add(rows, Relaxed);
        self.compute_input.add(requests, times.copy_in);
        self.compute_infer.add(requests, times.compute);
        self.compute_output.add(requests, times.copy_out);
        let inside = times.worker_queue + times.copy_in + times.compute + times.copy_out;
        self.observe(Stage::Network, times.away.saturating_sub(inside));
        self.observe(Stage::WorkerQueue, times.worker_queue);
        self.observe(Stage::CopyIn, times.copy_in);
        self.observe(Stage::Compute, times.compute);
        self.observe(Stage::CopyOut, times.copy_out);
        self.last_inference.store(self.clock.unix_ms(now), Relaxed);
        self.in_window(|window| {
            window.count(now, |counts| {
                counts.batches += 1;
                counts.rows += rows;
            });
        });
    }

    fn observe(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time.as_secs_f64());
    }

    fn in_window<T>(&self, with: impl FnOnce(&mut Window) -> T) -> T {
        // A panic elsewhere can at worst have lost a count.
        with(&mut self.window.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&self, arrived: Time, slo: Duration, end: End) {
        let now = self.clock.now();
        let latency = now.saturating_since(arrived);
        let in_time = end == End::Answered && latency <= slo;
        if end == End::Answered {
            self.success.add(1, latency);
        }
        let failure = match end {
            End::Answered => None,
            End::Refused | End::Expired => Some(0),
            End::Cancelled => Some(1),
            End::Failed => Some(2),
            End::Lost => Some(3),
        };
        if let Some(reason) = failure {
            self.failures[reason].add(1, latency);
        }
        let missed = match end {
            End::Answered if in_time => None,
            End::Answered => Some(0),
            End::Refused => Some(1),
            End::Expired => Some(2),
            End::Lost => Some(3),
            End::Failed => Some(4),
            // Nobody waited for it: neither met nor missed.
            End::Cancelled => None,
        };
        if in_time {
            self.slo_met.fetch_add(1, Relaxed);
        }
        if let Some(cause) = missed {
            self.slo_missed[cause].fetch_add(1, Relaxed);
        }
        self.in_window(|window| match end {
            End::Answered => window.answered(now, latency, in_time),
            End::Refused | End::Expired => window.count(now, |counts| counts.dropped += 1),
            End::Lost | End::Failed | End::Cancelled => {}
        });
    }

    /// How the model fared in the last `window`.
    pub(super) fn goodput(&self, window: Duration) -> ModelGoodput {
        let now = self.clock.now();
        let summary = self.in_window(|ring| ring.summary(now, window));
        let (counts, seconds) = (summary.counts, summary.seconds);
        let quantile = |p| Some(summary.latencies.quantile(p)?.as_secs_f64() * 1e3);
        ModelGoodput {
            name: self.model.name.clone(),
            version: self.model.version,
            offered_rps: counts.offered as f64 / seconds,
            throughput_rps: counts.answered as f64 / seconds,
            goodput_rps: counts.in_time as f64 / seconds,
            dropped: counts.dropped,
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            mean_batch: (counts.batches > 0).then(|| counts.rows as f64 / counts.batches as f64),
        }
    }

    /// Triton's statistics: answered, and failed for whatever reason, since the model is served.
    pub fn success(&self) -> &Tally {
        &self.success
    }

    /// How many failed, and after how long in all, in nanoseconds.
    pub fn failed(&self) -> (u64, u64) {
        let sum = |part: fn(&Tally) -> u64| self.failures.iter().map(part).sum();
        (sum(Tally::count), sum(Tally::nanos))
    }

    /// Per request, the time in the queue.
    pub fn queue(&self) -> &Tally {
        &self.queue
    }

    /// Per request, the time its batch was copied in, computed, and copied out.
    pub fn compute(&self) -> [&Tally; 3] {
        [
            &self.compute_input,
            &self.compute_infer,
            &self.compute_output,
        ]
    }

    /// Rows computed.
    pub fn inferences(&self) -> u64 {
        self.inferences.load(Relaxed)
    }

    /// Batches computed.
    pub fn executions(&self) -> u64 {
        self.executions.load(Relaxed)
    }

    /// When the last batch came back, in milliseconds since 1970; 0 before the first.
    pub fn last_inference_unix_ms(&self) -> u64 {
        self.last_inference.load(Relaxed)
    }
}

/// Follows one request to its end. Dropped before that, its client went away.
#[derive(Debug)]
pub(crate) struct RequestMeter {
    model: Arc<ModelTelemetry>,
    arrived: Time,
    slo: Duration,
    ended: bool,
}

impl RequestMeter {
    /// The request ends now.
    pub(crate) fn end(mut self, end: End) {
        self.ended = true;
        self.model.end(self.arrived, self.slo, end);
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        if !self.ended {
            self.model.end(self.arrived, self.slo, End::Cancelled);
        }
    }
}
