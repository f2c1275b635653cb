//! A trace of the requests and batches that ended lately, in Chrome's trace event format, which Perfetto and `chrome://tracing` open.
//!
//! Source: "Trace Event Format" of the Chromium project. Each device is a process with a thread for each replica; each model is a process
//! with the requests that it had at a time, and its queue's length as a counter. A slice is a batch or a request, with its stages as
//! slices within. Slices of a thread nest and never overlap: where batches of a replica overlap, one being copied while another one is
//! computed, the replica has several threads. An arrow leads from each request to its batch.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use packhorse_cluster::Time;
use serde_json::{Value, json};

use super::{
    handle::Telemetry,
    request_log::{
        BatchOutcome, BatchRecord, Micros, ModelNumber, Names, Record, ReplicaNumber, RequestRecord,
    },
    request_views::{end_of, reason_of},
};

/// The size from which on the written text is handed over, in bytes.
const PIECE: usize = 64 << 10;

/// The time window of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceWindow {
    /// Its begin. The times in the trace count from here.
    pub(crate) from: Time,
    /// Its end.
    pub(crate) to: Time,
}

/// Writes the trace of a time window piece by piece, until `send` returns false.
pub(crate) fn write_trace(
    telemetry: &Telemetry,
    window: TraceWindow,
    send: impl FnMut(Bytes) -> bool,
) {
    let log = telemetry.requests();
    let names = log.names();
    let mut trace = Trace::default();
    log.visit(|number, record| {
        trace.add(number, *record, window);
        true
    });
    let mut writer = TraceWriter {
        text: String::with_capacity(2 * PIECE),
        open: true,
        first: true,
        begin: window.from,
        send,
    };
    let from_ms = telemetry.clock().unix_ms_f64(window.from);
    let other = json!({"from_unix_ms": from_ms}).to_string();
    for part in [
        "{\"displayTimeUnit\":\"ms\",\"otherData\":",
        &other,
        ",\"traceEvents\":[",
    ] {
        writer.text.push_str(part);
    }
    trace.write(&names, &mut writer);
    writer.text.push_str("\n]}\n");
    writer.flush(0);
}

/// The records of a time window.
#[derive(Debug, Default)]
struct Trace {
    requests: Vec<(u64, RequestRecord)>,
    batches: Vec<BatchRecord>,
}

/// A slice: its thread, its begin and its end.
#[derive(Clone, Copy, Debug)]
struct Slice {
    pid: usize,
    tid: usize,
    begin: Time,
    end: Time,
}

impl Trace {
    /// Adds a record if it lies in the window, at least in part.
    fn add(&mut self, number: u64, record: Record, window: TraceWindow) {
        let (begin, length) = match record {
            Record::Request(request) => (request.arrived, request.latency),
            Record::Batch(batch) => (batch.dispatched, batch.round_trip),
        };
        if begin > window.to || begin + Duration::from(length) < window.from {
            return;
        }
        match record {
            Record::Request(request) => self.requests.push((number, request)),
            Record::Batch(batch) => self.batches.push(batch),
        }
    }

