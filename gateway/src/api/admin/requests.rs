//! `/v1/requests`, `/v1/trace` and `/v1/models/{name}/try`: single requests, and where their time went.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use packhorse_api::{ErrorBody, RequestFilter, RequestView, TryView};
use packhorse_cluster::{ModelName, ModelVersion, Time};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use utoipa::IntoParams;

use super::{
    Admin,
    models::WhichVersion,
    times::{check_order, named_time},
};
use crate::{
    api::{
        error::{ApiError, Path, Query},
        inference::{InferenceError, TracedAnswer, try_model},
    },
    clock::Clock,
    keys::Keyring,
    telemetry::{
        TraceWindow, WhichRequests, batch_view, request, requests, stages_view, write_trace,
    },
};

/// The window of a trace without `from_ms`, before its end.
const DEFAULT_WINDOW: Duration = Duration::from_secs(10);
/// The number of pieces of a trace, of 64 KiB each, that wait for the client.
const TRACE_PIECES: usize = 4;
/// The time for which a client may read nothing of a trace before it is given up.
const TRACE_PAUSE: Duration = Duration::from_secs(30);
/// The largest number of traces that are written at once: each copies up to 17 MiB.
pub(crate) const MAX_TRACES: usize = 2;

/// The requests to list.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListedRequests {
    /// The way in which the requests ended: `missed` for all that missed their SLO, or one of `answered`, `late`, `refused`, `expired`,
    /// `lost`, `failed`, `cancelled`, or `rejected` for those that reached no model; all if absent.
    #[param(value_type = Option<String>)]
    outcome: Option<RequestFilter>,
    /// The model's name; all models if absent.
    #[param(value_type = Option<String>)]
    model: Option<ModelName>,
    /// The version of this model; all if absent.
    #[param(value_type = Option<u32>)]
    version: Option<ModelVersion>,
    /// The request's id, which its client sent or was answered in `x-request-id`, or the id of its trace in hexadecimal digits.
    #[param(min_length = 1, max_length = 128)]
    id: Option<String>,
    /// The id or the name of the API key that the requests came with.
    key: Option<String>,
    /// Only requests that did not arrive before this time, in milliseconds since 1970; a negative number counts from now.
    since: Option<i64>,
    /// Only requests that had arrived by this time, in milliseconds since 1970; a negative number counts from now.
    until: Option<i64>,
    /// The largest number of requests to list, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    #[serde(default = "ListedRequests::default_limit")]
    limit: usize,
}

impl ListedRequests {
    const MAX_LIMIT: usize = 10_000;

    fn default_limit() -> usize {
        100
    }
}

/// The time window of a trace.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TracedTime {
    /// The begin, in milliseconds since 1970; a negative number counts from now. 10 s before the end if absent.
    from_ms: Option<i64>,
    /// The end, in milliseconds since 1970; a negative number counts from now. Now if absent.
    to_ms: Option<i64>,
}

