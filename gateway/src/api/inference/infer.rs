//! `POST /v2/models/{model}/infer`.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use packhorse_api::ErrorBody;
use packhorse_cluster::{ModelName, ModelSpec, ModelVersion, Time};
use packhorse_protocol::{
    ByteRope, Form, HEADER_LENGTH, InferRequest, InferResponse, Limits, Message, RequestedOutput,
    Tensor,
};
use packhorse_serving::RequestOutcome;

use super::{
    body::IncomingBody, budget::Reservation, error::InferenceError, model_path::ModelPath,
    respond::response, state::Inference,
};
use crate::{
    driver::{OutputRows, ServedModel, Submission},
    telemetry::{EndedRequest, RequestCourse},
};

/// The size from which on JSON is handled on a thread of its own, in bytes: below, the hand-over would take longer than the work.
const LARGE_JSON: u64 = 1 << 20;

/// Runs inference on a model. Without a version: the newest that is ready.
///
/// The body is JSON, or JSON followed by binary tensors; then the header `Inference-Header-Content-Length` contains the length of
/// the JSON part in bytes. The answer has the forms that the request asks for.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, description = "An inference response of the protocol", body = serde_json::Value),
        (status = 400, description = "Malformed, or does not match the model's signature", body = ErrorBody),
        (status = 404, description = "No such model or version", body = ErrorBody),
        (status = 408, description = "The request body arrived too slowly", body = ErrorBody),
        (status = 413, description = "The request body is larger than the limit", body = ErrorBody),
        (status = 415, description = "An unsupported Content-Encoding", body = ErrorBody),
        (status = 500, description = "The model threw an exception, or its outputs differ from its declaration", body = ErrorBody),
        (status = 503, description = "Refused at once, or lost with its worker; Retry-After is the time after which to retry, in seconds", body = ErrorBody),
        (status = 504, description = "The deadline passed in the queue", body = ErrorBody),
    )
)]
pub(super) async fn infer(
    State(inference): State<Inference>,
    model: Result<ModelPath, InferenceError>,
    request: Request,
) -> Response {
    let arrived = inference.data_plane.clock().now();
    let (parts, body) = request.into_parts();
    let mut body = IncomingBody::new(&parts.headers, body);
    let model = model.map(|path| path.model);
    match answer(&inference, arrived, model, &parts.headers, &mut body, None).await {
        Ok(answered) => response(answered.message),
        Err(error) => {
            body.discard().await;
            error.into_response()
        }
    }
}

/// An answer, and where its time went.
#[derive(Debug)]
pub(crate) struct TracedAnswer {
    /// The answer.
    pub(crate) message: Message,
    /// The SLO of the model.
    pub(crate) slo: Duration,
    /// The course of the request through the data plane.
    pub(crate) course: RequestCourse,
    /// The measured times of the request.
    pub(crate) times: EndedRequest,
}

/// Runs inference like a client's request, with outputs as JSON, and returns where its time went.
pub(crate) async fn try_model(
    inference: &Inference,
    name: &ModelName,
    version: Option<ModelVersion>,
    request: Request,
) -> Result<TracedAnswer, InferenceError> {
    let arrived = inference.data_plane.clock().now();
    let (parts, body) = request.into_parts();
    let mut body = IncomingBody::new(&parts.headers, body);
    let catalog = inference.data_plane.catalog();
    let model = catalog.find(name, version).cloned();
    let model = model.map_err(InferenceError::from);
    let json = Some(Form::Json);
    let answered = answer(inference, arrived, model, &parts.headers, &mut body, json).await;
    if answered.is_err() {
        body.discard().await;
    }
    answered
}

/// Runs inference on a version of a model.
///
/// The same as without a version.
#[utoipa::path(
    post, path = "/v2/models/{model}/versions/{version}/infer", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, description = "An inference response of the protocol", body = serde_json::Value),
        (status = "default", description = "The same as without a version", body = ErrorBody),
    )
)]
pub(super) async fn infer_version(
    state: State<Inference>,
    model: Result<ModelPath, InferenceError>,
    request: Request,
) -> Response {
    infer(state, model, request).await
}

