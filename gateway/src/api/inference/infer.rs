//! `POST /v2/models/{model}/infer`.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue},
    response::{IntoResponse, Response},
};
use memchr::memmem;
use packhorse_api::{ErrorBody, MODEL_HEADER, SERVER_TIMING_HEADER};
use packhorse_cluster::{ModelName, ModelVersion, Program, TensorSpec, Time};
use packhorse_protocol::{
    ByteRope, Form, InferRequest, InferResponse, Limits, Message, RequestMessage, json_list_bound,
};
use packhorse_serving::{Refusal, TenantKey};

use super::{
    body::{IncomingBody, Place},
    classes::CLASS_TEXT,
    compress::compress,
    computation::{
        Answer, Arrival, Computed, LARGE_REQUEST, LARGE_TEXT, REQUEST_BYTES, ReceivedRequest,
        SHARED_TENSORS, compute, is_probe, is_scanned, record_refusal, refusal,
        timing as timing_of,
    },
    error::InferenceError,
    header_names::{HEADER_LENGTH, STAGES},
    inflate::{Encoding, inflate},
    middleware::sender_of,
    model_path::{ModelPath, request_id},
    pictures::{is_picture, request_of},
    predictions::tell,
    raw_inputs::has_raw_inputs,
    respond::response,
    shared_memory::{RegionReader, SharedMemoryError, TenantRegions},
    state::Inference,
    work_pool::Party,
};
use crate::{
    clock::Clock,
    driver::{RequestedModel, ServedModel},
    memory::Reservation,
    telemetry::{EndedRequest, RequestCourse},
};

/// Runs inference on a model, or on a family. Without a version: the newest that is ready.
///
/// A request for a family is answered by its most accurate variant that can be in time. `model_name` is then the family's, the version and the
/// parameter `variant` are those of the model that answered, which the header `x-packhorse-model` has as `NAME:VERSION`.
///
/// The body is JSON, or JSON followed by binary tensors; then the header `Inference-Header-Content-Length` contains the length of the JSON part in bytes.
/// A body of `Content-Type: image/...` is a picture, which becomes the only input of a model whose registration declares how (`preprocess`).
/// It is answered the best classes (`postprocess`).
/// The answer has the forms that the request asks for.
/// The answer of a model with a cache says in its header `x-packhorse-cache` whether it is that of an earlier request (`hit`) or not (`miss`).
/// With a header `x-packhorse-stages` in the request, it has the durations of the request's stages in its header `Server-Timing`, in milliseconds.
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body(content = serde_json::Value, description = "An inference request of the Open Inference Protocol, version 2"),
    responses(
        (status = 200, description = "An inference response of the protocol", body = serde_json::Value),
        (status = 400, description = "Malformed, or does not match the model's signature", body = ErrorBody),
        (status = 404, description = "No such model or version", body = ErrorBody),
        (status = 408, description = "The request body arrived too slowly", body = ErrorBody),
        (status = 413, description = "The request body is larger than the limit", body = ErrorBody),
        (status = 415, description = "An unsupported Content-Encoding", body = ErrorBody),
        (status = 429, description = "Over a limit of the key, or refused for a while because requests of this client ended workers of the model; Retry-After is the time after which to retry, in seconds", body = ErrorBody),
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
    let clock = inference.data_plane.clock();
    let arrived = clock.now();
    if let Some(latency) = &inference.wake_latency {
        latency.request();
    }
    let model = match model {
        Ok(path) => path.started(&inference, arrived, request.headers()).await,
        Err(error) => Err(error),
    };
    let (parts, body) = request.into_parts();
    let mut body = IncomingBody::new(&parts.headers, body);
    let path = match model {
        Ok(path) => path,
        Err(error) => {
            body.discard();
            return error.into_response();
        }
    };
    let identity = sender_of(&parts, inference.telemetry());
    let arrival = Arrival::new(arrived, &identity, &parts);
    match answer(&inference, &arrival, &path, &mut body, None).await {
        Ok(answered) => {
            let timing = parts.headers.contains_key(&STAGES);
            let timing = timing.then(|| timing_of(&answered.course, &answered.times));
            let variant = path.requested.family.is_some();
            let variant = variant.then(|| HeaderValue::try_from(answered.model.id().to_string()));
            let mut response = response(answered.message, answered.memory);
            if let Some(Ok(value)) = timing.map(|timing| HeaderValue::try_from(timing.to_string()))
            {
                response.headers_mut().insert(SERVER_TIMING_HEADER, value);
            }
            if let Some(Ok(value)) = variant {
                response.headers_mut().insert(MODEL_HEADER, value);
            }
            tell(response.headers_mut(), answered.course.cache);
            // Only answers are compressed: one widespread client advertises gzip but cannot read compressed metadata or errors.
            compress(&parts.headers, response).await
        }
        Err(error) => {
            tracing::debug!(
                request.id = identity.id(), model.name = %path.requested.last().id(), http.status = error.status().as_u16(),
                error = error.message(), "a request was not answered"
            );
            body.discard();
            let retry_after = path.requested.retry_after(clock.now());
            error.or_retry_after(retry_after).into_response()
        }
    }
}

