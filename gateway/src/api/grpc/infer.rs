//! `ModelInfer`, and the turn of one request, which those of streams take, too.
//!
//! A request is received once its model, its key and its memory are known; large ones into memory that is shared with workers, where its raw tensors
//! stay. Only messages that are compressed, or begin with something else than their model, have to be there before they are known.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use packhorse_api::{MODEL_HEADER, SERVER_TIMING_HEADER, STAGES_HEADER};
use packhorse_cluster::Time;
use packhorse_grpc::{
    AnsweredTensor, Layout, LayoutError, Prefix, ResponseHead, framed,
    messages::inference::ModelInferRequest, names_region, read_request, wants_final_mark,
    write_response, write_stream_response,
};
use packhorse_protocol::{ByteRope, Form, InferRequest, Limits, RequestError};
use packhorse_serving::{ModelKey, Refusal, TenantKey};

use super::{
    call::CallHead,
    messages::MessageReader,
    reply::{Reply, one},
    state::Grpc,
    status::Status,
    unary::{decoded, too_long, within},
};
use crate::{
    api::{
        bearer,
        inference::{
            authorize::{grant, require_key, use_key},
            body::Place,
            computation::{
                Answer, Arrival, Computed, LARGE_REQUEST, LARGE_TEXT, REQUEST_BYTES,
                ReceivedRequest, SHARED_TENSORS, compute, is_probe, is_scanned, record_refusal,
                refusal, timing,
            },
            error::InferenceError,
            middleware::identity_of,
            model_path::ModelPath,
            shared_memory::{RegionReader, SharedMemoryError},
            work_pool::Party,
        },
    },
    keys::KeyUse,
    memory::Reservation,
    serve::HeldUntilSent,
    telemetry::RequestIdentity,
    tenant::{tenant_name_of, tenant_of},
};

/// The model by whose number the pool knows requests whose model is not known yet.
const UNKNOWN_MODEL: ModelKey = ModelKey(u32::MAX);
/// The most bytes of a request's id that an error repeats.
const ID_BYTES: usize = 256;

