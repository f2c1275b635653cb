//! The routes of the platforms.

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use packhorse_api::ErrorBody;

use super::{
    predict::{Content, Outcome, predict},
    schema::{PredictAnswer, PredictRequest},
    settings::{INVOCATIONS, PING, PREDICT, Platforms, target},
};
use crate::api::inference::{
    error::InferenceError,
    header_names::HEADER_LENGTH,
    infer::infer,
    middleware,
    model_path::{ModelPath, name_and_version},
    pictures::is_picture,
    server::method_not_allowed,
    state::Inference,
};

/// The type of a body of the Open Inference Protocol with binary tensors, as `SageMaker`'s clients of Triton name it; the length of its JSON part follows.
const BINARY: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";

/// Adds the routes of the platforms that are on to those of the listener.
pub(in crate::api::inference) fn add_to(
    routes: Router<Inference>,
    platforms: &Platforms,
) -> Router<Inference> {
    let routes = if platforms.kserve_v1 {
        routes.route("/v1/models/{model}", post(kserve_predict))
    } else {
        routes
    };
    if platforms.sagemaker.is_none() {
        return routes;
    }
    routes
        .route(PING, get(ping))
        .route(INVOCATIONS, post(invocations))
}

/// Puts the routes of Vertex AI, which may be any, before those of the listener, if the platform is on.
pub(in crate::api::inference) fn with_vertex(routes: Router, inference: &Inference) -> Router {
    let Some((_, paths)) = &inference.platforms.vertex else {
        return routes;
    };
    Router::new()
        .route(&paths.health, get(vertex_health))
        .route(&paths.predict, post(vertex_predict))
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(
            inference.clone(),
            middleware::answer,
        ))
        .with_state(inference.clone())
        .fallback_service(routes)
}

/// Answers rows, as version 1 of the protocol of `KServe` and TensorFlow Serving does; with `--platform kserve-v1`.
///
/// Rows are `instances`, or `inputs` by the inputs' names.
/// Where a model has one input a row is its value, else an object of values by the inputs' names.
/// Bytes are `{"b64": "..."}`: pictures, where the model declares them; texts are strings.
/// More rows than the model takes at once are answered in portions.
#[utoipa::path(
    post, path = "/v1/models/{model}:predict", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body = PredictRequest,
    responses(
        (status = 200, description = "A prediction for each row", body = PredictAnswer),
        (status = "default", description = "As for `/v2/models/{model}/infer`", body = ErrorBody),
    )
)]
pub(in crate::api::inference) async fn kserve_predict(
    State(inference): State<Inference>,
    Path(call): Path<String>,
    request: Request,
) -> Response {
    let Some(model) = call.strip_suffix(PREDICT) else {
        let message = "there is no such path: expected /v1/models/NAME:predict";
        return InferenceError::new(StatusCode::NOT_FOUND, message).into_response();
    };
    rows(&inference, (model, ""), request).await
}

/// Returns 200 if the model of `SageMaker`'s requests is ready; with `--platform sagemaker=MODEL`.
#[utoipa::path(
    get, path = "/ping", tag = "inference",
    responses(
        (status = 200, description = "The model is ready"),
        (status = 404, description = "The gateway does not speak the contract, or has no such model", body = ErrorBody),
        (status = 503, description = "It is not", body = ErrorBody),
    )
)]
pub(in crate::api::inference) async fn ping(
    State(inference): State<Inference>,
    headers: HeaderMap,
) -> Result<StatusCode, InferenceError> {
    let model = inference.platforms.sagemaker.as_deref();
    health(&inference, model.unwrap_or_default(), &headers)
}