/// An answer, and where its time went.
#[derive(Debug)]
pub(crate) struct TracedAnswer {
    /// The model that answered.
    pub(crate) model: Arc<ServedModel>,
    /// The answer.
    pub(crate) message: Message,
    /// The reserved memory of the answer.
    pub(crate) memory: Reservation,
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
    let request_id = request_id(&parts.headers);
    let requested = catalog.find(name, version, request_id)?;
    let path = ModelPath {
        requested,
        version,
        catalog,
    };
    let json = Some(Form::Json);
    let identity = sender_of(&parts, inference.telemetry());
    let arrival = Arrival::new(arrived, &identity, &parts);
    let answered = answer(inference, &arrival, &path, &mut body, json).await;
    if answered.is_err() {
        body.discard();
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
    arrival: &Arrival<'_>,
    path: &ModelPath,
    body: &mut IncomingBody,
    form: Option<Form>,
) -> Result<TracedAnswer, InferenceError> {
    let received = receive(inference, arrival, path, body).await;
    let mut received = received.inspect_err(|error| record_refusal(arrival, path, error))?;
    if let Some(form) = form {
        for output in &mut received.request.outputs {
            output.form = form;
            output.range = None;
        }
    }
    let computed = compute(inference, arrival, path, received, None).await?;
    let Computed {
        answer,
        mut memory,
        ending,
    } = computed;
    let encoded = encode(inference, arrival.tenant, answer, &mut memory).await;
    let (model, slo, course) = (Arc::clone(&ending.model), ending.slo, ending.course);
    let (message, times) = ending.end(encoded)?;
    Ok(TracedAnswer {
        model,
        message,
        memory,
        slo,
        course,
        times,
    })
}

/// Receives and parses a request, unless it is refused before.
async fn receive(
    inference: &Inference,
    arrival: &Arrival<'_>,
    path: &ModelPath,
    body: &mut IncomingBody,
) -> Result<ReceivedRequest, InferenceError> {
    let &Arrival {
        at: arrived,
        tenant,
        headers,
        extensions,
        ..
    } = arrival;
    let requested = &path.requested;
    let model = &requested.model;
    let header_length = header_length(headers)?;
    let encoding = Encoding::from_headers(headers)?;
    if let Some(refusal) = refusal(path, tenant) {
        return Err(refusal.into());
    }
    let clock = inference.data_plane.clock();
    let is_large = body.announced().is_none_or(|bytes| bytes >= LARGE_REQUEST);
    // The engine decides about a small request, with its priority and its own timeout.
    let may_be_hopeless = is_large && !is_probe(inference, requested, clock, arrived, tenant);
    if may_be_hopeless && requested.is_hopeless(clock.now(), arrived, tenant) {
        return Err(Refusal::CannotMeetDeadline.into());
    }
    let mut memory = model.memory.tenant(tenant).reservation();
    memory.grow(REQUEST_BYTES)?;
    let place = place(inference, model, body, header_length, encoding);
    let body = body.receive(&inference.limits, place, &mut memory).await?;
    let json = header_length.unwrap_or(u64::MAX).min(body.len() as u64);
    let is_small = encoding == Encoding::Identity && json < LARGE_TEXT;
    let regions = match &inference.shared_memory {
        Some(shared) if !is_small || names_region(&body, json) => {
            shared.of_client(tenant, extensions).await
        }
        _ => Err(SharedMemoryError::Off),
    };
    let unparsed = UnparsedRequest {
        body,
        encoding,
        header_length,
        body_limit: inference.limits.body_bytes,
        is_picture: is_picture(headers) && header_length.is_none(),
        receiving: Receiving {
            regions,
            requested: requested.clone(),
            clock,
            arrived,
            memory,
        },
    };
    let party = Party {
        model: model.key,
        tenant,
    };
    // The body and the pool take their time.
    let still_wanted = move |requested: &RequestedModel| -> Result<(), InferenceError> {
        if let Some(refusal) = requested.refusal(tenant) {
            return Err(refusal.into());
        }
        if may_be_hopeless && requested.is_hopeless(clock.now(), arrived, tenant) {
            return Err(Refusal::CannotMeetDeadline.into());
        }
        Ok(())
    };
    // What is copied from shared memory is as large as it pays to copy.
    if is_small && unparsed.receiving.regions.is_err() && json + unparsed.scanned() < LARGE_TEXT {
        let (message, receiving) = unparsed.read()?;
        if !has_raw_inputs(&message, model) {
            return receiving.check(message);
        }
        let check = move || {
            still_wanted(&receiving.requested)?;
            receiving.check(message)
        };
        return inference.pool.parse(party, check).await?;
    }
    let parse = move || {
        still_wanted(&unparsed.receiving.requested)?;
        let (message, receiving) = unparsed.read()?;
        receiving.check(message)
    };
    inference.pool.parse(party, parse).await?
}

/// Returns the place for a body: tensors go to the workers as they are, and JSON is parsed in one piece.
fn place(
    inference: &Inference,
    model: &ServedModel,
    body: &IncomingBody,
    header_length: Option<u64>,
    encoding: Encoding,
) -> Place {
    if encoding != Encoding::Identity {
        return Place::Pieces;
    }
    let Some(json) = header_length else {
        return Place::OnePiece;
    };
    let announced = body
        .announced()
        .filter(|bytes| *bytes <= inference.limits.body_bytes);
    let tensors = announced
        .and_then(|bytes| bytes.checked_sub(json))
        .filter(|bytes| *bytes >= SHARED_TENSORS);
    let shared = tensors.and_then(|bytes| model.inputs.take(bytes));
    shared.map_or(Place::Pieces, |tensors| {
        Place::Shared(json as usize, tensors)
    })
}

/// A request that was received.
struct UnparsedRequest {
    body: ByteRope,
    encoding: Encoding,
    header_length: Option<u64>,
    body_limit: u64,
    /// True if the body is a picture.
    is_picture: bool,
    receiving: Receiving,
}

/// The surroundings of a request until it is checked.
struct Receiving {
    regions: Result<TenantRegions, SharedMemoryError>,
    requested: RequestedModel,
    clock: Clock,
    arrived: Time,
    memory: Reservation,
}

impl UnparsedRequest {
    /// Returns the largest number of bytes that are looked at one by one, and made contiguous for it.
    fn scanned(&self) -> u64 {
        let mut inputs = self.receiving.requested.model.spec.program.inputs.iter();
        if inputs.any(is_scanned) {
            self.body.len() as u64
        } else {
            0
        }
    }

