//! From a request that was received to the engine's answer: what requests of HTTP and of gRPC have in common.
//!
//! A protocol receives a request, and asks before with [`refusal`] whether that is worth it. [`compute`] has the engine answer, and counts. The
//! protocol then writes the answer, and [`Ending`] counts how that went.

use std::{
    mem::take,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::http::{Extensions, HeaderMap, StatusCode, request::Parts};
use bytes::Bytes;
use packhorse_api::ServerTiming;
use packhorse_cluster::{
    Datatype, Dim, ModelName, ModelSpec, Postprocess, Program, TensorSpec, Time,
};
use packhorse_protocol::{
    Form, InferRequest, NonFinite, RequestMessage, RequestedOutput, Tensor, TensorError,
    json_list_bound,
};
use packhorse_serving::{Refusal, RequestOutcome, TenantKey};

use super::{
    classes,
    error::InferenceError,
    model_path::ModelPath,
    predictions::{Lookup, PendingEntry},
    raw_inputs::{RawInputTimes, has_raw_inputs, make_tensors},
    shared_memory::{SharedMemoryError, TenantRegions},
    state::Inference,
};
use crate::{
    clock::Clock,
    driver::{OutputRows, RequestedModel, ServedModel, Submission},
    memory::{Reservation, TenantMemory},
    telemetry::{EndedRequest, RequestCourse, RequestIdentity, RequestMeter, stages_view},
    tenant::{tenant_name_of, tenant_of},
};

/// The size of text in bytes from which on it is parsed and formatted by the pool: up to 0.2 ms of work, ten times the hand-over.
pub(in crate::api) const LARGE_TEXT: u64 = 64 << 10;
/// The size of a request in bytes from which on one that has no hope is refused without reading it.
pub(in crate::api) const LARGE_REQUEST: u64 = 64 << 10;
/// The size of a request's binary tensors in bytes from which on they are received into memory that is shared with workers of this host.
pub(in crate::api) const SHARED_TENSORS: u64 = 16 << 10;
/// The memory of a request besides its tensors, in bytes: the head, tasks, entries of tables, and outputs that are copied.
pub(in crate::api) const REQUEST_BYTES: u64 = 8 << 10;
/// The size of an output in bytes up to which it is copied, so that a client that does not read does not keep a worker's whole result
/// in memory.
const SMALL_OUTPUT: usize = 4 << 10;
/// One of so many requests that have no hope is read all the same: a client that is more patient than the others is noticed only so.
const PROBED: u64 = 16;

/// The head of a request.
#[derive(Clone, Copy)]
pub(in crate::api) struct Arrival<'a> {
    /// The time at which it arrived.
    pub(in crate::api) at: Time,
    /// Who sends it.
    pub(in crate::api) tenant: TenantKey,
    /// Its id and its place in a trace.
    pub(in crate::api) identity: &'a RequestIdentity,
    /// The headers, or the metadata of gRPC.
    pub(in crate::api) headers: &'a HeaderMap,
    /// Where it comes from, and what its key allows.
    pub(in crate::api) extensions: &'a Extensions,
}