    fn write<S: FnMut(Bytes) -> bool>(mut self, names: &Names, writer: &mut TraceWriter<S>) {
        self.batches
            .sort_by_key(|batch| (batch.dispatched, batch.key));
        self.requests
            .sort_by_key(|(number, request)| (request.arrived, *number));
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
                    let end = begin + Duration::from(batch.round_trip);
                    let lane = lanes.take(begin, end);
                    let slice = Slice {
                        pid,
                        tid: tid + lane,
                        begin,
                        end,
                    };
                    slices.insert(batch.key, slice);
                    write_batch(batch, slice, names, writer);
                }
                let replica_name = match names.replica(replica) {
                    Some((id, _)) => id.to_string(),
                    None => format!("#{}", replica.0),
                };
                for lane in 0..lanes.count {
                    writer.name_thread(pid, tid + lane, &format!("replica {replica_name}"));
                }
                tid += lanes.count;
            }
        }
        for (model, requests) in self.by_model() {
            pid += 1;
            let name = model_name(names, model);
            writer.name_process(pid, &format!("requests of {name}"));
            let mut lanes = Lanes::default();
            let mut queue = Vec::with_capacity(2 * requests.len());
            for (number, request) in requests {
                let begin = request.arrived;
                let end = begin + Duration::from(request.latency);
                let slice = Slice {
                    pid,
                    tid: lanes.take(begin, end),
                    begin,
                    end,
                };
                let queued = write_request(*number, request, slice, &slices, writer);
                queue.extend([(queued.0, 1), (queued.1, -1)]);
            }
            for lane in 0..lanes.count {
                writer.name_thread(pid, lane, &format!("request {}", lane + 1));
            }
            queue.sort_unstable();
            let mut length = 0_i64;
            for (at, change) in queue {
                length += change;
                let (ts, args) = (writer.micros(at), json!({"requests": length}));
                writer.event(
                    &json!({"ph": "C", "name": "queue", "pid": pid, "ts": ts, "args": args}),
                );
            }
        }
    }

    /// Returns the batches by device and replica.
    fn by_device(
        &self,
        names: &Names,
    ) -> BTreeMap<String, BTreeMap<ReplicaNumber, Vec<&BatchRecord>>> {
        let mut devices: BTreeMap<String, BTreeMap<ReplicaNumber, Vec<&BatchRecord>>> =
            BTreeMap::new();
        for batch in &self.batches {
            let device = match names.replica(batch.replica) {
                Some((_, device)) => device.to_string(),
                None => "devices of removed replicas".to_owned(),
            };
            let replicas = devices.entry(device).or_default();
            replicas.entry(batch.replica).or_default().push(batch);
        }
        devices
    }

    /// Returns the requests by model.
    fn by_model(&self) -> BTreeMap<ModelNumber, Vec<&(u64, RequestRecord)>> {
        let mut models: BTreeMap<ModelNumber, Vec<_>> = BTreeMap::new();
        for request in &self.requests {
            models.entry(request.1.model).or_default().push(request);
        }
        models
    }
}

fn model_name(names: &Names, number: ModelNumber) -> String {
    let model = names.model(number);
    model.map_or_else(|| "a removed model".to_owned(), ToString::to_string)
}

fn write_batch<S: FnMut(Bytes) -> bool>(
    batch: &BatchRecord,
    slice: Slice,
    names: &Names,
    writer: &mut TraceWriter<S>,
) {
    let model = model_name(names, batch.model);
    let args = json!({
        "batch": batch.key, "model": model, "requests": batch.requests, "rows": batch.rows,
        "failed": batch.outcome == BatchOutcome::Failed,
    });
    writer.slice(slice, &format!("{model} × {}", batch.rows), &args);
    if batch.outcome == BatchOutcome::Failed {
        return;
    }
    let stages = &batch.stages;
    // Only the sum of both ways is measured.
    let there = Micros(stages.network.0 / 2);
    let parts = [
        ("network", there),
        ("worker queue", stages.worker_queue),
        ("copy in", stages.copy_in),
        ("compute", stages.compute),
        ("copy out", stages.copy_out),
        ("network", Micros(stages.network.0 - there.0)),
    ];
    writer.parts(slice, &parts);
}

/// Writes a request with its parts, and the arrow to its batch. Returns the time in which it was in the queue.
fn write_request<S: FnMut(Bytes) -> bool>(
    number: u64,
    request: &RequestRecord,
    slice: Slice,
    batches: &HashMap<u64, Slice>,
    writer: &mut TraceWriter<S>,
) -> (Time, Time) {
    let course = &request.course;
    let end = end_of(request);
    let args = json!({
        "request": number, "outcome": end.name(), "reason": reason_of(request), "rows": request.rows,
        "slo_ms": request.slo.as_ms(), "batch": course.batch.map(|batch| batch.key),
    });
    writer.slice(slice, end.name(), &args);
    let received = (slice.begin + Duration::from(request.receive)).min(slice.end);
    let Some(batch) = course.batch else {
        let waited = slice.end.saturating_since(received);
        let parts = [("receive", request.receive), ("queue", waited.into())];
        writer.parts(slice, &parts);
        return (received, slice.end);
    };
    let stages = &course.stages;
    let in_batch = [
        stages.network,
        stages.worker_queue,
        stages.copy_in,
        stages.compute,
        stages.copy_out,
    ];
    let in_batch = in_batch
        .iter()
        .fold(0_u32, |sum, part| sum.saturating_add(part.0));
    let parts = [
        ("receive", request.receive),
        ("wait for batch", course.batch_wait),
        ("queue", course.queue),
        ("in batch", Micros(in_batch)),
    ];
    writer.parts(slice, &parts);
    let waited = Duration::from(course.batch_wait) + Duration::from(course.queue);
    let dispatched = (received + waited).min(slice.end);
    if let Some(to) = batches.get(&batch.key) {
        let (ts, Slice { pid, tid, .. }) = (writer.micros(dispatched), slice);
        writer.event(&json!({"ph": "s", "name": "dispatch", "cat": "dispatch", "id": number, "pid": pid, "tid": tid, "ts": ts}));
        let (ts, Slice { pid, tid, .. }) = (writer.micros(to.begin), *to);
        writer.event(&json!({"ph": "f", "bp": "e", "name": "dispatch", "cat": "dispatch", "id": number, "pid": pid, "tid": tid, "ts": ts}));
    }
    (received, dispatched)
}

