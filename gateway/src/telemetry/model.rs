//! The measurements of one model version.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_api::{CacheUse, ModelGoodput};
use packhorse_cluster::{ModelId, Time, VariantOf};
use packhorse_control::RequestCounts;
use packhorse_serving::{Refusal, RequestOutcome};

use super::{
    batch_shapes::BatchShapes,
    count_and_time::CountAndTime,
    otel::{RequestIdentity, Tracer},
    paused_tenants::PausedTenants,
    request_log::{
        BatchOutcome, BatchRecord, BatchStages, Micros, ModelNumber, ReplicaNumber, RequestBatch,
        RequestCourse, RequestLog, RequestRecord,
    },
    request_texts::TextPlace,
    sliding_window::SlidingWindow,
    stage_histogram::StageHistogram,
};
use crate::clock::Clock;

/// A stage of a request between arrival and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The time from the head of the HTTP request to the complete, valid request.
    Receive,
    /// The time in which pictures became tensors, of a request that had any; a part of that in which it was received.
    Decode,
    /// The time in which texts became tensors, of a request that had any; a part of that in which it was received.
    Tokenize,
    /// The time in which a request was looked for in the cache, of a model that has one; a part of that in which it was received.
    Lookup,
    /// The time from then until the driver took the request from its inbox.
    Inbox,
    /// The time from then until the weights of the model were on the device, of a request that found them elsewhere.
    Load,
    /// The time from then until the last request of its batch arrived.
    Batch,
    /// The time from then until the batch was sent.
    Queue,
    /// The transmission to the worker and back.
    Network,
    /// The time in the worker before the batch was handled.
    WorkerQueue,
    /// The copy into the device's memory.
    CopyIn,
    /// The computation of the program.
    Compute,
    /// The copy out of the device's memory.
    CopyOut,
    /// The time from a result's arrival until the driver took it from its inbox.
    ResultInbox,
}

impl Stage {
    pub(super) const ALL: [(Self, &'static str); 14] = [
        (Self::Receive, "receive"),
        (Self::Decode, "decode"),
        (Self::Tokenize, "tokenize"),
        (Self::Lookup, "lookup"),
        (Self::Inbox, "inbox"),
        (Self::Load, "load"),
        (Self::Batch, "batch"),
        (Self::Queue, "queue"),
        (Self::Network, "network"),
        (Self::WorkerQueue, "worker_queue"),
        (Self::CopyIn, "copy_in"),
        (Self::Compute, "compute"),
        (Self::CopyOut, "copy_out"),
        (Self::ResultInbox, "result_inbox"),
    ];
}

/// The reasons of a failure, as Triton names them.
pub(super) const FAILURE_REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// The causes of a missed SLO.
pub(super) const MISS_CAUSES: [&str; 5] = ["late", "refused", "expired", "lost", "failed"];

/// The parts of the time from a request's arrival until its batch was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// The time until the weights of its model were on the device.
    pub(crate) load: Duration,
    /// The time from then until the last request of its batch arrived.
    pub(crate) batch: Duration,
    /// The time from then until the batch was sent.
    pub(crate) queue: Duration,
}

impl Waits {
    /// Returns the parts for a request that arrived, whose model's weights were there, whose batch was complete, and was sent at these times, in this
    /// order or sooner.
    pub(crate) fn new(arrived: Time, loaded: Time, complete: Time, sent: Time) -> Self {
        let loaded = loaded.clamp(arrived, sent.max(arrived));
        let complete = complete.clamp(loaded, sent.max(loaded));
        Self {
            load: loaded.saturating_since(arrived),
            batch: complete.saturating_since(loaded),
            queue: sent.saturating_since(complete),
        }
    }
}

/// The times of a batch that came back: the stages by its worker's measurement, and the whole round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTimes {
    /// The time from the dispatch until the result had arrived.
    pub(crate) round_trip: Duration,
    /// The time from then until the driver took it from its inbox.
    pub(crate) result_inbox: Duration,
    pub(crate) worker_queue: Duration,
    pub(crate) copy_in: Duration,
    pub(crate) compute: Duration,
    pub(crate) copy_out: Duration,
}

