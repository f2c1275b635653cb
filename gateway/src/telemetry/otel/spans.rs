//! The spans of a request and of its batch, made from the request's record.
//!
//! A request's trace is the span `infer` with the parts `read`, `lookup` where its model has a cache, `inbox`, `load` where its model's weights were elsewhere, `queue`, `in_batch` and `answer`. Its batch is a trace of its own,
//! the span `batch` with the parts `network`, `worker_queue`, `copy_in`, `compute`, `copy_out` and `network`; every request of the batch
//! links to it.

use std::{collections::BTreeMap, time::Duration};

use packhorse_api::CacheUse;
use packhorse_cluster::{ModelId, Time};
use packhorse_serving::RequestOutcome;

use super::{
    context::{SpanIds, random_span},
    otlp::{KeyValue, Link, Span, SpanKind, Status, StatusCode, attribute},
    tracer::EndedTrace,
};
use crate::{
    clock::Clock,
    telemetry::{
        request_end::{end_of, reason_of},
        request_log::{BatchOutcome, BatchStages, Micros, Names, RequestBatch},
    },
};

/// The number of batches whose ids are remembered for their other requests.
const REMEMBERED: usize = 4096;

/// Makes spans. It remembers the ids of the latest batches, so that a batch is exported once and all its requests link to it.
#[derive(Debug)]
pub(super) struct SpanMaker {
    clock: Clock,
    batches: BTreeMap<u64, SpanIds>,
}

impl SpanMaker {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            batches: BTreeMap::new(),
        }
    }

    /// Adds the spans of a request, and those of its batch if this is the first request of it.
    pub(super) fn add(&mut self, ended: &EndedTrace, names: &Names, spans: &mut Vec<Span>) {
        let EndedTrace {
            id,
            context,
            record,
        } = ended;
        let model = names.model(record.model);
        let course = &record.course;
        let end = record.arrived + Duration::from(record.latency);
        let mut infer = self.span("infer", SpanKind::Server, context.ids, record.arrived, end);
        infer.parent_span_id = context.parent.map_or_else(Vec::new, span_bytes);
        infer.attributes = model_attributes(model);
        infer.attributes.extend([
            attribute("request.id", id.as_str()),
            attribute("request.rows", record.rows),
            attribute("request.outcome", end_of(record).name()),
            attribute("request.slo_ms", record.slo.as_ms()),
        ]);
        if let Some(cache) = course.cache {
            infer
                .attributes
                .push(attribute("request.cache", cache.name()));
        }
        if record.outcome != RequestOutcome::Answered {
            infer.status = Some(Status {
                message: reason_of(record).unwrap_or_default(),
                code: StatusCode::Error.into(),
            });
        }
        let mut parts = Parts::new(self.clock, context.ids, record.arrived, end);
        let made = [
            ("decode", course.decode),
            ("tokenize", course.tokenize),
            ("lookup", course.lookup),
        ];
        let made = made.map(|(name, time)| (name, Duration::from(time)));
        let receive: Duration = record.receive.into();
        let read = receive.saturating_sub(made.iter().map(|(_, time)| *time).sum());
        parts.push("read", read);
        for (name, time) in made.into_iter().filter(|(_, time)| !time.is_zero()) {
            parts.push(name, time.min(receive));
        }
        match &course.batch {
            Some(batch) => {
                parts.push("inbox", course.inbox.into());
                if course.load != Micros::default() {
                    parts.push("load", course.load.into());
                }
                let queue = Duration::from(course.batch_wait) + Duration::from(course.queue);
                parts.push("queue", queue);
                let dispatched = parts.at;
                parts.push("in_batch", batch.round_trip.into());
                parts.push_rest("answer");
                let (ids, is_new) = self.batch_ids(batch.key);
                infer.links.push(Link {
                    trace_id: trace_bytes(ids.trace),
                    span_id: span_bytes(ids.span),
                });
                infer.attributes.extend(batch_attributes(batch, names));
                if is_new {
                    self.add_batch(ids, dispatched, batch, &course.stages, model, names, spans);
                }
            }
            None if course.cache == Some(CacheUse::Hit) => parts.push_rest("answer"),
            // It was refused or expired in the queue, or its end was that of its client.
            None if record.latency > record.receive => {
                parts.push("inbox", course.inbox.into());
                parts.push_rest("queue");
            }
            None => {}
        }
        spans.push(infer);
        spans.append(&mut parts.spans);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "they are the parts of one request's record"
    )]
    fn add_batch(
        &self,
        ids: SpanIds,
        dispatched: Time,
        batch: &RequestBatch,
        stages: &BatchStages,
        model: Option<&ModelId>,
        names: &Names,
        spans: &mut Vec<Span>,
    ) {
        let end = dispatched + Duration::from(batch.round_trip);
        let mut span = self.span("batch", SpanKind::Client, ids, dispatched, end);
        span.attributes = model_attributes(model);
        span.attributes.extend(batch_attributes(batch, names));
        let mut parts = Parts::new(self.clock, ids, dispatched, end);
        match batch.outcome {
            BatchOutcome::Failed => {
                span.status = Some(Status {
                    message: "the batch failed, or its worker was lost".to_owned(),
                    code: StatusCode::Error.into(),
                });
            }
            BatchOutcome::Computed => {
                // Only the sum of both directions is measured.
                parts.push("network", Duration::from(stages.network) / 2);
                parts.push("worker_queue", stages.worker_queue.into());
                parts.push("copy_in", stages.copy_in.into());
                parts.push("compute", stages.compute.into());
                parts.push("copy_out", stages.copy_out.into());
                parts.push_rest("network");
            }
        }
        spans.push(span);
        spans.append(&mut parts.spans);
    }

    /// Returns the ids of a batch, and true if they are new.
    fn batch_ids(&mut self, key: u64) -> (SpanIds, bool) {
        if let Some(ids) = self.batches.get(&key) {
            return (*ids, false);
        }
        let ids = SpanIds::root();
        self.batches.insert(key, ids);
        if self.batches.len() > REMEMBERED {
            self.batches.pop_first();
        }
        (ids, true)
    }

    fn span(&self, name: &str, kind: SpanKind, ids: SpanIds, begin: Time, end: Time) -> Span {
        Span {
            trace_id: trace_bytes(ids.trace),
            span_id: span_bytes(ids.span),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: self.clock.unix_nanos(begin),
            end_time_unix_nano: self.clock.unix_nanos(end),
            ..Span::default()
        }
    }
}

