//! Requests and batches over time, in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format" of the Chromium project. Each device is a process with a thread for each replica; each model is a process
//! with the requests that it had at a time, and its queue's length as a counter. A slice is a batch or a request, with its stages as
//! slices within. Slices of a thread nest and never overlap: where batches of a replica overlap, one being copied while another one is
//! computed, the replica has several threads. An arrow leads from each request to its batch.
//!
//! ```
//! use std::time::Duration;
//!
//! use packhorse_cluster::Time;
//! use packhorse_trace::{Names, Request, Trace};
//!
//! struct Numbers;
//!
//! impl Names for Numbers {
//!     fn model(&self, model: u32) -> String {
//!         format!("model {model}")
//!     }
//!
//!     fn replica(&self, replica: u32) -> String {
//!         replica.to_string()
//!     }
//!
//!     fn device(&self, _replica: u32) -> String {
//!         "gpu0".to_owned()
//!     }
//! }
//!
//! let mut trace = Trace::default();
//! trace.requests.push(Request {
//!     number: 1,
//!     model: 0,
//!     arrived: Time::ZERO,
//!     latency: Duration::from_millis(20),
//!     slo: Duration::from_millis(50),
//!     rows: 1,
//!     outcome: "answered",
//!     reason: None,
//!     receive: Duration::ZERO,
//!     course: None,
//! });
//! let mut text = Vec::new();
//! trace.write(&Numbers, Time::ZERO, &serde_json::json!({}), |piece| {
//!     text.extend_from_slice(&piece);
//!     true
//! });
//! let trace: serde_json::Value = serde_json::from_slice(&text)?;
//! assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 4));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod lanes;
mod writer;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use packhorse_cluster::Time;
use serde_json::{Value, json};

use self::{
    lanes::Lanes,
    writer::{Slice, TraceWriter},
};

/// The names behind the numbers of a trace.
pub trait Names {
    /// Returns the name of a model.
    fn model(&self, model: u32) -> String;
    /// Returns the name of a replica.
    fn replica(&self, replica: u32) -> String;
    /// Returns the name of a replica's device.
    fn device(&self, replica: u32) -> String;
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The request's number.
    pub number: u64,
    /// The number of its model.
    pub model: u32,
    /// The time of its arrival.
    pub arrived: Time,
    /// The time from then to its end.
    pub latency: Duration,
    /// Its latency objective.
    pub slo: Duration,
    /// Its rows.
    pub rows: u32,
    /// The name of its end, such as `answered`.
    pub outcome: &'static str,
    /// The reason for an end without an answer.
    pub reason: Option<String>,
    /// The time from its arrival until it was read.
    pub receive: Duration,
    /// Its way through a batch; none if it was in no batch.
    pub course: Option<Course>,
}

/// The way of a request through a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// The batch's key.
    pub batch: u64,
    /// The time until the weights of the model were on the device.
    pub load: Duration,
    /// The time from then until the last request of the batch had arrived.
    pub batch_wait: Duration,
    /// The time from then until the batch was dispatched.
    pub queue: Duration,
    /// The time from then until the batch was back.
    pub in_batch: Duration,
}

/// A batch that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The batch's key. The requests of the batch have it in their course.
    pub key: u64,
    /// The number of its model.
    pub model: u32,
    /// The number of its replica.
    pub replica: u32,
    /// The time of its dispatch.
    pub dispatched: Time,
    /// The time from then until it was back.
    pub round_trip: Duration,
    /// The number of its requests.
    pub requests: u32,
    /// The number of its rows.
    pub rows: u32,
    /// Its stages; none if it failed.
    pub stages: Option<Stages>,
}

/// The stages of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The transmission to the worker and back, of which only the sum is measured.
    pub network: Duration,
    /// The time before it was computed.
    pub worker_queue: Duration,
    /// The copy into the device's memory.
    pub copy_in: Duration,
    /// The computation.
    pub compute: Duration,
    /// The copy out of the device's memory.
    pub copy_out: Duration,
}

/// Requests and batches over time.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The requests, in any order.
    pub requests: Vec<Request>,
    /// The batches, in any order.
    pub batches: Vec<Batch>,
}