/// Answers what `SageMaker` asks a container; with `--platform sagemaker=MODEL`.
///
/// The header `X-Amzn-SageMaker-Target-Model` names another model than the flag does.
/// The body is rows (as for `/v1/models/{model}:predict`), one picture (`image/...`) or one text (`text/plain`) as it is, or a request of the Open Inference
/// Protocol, which is answered as by `/v2/models/{model}/infer`.
#[utoipa::path(
    post, path = "/invocations", tag = "inference",
    request_body = PredictRequest,
    responses(
        (status = 200, description = "A prediction for each row, or an answer of the Open Inference Protocol", body = PredictAnswer),
        (status = "default", description = "As for `/v2/models/{model}/infer`", body = ErrorBody),
    )
)]
pub(in crate::api::inference) async fn invocations(
    State(inference): State<Inference>,
    mut request: Request,
) -> Response {
    let headers = request.headers().clone();
    let model = inference.platforms.sagemaker.as_deref();
    let named = target(model.unwrap_or_default(), &headers).and_then(name_and_version);
    let named = match named {
        Ok(named) => named,
        Err(error) => return error.into_response(),
    };
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let binary = kind.strip_prefix(BINARY).map(str::to_owned);
    if let Some(Ok(length)) = binary.as_deref().map(HeaderValue::from_str) {
        request.headers_mut().insert(&HEADER_LENGTH, length);
    }
    if request.headers().contains_key(&HEADER_LENGTH) {
        return oip(&inference, named, request, binary.is_some()).await;
    }
    let is_text = |kind: &str| kind.split(';').next().unwrap_or_default().trim() == "text/plain";
    let content = if is_picture(&headers) {
        Content::Picture
    } else if is_text(&kind.to_ascii_lowercase()) {
        Content::Text
    } else {
        Content::RowsOrOip
    };
    match predict(&inference, named, content, request).await {
        Outcome::Answered(response) => response,
        Outcome::Oip(request) => oip(&inference, named, request, false).await,
    }
}

/// Answers a request of the Open Inference Protocol.
async fn oip(
    inference: &Inference,
    (name, version): (&str, &str),
    request: Request,
    is_binary: bool,
) -> Response {
    let model = ModelPath::find(inference, name, version, request.headers());
    let mut response = infer(State(inference.clone()), model, request).await;
    let length = response.headers().get(&HEADER_LENGTH);
    let kind = length.and_then(|length| Some(format!("{BINARY}{}", length.to_str().ok()?)));
    if let Some(Ok(kind)) = kind.filter(|_| is_binary).map(HeaderValue::try_from) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

/// Returns 200 if the model of Vertex AI's requests is ready; with `--platform vertex=MODEL`.
///
/// The path is that of `AIP_HEALTH_ROUTE`.
#[utoipa::path(
    get, path = "/health", tag = "inference",
    responses(
        (status = 200, description = "The model is ready"),
        (status = 404, description = "The gateway does not speak the contract, or has no such model", body = ErrorBody),
        (status = 503, description = "It is not", body = ErrorBody),
    )
)]
pub(in crate::api::inference) async fn vertex_health(
    State(inference): State<Inference>,
    headers: HeaderMap,
) -> Result<StatusCode, InferenceError> {
    health(&inference, vertex_model(&inference), &headers)
}

/// Answers what Vertex AI asks a container; with `--platform vertex=MODEL`.
///
/// The path is that of `AIP_PREDICT_ROUTE`, and the body that of `/v1/models/{model}:predict`.
#[utoipa::path(
    post, path = "/predict", tag = "inference",
    request_body = PredictRequest,
    responses(
        (status = 200, description = "A prediction for each row", body = PredictAnswer),
        (status = "default", description = "As for `/v2/models/{model}/infer`", body = ErrorBody),
    )
)]
pub(in crate::api::inference) async fn vertex_predict(
    State(inference): State<Inference>,
    request: Request,
) -> Response {
    match name_and_version(vertex_model(&inference)) {
        Ok(named) => rows(&inference, named, request).await,
        Err(error) => error.into_response(),
    }
}

fn vertex_model(inference: &Inference) -> &str {
    let vertex = inference.platforms.vertex.as_ref();
    vertex.map_or("", |(model, _)| model)
}

/// Answers a call whose body is rows.
async fn rows(inference: &Inference, named: (&str, &str), request: Request) -> Response {
    match predict(inference, named, Content::Rows, request).await {
        Outcome::Answered(response) => response,
        Outcome::Oip(_) => InferenceError::bad_request("expected rows").into_response(),
    }
}

fn health(
    inference: &Inference,
    model: &str,
    headers: &HeaderMap,
) -> Result<StatusCode, InferenceError> {
    let (name, version) = name_and_version(model)?;
    let path = ModelPath::find(inference, name, version, headers);
    // A model that is not registered yet is not ready either.
    if path.is_ok_and(|path| path.requested.is_ready()) {
        return Ok(StatusCode::OK);
    }
    let message = format!("no replica of {model:?} is ready; retry later");
    Err(InferenceError::unavailable(message))
}