/// The parts of a span, one after the other.
struct Parts {
    clock: Clock,
    of: SpanIds,
    at: Time,
    end: Time,
    spans: Vec<Span>,
}

impl Parts {
    fn new(clock: Clock, of: SpanIds, begin: Time, end: Time) -> Self {
        Self {
            clock,
            of,
            at: begin,
            end,
            spans: Vec::new(),
        }
    }

    /// Adds the next part, which ends with the whole at the latest.
    fn push(&mut self, name: &str, length: Duration) {
        let end = (self.at + length).min(self.end);
        self.spans.push(Span {
            trace_id: trace_bytes(self.of.trace),
            span_id: span_bytes(random_span()),
            parent_span_id: span_bytes(self.of.span),
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.clock.unix_nanos(self.at),
            end_time_unix_nano: self.clock.unix_nanos(end),
            ..Span::default()
        });
        self.at = end;
    }

    fn push_rest(&mut self, name: &str) {
        self.push(name, self.end.saturating_since(self.at));
    }
}

fn trace_bytes(trace: u128) -> Vec<u8> {
    trace.to_be_bytes().to_vec()
}

fn span_bytes(span: u64) -> Vec<u8> {
    span.to_be_bytes().to_vec()
}

fn model_attributes(model: Option<&ModelId>) -> Vec<KeyValue> {
    let Some(model) = model else {
        return vec![attribute("model.name", "a removed model")];
    };
    vec![
        attribute("model.name", model.name.as_str()),
        attribute("model.version", model.version.to_string()),
    ]
}

fn batch_attributes(batch: &RequestBatch, names: &Names) -> Vec<KeyValue> {
    let mut attributes = vec![
        attribute("batch.id", batch.key.to_string()),
        attribute("batch.rows", batch.rows),
    ];
    if let Some((replica, device)) = names.replica(batch.replica) {
        attributes.push(attribute("replica.id", replica.to_string()));
        attributes.push(attribute("device.id", device.to_string()));
    }
    attributes
}
