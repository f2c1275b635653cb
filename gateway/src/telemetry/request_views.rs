//! The requests that ended lately, in the form of the admin API.

use packhorse_api::{BatchView, RequestStages, RequestView};
use packhorse_cluster::{ModelId, Time};
use packhorse_serving::RequestOutcome;

use super::{
    handle::Telemetry,
    request_end::{end_of, reason_of},
    request_log::{Names, Record, RequestBatch, RequestCourse, RequestRecord},
    request_texts::RequestTexts,
    which_requests::WhichRequests,
};
use crate::clock::Clock;

/// Returns requests that ended lately, the newest first.
pub(crate) fn requests(telemetry: &Telemetry, which: &WhichRequests) -> Vec<RequestView> {
    let clock = telemetry.clock();
    let mut rejected = telemetry.rejected().list(which).into_iter().peekable();
    let mut views: Vec<RequestView> = Vec::new();
    for (ended, view) in recorded(telemetry, which) {
        while let Some((number, request)) = rejected.next_if(|(_, one)| one.ended() > ended) {
            views.push(request.view(number, clock));
        }
        views.push(view);
    }
    views.extend(rejected.map(|(number, request)| request.view(number, clock)));
    views.truncate(which.limit);
    views
}

/// Returns requests that a model had with the times at which they ended, the newest first.
fn recorded(telemetry: &Telemetry, which: &WhichRequests) -> Vec<(Time, RequestView)> {
    let log = telemetry.requests();
    let names = log.names();
    let mut views = Vec::new();
    log.visit(|number, record| {
        if let Record::Request(request) = record
            && let Some(model) = names.model(request.model)
            && which.contains(request, model)
        {
            let texts = log.texts(request);
            if !which.has_texts() || texts.as_ref().is_some_and(|t| which.contains_texts(t)) {
                let texts = texts.unwrap_or_default();
                let view = view(number, request, texts, model, &names, telemetry.clock());
                views.push((request.arrived + request.latency.into(), view));
            }
        }
        views.len() < which.limit
    });
    views
}

/// Returns the request with this number, unless it was forgotten.
pub(crate) fn request(telemetry: &Telemetry, number: u64) -> Option<RequestView> {
    if let Some(request) = telemetry.rejected().get(number) {
        return Some(request.view(number, telemetry.clock()));
    }
    let log = telemetry.requests();
    let request = log.request(number)?;
    let names = log.names();
    let model = names.model(request.model)?;
    let texts = log.texts(&request).unwrap_or_default();
    Some(view(
        number,
        &request,
        texts,
        model,
        &names,
        telemetry.clock(),
    ))
}

fn view(
    id: u64,
    request: &RequestRecord,
    texts: RequestTexts,
    model: &ModelId,
    names: &Names,
    clock: Clock,
) -> RequestView {
    let given = |text: String| (!text.is_empty()).then_some(text);
    let mut stages_ms = stages_view(request.receive.as_ms(), &request.course);
    if request.course.batch.is_none() && request.outcome != RequestOutcome::Answered {
        // A request that was in no batch has spent the rest of its time in the queue.
        stages_ms.queue = request.latency.as_ms() - request.receive.as_ms();
    }
    RequestView {
        id,
        request_id: given(texts.id),
        trace_id: given(texts.trace),
        key: given(texts.key),
        key_name: None,
        at_ms: clock.unix_ms_f64(request.arrived),
        model: Some(model.name.clone()),
        version: Some(model.version),
        outcome: end_of(request),
        status: None,
        address: None,
        reason: given(texts.failure).or_else(|| reason_of(request)),
        latency_ms: request.latency.as_ms(),
        slo_ms: request.slo.as_ms(),
        rows: request.rows,
        cache: request.course.cache,
        stages_ms,
        batch: request.course.batch.map(|batch| batch_view(batch, names)),
    }
}

/// Returns the parts of a request's latency.
pub(crate) fn stages_view(receive_ms: f64, course: &RequestCourse) -> RequestStages {
    let stages = &course.stages;
    let decode = course.decode.as_ms();
    let tokenize = course.tokenize.as_ms();
    let lookup = course.lookup.as_ms();
    RequestStages {
        receive: (receive_ms - decode - tokenize - lookup).max(0.0),
        decode,
        tokenize,
        lookup,
        load: course.load.as_ms(),
        batch: course.batch_wait.as_ms(),
        queue: course.queue.as_ms(),
        network: stages.network.as_ms(),
        worker_queue: stages.worker_queue.as_ms(),
        copy_in: stages.copy_in.as_ms(),
        compute: stages.compute.as_ms(),
        copy_out: stages.copy_out.as_ms(),
    }
}

/// Returns the batch of a request.
pub(crate) fn batch_view(batch: RequestBatch, names: &Names) -> BatchView {
    let replica = names.replica(batch.replica);
    BatchView {
        id: batch.key,
        rows: batch.rows,
        replica: replica.map(|(id, _)| *id),
        device: replica.map(|(_, device)| device.clone()),
    }
}