impl<'a> Arrival<'a> {
    /// Creates the head of a request over HTTP.
    pub(in crate::api) fn new(at: Time, identity: &'a RequestIdentity, parts: &'a Parts) -> Self {
        Self {
            at,
            tenant: tenant_of(&parts.extensions),
            identity,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

/// A request that was received and parsed.
pub(in crate::api) struct ReceivedRequest {
    /// The request, which matches its model.
    pub(in crate::api) request: InferRequest,
    /// The memory of its inputs and of its answer.
    pub(in crate::api) memory: Reservation,
    /// The regions of shared memory that its client may use, if the request may name any.
    pub(in crate::api) regions: Result<TenantRegions, SharedMemoryError>,
    /// The times in which its pictures and texts became tensors.
    pub(in crate::api) raw_inputs: RawInputTimes,
}

/// Returns the reason why the gateway takes no request of a tenant for a model now, as far as that is known without the request.
pub(in crate::api) fn refusal(path: &ModelPath, tenant: TenantKey) -> Option<Refusal> {
    if path.catalog.is_starting() {
        return Some(Refusal::NoReplica);
    }
    if !path.catalog.is_open() {
        return Some(Refusal::ShuttingDown);
    }
    path.requested.refusal(tenant)
}

/// Returns true if a hopeless request is read all the same.
pub(in crate::api) fn is_probe(
    inference: &Inference,
    model: &RequestedModel,
    clock: Clock,
    arrived: Time,
    tenant: TenantKey,
) -> bool {
    model.is_hopeless(clock.now(), arrived, tenant)
        && inference
            .hopeless
            .fetch_add(1, Relaxed)
            .is_multiple_of(PROBED)
}

/// Counts a request that was refused before it was one for the engine.
pub(in crate::api) fn record_refusal(
    arrival: &Arrival<'_>,
    path: &ModelPath,
    error: &InferenceError,
) {
    if !error.is_refusal() {
        return;
    }
    let requested = &path.requested;
    let for_family = requested.family.is_some();
    let (slo, identity) = (requested.model.spec.slo, arrival.identity.clone());
    let telemetry = &requested.last().telemetry;
    telemetry.record_refusal(arrival.at, slo, identity, for_family, error.message());
}

impl ReceivedRequest {
    /// Creates a request that was parsed, in the memory that it was parsed in. Its pictures and texts become tensors, and it is checked against its model. The
    /// memory is then that of its inputs and of the answer that its model declares.
    pub(in crate::api) fn checked(
        mut message: RequestMessage,
        mut memory: Reservation,
        regions: Result<TenantRegions, SharedMemoryError>,
        model: &ServedModel,
        (clock, arrived): (Clock, Time),
    ) -> Result<Self, InferenceError> {
        let spec = &model.spec;
        let mut raw_inputs = RawInputTimes::default();
        if has_raw_inputs(&message, model) {
            let allowed = message
                .timeout
                .map_or(spec.slo, |timeout| timeout.min(ModelSpec::MAX_SLO));
            let has_passed = || clock.now() >= arrived + allowed;
            raw_inputs = make_tensors(&mut message, model, &mut memory, clock, has_passed)?;
        }
        let program = &spec.program;
        let request = InferRequest::check(message, program)?;
        let ranges = request.outputs.iter();
        for range in ranges.filter_map(|output| output.range.as_ref()) {
            regions.clone()?.check(range)?;
        }
        memory.resize(REQUEST_BYTES + input_bytes(&request.inputs))?;
        memory.grow(answer_bytes(&request, program))?;
        Ok(Self {
            request,
            memory,
            regions,
            raw_inputs,
        })
    }

    /// Returns the request with its own timeout shortened by the time that its client has waited for it to begin.
    pub(in crate::api) fn shortened_by(mut self, waited: Duration) -> Self {
        let left = |timeout: Duration| timeout.saturating_sub(waited);
        self.request.timeout = self.request.timeout.map(left);
        self
    }
}

/// The engine's answer to a request, which has not been written yet.
pub(in crate::api) struct Computed {
    /// The answer.
    pub(in crate::api) answer: Answer,
    /// The memory of the answer.
    pub(in crate::api) memory: Reservation,
    /// What counts the request when its answer is written.
    pub(in crate::api) ending: Ending,
}

/// What counts a request when its answer is written.
pub(in crate::api) struct Ending {
    meter: RequestMeter,
    /// The entry of the cache for requests with the same inputs.
    entry: Option<PendingEntry>,
    clock: Clock,
    /// The model that answered.
    pub(in crate::api) model: Arc<ServedModel>,
    /// The SLO of the requested model.
    pub(in crate::api) slo: Duration,
    /// The course of the request through the data plane.
    pub(in crate::api) course: RequestCourse,
}

impl Ending {
    /// Counts the request, whose answer was written or could not be.
    pub(in crate::api) fn end<T>(
        self,
        written: Result<T, InferenceError>,
    ) -> Result<(T, EndedRequest), InferenceError> {
        let (meter, course) = (self.meter, self.course);
        match written {
            Ok(written) => {
                if let Some(entry) = self.entry {
                    entry.add(self.clock.now());
                }
                Ok((written, meter.end(RequestOutcome::Answered, course)))
            }
            Err(error) => {
                let meter = meter.failed_with(error.message().to_owned());
                meter.end(RequestOutcome::Failed, course);
                Err(error)
            }
        }
    }
}

/// An answer of the engine or of the cache.
struct Answered {
    meter: RequestMeter,
    model: Arc<ServedModel>,
    outputs: Vec<OutputRows>,
    course: RequestCourse,
    entry: Option<PendingEntry>,
}

/// Has the engine answer a request, unless the cache has its answer. Its client waits for `patience` at most, counted from the arrival; none for as long as the
/// request says.
pub(in crate::api) async fn compute(
    inference: &Inference,
    arrival: &Arrival<'_>,
    path: &ModelPath,
    received: ReceivedRequest,
    patience: Option<Duration>,
) -> Result<Computed, InferenceError> {
    let requested = &path.requested;
    let ReceivedRequest {
        request,
        mut memory,
        regions,
        raw_inputs,
    } = received;
    let InferRequest {
        id,
        inputs,
        outputs,
        non_finite,
        timeout,
        priority,
        rows,
    } = request;
    let slo = requested.model.spec.slo;
    // Who says how long a request may take waits no longer.
    let cold_wait = match timeout {
        Some(timeout) => timeout.min(ModelSpec::MAX_SLO),
        None => requested.model.spec.max_cold_wait.unwrap_or(slo),
    };
    let time_allowed = timeout.map_or(slo, |timeout| timeout.min(ModelSpec::MAX_SLO));
    let time_allowed = patience.map_or(time_allowed, |patience| patience.min(time_allowed));
    let deadline = arrival.at + time_allowed;
    let (tenant, model) = (arrival.tenant, &requested.model);
    let lookup = Lookup::new(inference, tenant, model, &inputs, deadline).await;
    let course = raw_inputs.added_to(RequestCourse {
        cache: lookup.cache(),
        lookup: lookup.time.into(),
        ..RequestCourse::default()
    });
    let identified = |meter: RequestMeter| {
        let meter = meter.identified(arrival.identity.clone());
        meter.waited_for(patience)
    };
    let inputs = hold_inputs(inputs, &mut memory);
    let answered = if let Some(outputs) = lookup.outputs() {
        drop(inputs);
        let model = Arc::clone(model);
        let meter = model.telemetry.begin_hit(arrival.at, time_allowed, rows);
        Answered {
            meter: identified(meter),
            model,
            outputs,
            course,
            entry: None,
        }
    } else {
        let telemetry = &requested.last().telemetry;
        let for_family = requested.family.is_some();
        let meter = telemetry.begin_request(arrival.at, time_allowed, rows, for_family);
        let submission = Submission {
            requested: requested.clone(),
            tenant,
            tenant_name: tenant_name_of(arrival.extensions),
            inputs,
            rows,
            priority,
            deadline,
            load_by: arrival.at + patience.map_or(cold_wait, |patience| patience.min(cold_wait)),
        };
        let mut answered = submit(inference, submission, identified(meter), course).await?;
        let (model, outputs) = (&answered.model, &answered.outputs);
        answered.entry = lookup.entry(inference, tenant, model, outputs).await;
        answered
    };
    let model = answered.model;
    let ending = Ending {
        meter: answered.meter,
        entry: answered.entry,
        clock: inference.data_plane.clock(),
        model: Arc::clone(&model),
        slo,
        course: answered.course,
    };
    let books = || ending.model.memory.tenant(tenant);
    let answer = Answer {
        answered: charged(answered.outputs, books),
        model,
        family: requested.family.clone(),
        id,
        requested: outputs,
        non_finite,
        regions,
    };
    Ok(Computed {
        answer,
        memory,
        ending,
    })
}

/// Has the engine answer a request, whose course so far is `before`.
async fn submit(
    inference: &Inference,
    submission: Submission,
    meter: RequestMeter,
    before: RequestCourse,
) -> Result<Answered, InferenceError> {
    let whole = |course| RequestCourse {
        decode: before.decode,
        tokenize: before.tokenize,
        cache: before.cache,
        lookup: before.lookup,
        ..course
    };
    match inference.data_plane.submit(submission).await {
        Ok(answered) => Ok(Answered {
            meter: meter.counted_with(&answered.model.telemetry),
            model: answered.model,
            outputs: answered.outputs,
            course: whole(answered.course),
            entry: None,
        }),
        Err(unanswered) => {
            let meter = match &unanswered.model {
                Some(model) => meter.counted_with(&model.telemetry),
                None => meter,
            };
            let failure = unanswered.failure.as_ref().map(ToString::to_string);
            let meter = meter.failed_with(failure.unwrap_or_default());
            meter.end(unanswered.outcome, whole(unanswered.course));
            Err(unanswered.into())
        }
    }
}

/// Returns the durations of a request's stages.
pub(in crate::api) fn timing(course: &RequestCourse, times: &EndedRequest) -> ServerTiming {
    let receive_ms = times.receive.as_secs_f64() * 1e3;
    ServerTiming {
        stages: stages_view(receive_ms, course),
        inbox: course.inbox.as_ms(),
        total: times.latency.as_secs_f64() * 1e3,
    }
}

/// The outputs of a request, and the form in which it wants them.
pub(in crate::api) struct Answer {
    /// The model that answered.
    pub(in crate::api) model: Arc<ServedModel>,
    /// The requested family, if it was one.
    pub(in crate::api) family: Option<ModelName>,
    /// The id that the client gave the request in its message.
    pub(in crate::api) id: String,
    /// The outputs that the answer has.
    pub(in crate::api) requested: Vec<RequestedOutput>,
    /// All outputs, in the model's order.
    pub(in crate::api) answered: Vec<OutputRows>,
    /// The form of infinities and NaNs in JSON.
    pub(in crate::api) non_finite: NonFinite,
    /// The regions of shared memory into which outputs are written.
    pub(in crate::api) regions: Result<TenantRegions, SharedMemoryError>,
}

impl Answer {
    /// Returns the number of bytes that are looked at one by one or number by number, or copied to shared memory.
    pub(in crate::api) fn touched(&self) -> u64 {
        let read = self
            .requested
            .iter()
            .filter(|output| output.range.is_some() || output.classes.is_some());
        let copied = read.map(|output| self.answered[output.index].data.len() as u64);
        let outputs = self.model.spec.program.outputs.iter();
        let scanned = outputs
            .zip(&self.answered)
            .filter(|(spec, _)| is_scanned(spec));
        let scanned = scanned.map(|(_, rows)| rows.data.len() as u64);
        scanned.chain(copied).sum()
    }

    /// Writes the outputs that are wanted there to shared memory, and returns all of them as tensors in the requested forms.
    pub(in crate::api) fn tensors(&self) -> Result<Vec<Tensor>, InferenceError> {
        let mut outputs = Vec::with_capacity(self.requested.len());
        for requested in &self.requested {
            let RequestedOutput {
                index,
                form,
                range,
                classes,
            } = requested;
            let spec = &self.model.spec.program.outputs[*index];
            let rows = &self.answered[*index];
            if let Some(count) = classes {
                let declared = self.model.spec.processing.postprocess.get(&spec.name);
                let declared = declared.and_then(Postprocess::classes);
                let best = classes::best(spec, &rows.shape, &rows.data, *count, declared);
                outputs.push(best.map_err(|e| wrong_output(spec, &e))?.in_form(*form));
                continue;
            }
            if let Some(range) = range {
                self.regions.clone()?.write(range, &rows.data)?;
            }
            let data = if rows.data.len() <= SMALL_OUTPUT {
                Bytes::copy_from_slice(&rows.data)
            } else {
                rows.data.clone()
            };
            let tensor = Tensor::new(
                spec.name.clone(),
                spec.datatype,
                rows.shape.clone(),
                data.into(),
            );
            // The size is right, but a BOOL may be neither 0 nor 1.
            let tensor = tensor.map_err(|e| wrong_output(spec, &e))?;
            outputs.push(tensor.in_form(*form));
        }
        Ok(outputs)
    }
}

fn wrong_output(spec: &TensorSpec, error: &TensorError) -> InferenceError {
    let message = format!("output {:?}: {error}", spec.name);
    InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// Returns true if every byte of such a tensor is looked at.
pub(in crate::api) fn is_scanned(spec: &TensorSpec) -> bool {
    matches!(spec.datatype, Datatype::Bool | Datatype::Bytes)
}

fn input_bytes(inputs: &[Tensor]) -> u64 {
    inputs.iter().map(|input| input.data().len() as u64).sum()
}

/// Returns the size of a request's outputs, in the worker's form and as JSON where that was requested, as far as the model declares
/// it.
fn answer_bytes(request: &InferRequest, program: &Program) -> u64 {
    let declared = |spec: &TensorSpec| {
        let mut bytes = spec.datatype.width()? as u64;
        for (axis, dim) in spec.shape.iter().enumerate() {
            let size = match dim {
                Dim::Fixed(size) => *size,
                Dim::Any if axis == 0 && program.batches() => request.rows.into(),
                Dim::Any => return None,
            };
            bytes = bytes.saturating_mul(size);
        }
        Some(bytes)
    };
    let bytes = |spec| declared(spec).unwrap_or_default();
    let results: u64 = program.outputs.iter().map(bytes).sum();
    let lists = request
        .outputs
        .iter()
        .filter(|output| output.form == Form::Json);
    let texts = lists.map(|output| {
        let spec = &program.outputs[output.index];
        json_list_bound(spec.datatype, bytes(spec))
    });
    results.saturating_add(texts.sum())
}

/// Moves the inputs' part of the reservation to their bytes: it lasts until these have left, whether or not the client still waits.
fn hold_inputs(inputs: Vec<Tensor>, memory: &mut Reservation) -> Vec<Tensor> {
    let held = Arc::new(memory.split(input_bytes(&inputs)));
    inputs
        .into_iter()
        .map(|input| input.map_chunks(|chunk| held.hold(chunk)))
        .collect()
}

/// Counts outputs as a tenant's until they have left: other tenants' rows of the same result may have left before.
fn charged(mut outputs: Vec<OutputRows>, books: impl Fn() -> TenantMemory) -> Vec<OutputRows> {
    // Smaller ones are copied.
    let large = outputs
        .iter_mut()
        .filter(|rows| rows.data.len() > SMALL_OUTPUT);
    for rows in large {
        rows.data = books().charge(take(&mut rows.data));
    }
    outputs
}