/// Runs inference on a model, or on a family, as `POST /v2/models/{model}/infer` does.
pub(super) async fn model_infer(State(grpc): State<Grpc>, request: Request) -> Response {
    let wants_timing = request.headers().contains_key(STAGES_HEADER);
    let clock = grpc.data_plane.clock();
    let (caller, mut reader) = match Caller::new(grpc, request) {
        Ok(caller) => caller,
        Err(error) => return Status::from(error).into_response(),
    };
    let patience = caller.head.patience;
    let mut turn = Turn::new(Arc::new(caller));
    let answer = async {
        let prefix = reader.only().await?;
        let received = turn.receive(&mut reader, prefix).await?;
        turn.answer(received, Kind::Unary).await
    };
    let answered = within(patience, answer).await;
    let result = answered.as_ref().map(|_| ());
    let held = turn.finish(result.map_err(InferenceError::status));
    match answered {
        Ok(answered) => {
            let compression = turn.caller.head.compression;
            let compression = answered.is_compressed.then_some(compression);
            let reply = Reply {
                frame: answered.frame,
                held,
            };
            let mut response = one(reply, compression);
            let headers = response.headers_mut();
            if wants_timing {
                insert(headers, SERVER_TIMING_HEADER, &answered.timing);
            }
            if let Some(variant) = &answered.variant {
                insert(headers, MODEL_HEADER, variant);
            }
            response
        }
        Err(error) => {
            let retry_after = turn.retry_after(clock.now());
            let error = retry_after.map_or(error.clone(), |after| error.or_retry_after(after));
            tracing::debug!(
                request.id = turn.caller.identity.id(),
                http.status = error.status().as_u16(),
                error = error.message(),
                "a request was not answered"
            );
            Status::from(error).into_response()
        }
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// The client of a call.
pub(super) struct Caller {
    grpc: Grpc,
    pub(super) head: CallHead,
    headers: HeaderMap,
    extensions: Extensions,
    identity: RequestIdentity,
}

impl Caller {
    /// Reads the head of a call, and refuses one without a key where it needs one.
    pub(super) fn new(
        grpc: Grpc,
        request: Request,
    ) -> Result<(Self, MessageReader), InferenceError> {
        let now = grpc.data_plane.clock().now();
        let (parts, body) = request.into_parts();
        let head = CallHead::read(now, &parts.headers)?;
        if let Some(keys) = &grpc.keys {
            require_key(keys, bearer(&parts.headers))?;
        }
        let reader = MessageReader::new(&parts.headers, body, grpc.limits);
        let identity = identity_of(&parts.extensions, &parts.headers, grpc.telemetry());
        let caller = Self {
            grpc,
            head,
            headers: parts.headers,
            extensions: parts.extensions,
            identity,
        };
        Ok((caller, reader))
    }
}

/// The kind of call that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call with one request.
    Unary,
    /// A call with a stream of requests.
    Stream,
}

/// A request from its first byte to its answer.
pub(super) struct Turn {
    caller: Arc<Caller>,
    /// The time at which it arrived.
    at: Time,
    /// Those of the call, and what the key allows.
    extensions: Extensions,
    used: Option<KeyUse>,
    path: Option<ModelPath>,
    /// The name and the version at the beginning of the message, by which the key and the limits were chosen.
    named: Option<(String, String)>,
    /// The id that the client gave the request in its message, once that is known.
    id: String,
}

/// A request whose bytes have come.
pub(super) struct Received {
    message: ByteRope,
    is_compressed: bool,
    /// True if it is refused where the queue has become too long meanwhile.
    may_be_hopeless: bool,
    memory: Reservation,
}

/// A request that was decoded.
struct Decoded {
    request: ModelInferRequest,
    layout: Layout,
    memory: Reservation,
}

/// An answer.
pub(super) struct Answered {
    pub(super) frame: ByteRope,
    is_compressed: bool,
    /// The durations of the request's stages.
    timing: String,
    /// The model that answered, if a family was requested.
    variant: Option<String>,
}

impl Turn {
    /// Begins with the arrival of the request.
    pub(super) fn new(caller: Arc<Caller>) -> Self {
        Self {
            at: caller.grpc.data_plane.clock().now(),
            extensions: caller.extensions.clone(),
            caller,
            used: None,
            path: None,
            named: None,
            id: String::new(),
        }
    }

    /// Returns the id that the client gave the request in its message, as far as that is known.
    pub(super) fn id(&self) -> String {
        self.id.clone()
    }

    /// Counts the request with the status of its answer, or of its error. Returns what lasts until the answer was sent.
    pub(super) fn finish(&mut self, result: Result<(), StatusCode>) -> Option<HeldUntilSent> {
        let status = result.err().unwrap_or(StatusCode::OK);
        let now = self.caller.grpc.data_plane.clock().now();
        let after = now.saturating_since(self.at);
        let held = self.used.take()?.answered(status, after);
        held.map(HeldUntilSent::new)
    }

    /// Returns the time after which a refused client may try again.
    pub(super) fn retry_after(&self, now: Time) -> Option<Duration> {
        Some(self.path.as_ref()?.requested.retry_after(now))
    }

    fn tenant(&self) -> TenantKey {
        tenant_of(&self.extensions)
    }

    /// Receives a request, unless it is refused before.
    pub(super) async fn receive(
        &mut self,
        reader: &mut MessageReader,
        prefix: Prefix,
    ) -> Result<Received, InferenceError> {
        if let Some(latency) = &self.caller.grpc.wake_latency {
            latency.request();
        }
        let named = if prefix.is_compressed {
            None
        } else {
            reader.model().await?
        };
        if let Some((name, version)) = named {
            self.find(&name, &version).await?;
            self.named = Some((name, version));
        }
        let received = self.receive_known(reader, prefix).await;
        received.inspect_err(|error| self.record_refusal(error))
    }

    /// Finds the model of the request, and uses the client's key for it.
    async fn find(&mut self, name: &str, version: &str) -> Result<(), InferenceError> {
        let Caller { grpc, headers, .. } = &*self.caller;
        if let Some(keys) = &grpc.keys {
            let used = use_key(keys, bearer(headers), Some(name))?;
            grant(&used, Some(name), &mut self.extensions);
            self.used = Some(used);
        }
        let path = ModelPath::find(grpc.inference(), name, version, headers)?;
        let path = path.started(grpc.inference(), self.at, headers).await?;
        self.path = Some(path);
        Ok(())
    }

    fn record_refusal(&self, error: &InferenceError) {
        if let Some(path) = &self.path {
            self.with_arrival(|arrival| record_refusal(arrival, path, error));
        }
    }

    fn with_arrival<T>(&self, with: impl FnOnce(&Arrival<'_>) -> T) -> T {
        let identity = self.identity();
        with(&self.arrival(&identity))
    }

    fn identity(&self) -> RequestIdentity {
        let identity = self.caller.identity.clone();
        identity.sent_by(tenant_name_of(&self.extensions))
    }

    fn arrival<'a>(&'a self, identity: &'a RequestIdentity) -> Arrival<'a> {
        Arrival {
            at: self.at,
            tenant: self.tenant(),
            identity,
            headers: &self.caller.headers,
            extensions: &self.extensions,
        }
    }

    /// Receives a request whose model is known, if its beginning says it.
    async fn receive_known(
        &self,
        reader: &mut MessageReader,
        prefix: Prefix,
    ) -> Result<Received, InferenceError> {
        let grpc = &self.caller.grpc;
        let tenant = self.tenant();
        let length = u64::from(prefix.length);
        let mut may_be_hopeless = false;
        let mut place = Place::OnePiece;
        let mut memory = match &self.path {
            None => grpc.reservation(tenant),
            Some(path) => {
                let model = &path.requested.model;
                if let Some(refusal) = refusal(path, tenant) {
                    return Err(refusal.into());
                }
                let clock = grpc.data_plane.clock();
                let is_large = length >= LARGE_REQUEST;
                let requested = &path.requested;
                may_be_hopeless =
                    is_large && !is_probe(grpc.inference(), requested, clock, self.at, tenant);
                if may_be_hopeless && requested.is_hopeless(clock.now(), self.at, tenant) {
                    return Err(Refusal::CannotMeetDeadline.into());
                }
                let is_shared = length >= SHARED_TENSORS;
                let shared = is_shared.then(|| model.inputs.take(length)).flatten();
                place = shared.map_or(Place::OnePiece, |bytes| Place::Shared(0, bytes));
                model.memory.tenant(tenant).reservation()
            }
        };
        memory.grow(REQUEST_BYTES)?;
        let message = reader.receive(place, &mut memory).await?;
        Ok(Received {
            message,
            is_compressed: prefix.is_compressed,
            may_be_hopeless,
            memory,
        })
    }

    /// Has a request answered.
    pub(super) async fn answer(
        &mut self,
        received: Received,
        kind: Kind,
    ) -> Result<Answered, InferenceError> {
        let may_be_hopeless = received.may_be_hopeless;
        let checked = async {
            let mut decoded = self.decode(received).await?;
            let id = &decoded.request.id;
            if id.len() <= ID_BYTES {
                self.id.clone_from(id);
            }
            let ModelInferRequest {
                model_name: name,
                model_version: version,
                ..
            } = &decoded.request;
            let named = (name.clone(), version.clone());
            if let Some(beginning) = &self.named {
                if *beginning != named {
                    return Err(InferenceError::bad_request(
                        "model_name and model_version: given twice",
                    ));
                }
            } else {
                self.find(&named.0, &named.1).await?;
                self.move_memory(&mut decoded)?;
            }
            let marks_final = kind == Kind::Stream && wants_final_mark(&decoded.request);
            let path = self.path.clone().ok_or_else(no_model)?;
            let received = self.check(&path, decoded, may_be_hopeless).await?;
            Ok::<_, InferenceError>((path, received, marks_final))
        };
        let checked = checked.await;
        let checked = checked.inspect_err(|error| self.record_refusal(error))?;
        let (path, received, marks_final) = checked;
        let grpc = &self.caller.grpc;
        let CallHead { at, patience, .. } = self.caller.head;
        let begun = self.at.saturating_since(at);
        let patience = patience.map(|patience| patience.saturating_sub(begun));
        let identity = self.identity();
        let arrival = self.arrival(&identity);
        let computed = compute(grpc.inference(), &arrival, &path, received, patience).await?;
        let Computed {
            answer,
            memory,
            ending,
        } = computed;
        let variant = answer
            .family
            .is_some()
            .then(|| answer.model.id().to_string());
        let written = self.write(answer, memory, kind, marks_final).await;
        let course = ending.course;
        let ((frame, is_compressed), times) = ending.end(written)?;
        Ok(Answered {
            frame,
            is_compressed,
            timing: timing(&course, &times).to_string(),
            variant,
        })
    }

    fn party(&self) -> Party {
        let path = self.path.as_ref();
        Party {
            model: path.map_or(UNKNOWN_MODEL, |path| path.requested.model.key),
            tenant: self.tenant(),
        }
    }

    /// Decodes a request; on the pool if that takes long.
    async fn decode(&self, received: Received) -> Result<Decoded, InferenceError> {
        let Caller { grpc, head, .. } = &*self.caller;
        let (compression, limit) = (head.compression, grpc.limits.body_bytes);
        let Received {
            message,
            is_compressed,
            mut memory,
            ..
        } = received;
        if !is_compressed {
            let layout = layout_of(&message)?;
            if layout.decoded_bytes < LARGE_TEXT {
                return decode(&message, layout, memory);
            }
        }
        let work = move || {
            let message = if is_compressed {
                compression.inflate(message, limit, &mut memory)?
            } else {
                message
            };
            // In one piece, which raw tensors are slices of.
            if message.chunks().len() > 1 {
                memory.grow(message.len() as u64)?;
            }
            let message = ByteRope::from(message.to_bytes());
            let layout = layout_of(&message)?;
            decode(&message, layout, memory)
        };
        grpc.pool.parse(self.party(), work).await?
    }

    /// Has the books of the request's model count it, which was not known before.
    fn move_memory(&self, decoded: &mut Decoded) -> Result<(), InferenceError> {
        let path = self.path.as_ref().ok_or_else(no_model)?;
        if let Some(refusal) = refusal(path, self.tenant()) {
            return Err(refusal.into());
        }
        let books = path.requested.model.memory.tenant(self.tenant());
        let mut memory = books.reservation();
        let bytes = decoded.memory.bytes();
        // Not counted twice, which a large request would not survive.
        decoded.memory = books.reservation();
        memory.grow(bytes)?;
        decoded.memory = memory;
        Ok(())
    }

    /// Checks a request against its model; on the pool if that takes long.
    async fn check(
        &self,
        path: &ModelPath,
        decoded: Decoded,
        may_be_hopeless: bool,
    ) -> Result<ReceivedRequest, InferenceError> {
        let grpc = &self.caller.grpc;
        let tenant = self.tenant();
        let Decoded {
            request,
            layout,
            mut memory,
        } = decoded;
        let regions = match &grpc.shared_memory {
            Some(shared) if names_region(&request) => {
                shared.of_client(tenant, &self.extensions).await
            }
            _ => Err(SharedMemoryError::Off),
        };
        let requested = path.requested.clone();
        let mut inputs = requested.model.spec.program.inputs.iter();
        let scanned = inputs.any(is_scanned).then_some(layout.raw_bytes);
        let looked_at = layout.decoded_bytes + scanned.unwrap_or_default();
        let is_light = regions.is_err() && looked_at < LARGE_TEXT;
        let (clock, arrived) = (grpc.data_plane.clock(), self.at);
        let body_limit = grpc.limits.body_bytes;
        let parse = move || {
            // The message and the pool have taken their time.
            if let Some(refusal) = requested.refusal(tenant) {
                return Err(refusal.into());
            }
            if may_be_hopeless && requested.is_hopeless(clock.now(), arrived, tenant) {
                return Err(Refusal::CannotMeetDeadline.into());
            }
            let program = &requested.model.spec.program;
            let mut reader = RegionReader::new(&regions, &mut memory, body_limit);
            let read = read_request(request, &Limits::default(), &mut reader);
            if let Some(exhausted) = reader.exhausted() {
                return Err(exhausted.into());
            }
            let request = InferRequest::check(read.map_err(RequestError::from)?, program)?;
            ReceivedRequest::parsed(request, memory, regions, program)
        };
        if is_light {
            return parse();
        }
        grpc.pool.parse(self.party(), parse).await?
    }

    /// Writes an answer as a frame; on the pool if that takes long. The second value is true if it is compressed.
    async fn write(
        &self,
        answer: Answer,
        mut memory: Reservation,
        kind: Kind,
        marks_final: bool,
    ) -> Result<(ByteRope, bool), InferenceError> {
        let grpc = &self.caller.grpc;
        let compression = self.caller.head.compression;
        let is_compressed = compression.compresses();
        let data = answer.answered.iter().map(|rows| rows.data.len() as u64);
        let compressed = if is_compressed { data.sum() } else { 0 };
        // The result has a reservation of its own by now; a message that does not become shorter has as many bytes again.
        memory.resize(REQUEST_BYTES + compressed)?;
        let looked_at = answer.touched() + compressed;
        let write = move || {
            let mut message = written(answer, marks_final)?;
            if kind == Kind::Stream {
                message = write_stream_response(Ok(message));
            }
            if is_compressed {
                message = compression.deflate(&message);
                memory.resize(REQUEST_BYTES + message.len() as u64)?;
            }
            let frame = framed(message, is_compressed).ok_or_else(too_long)?;
            let held = Arc::new(memory);
            Ok::<_, InferenceError>(frame.map_chunks(|chunk| held.hold(chunk)))
        };
        let frame = if looked_at < LARGE_TEXT {
            write()?
        } else {
            grpc.pool.format(self.party(), write).await?
        };
        Ok((frame, is_compressed))
    }
}

/// The error of a turn that has no model, which is none: it was found before.
fn no_model() -> InferenceError {
    InferenceError::bad_request("model_name: missing")
}

impl From<LayoutError> for InferenceError {
    fn from(error: LayoutError) -> Self {
        Self::bad_request(error.to_string())
    }
}

fn layout_of(message: &ByteRope) -> Result<Layout, InferenceError> {
    Ok(Layout::of(&message.to_bytes(), &Limits::default())?)
}

/// Decodes a message within the budget.
fn decode(
    message: &ByteRope,
    layout: Layout,
    mut memory: Reservation,
) -> Result<Decoded, InferenceError> {
    memory.grow(Layout::decoding_memory(&message.to_bytes())?)?;
    Ok(Decoded {
        request: decoded(message)?,
        layout,
        memory,
    })
}

/// Writes a response.
fn written(answer: Answer, marks_final: bool) -> Result<ByteRope, InferenceError> {
    let tensors = answer.tensors()?;
    let Answer {
        model,
        family,
        id,
        requested,
        ..
    } = answer;
    let outputs = tensors.into_iter().zip(requested);
    let outputs = outputs.map(|(tensor, requested)| AnsweredTensor {
        name: tensor.name().to_owned(),
        datatype: tensor.datatype(),
        shape: tensor.shape().clone(),
        range: requested.range,
        data: if tensor.form() == Form::Shared {
            ByteRope::new()
        } else {
            tensor.into_data()
        },
    });
    let model = model.id();
    let head = ResponseHead {
        model_name: family.as_ref().unwrap_or(&model.name).to_string(),
        model_version: model.version.to_string(),
        id,
        variant: family.map(|_| model.name.to_string()),
        marks_final,
    };
    Ok(write_response(head, outputs.collect()))
}