/// A batch, for the records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchIdentity {
    /// The batch's key in the engine.
    pub(crate) key: u64,
    pub(crate) replica: ReplicaNumber,
    pub(crate) dispatched: Time,
    pub(crate) requests: u32,
    pub(crate) rows: u32,
}

impl BatchIdentity {
    /// Returns the batch as the records of its requests have it, which ended this long after its dispatch.
    pub(crate) fn ended(self, round_trip: Duration, outcome: BatchOutcome) -> RequestBatch {
        RequestBatch {
            key: self.key,
            replica: self.replica,
            rows: self.rows,
            round_trip: round_trip.into(),
            outcome,
        }
    }
}

/// The counters, histograms and the sliding window of one model version.
#[derive(Debug)]
pub struct ModelTelemetry {
    pub(super) model: ModelId,
    clock: Clock,
    /// The answered requests, with the time from the request's head to the answer.
    pub(super) success: CountAndTime,
    /// The requests without an answer, by [`FAILURE_REASONS`].
    pub(super) failures: [CountAndTime; FAILURE_REASONS.len()],
    /// The requests that were answered from the cache, with the time of looking for them.
    pub(super) cache_hits: CountAndTime,
    /// The requests that were not found there, with the time of looking for them.
    pub(super) cache_misses: CountAndTime,
    pub(super) queue: CountAndTime,
    pub(super) compute_input: CountAndTime,
    pub(super) compute_infer: CountAndTime,
    pub(super) compute_output: CountAndTime,
    /// The rows that were computed.
    pub(super) inferences: AtomicU64,
    /// The batches that were computed.
    pub(super) executions: AtomicU64,
    /// The replicas that were ejected because their batches failed.
    pub(super) ejections: AtomicU64,
    /// The times that weights were copied to a device.
    pub(super) weights_loads: AtomicU64,
    /// The time of these copies, in microseconds.
    pub(super) weights_load_micros: AtomicU64,
    /// The loads from files among them.
    pub(super) weights_cold_loads: AtomicU64,
    /// The times that weights left a device for others.
    pub(super) weights_evictions: AtomicU64,
    /// The tenants that were paused because their requests ended workers.
    paused: Mutex<PausedTenants>,
    /// The requests in the queue.
    pub(super) pending: AtomicU64,
    pub(super) slo_met: AtomicU64,
    /// The requests that missed the SLO, by [`MISS_CAUSES`].
    pub(super) slo_missed: [AtomicU64; MISS_CAUSES.len()],
    /// The stages' durations, by [`Stage::ALL`].
    pub(super) stages: [StageHistogram; Stage::ALL.len()],
    /// The latencies of the answered requests.
    pub(super) latencies: StageHistogram,
    last_inference: AtomicU64,
    /// The requests that arrived.
    arrived: AtomicU64,
    /// Their rows.
    rows_arrived: AtomicU64,
    /// The rows of those that were in time.
    rows_in_time: AtomicU64,
    /// The rows of those that were for the model's family.
    rows_for_family: AtomicU64,
    /// The shapes of the model's batches, if its inputs vary.
    pub(crate) shapes: BatchShapes,
    /// The family that the model is a variant of, and its accuracy.
    variant: RwLock<Option<VariantOf>>,
    /// The accuracy of a variant in thousandths of a percent; 0 for other models.
    accuracy: AtomicU64,
    /// The sum of the accuracies of the answers within the SLO, in thousandths of a percent.
    accurate: AtomicU64,
    window: Mutex<SlidingWindow>,
    /// The requests of all models that ended lately.
    requests: RequestLog,
    /// The model's number among them.
    number: ModelNumber,
    /// The exporter of traces, if there is one.
    tracer: Option<Tracer>,
}