/// Returns requests that ended lately, the newest first.
///
/// The gateway remembers 17 MiB of requests and batches, the last 120,000 of them, until it stops, and 24 MiB of their ids, keys and exceptions.
/// Of POST requests over HTTP that reached no model, because they were wrong in themselves or not permitted, it remembers the last 1000 of each of the
/// statuses 401, 403, 404, 413 and 429, and of all others together.
#[utoipa::path(
    get, path = "/v1/requests", tag = "requests", security(("admin" = [])),
    params(ListedRequests),
    responses((status = 200, body = [RequestView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(listed): Query<ListedRequests>,
) -> Result<Json<Vec<RequestView>>, ApiError> {
    if listed.limit == 0 || listed.limit > ListedRequests::MAX_LIMIT {
        let max = ListedRequests::MAX_LIMIT;
        return Err(ApiError::bad_request(format!("limit: expected 1 to {max}")));
    }
    if listed.version.is_some() && listed.model.is_none() {
        return Err(ApiError::bad_request(
            "version: expected only together with model".to_owned(),
        ));
    }
    if listed
        .id
        .as_ref()
        .is_some_and(|id| id.is_empty() || id.len() > 128)
    {
        return Err(ApiError::bad_request("id: expected 1 to 128 characters"));
    }
    let telemetry = admin.data_plane.telemetry().clone();
    let clock = telemetry.clock();
    let at = |ms: Option<i64>| ms.map(|ms| named_time(ms, clock));
    check_order(listed.since, listed.until)?;
    let which = WhichRequests {
        filter: listed.outcome,
        model: listed.model,
        version: listed.version,
        id: listed.id,
        keys: listed.key.map(|key| admin.keys.ids_named(&key)),
        since: at(listed.since),
        // All of this millisecond.
        until: at(listed.until).map(|until| until + Duration::from_millis(1)),
        limit: listed.limit,
    };
    let found = tokio::task::spawn_blocking(move || requests(&telemetry, &which));
    let mut found = found.await.map_err(|e| ApiError::internal(&e))?;
    for request in &mut found {
        name_key(request, &admin.keys);
    }
    Ok(Json(found))
}

/// Sets the name of a request's key.
fn name_key(request: &mut RequestView, keys: &Keyring) {
    request.key_name = request.key.as_ref().and_then(|id| keys.name(id));
}

/// Returns a trace of the requests and batches in a time window, in Chrome's trace event format.
///
/// Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open it. Each device is a process with a thread for each replica, each model a
/// process with its requests; batches and requests are slices with their stages within, and an arrow leads from each request to its batch.
#[utoipa::path(
    get, path = "/v1/trace", tag = "requests", security(("admin" = [])),
    params(TracedTime),
    responses(
        (status = 200, description = "The trace", body = serde_json::Value),
        (status = 400, description = "The window ends before it begins", body = ErrorBody),
        (status = 503, description = "Too many traces are written at once", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn trace(
    State(admin): State<Admin>,
    Query(traced): Query<TracedTime>,
) -> Result<Response, ApiError> {
    let telemetry = admin.data_plane.telemetry().clone();
    let window = window(traced, telemetry.clock())?;
    let Ok(permit) = admin.traces.try_acquire_owned() else {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("at most {MAX_TRACES} traces are written at once; retry in a few seconds"),
        ));
    };
    let (pieces, mut written) = mpsc::channel::<Bytes>(TRACE_PIECES);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        write_trace(&telemetry, window, |piece| {
            let sent = runtime.block_on(timeout(TRACE_PAUSE, pieces.send(piece)));
            matches!(sent, Ok(Ok(())))
        });
    });
    let body = stream::poll_fn(move |context| {
        let piece = written.poll_recv(context);
        piece.map(|piece| piece.map(Ok::<_, Infallible>))
    });
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Sends an inference request to a model like a client, and returns the answer with the parts of its latency. Without a version: the newest
/// that is ready.
#[utoipa::path(
    post, path = "/v1/models/{name}/try", tag = "requests", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), WhichVersion),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, body = TryView<serde_json::Value>),
        (status = "default", description = "The same as for a client", body = ErrorBody),
    )
)]
pub(super) async fn try_request(
    State(admin): State<Admin>,
    Path(name): Path<ModelName>,
    Query(which): Query<WhichVersion>,
    request: Request,
) -> Response {
    let answer = try_model(&admin.inference, &name, which.version, request).await;
    match answer {
        Ok(answer) => try_view(&admin, answer).into_response(),
        Err(error) => InferenceError::into_response(error),
    }
}

fn try_view(admin: &Admin, answer: TracedAnswer) -> Result<Json<TryView<Box<RawValue>>>, ApiError> {
    let names = admin.data_plane.telemetry().requests().names();
    let message = Vec::from(answer.message.into_body().to_bytes());
    let message = String::from_utf8(message).map_err(|e| ApiError::internal(&e))?;
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Json(TryView {
        response: RawValue::from_string(message).map_err(|e| ApiError::internal(&e))?,
        latency_ms: ms(answer.times.latency),
        slo_ms: ms(answer.slo),
        stages_ms: stages_view(ms(answer.times.receive), &answer.course),
        batch: answer.course.batch.map(|batch| batch_view(batch, &names)),
    }))
}

/// Returns a request that ended lately.
#[utoipa::path(
    get, path = "/v1/requests/{number}", tag = "requests", security(("admin" = [])),
    params(("number" = u64, Path, description = "The number of the request since the gateway's start")),
    responses(
        (status = 200, body = RequestView),
        (status = 404, description = "The gateway does not remember such a request", body = ErrorBody),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn one(
    State(admin): State<Admin>,
    Path(number): Path<u64>,
) -> Result<Json<RequestView>, ApiError> {
    let found = request(admin.data_plane.telemetry(), number);
    let mut found =
        found.ok_or_else(|| ApiError::not_found(format!("request {number} is not remembered")))?;
    name_key(&mut found, &admin.keys);
    Ok(Json(found))
}

/// Returns the time window of a trace.
fn window(traced: TracedTime, clock: Clock) -> Result<TraceWindow, ApiError> {
    let now = clock.now();
    let at = |ms: i64| named_time(ms, clock);
    let to = traced.to_ms.map_or(now, at);
    let default_from = to - DEFAULT_WINDOW.min(to.saturating_since(Time::ZERO));
    let from = traced.from_ms.map_or(default_from, at);
    if from > to {
        return Err(ApiError::bad_request(
            "from_ms: expected a time before to_ms",
        ));
    }
    Ok(TraceWindow { from, to })
}