impl Trace {
    /// Writes the trace piece by piece, until `send` returns false. Its times count from `begin`; `other` is kept with it.
    pub fn write(
        mut self,
        names: &impl Names,
        begin: Time,
        other: &Value,
        send: impl FnMut(Bytes) -> bool,
    ) {
        let mut writer = TraceWriter::new(begin, other, send);
        self.batches
            .sort_by_key(|batch| (batch.dispatched, batch.key));
        self.requests
            .sort_by_key(|request| (request.arrived, request.number));
        let mut pid = 0;
        let mut slices = HashMap::new();
        for (device, replicas) in self.by_device(names) {
            pid += 1;
            writer.name_process(pid, &device);
            let mut tid = 0;
            for (replica, batches) in replicas {
                let mut lanes = Lanes::default();
                for batch in batches {
                    let begin = batch.dispatched;
                    let end = begin + batch.round_trip;
                    let lane = lanes.take(begin, end);
                    let slice = Slice {
                        pid,
                        tid: tid + lane,
                        begin,
                        end,
                    };
                    slices.insert(batch.key, slice);
                    write_batch(batch, slice, names, &mut writer);
                }
                let name = format!("replica {}", names.replica(replica));
                for lane in 0..lanes.count() {
                    writer.name_thread(pid, tid + lane, &name);
                }
                tid += lanes.count();
            }
        }
        for (model, requests) in self.by_model() {
            pid += 1;
            writer.name_process(pid, &format!("requests of {}", names.model(model)));
            let mut lanes = Lanes::default();
            let mut queue = Vec::with_capacity(2 * requests.len());
            for request in requests {
                let begin = request.arrived;
                let end = begin + request.latency;
                let slice = Slice {
                    pid,
                    tid: lanes.take(begin, end),
                    begin,
                    end,
                };
                let queued = write_request(request, slice, &slices, &mut writer);
                queue.extend([(queued.0, 1), (queued.1, -1)]);
            }
            for lane in 0..lanes.count() {
                writer.name_thread(pid, lane, &format!("request {}", lane + 1));
            }
            queue.sort_unstable();
            let mut length = 0_i64;
            for (at, change) in queue {
                length += change;
                writer.counter(pid, "queue", at, &json!({"requests": length}));
            }
        }
        writer.finish();
    }

    /// Returns the batches by device and replica.
    fn by_device(&self, names: &impl Names) -> BTreeMap<String, BTreeMap<u32, Vec<&Batch>>> {
        let mut devices: BTreeMap<String, BTreeMap<u32, Vec<&Batch>>> = BTreeMap::new();
        let mut of_replica: HashMap<u32, String> = HashMap::new();
        for batch in &self.batches {
            let device = of_replica
                .entry(batch.replica)
                .or_insert_with(|| names.device(batch.replica));
            let replicas = devices.entry(device.clone()).or_default();
            replicas.entry(batch.replica).or_default().push(batch);
        }
        devices
    }

    /// Returns the requests by model.
    fn by_model(&self) -> BTreeMap<u32, Vec<&Request>> {
        let mut models: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for request in &self.requests {
            models.entry(request.model).or_default().push(request);
        }
        models
    }
}

fn write_batch<S: FnMut(Bytes) -> bool>(
    batch: &Batch,
    slice: Slice,
    names: &impl Names,
    writer: &mut TraceWriter<S>,
) {
    let model = names.model(batch.model);
    let args = json!({
        "batch": batch.key, "model": model, "requests": batch.requests, "rows": batch.rows,
        "failed": batch.stages.is_none(),
    });
    writer.slice(slice, &format!("{model} × {}", batch.rows), &args);
    let Some(stages) = &batch.stages else {
        return;
    };
    let there = stages.network / 2;
    let parts = [
        ("network", there),
        ("worker queue", stages.worker_queue),
        ("copy in", stages.copy_in),
        ("compute", stages.compute),
        ("copy out", stages.copy_out),
        ("network", stages.network.saturating_sub(there)),
    ];
    writer.parts(slice, &parts);
}

/// Writes a request with its parts, and the arrow to its batch. Returns the time in which it was in the queue.
fn write_request<S: FnMut(Bytes) -> bool>(
    request: &Request,
    slice: Slice,
    batches: &HashMap<u64, Slice>,
    writer: &mut TraceWriter<S>,
) -> (Time, Time) {
    let args = json!({
        "request": request.number, "outcome": request.outcome, "reason": request.reason, "rows": request.rows,
        "slo_ms": request.slo.as_secs_f64() * 1e3, "batch": request.course.map(|course| course.batch),
    });
    writer.slice(slice, request.outcome, &args);
    let received = (slice.begin + request.receive).min(slice.end);
    let Some(course) = request.course else {
        let waited = slice.end.saturating_since(received);
        writer.parts(slice, &[("receive", request.receive), ("queue", waited)]);
        return (received, slice.end);
    };
    let parts = [
        ("receive", request.receive),
        ("load", course.load),
        ("wait for batch", course.batch_wait),
        ("queue", course.queue),
        ("in batch", course.in_batch),
    ];
    writer.parts(slice, &parts);
    let dispatched = (received + course.load + course.batch_wait + course.queue).min(slice.end);
    if let Some(to) = batches.get(&course.batch) {
        writer.arrow(
            request.number,
            "dispatch",
            (slice, dispatched),
            (*to, to.begin),
        );
    }
    (received, dispatched)
}