impl ModelTelemetry {
    pub(super) fn new(
        model: ModelId,
        clock: Clock,
        requests: RequestLog,
        tracer: Option<Tracer>,
    ) -> Self {
        Self {
            number: requests.add_model(&model),
            requests,
            tracer,
            model,
            clock,
            success: CountAndTime::default(),
            failures: Default::default(),
            cache_hits: CountAndTime::default(),
            cache_misses: CountAndTime::default(),
            queue: CountAndTime::default(),
            compute_input: CountAndTime::default(),
            compute_infer: CountAndTime::default(),
            compute_output: CountAndTime::default(),
            inferences: AtomicU64::new(0),
            executions: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            weights_loads: AtomicU64::new(0),
            weights_load_micros: AtomicU64::new(0),
            weights_cold_loads: AtomicU64::new(0),
            weights_evictions: AtomicU64::new(0),
            paused: Mutex::default(),
            pending: AtomicU64::new(0),
            slo_met: AtomicU64::new(0),
            slo_missed: Default::default(),
            stages: Default::default(),
            latencies: StageHistogram::default(),
            last_inference: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            rows_arrived: AtomicU64::new(0),
            rows_in_time: AtomicU64::new(0),
            rows_for_family: AtomicU64::new(0),
            shapes: BatchShapes::default(),
            variant: RwLock::default(),
            accuracy: AtomicU64::new(0),
            accurate: AtomicU64::new(0),
            window: Mutex::new(SlidingWindow::new(clock.now())),
        }
    }

