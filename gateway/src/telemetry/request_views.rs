//! The requests that ended lately, in the form of the admin API.

use packhorse_api::{BatchView, RequestFilter, RequestStages, RequestView};
use packhorse_cluster::{ModelId, ModelName, ModelVersion};
use packhorse_serving::RequestOutcome;

use super::{
    handle::Telemetry,
    request_end::{end_of, reason_of},
    request_log::{Names, Record, RequestBatch, RequestCourse, RequestRecord},
};
use crate::clock::Clock;

/// The requests to list.
#[derive(Clone, Debug)]
pub(crate) struct WhichRequests {
    /// The ends to list; all if none is given.
    pub(crate) filter: Option<RequestFilter>,
    /// The model; all models if none is given.
    pub(crate) model: Option<ModelName>,
    /// Its version; all if none is given.
    pub(crate) version: Option<ModelVersion>,
    /// The largest number of requests.
    pub(crate) limit: usize,
}

/// Returns requests that ended lately, the newest first.
pub(crate) fn requests(telemetry: &Telemetry, which: &WhichRequests) -> Vec<RequestView> {
    let log = telemetry.requests();
    let names = log.names();
    let mut views = Vec::new();
    log.visit(|number, record| {
        if let Record::Request(request) = record
            && which.filter.is_none_or(|f| f.matches(end_of(request)))
            && let Some(model) = names.model(request.model)
            && which.model.as_ref().is_none_or(|name| *name == model.name)
            && which.version.is_none_or(|version| version == model.version)
        {
            views.push(view(number, request, model, &names, telemetry.clock()));
        }
        views.len() < which.limit
    });
    views
}

fn view(
    id: u64,
    request: &RequestRecord,
    model: &ModelId,
    names: &Names,
    clock: Clock,
) -> RequestView {
    let mut stages_ms = stages_view(request.receive.as_ms(), &request.course);
    if request.course.batch.is_none() && request.outcome != RequestOutcome::Answered {
        // A request that was in no batch has spent the rest of its time in the queue.
        stages_ms.queue = request.latency.as_ms() - stages_ms.receive;
    }
    RequestView {
        id,
        at_ms: clock.unix_ms_f64(request.arrived),
        model: model.name.clone(),
        version: model.version,
        outcome: end_of(request),
        reason: reason_of(request),
        latency_ms: request.latency.as_ms(),
        slo_ms: request.slo.as_ms(),
        rows: request.rows,
        stages_ms,
        batch: request.course.batch.map(|batch| batch_view(batch, names)),
    }
}

/// Returns the parts of a request's latency.
pub(crate) fn stages_view(receive_ms: f64, course: &RequestCourse) -> RequestStages {
    let stages = &course.stages;
    RequestStages {
        receive: receive_ms,
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
