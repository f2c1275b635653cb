//! `POST /v2/models/{model}/infer`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use packhorse_api::ErrorBody;
use packhorse_cluster::{ModelSpec, Time};
use packhorse_protocol::{
    ByteRope, Form, HEADER_LENGTH, InferRequest, InferResponse, Limits, Message, RequestedOutput,
    Tensor,
};

use super::{
    Inference, body::IncomingBody, budget::Reservation, error::InferenceError,
    inflate::over_budget, model_path::ModelPath, respond::response,
};
use crate::{
    driver::{OutputRows, ServedModel, Submission, Unanswered},
    telemetry::{End, RequestMeter},
};

/// JSON of this size is worth a thread of its own: below, handing it over would cost more than it takes.
const LARGE_JSON: u64 = 1 << 20;

/// Ask a model. Without a version: the newest that is ready.
///
/// The body is JSON, or JSON and binary tensors behind it, whose first part's length is then said by the header
/// `Inference-Header-Content-Length`. The answer takes the forms that the request asks for.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, description = "An inference response of the protocol", body = serde_json::Value),
        (status = 400, description = "Malformed, or not what the model's signature wants", body = ErrorBody),
        (status = 404, description = "No such model or version", body = ErrorBody),
        (status = 408, description = "The body came too slowly", body = ErrorBody),
        (status = 413, description = "The body is over the limit", body = ErrorBody),
        (status = 415, description = "An unknown Content-Encoding", body = ErrorBody),
        (status = 500, description = "The model threw, or answered what it does not declare", body = ErrorBody),
        (status = 503, description = "Refused at once, or the worker was lost; Retry-After says when to try again", body = ErrorBody),
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
    match answer(&inference, arrived, model, &parts.headers, &mut body).await {
        Ok(message) => response(message),
        Err(error) => {
            body.drain().await;
            error.into_response()
        }
    }
}

/// Ask a version of a model.
///
/// As without a version.
#[utoipa::path(
    post, path = "/v2/models/{model}/versions/{version}/infer", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, description = "An inference response of the protocol", body = serde_json::Value),
        (status = "default", description = "As without a version", body = ErrorBody),
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
    model: Result<ModelPath, InferenceError>,
    headers: &HeaderMap,
    body: &mut IncomingBody,
) -> Result<Message, InferenceError> {
    let model = model?.model;
    let header_length = header_length(headers)?;
    // Held until the answer is there: by then nobody needs the inputs any more.
    let mut reservation = inference.budget.reservation();
    let body = body
        .receive(headers, &inference.limits, &mut reservation)
        .await?;
    let request = parse(&model, body, header_length).await?;
    reserve_unpacked(&request, &mut reservation)?;
    let InferRequest {
        id,
        inputs,
        outputs,
        timeout,
        priority,
        rows,
    } = request;

    let meter = model.telemetry.begin(arrived, model.spec.slo);
    let patience = timeout.map_or(model.spec.slo, |timeout| timeout.min(ModelSpec::MAX_SLO));
    let submission = Submission {
        model: Arc::clone(&model),
        inputs,
        rows,
        priority,
        deadline: arrived + patience,
    };
    let result = match inference.data_plane.submit(submission).await {
        Ok(answered) => encode(&model, id, &outputs, answered).await,
        Err(unanswered) => {
            meter.end(end_of(&unanswered));
            return Err(unanswered.into());
        }
    };
    finish(meter, result)
}

/// The size of the JSON part, where the headers say it.
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
    let parsed = at_its_size(json, move || {
        InferRequest::parse(body, header_length, &model.spec.program, &Limits::default())
    });
    Ok(parsed.await?)
}

/// Numbers can take more room in memory than in JSON; binary tensors are the body's own bytes.
fn reserve_unpacked(
    request: &InferRequest,
    reservation: &mut Reservation,
) -> Result<(), InferenceError> {
    let json = request
        .inputs
        .iter()
        .filter(|input| input.form() == Form::Json);
    let unpacked = json.map(|input| input.data().len() as u64).sum();
    reservation.grow(unpacked).map_err(|_| over_budget())
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
        // Of its right size, but a BOOL that is neither 0 nor 1.
        let tensor = tensor
            .map_err(|e| Unanswered::Failed(Arc::from(format!("output {:?}: {e}", spec.name))))?;
        outputs.push(tensor.in_form(*form));
    }
    let model_id = model.id();
    let response = InferResponse {
        model_name: model_id.name.to_string(),
        model_version: model_id.version.to_string(),
        id,
        outputs,
    };
    Ok(at_its_size(json, move || response.encode()).await?)
}

/// Runs what takes long on large JSON where it does not keep other requests waiting.
async fn at_its_size<T: Send + 'static>(json: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    if json < LARGE_JSON {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn end_of(unanswered: &Unanswered) -> End {
    match unanswered {
        Unanswered::Refused(_) | Unanswered::Busy { .. } | Unanswered::ShuttingDown => End::Refused,
        Unanswered::Expired => End::Expired,
        Unanswered::Lost => End::Lost,
        Unanswered::Failed(_) => End::Failed,
    }
}

fn finish(
    meter: RequestMeter,
    result: Result<Message, InferenceError>,
) -> Result<Message, InferenceError> {
    meter.end(if result.is_ok() {
        End::Answered
    } else {
        End::Failed
    });
    result
}