    /// Begins a valid request whose head arrived at `arrived` and whose answer is in time within `time_allowed`. One for the model's
    /// family is counted where it ends, by default here.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        arrived: Time,
        time_allowed: Duration,
        rows: u32,
        for_family: bool,
    ) -> RequestMeter {
        let now = self.clock.now();
        let receive = now.saturating_since(arrived);
        if !for_family {
            self.count_arrival(now, receive, rows);
        }
        let mut meter = self.meter(arrived, receive, time_allowed, rows);
        meter.for_family = for_family;
        meter
    }

    /// Begins a request that the cache answers. No device needs to compute it: it counts neither in the rate that is planned for nor in the goodput.
    pub(crate) fn begin_hit(
        self: &Arc<Self>,
        arrived: Time,
        time_allowed: Duration,
        rows: u32,
    ) -> RequestMeter {
        let receive = self.clock.now().saturating_since(arrived);
        self.observe(Stage::Receive, receive);
        self.meter(arrived, receive, time_allowed, rows)
    }

    fn meter(
        self: &Arc<Self>,
        arrived: Time,
        receive: Duration,
        slo: Duration,
        rows: u32,
    ) -> RequestMeter {
        RequestMeter {
            model: Arc::clone(self),
            arrived,
            slo,
            receive,
            rows,
            patience: None,
            identity: None,
            failure: String::new(),
            for_family: false,
            ended: false,
        }
    }

    /// Counts a request that arrived. Returns its rows: as many as requests have on average if it was refused before it was read.
    fn count_arrival(&self, now: Time, receive: Duration, rows: u32) -> u64 {
        let before = self.arrived.fetch_add(1, Relaxed).max(1);
        let rows = if rows == 0 {
            let mean = self.rows_arrived.load(Relaxed).div_ceil(before);
            mean.max(1)
        } else {
            rows.into()
        };
        self.rows_arrived.fetch_add(rows, Relaxed);
        self.observe(Stage::Receive, receive);
        self.with_window(|window| window.count(now, |counts| counts.offered += 1));
        rows
    }

    /// Sets the family that the model is a variant of, and its accuracy.
    pub(crate) fn set_variant(&self, variant: Option<VariantOf>) {
        let accuracy = variant.as_ref().map(|variant| variant.accuracy.get());
        let thousandths = (accuracy.unwrap_or_default() * 1e3).round() as u64;
        self.accuracy.store(thousandths, Relaxed);
        *self.variant.write().unwrap_or_else(PoisonError::into_inner) = variant;
    }

    /// Returns the family that the model is a variant of, and its accuracy.
    pub(super) fn variant(&self) -> Option<VariantOf> {
        let variant = self.variant.read();
        variant.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of answers within the SLO that are right, as far as the model's accuracy says.
    pub(super) fn accurate(&self) -> f64 {
        self.accurate.load(Relaxed) as f64 / 1e5
    }

    /// Returns the numbers of requests that arrived, and that ended within the SLO and otherwise, with their rows.
    pub(super) fn request_counts(&self) -> RequestCounts {
        RequestCounts {
            arrived: self.arrived.load(Relaxed),
            within_slo: self.slo_met.load(Relaxed),
            missed: self
                .slo_missed
                .iter()
                .map(|count| count.load(Relaxed))
                .sum(),
            rows_arrived: self.rows_arrived.load(Relaxed),
            rows_within_slo: self.rows_in_time.load(Relaxed),
            rows_for_family: self.rows_for_family.load(Relaxed),
            hits: self.cache_hits.count(),
        }
    }

    /// Records a request whose head arrived at `arrived`, for a model with this SLO, and that was refused before it was read, with the message.
    pub(crate) fn record_refusal(
        self: &Arc<Self>,
        arrived: Time,
        slo: Duration,
        identity: RequestIdentity,
        for_family: bool,
        message: &str,
    ) {
        let meter = self.begin_request(arrived, slo, 0, for_family);
        let meter = meter.identified(identity).failed_with(message.to_owned());
        let refusal = RequestOutcome::Refused(Refusal::NoReplica);
        meter.end(refusal, RequestCourse::default());
    }

    /// Returns true if a request was looked for in the cache.
    pub(super) fn was_looked_for(&self) -> bool {
        self.cache_hits.count() + self.cache_misses.count() > 0
    }

    /// Returns true if no request has arrived yet.
    pub(super) fn is_idle(&self) -> bool {
        self.arrived.load(Relaxed) == 0
    }

    /// Sets the number of waiting requests.
    pub(crate) fn set_queue_length(&self, requests: usize) {
        self.pending.store(requests as u64, Relaxed);
    }

    /// Records the time that a request waited in the driver's inbox.
    pub(crate) fn record_inbox(&self, waited: Duration) {
        self.observe(Stage::Inbox, waited);
    }

    /// Records a request whose batch was sent after it waited for this.
    pub(crate) fn record_dispatch(&self, waits: Waits) {
        self.queue.add(1, waits.load + waits.batch + waits.queue);
        if !waits.load.is_zero() {
            self.observe(Stage::Load, waits.load);
        }
        self.observe(Stage::Batch, waits.batch);
        self.observe(Stage::Queue, waits.queue);
    }

    /// Records a batch that was computed. Returns its stages.
    pub(crate) fn record_batch(
        &self,
        now: Time,
        batch: BatchIdentity,
        times: BatchTimes,
    ) -> BatchStages {
        let (requests, rows) = (u64::from(batch.requests), u64::from(batch.rows));
        self.executions.fetch_add(1, Relaxed);
        self.inferences.fetch_add(rows, Relaxed);
        self.compute_input.add(requests, times.copy_in);
        self.compute_infer.add(requests, times.compute);
        self.compute_output.add(requests, times.copy_out);
        let in_worker = times.worker_queue + times.copy_in + times.compute + times.copy_out;
        let network = times.round_trip.saturating_sub(in_worker);
        let stages = BatchStages {
            network: network.into(),
            worker_queue: times.worker_queue.into(),
            copy_in: times.copy_in.into(),
            compute: times.compute.into(),
            copy_out: times.copy_out.into(),
        };
        self.record_batch_end(batch, times.round_trip, stages, BatchOutcome::Computed);
        self.observe(Stage::Network, network);
        self.observe(Stage::WorkerQueue, times.worker_queue);
        self.observe(Stage::CopyIn, times.copy_in);
        self.observe(Stage::Compute, times.compute);
        self.observe(Stage::CopyOut, times.copy_out);
        self.observe(Stage::ResultInbox, times.result_inbox);
        self.last_inference.store(self.clock.unix_ms(now), Relaxed);
        self.with_window(|window| {
            window.count(now, |counts| {
                counts.batches += 1;
                counts.rows += rows;
            });
        });
        stages
    }

    /// Records a batch that did not come back, this long after it was dispatched.
    pub(crate) fn record_failed_batch(&self, batch: BatchIdentity, after: Duration) {
        self.record_batch_end(batch, after, BatchStages::default(), BatchOutcome::Failed);
    }

    fn record_batch_end(
        &self,
        batch: BatchIdentity,
        round_trip: Duration,
        stages: BatchStages,
        outcome: BatchOutcome,
    ) {
        self.requests.record_batch(BatchRecord {
            model: self.number,
            key: batch.key,
            replica: batch.replica,
            dispatched: batch.dispatched,
            round_trip: round_trip.into(),
            requests: batch.requests,
            rows: batch.rows,
            stages,
            outcome,
        });
    }

    /// Notes that the model was removed.
    pub(super) fn forget(&self) {
        self.requests.remove_model(self.number);
    }

    fn observe(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time);
    }

    pub(super) fn with_window<T>(&self, with: impl FnOnce(&mut SlidingWindow) -> T) -> T {
        // A panic of another thread has at worst lost a count.
        with(&mut self.window.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the end of a request. Returns its latency.
    fn record_end(
        &self,
        request: &RequestMeter,
        outcome: RequestOutcome,
        course: RequestCourse,
    ) -> Duration {
        let now = self.clock.now();
        if request.for_family {
            let rows = self.count_arrival(now, request.receive, request.rows);
            self.rows_for_family.fetch_add(rows, Relaxed);
        }
        if course.decode != Micros::default() {
            self.observe(Stage::Decode, course.decode.into());
        }
        if course.tokenize != Micros::default() {
            self.observe(Stage::Tokenize, course.tokenize.into());
        }
        if let Some(cache) = course.cache {
            let lookup = Duration::from(course.lookup);
            self.observe(Stage::Lookup, lookup);
            match cache {
                CacheUse::Hit => self.cache_hits.add(1, lookup),
                CacheUse::Miss => self.cache_misses.add(1, lookup),
            }
        }
        let latency = now.saturating_since(request.arrived);
        let record = RequestRecord {
            model: self.number,
            arrived: request.arrived,
            latency: latency.into(),
            slo: request.slo.into(),
            receive: request.receive.into(),
            rows: request.rows,
            outcome,
            course,
            texts: TextPlace::default(),
        };
        let identity = request.identity.as_ref();
        let trace = identity.and_then(RequestIdentity::trace_id);
        self.requests.record_request(
            record,
            [
                identity.map_or("", RequestIdentity::id),
                &trace.unwrap_or_default(),
                identity.and_then(RequestIdentity::key).unwrap_or_default(),
                &request.failure,
            ],
        );
        if let (Some(tracer), Some(identity)) = (&self.tracer, &request.identity) {
            tracer.end(identity, record);
        }
        if outcome == RequestOutcome::Answered {
            self.success.add(1, latency);
            self.latencies.observe(latency);
        }
        let failure = match outcome {
            RequestOutcome::Answered => None,
            RequestOutcome::Refused(_) | RequestOutcome::Expired => Some(0),
            RequestOutcome::Cancelled => Some(1),
            RequestOutcome::Failed => Some(2),
            RequestOutcome::Lost => Some(3),
        };
        if let Some(reason) = failure {
            self.failures[reason].add(1, latency);
        }
        if course.cache != Some(CacheUse::Hit) {
            self.record_service(request, outcome, latency, now);
        }
        latency
    }

    /// Records how a request was served that a device had to compute.
    fn record_service(
        &self,
        request: &RequestMeter,
        outcome: RequestOutcome,
        latency: Duration,
        now: Time,
    ) {
        let in_time = outcome == RequestOutcome::Answered && latency <= request.slo;
        let missed = match outcome {
            RequestOutcome::Answered if in_time => None,
            RequestOutcome::Answered => Some(0),
            RequestOutcome::Refused(_) => Some(1),
            RequestOutcome::Expired => Some(2),
            RequestOutcome::Lost => Some(3),
            RequestOutcome::Failed => Some(4),
            // Its client did not wait: the SLO was neither met nor missed.
            RequestOutcome::Cancelled => None,
        };
        if in_time {
            self.slo_met.fetch_add(1, Relaxed);
            self.rows_in_time.fetch_add(request.rows.into(), Relaxed);
            let thousandths = self.accuracy.load(Relaxed);
            if thousandths > 0 {
                self.accurate.fetch_add(thousandths, Relaxed);
            }
        }
        if let Some(cause) = missed {
            self.slo_missed[cause].fetch_add(1, Relaxed);
        }
        self.with_window(|window| match outcome {
            RequestOutcome::Answered => window.answered(now, latency, in_time),
            RequestOutcome::Refused(_) => window.count(now, |counts| counts.refused += 1),
            RequestOutcome::Expired => window.count(now, |counts| counts.expired += 1),
            RequestOutcome::Lost | RequestOutcome::Failed => {
                window.count(now, |counts| counts.failed += 1);
            }
            RequestOutcome::Cancelled => {}
        });
    }

    /// Returns the goodput of the last `window`.
    pub(super) fn goodput(&self, window: Duration) -> ModelGoodput {
        let now = self.clock.now();
        let summary = self.with_window(|ring| ring.summary(now, window));
        let (counts, seconds) = (summary.counts, summary.seconds);
        let late = counts.answered - counts.in_time + counts.expired;
        let quantile = |p| Some(summary.latencies.quantile(p)?.as_secs_f64() * 1e3);
        let variant = self.variant();
        ModelGoodput {
            name: self.model.name.clone(),
            version: self.model.version,
            offered_rps: counts.offered as f64 / seconds,
            throughput_rps: counts.answered as f64 / seconds,
            goodput_rps: counts.in_time as f64 / seconds,
            refused_rps: counts.refused as f64 / seconds,
            late_rps: late as f64 / seconds,
            failed_rps: counts.failed as f64 / seconds,
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            mean_batch: (counts.batches > 0).then(|| counts.rows as f64 / counts.batches as f64),
            family: variant.as_ref().map(|variant| variant.family.clone()),
            accuracy: variant.map(|variant| variant.accuracy),
        }
    }

    /// Returns the answered requests since the model is served.
    pub fn success(&self) -> &CountAndTime {
        &self.success
    }

    /// Returns the number of requests that were not answered, and their total time in nanoseconds.
    pub fn failed(&self) -> (u64, u64) {
        let sum = |part: fn(&CountAndTime) -> u64| self.failures.iter().map(part).sum();
        (sum(CountAndTime::count), sum(CountAndTime::nanos))
    }

    /// Returns the requests that the cache answered, and those that were not found there, with the times of looking for them.
    pub fn cache(&self) -> [&CountAndTime; 2] {
        [&self.cache_hits, &self.cache_misses]
    }

    /// Returns the requests' times in the queue.
    pub fn queue(&self) -> &CountAndTime {
        &self.queue
    }

    /// Returns the requests' times of copying in, computing and copying out, each that of their batch.
    pub fn compute(&self) -> [&CountAndTime; 3] {
        [
            &self.compute_input,
            &self.compute_infer,
            &self.compute_output,
        ]
    }

    /// Returns the number of rows that were computed.
    pub fn inferences(&self) -> u64 {
        self.inferences.load(Relaxed)
    }

    /// Counts a replica that was ejected because its batches failed.
    pub(crate) fn count_ejection(&self) {
        self.ejections.fetch_add(1, Relaxed);
    }

    /// Counts weights that were copied to a device within this time.
    pub(crate) fn count_weights_load(&self, time: Duration, from_file: bool) {
        self.weights_cold_loads.fetch_add(from_file.into(), Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.weights_loads.fetch_add(1, Relaxed);
        self.weights_load_micros.fetch_add(micros, Relaxed);
    }

    /// Counts weights that left a device for others.
    pub(crate) fn count_weights_eviction(&self) {
        self.weights_evictions.fetch_add(1, Relaxed);
    }

    /// Counts a pause of a tenant whose requests ended workers.
    pub(crate) fn count_tenant_pause(&self, now: Time, tenant: String, pause: Duration) {
        self.paused().count(now, tenant, pause);
    }

    /// Returns the number of pauses of each tenant.
    pub(super) fn tenant_pauses(&self) -> Vec<(String, u64)> {
        self.paused().pauses()
    }

    /// Returns the tenants that were paused a short while ago.
    pub(super) fn paused_tenants(&self) -> Vec<String> {
        let now = self.clock.now();
        self.paused().present(now)
    }

    fn paused(&self) -> MutexGuard<'_, PausedTenants> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of batches that were computed.
    pub fn executions(&self) -> u64 {
        self.executions.load(Relaxed)
    }

    /// Returns the time at which the last batch came back, in milliseconds since 1970; 0 before the first.
    pub fn last_inference_unix_ms(&self) -> u64 {
        self.last_inference.load(Relaxed)
    }
}

/// The measured times of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRequest {
    /// The time from its head to its end.
    pub(crate) latency: Duration,
    /// The time from its head to the complete, valid request.
    pub(crate) receive: Duration,
}

/// The measurement of one request until its end. If it is dropped before, the client has gone away, or its time was over.
#[derive(Debug)]
pub(crate) struct RequestMeter {
    model: Arc<ModelTelemetry>,
    arrived: Time,
    slo: Duration,
    receive: Duration,
    rows: u32,
    /// The time for which its client waits, if it has said that.
    patience: Option<Duration>,
    identity: Option<RequestIdentity>,
    /// The message of what failed; empty if nothing did.
    failure: String,
    /// True if it is for the family of its model, and counted when it ends.
    for_family: bool,
    ended: bool,
}

impl RequestMeter {
    /// Sets the identity under which the request is traced.
    pub(crate) fn identified(mut self, identity: RequestIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Sets the time from the request's arrival for which its client waits, if it has said that.
    pub(crate) fn waited_for(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the message of what failed.
    pub(crate) fn failed_with(mut self, failure: String) -> Self {
        self.failure = failure;
        self
    }

    /// Counts the end of a request with this model: the variant or the version that had it last. The arrival of one for a family is counted there too.
    pub(crate) fn counted_with(mut self, model: &Arc<ModelTelemetry>) -> Self {
        self.model = Arc::clone(model);
        self
    }

    /// Ends the request now.
    pub(crate) fn end(mut self, outcome: RequestOutcome, course: RequestCourse) -> EndedRequest {
        self.ended = true;
        let latency = self.model.record_end(&self, outcome, course);
        EndedRequest {
            latency,
            receive: self.receive,
        }
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let waited = self.model.clock.now().saturating_since(self.arrived);
        let outcome = if self
            .patience
            .is_some_and(|patience| is_over(waited, patience))
        {
            "its client stopped waiting when its time was over".clone_into(&mut self.failure);
            RequestOutcome::Expired
        } else {
            RequestOutcome::Cancelled
        };
        self.model
            .record_end(self, outcome, RequestCourse::default());
    }
}

/// Returns true if a client that said how long it waits has waited for that long. Its clock began earlier than ours, and clients round the time up,
/// by 1 % those that are built on gRPC's own library: the last thirty-second of the time is as good as its end.
fn is_over(waited: Duration, patience: Duration) -> bool {
    waited >= patience.saturating_sub(patience / 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_stops_a_little_before_its_time_has_waited_for_it() {
        let patience = Duration::from_secs(1);
        for (waited_ms, expected) in [(0, false), (900, false), (990, true), (1100, true)] {
            let waited = Duration::from_millis(waited_ms);
            assert_eq!(is_over(waited, patience), expected, "{waited_ms}");
        }
    }
}
