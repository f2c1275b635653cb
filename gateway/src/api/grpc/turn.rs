//! The turn of one request, from its first byte to its answer: that of a call, or one of a stream.
//!
//! A request is received once its model, its key and its memory are known; large ones into memory that is shared with workers, where its raw tensors
//! stay. Only one whose model stands behind other things has to be there before its model is known. Even its key is used before.

use std::{mem, sync::Arc, time::Duration};

use axum::http::{Extensions, StatusCode};
use packhorse_cluster::Time;
use packhorse_grpc::{Prefix, messages::inference::ModelInferRequest, wants_final_mark};
use packhorse_protocol::ByteRope;
use packhorse_serving::{ModelKey, Refusal, TenantKey};

use super::{
    call::CallHead,
    caller::Caller,
    decoding::{Decoded, Received, check, read},
    messages::MessageReader,
    writing::{AnswerForm, write},
};
use crate::{
    api::{
        bearer,
        inference::{
            authorize::{grant, use_key},
            body::Place,
            computation::{
                Arrival, Computed, LARGE_REQUEST, REQUEST_BYTES, SHARED_TENSORS, compute, is_probe,
                record_refusal, refusal,
            },
            error::InferenceError,
            model_path::ModelPath,
            work_pool::Party,
        },
    },
    keys::KeyUse,
    memory::Reservation,
    serve::HeldUntilSent,
    telemetry::{EndedRequest, RequestCourse, RequestIdentity},
    tenant::{tenant_name_of, tenant_of},
};

/// The model by whose number the pool knows requests whose model is not known yet.
const UNKNOWN_MODEL: ModelKey = ModelKey(u32::MAX);
/// The most bytes of a request's id that an error repeats.
const ID_BYTES: usize = 256;

/// A request from its first byte to its answer.
pub(super) struct Turn {
    pub(super) caller: Arc<Caller>,
    /// True if it is one of a stream.
    is_of_stream: bool,
    identity: RequestIdentity,
    /// The time at which it arrived.
    at: Time,
    /// Those of the call, and what the key allows.
    extensions: Extensions,
    used: Option<KeyUse>,
    path: Option<ModelPath>,
    /// The name and the version of the model, as far as they are known, by which the key and the limits were chosen.
    named: Option<(String, String)>,
    /// The id that the client gave the request in its message, once that is known.
    id: String,
}

/// An answer.
pub(super) struct Answered {
    pub(super) frame: ByteRope,
    pub(super) is_compressed: bool,
    /// The model that answered, if a family was requested.
    pub(super) variant: Option<String>,
    /// The course of the request through the data plane.
    pub(super) course: RequestCourse,
    /// The measured times of the request.
    pub(super) times: EndedRequest,
}

impl Turn {
    /// Begins with the arrival of the only request of a call.
    pub(super) fn of_call(mut caller: Caller) -> Self {
        let identity = caller.identity.clone();
        let extensions = mem::take(&mut caller.extensions);
        Self::new(Arc::new(caller), identity, extensions, false)
    }

    /// Begins with the arrival of a request of a stream, which are counted from 1.
    pub(super) fn of_stream(caller: Arc<Caller>, number: u64) -> Self {
        let identity = caller.identity.of_request(number);
        let extensions = caller.extensions.clone();
        Self::new(caller, identity, extensions, true)
    }

