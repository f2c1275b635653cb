//! A trace of the requests and batches that ended lately, in Chrome's trace event format.

use std::time::Duration;

use bytes::Bytes;
use packhorse_cluster::Time;
use packhorse_trace::{Batch, Course, Request, Stages, Trace};
use serde_json::json;

use super::{
    handle::Telemetry,
    request_end::{end_of, reason_of},
    request_log::{
        BatchOutcome, BatchRecord, BatchStages, ModelNumber, Names, Record, ReplicaNumber,
        RequestRecord,
    },
};

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
        add(&mut trace, number, record, window);
        true
    });
    let from_ms = telemetry.clock().unix_ms_f64(window.from);
    let other = json!({"from_unix_ms": from_ms});
    trace.write(&names, window.from, &other, send);
}

/// Adds a record if it lies in the window, at least in part.
fn add(trace: &mut Trace, number: u64, record: &Record, window: TraceWindow) {
    let (begin, length) = match record {
        Record::Request(request) => (request.arrived, request.latency),
        Record::Batch(batch) => (batch.dispatched, batch.round_trip),
    };
    if begin > window.to || begin + Duration::from(length) < window.from {
        return;
    }
    match record {
        Record::Request(record) => trace.requests.push(request(number, record)),
        Record::Batch(record) => trace.batches.push(batch(record)),
    }
}

fn request(number: u64, record: &RequestRecord) -> Request {
    let course = &record.course;
    Request {
        number,
        model: record.model.0,
        arrived: record.arrived,
        latency: record.latency.into(),
        slo: record.slo.into(),
        rows: record.rows,
        outcome: end_of(record).name(),
        reason: reason_of(record),
        receive: record.receive.into(),
        course: course.batch.map(|batch| {
            let stages = stages(&course.stages);
            Course {
                batch: batch.key,
                load: course.load.into(),
                batch_wait: course.batch_wait.into(),
                queue: course.queue.into(),
                in_batch: stages.network
                    + stages.worker_queue
                    + stages.copy_in
                    + stages.compute
                    + stages.copy_out,
            }
        }),
    }
}

fn batch(record: &BatchRecord) -> Batch {
    Batch {
        key: record.key,
        model: record.model.0,
        replica: record.replica.0,
        dispatched: record.dispatched,
        round_trip: record.round_trip.into(),
        requests: record.requests,
        rows: record.rows,
        stages: (record.outcome == BatchOutcome::Computed).then(|| stages(&record.stages)),
    }
}

fn stages(stages: &BatchStages) -> Stages {
    Stages {
        network: stages.network.into(),
        worker_queue: stages.worker_queue.into(),
        copy_in: stages.copy_in.into(),
        compute: stages.compute.into(),
        copy_out: stages.copy_out.into(),
    }
}

impl packhorse_trace::Names for Names {
    fn model(&self, model: u32) -> String {
        let model = Names::model(self, ModelNumber(model));
        model.map_or_else(|| "a removed model".to_owned(), ToString::to_string)
    }

    fn replica(&self, replica: u32) -> String {
        match Names::replica(self, ReplicaNumber(replica)) {
            Some((id, _)) => id.to_string(),
            None => format!("#{replica}"),
        }
    }

    fn device(&self, replica: u32) -> String {
        match Names::replica(self, ReplicaNumber(replica)) {
            Some((_, device)) => device.to_string(),
            None => "devices of removed replicas".to_owned(),
        }
    }
}