async fn answer(
    inference: &Inference,
    arrived: Time,
    model: Result<Arc<ServedModel>, InferenceError>,
    headers: &HeaderMap,
    body: &mut IncomingBody,
    form: Option<Form>,
) -> Result<TracedAnswer, InferenceError> {
    let model = model?;
    let header_length = header_length(headers)?;
    // Held until the answer is complete: by then the inputs are no longer needed.
    let mut reservation = inference.budget.reservation();
    let body = body
        .receive(headers, &inference.limits, &mut reservation)
        .await?;
    let request = parse(&model, body, header_length).await?;
    reserve_unpacked(&request, &mut reservation)?;
    let InferRequest {
        id,
        inputs,
        mut outputs,
        timeout,
        priority,
        rows,
    } = request;

    if let Some(form) = form {
        for output in &mut outputs {
            output.form = form;
        }
    }
    let slo = model.spec.slo;
    let meter = model.telemetry.begin_request(arrived, slo, rows);
    let time_allowed = timeout.map_or(slo, |timeout| timeout.min(ModelSpec::MAX_SLO));
    let submission = Submission {
        model: Arc::clone(&model),
        inputs,
        rows,
        priority,
        deadline: arrived + time_allowed,
    };
    let answered = match inference.data_plane.submit(submission).await {
        Ok(answered) => answered,
        Err(unanswered) => {
            meter.end(unanswered.outcome, unanswered.course);
            return Err(unanswered.into());
        }
    };
    let course = answered.course;
    let encoded = encode(&model, id, &outputs, answered.outputs).await;
    let outcome = match &encoded {
        Ok(_) => RequestOutcome::Answered,
        Err(_) => RequestOutcome::Failed,
    };
    let times = meter.end(outcome, course);
    Ok(TracedAnswer {
        message: encoded?,
        slo,
        course,
        times,
    })
}

/// Returns the length of the JSON part if the headers contain it.
fn header_length(headers: &HeaderMap) -> Result<Option<u64>, InferenceError> {
    let mut values = headers.get_all(HEADER_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let digits = value
        .to_str()
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (digits.and_then(|digits| digits.parse().ok()), values.next()) {
        (Some(length), None) => Ok(Some(length)),
        _ => Err(InferenceError::bad_request(
            "Inference-Header-Content-Length: expected one number, the length of the JSON part in bytes",
        )),
    }
}

async fn parse(
    model: &Arc<ServedModel>,
    body: ByteRope,
    header_length: Option<u64>,
) -> Result<InferRequest, InferenceError> {
    let json = header_length.unwrap_or(body.len() as u64);
    let model = Arc::clone(model);
    let parsed = run_by_size(json, move || {
        InferRequest::parse(body, header_length, &model.spec.program, &Limits::default())
    });
    Ok(parsed.await?)
}

/// Reserves the memory of JSON tensors, whose numbers can be larger in memory than in JSON; binary tensors are the body's own
/// bytes.
fn reserve_unpacked(
    request: &InferRequest,
    reservation: &mut Reservation,
) -> Result<(), InferenceError> {
    let json = request
        .inputs
        .iter()
        .filter(|input| input.form() == Form::Json);
    let unpacked = json.map(|input| input.data().len() as u64).sum();
    reservation
        .grow(unpacked)
        .map_err(|_| InferenceError::over_budget())
}

async fn encode(
    model: &ServedModel,
    id: String,
    requested: &[RequestedOutput],
    answered: Vec<OutputRows>,
) -> Result<Message, InferenceError> {
    let mut json = 0;
    let mut outputs = Vec::with_capacity(requested.len());
    for RequestedOutput { index, form } in requested {
        let (spec, rows) = (&model.spec.program.outputs[*index], &answered[*index]);
        if *form == Form::Json {
            json += rows.data.len() as u64;
        }
        let tensor = Tensor::new(
            spec.name.clone(),
            spec.datatype,
            rows.shape.clone(),
            rows.data.clone().into(),
        );
        // The size is right, but a BOOL may be neither 0 nor 1.
        let tensor = tensor.map_err(|e| {
            let message = format!("output {:?}: {e}", spec.name);
            InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        outputs.push(tensor.in_form(*form));
    }
    let model_id = model.id();
    let response = InferResponse {
        model_name: model_id.name.to_string(),
        model_version: model_id.version.to_string(),
        id,
        outputs,
    };
    Ok(run_by_size(json, move || response.encode()).await?)
}

/// Runs work on large JSON on a thread where it does not delay other requests.
async fn run_by_size<T: Send + 'static>(json: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    if json < LARGE_JSON {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