    /// Decompresses and parses the request, which may have pictures and texts in place of tensors.
    fn read(self) -> Result<(RequestMessage, Receiving), InferenceError> {
        let scanned = self.scanned();
        let Self {
            body,
            encoding,
            header_length,
            body_limit,
            is_picture,
            mut receiving,
        } = self;
        let Receiving {
            regions,
            requested,
            memory,
            ..
        } = &mut receiving;
        let spec = &requested.model.spec;
        let body = inflate(body, encoding, body_limit, memory)?;
        let message = if is_picture {
            // Its bytes are made contiguous.
            memory.grow(body.len() as u64)?;
            request_of(body, spec)?
        } else {
            let json = header_length.unwrap_or(u64::MAX).min(body.len() as u64);
            // The text is made contiguous, and an element of two bytes of text can become one of eight.
            memory.grow(json + json * widest_input(&spec.program) / 2 + scanned)?;
            let mut reader = RegionReader::new(regions, memory, body_limit);
            let limits = Limits::default();
            let program = &spec.program;
            let read =
                InferRequest::read_message(body, header_length, program, &limits, &mut reader);
            if let Some(exhausted) = reader.exhausted() {
                return Err(exhausted.into());
            }
            read?
        };
        Ok((message, receiving))
    }
}

impl Receiving {
    /// Makes tensors of pictures and texts, and checks the request. The reservation is then that of the inputs and of the declared answer.
    fn check(self, message: RequestMessage) -> Result<ReceivedRequest, InferenceError> {
        let times = (self.clock, self.arrived);
        let model = &self.requested.model;
        ReceivedRequest::checked(message, self.memory, self.regions, model, times)
    }
}

/// Returns true if the JSON part of a body may name a region of shared memory.
fn names_region(body: &ByteRope, json: u64) -> bool {
    let head = body.clone().split_to(json as usize).to_bytes();
    memmem::find(&head, b"shared_memory_region").is_some()
}

/// Returns the most bytes of an element of an input, which has at least two bytes of text.
pub(super) fn widest_input(program: &Program) -> u64 {
    // An empty string has its length, which is four bytes.
    let width = |spec: &TensorSpec| spec.datatype.width().unwrap_or(4) as u64;
    program.inputs.iter().map(width).max().unwrap_or_default()
}

/// Returns the length of the JSON part if the headers contain it.
fn header_length(headers: &HeaderMap) -> Result<Option<u64>, InferenceError> {
    let mut values = headers.get_all(&HEADER_LENGTH).iter();
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

impl Answer {
    /// Returns the largest size of the JSON lists.
    fn text(&self) -> u64 {
        let lists = self
            .requested
            .iter()
            .filter(|output| output.form == Form::Json);
        let bounds = lists.map(|output| {
            if let Some(classes) = output.classes {
                let dims = self.answered[output.index].shape.dims();
                let rows = dims.iter().rev().skip(1).product::<u64>();
                return rows
                    .saturating_mul(classes.into())
                    .saturating_mul(CLASS_TEXT);
            }
            let datatype = self.model.spec.program.outputs[output.index].datatype;
            json_list_bound(datatype, self.answered[output.index].data.len() as u64)
        });
        bounds.sum()
    }

    fn encode(self) -> Result<Message, InferenceError> {
        let outputs = self.tensors()?;
        let model_id = self.model.id();
        let response = InferResponse {
            model_name: self.family.as_ref().unwrap_or(&model_id.name).to_string(),
            model_version: model_id.version.to_string(),
            id: self.id,
            variant: self.family.map(|_| model_id.name.to_string()),
            outputs,
        };
        Ok(response.encode_with(self.non_finite)?)
    }
}

/// Formats an answer. The reservation is then that of its JSON part.
async fn encode(
    inference: &Inference,
    tenant: TenantKey,
    answer: Answer,
    memory: &mut Reservation,
) -> Result<Message, InferenceError> {
    let text = answer.text();
    // The result has a reservation of its own by now.
    if text < LARGE_TEXT {
        memory.resize(REQUEST_BYTES)?;
        memory.force(text);
    } else {
        memory.resize(REQUEST_BYTES + text)?;
    }
    let message = if text + answer.touched() < LARGE_TEXT {
        answer.encode()?
    } else {
        let party = Party {
            model: answer.model.key,
            tenant,
        };
        inference.pool.format(party, || answer.encode()).await?
    };
    memory.resize(REQUEST_BYTES + message.head.len() as u64)?;
    Ok(message)
}