/// Threads on which slices that overlap are shown beside each other.
#[derive(Debug, Default)]
struct Lanes {
    /// The end of the last slice of each lane, the earliest first.
    ends: BinaryHeap<Reverse<(Time, usize)>>,
    count: usize,
}

impl Lanes {
    /// Returns a lane that is free between two times. The begins must ascend.
    fn take(&mut self, begin: Time, end: Time) -> usize {
        let free = self
            .ends
            .peek()
            .is_some_and(|Reverse((end, _))| *end <= begin);
        let lane = match self.ends.pop() {
            Some(Reverse((_, lane))) if free => lane,
            busy => {
                self.ends.extend(busy);
                self.count += 1;
                self.count - 1
            }
        };
        self.ends.push(Reverse((end, lane)));
        lane
    }
}

/// Writes the events of a trace.
struct TraceWriter<S> {
    text: String,
    /// False once nobody reads any more.
    open: bool,
    first: bool,
    begin: Time,
    send: S,
}

impl<S: FnMut(Bytes) -> bool> TraceWriter<S> {
    /// Returns a time in microseconds since the begin of the trace; negative before it.
    fn micros(&self, time: Time) -> f64 {
        (time.as_nanos() as f64 - self.begin.as_nanos() as f64) / 1e3
    }

    fn event(&mut self, event: &Value) {
        self.text.push_str(if self.first { "\n" } else { ",\n" });
        self.first = false;
        self.text.push_str(&event.to_string());
        self.flush(PIECE);
    }

    /// Hands the text over if it is at least this long.
    fn flush(&mut self, least: usize) {
        if self.text.len() < least {
            return;
        }
        let text = std::mem::replace(&mut self.text, String::with_capacity(2 * PIECE));
        if self.open {
            self.open = (self.send)(text.into());
        }
    }

    fn slice(&mut self, slice: Slice, name: &str, args: &Value) {
        let ts = self.micros(slice.begin);
        let dur = slice.end.saturating_since(slice.begin).as_nanos() as f64 / 1e3;
        let Slice { pid, tid, .. } = slice;
        self.event(&json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}));
    }

    /// Writes the parts of a slice one after the other, as far as they fit into it.
    fn parts(&mut self, whole: Slice, parts: &[(&str, Micros)]) {
        let mut begin = whole.begin;
        for (name, length) in parts {
            let end = (begin + Duration::from(*length)).min(whole.end);
            if begin < end {
                self.slice(
                    Slice {
                        begin,
                        end,
                        ..whole
                    },
                    name,
                    &json!({}),
                );
            }
            begin = end;
        }
    }

    fn name_process(&mut self, pid: usize, name: &str) {
        let args = json!({"name": name});
        self.event(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": args}));
        let args = json!({"sort_index": pid});
        self.event(&json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": args}));
    }

    fn name_thread(&mut self, pid: usize, tid: usize, name: &str) {
        let args = json!({"name": name});
        self.event(
            &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_lane_never_overlap() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut lanes = Lanes::default();
        for (begin, end, lane) in [
            (0, 10, 0),
            (5, 15, 1),
            (10, 12, 0),
            (11, 20, 2),
            (15, 16, 0),
            (15, 17, 1),
        ] {
            assert_eq!(lanes.take(at(begin), at(end)), lane, "{begin}");
        }
        assert_eq!(lanes.count, 3);
    }
}