    fn new(
        caller: Arc<Caller>,
        identity: RequestIdentity,
        extensions: Extensions,
        is_of_stream: bool,
    ) -> Self {
        Self {
            at: caller.grpc.data_plane.clock().now(),
            is_of_stream,
            identity,
            extensions,
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

    /// Returns the time at which the request arrived.
    pub(super) fn arrived(&self) -> Time {
        self.at
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
        let compression = self.caller.head.compression;
        let compression = prefix.is_compressed.then_some(compression);
        match reader.model(compression).await? {
            Some(named) => self.find(named).await?,
            None => self.use_key()?,
        }
        let received = self.receive_known(reader, prefix).await;
        received.inspect_err(|error| self.record_refusal(error))
    }

    /// Uses the client's key for a request whose model is not known yet: it counts for the key's tenant, and for its limits for all models.
    fn use_key(&mut self) -> Result<(), InferenceError> {
        let Caller { grpc, headers, .. } = &*self.caller;
        if let Some(keys) = &grpc.keys {
            let used = use_key(keys, bearer(headers), None)?;
            grant(&used, None, &mut self.extensions);
            self.used = Some(used);
        }
        Ok(())
    }

    /// Uses the client's key for the model that the message names, and finds that.
    async fn find(&mut self, named: (String, String)) -> Result<(), InferenceError> {
        let Caller { grpc, headers, .. } = &*self.caller;
        let name = &*named.0;
        if let Some(used) = &mut self.used {
            used.name_model(name)?;
        } else if let Some(keys) = &grpc.keys {
            let used = use_key(keys, bearer(headers), Some(name))?;
            grant(&used, Some(name), &mut self.extensions);
            self.used = Some(used);
        }
        self.find_version(named).await
    }

    /// Finds the model that the message names.
    async fn find_version(&mut self, named: (String, String)) -> Result<(), InferenceError> {
        let Caller { grpc, headers, .. } = &*self.caller;
        let (name, version) = &named;
        let path = ModelPath::find(grpc.inference(), name, version, headers)?;
        let path = path.started(grpc.inference(), self.at, headers).await?;
        self.path = Some(path);
        self.named = Some(named);
        Ok(())
    }

    /// Reads a received message, and finds its model if that was not known before.
    async fn read(&mut self, mut received: Received) -> Result<Decoded, InferenceError> {
        if self.named.is_none()
            && let Some(named) = received.model()?
        {
            self.find(named).await?;
            self.move_memory(&mut received.memory)?;
        }
        let mut decoded = read(&self.caller, self.party(), received).await?;
        if decoded.request.id.len() <= ID_BYTES {
            self.id.clone_from(&decoded.request.id);
        }
        if self.is_of_stream {
            self.identity = self.identity.clone().named(&decoded.request.id);
        }
        let ModelInferRequest {
            model_name,
            model_version,
            ..
        } = &decoded.request;
        match &self.named {
            Some((name, _)) if name != model_name => {
                return Err(InferenceError::bad_request("model_name: given twice"));
            }
            Some((_, version)) if version == model_version => return Ok(decoded),
            // The version stands elsewhere than next to the name.
            Some(_) => {
                let named = (model_name.clone(), model_version.clone());
                self.find_version(named).await?;
            }
            None => {
                let named = (model_name.clone(), model_version.clone());
                self.find(named).await?;
            }
        }
        self.move_memory(&mut decoded.memory)?;
        Ok(decoded)
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
        let identity = self.identity.clone();
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
    pub(super) async fn answer(&mut self, received: Received) -> Result<Answered, InferenceError> {
        let may_be_hopeless = received.may_be_hopeless;
        let checked = async {
            let decoded = self.read(received).await?;
            let marks_final = self.is_of_stream && wants_final_mark(&decoded.request);
            let path = self.path.clone().ok_or_else(no_model)?;
            let identity = self.identity();
            let known = (&path, self.party());
            let arrival = self.arrival(&identity);
            let received = check(&self.caller, known, &arrival, decoded, may_be_hopeless).await?;
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
        let form = AnswerForm {
            is_of_stream: self.is_of_stream,
            marks_final,
        };
        let written = write(&self.caller, self.party(), answer, memory, form).await;
        let course = ending.course;
        let ((frame, is_compressed), times) = ending.end(written)?;
        Ok(Answered {
            frame,
            is_compressed,
            variant,
            course,
            times,
        })
    }

    fn party(&self) -> Party {
        let path = self.path.as_ref();
        Party {
            model: path.map_or(UNKNOWN_MODEL, |path| path.requested.model.key),
            tenant: self.tenant(),
        }
    }

    /// Has the books of the request's model count its memory, which others have counted before.
    fn move_memory(&self, memory: &mut Reservation) -> Result<(), InferenceError> {
        let path = self.path.as_ref().ok_or_else(no_model)?;
        if let Some(refusal) = refusal(path, self.tenant()) {
            return Err(refusal.into());
        }
        let books = path.requested.model.memory.tenant(self.tenant());
        let mut moved = books.reservation();
        let bytes = memory.bytes();
        // Not counted twice, which a large request would not survive.
        *memory = books.reservation();
        moved.grow(bytes)?;
        *memory = moved;
        Ok(())
    }
}

/// The error of a turn that has no model, which is none: it was found before.
fn no_model() -> InferenceError {
    InferenceError::bad_request("model_name: missing")
}
