//! The answer to a call of rows: its body is read, and its rows are answered portion by portion.

use std::{ops::Range, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use packhorse_api::CacheUse;
use packhorse_cluster::Preprocess;
use packhorse_protocol::{Limits, Rows, is_oip};
use packhorse_serving::Refusal;
use serde::Serialize;

use super::predictions::{best, bound, bound_of_classes, write};
use crate::{
    api::inference::{
        body::{IncomingBody, Place},
        compress::compress,
        computation::{
            Arrival, Computed, LARGE_REQUEST, LARGE_TEXT, REQUEST_BYTES, ReceivedRequest, compute,
            is_probe, record_refusal, refusal,
        },
        error::InferenceError,
        infer::widest_input,
        inflate::{Encoding, inflate},
        middleware::sender_of,
        model_path::ModelPath,
        predictions::{of_call, tell},
        shared_memory::SharedMemoryError,
        state::{Inference, InferenceLimits},
        text_calls::{
            AT_A_TIME, MAX_TEXTS, answers,
            ask::{Ask, Wanted, classes_of, embedding_of},
            call::Call,
        },
        work_pool::Party,
    },
    driver::ServedModel,
    memory::Reservation,
};

/// The most rows of a call.
const MAX_ROWS: usize = 65_536;

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Rows as JSON.
    Rows,
    /// Rows as JSON, or a request of the Open Inference Protocol.
    RowsOrOip,
    /// One picture, as it is.
    Picture,
    /// One text, as it is.
    Text,
}

/// The end of a call.
pub(super) enum Outcome {
    /// It is answered, or refused.
    Answered(Response),
    /// It is this request of the Open Inference Protocol.
    Oip(Request),
}

/// The content of a call, whose body has been read.
enum Read {
    Rows(Arc<Rows>, Reservation),
    Oip(Bytes),
}

/// The predictions of a portion of a call: JSON, with commas between them.
struct Portion {
    text: Vec<u8>,
    /// The outcome of looking in the cache; none if the model has none.
    cache: Option<CacheUse>,
    memory: Reservation,
}

/// The predictions of texts.
#[derive(Debug, Serialize)]
struct Predictions<T> {
    predictions: Vec<T>,
}

/// Answers a call for a model, which its path or a flag names.
pub(super) async fn predict(
    inference: &Inference,
    (name, version): (&str, &str),
    content: Content,
    request: Request,
) -> Outcome {
    let arrived = inference.data_plane.clock().now();
    if let Some(latency) = &inference.wake_latency {
        latency.request();
    }
    let (parts, body) = request.into_parts();
    let mut body = IncomingBody::new(&parts.headers, body);
    let found = ModelPath::find(inference, name, version, &parts.headers);
    let path = match found {
        Ok(path) => path.started(inference, arrived, &parts.headers).await,
        Err(error) => Err(error),
    };
    let path = match path {
        Ok(path) => path,
        Err(error) => {
            body.discard();
            return Outcome::Answered(error.into_response());
        }
    };
    let identity = sender_of(&parts, inference.telemetry());
    let arrival = Arrival::new(arrived, &identity, &parts);
    let call = Call {
        inference,
        arrival,
        path,
    };
    let read = receive(&call, content, &mut body).await;
    let read = read.inspect_err(|error| record_refusal(&call.arrival, &call.path, error));
    let answered = match read {
        Ok(Read::Oip(body)) => return Outcome::Oip(again(parts, body)),
        Ok(Read::Rows(rows, memory)) => answer(&call, rows, memory).await,
        Err(error) => Err(error),
    };
    Outcome::Answered(match answered {
        Ok(response) => compress(&parts.headers, response).await,
        Err(error) => {
            tracing::debug!(
                request.id = identity.id(), model.name = %call.path.requested.last().id(), http.status = error.status().as_u16(),
                error = error.message(), "a call was not answered"
            );
            body.discard();
            let now = inference.data_plane.clock().now();
            let retry_after = call.path.requested.retry_after(now);
            error.or_retry_after(retry_after).into_response()
        }
    })
}

/// Returns a request with the body that it was found to have.
fn again(mut parts: Parts, body: Bytes) -> Request {
    parts.headers.remove(header::CONTENT_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::EXPECT);
    Request::from_parts(parts, Body::from(body))
}

/// Receives and reads a call, unless it is refused before.
async fn receive(
    call: &Call<'_>,
    content: Content,
    body: &mut IncomingBody,
) -> Result<Read, InferenceError> {
    let &Call {
        inference,
        ref arrival,
        ref path,
    } = call;
    let (tenant, model) = (arrival.tenant, &path.requested.model);
    let encoding = Encoding::from_headers(arrival.headers)?;
    if let Some(refusal) = refusal(path, tenant) {
        return Err(refusal.into());
    }
    let clock = inference.data_plane.clock();
    let is_large = body.announced().is_none_or(|bytes| bytes >= LARGE_REQUEST);
    let requested = &path.requested;
    if is_large
        && !is_probe(inference, requested, clock, arrival.at, tenant)
        && requested.is_hopeless(clock.now(), arrival.at, tenant)
    {
        return Err(Refusal::CannotMeetDeadline.into());
    }
    let mut memory = model.memory.tenant(tenant).reservation();
    memory.grow(REQUEST_BYTES)?;
    let limits = InferenceLimits {
        body_bytes: inference
            .limits
            .body_bytes
            .min(Limits::default().json_bytes as u64),
        ..inference.limits
    };
    let body = body.receive(&limits, Place::OnePiece, &mut memory).await?;
    let size = body.len() as u64;
    let model = Arc::clone(model);
    let read = move || {
        let body = inflate(body, encoding, limits.body_bytes, &mut memory)?.to_bytes();
        if content == Content::RowsOrOip && is_oip(&body) {
            return Ok(Read::Oip(Arc::new(memory).hold(body)));
        }
        let rows = read_rows(&body, content, &model, &mut memory)?;
        drop(body);
        memory.resize(REQUEST_BYTES + rows.bytes())?;
        Ok(Read::Rows(Arc::new(rows), memory))
    };
    if size < LARGE_TEXT && encoding == Encoding::Identity {
        return read();
    }
    inference.pool.parse(party(call), read).await?
}

fn party(call: &Call<'_>) -> Party {
    Party {
        model: call.path.requested.model.key,
        tenant: call.arrival.tenant,
    }
}

fn read_rows(
    body: &Bytes,
    content: Content,
    model: &ServedModel,
    memory: &mut Reservation,
) -> Result<Rows, InferenceError> {
    let (program, processing) = (&model.spec.program, &model.spec.processing);
    let json = body.len() as u64;
    let is_picture = match content {
        Content::Rows | Content::RowsOrOip => {
            // An element of two bytes of text can become one of eight, and the end of a row is one.
            memory.grow(json * widest_input(program) / 2 + 8 * json.min(MAX_ROWS as u64))?;
            return Ok(Rows::parse(body, program, processing, MAX_ROWS)?);
        }
        Content::Picture => true,
        Content::Text => false,
    };
    memory.grow(json)?;
    let mut declared = processing.preprocess.iter();
    let name = declared.find_map(|(name, declared)| {
        (matches!(declared, Preprocess::Image(_)) == is_picture).then_some(name)
    });
    let what = if is_picture { "picture" } else { "text" };
    let name = name.ok_or_else(|| {
        InferenceError::bad_request(format!(
            "the body is a {what} (Content-Type), and the model does not declare how one becomes its inputs (preprocess)"
        ))
    })?;
    let rows = Rows::one(name, body, program.batches());
    rows.map_err(|e| InferenceError::bad_request(e.to_string()))
}

async fn answer(
    call: &Call<'_>,
    rows: Arc<Rows>,
    memory: Reservation,
) -> Result<Response, InferenceError> {
    match texts(call, &rows)? {
        Some(texts) => {
            drop(rows);
            answer_texts(call, texts, memory).await
        }
        None => answer_rows(call, rows, memory).await,
    }
}

/// Returns the wish of a call that has nothing but texts, for a model that declares what its output is.
fn texts(call: &Call<'_>, rows: &Rows) -> Result<Option<Ask>, InferenceError> {
    let spec = &call.path.requested.model.spec;
    let Some((name, texts)) = rows.only_raw() else {
        return Ok(None);
    };
    if !matches!(spec.processing.text(), Some((text, _)) if text == name) {
        return Ok(None);
    }
    let (output, wanted) = match (embedding_of(spec), classes_of(spec)) {
        (Ok((output, declared)), _) => (output, Wanted::Embedding(declared, None)),
        (_, Ok((output, _))) => (output, Wanted::Scores),
        _ => return Ok(None),
    };
    if rows.count() > MAX_TEXTS {
        let problem = format!("more texts than the limit of {MAX_TEXTS}");
        return Err(InferenceError::bad_request(problem));
    }
    let text = |(row, text): (usize, &[u8])| {
        let text = str::from_utf8(text).map(str::to_owned);
        text.map_err(|e| InferenceError::bad_request(format!("text {row}: {e}")))
    };
    let texts = texts.enumerate().map(text);
    Ok(Some(Ask {
        query: None,
        texts: texts.collect::<Result<_, _>>()?,
        truncate: None,
        output,
        wanted,
        timeout: rows.timeout(),
        priority: rows.priority(),
    }))
}

async fn answer_texts(
    call: &Call<'_>,
    ask: Ask,
    _memory: Reservation,
) -> Result<Response, InferenceError> {
    let is_embedding = matches!(ask.wanted, Wanted::Embedding(..));
    let rows = call.rows(ask).await?;
    let declared = classes_of(&call.path.requested.model.spec);
    if let (false, Ok((_, declared))) = (is_embedding, declared) {
        let labels = declared.labels.iter().map(String::len).max();
        let each = 96 + 6 * labels.unwrap_or_default();
        let bytes = rows.by_text.len() * declared.top_k as usize * each;
        let make = move |rows: answers::Rows| {
            let classes = rows.by_text.iter().map(|row| best(&row.numbers, &declared));
            Predictions {
                predictions: classes.collect(),
            }
        };
        return call.respond(rows, bytes, make).await;
    }
    let bytes = 64 * rows.by_text.len() + 16 * rows.numbers();
    let make = |rows: answers::Rows| {
        let vector = |numbers: &[f64]| numbers.iter().map(|number| *number as f32).collect();
        let vectors = rows.by_text.iter().map(|row| vector(&row.numbers));
        Predictions::<Vec<f32>> {
            predictions: vectors.collect(),
        }
    };
    call.respond(rows, bytes, make).await
}

/// Answers rows in portions of at most as many as the model takes.
async fn answer_rows(
    call: &Call<'_>,
    rows: Arc<Rows>,
    memory: Reservation,
) -> Result<Response, InferenceError> {
    let limit = call.path.requested.model.spec.program.rows_limit() as usize;
    let count = rows.count();
    let (portions, held) = if count <= limit {
        // The memory of the rows is that of the request.
        let portion = portion(call, rows, 0..count, Some(memory)).await?;
        (vec![portion], None)
    } else {
        let ranges = (0..count).step_by(limit);
        let ranges = ranges.map(|begin| begin..count.min(begin + limit));
        let portions = ranges.map(|range| portion(call, Arc::clone(&rows), range, None));
        let portions = stream::iter(portions).buffered(AT_A_TIME).try_collect();
        (portions.await?, Some(memory))
    };
    drop(held);
    respond(call, portions)
}

/// Returns the predictions of a portion.
async fn portion(
    call: &Call<'_>,
    rows: Arc<Rows>,
    range: Range<usize>,
    memory: Option<Reservation>,
) -> Result<Portion, InferenceError> {
    let &Call {
        inference,
        ref arrival,
        ref path,
    } = call;
    let clock = inference.data_plane.clock();
    let is_whole = memory.is_some();
    let arrival = Arrival {
        at: if is_whole { arrival.at } else { clock.now() },
        ..*arrival
    };
    let waited = arrival.at.saturating_since(call.arrival.at);
    let model = Arc::clone(&path.requested.model);
    let (count, has_raw) = (range.len(), rows.has_raw());
    let share = rows.bytes() / rows.count().max(1) as u64 * count as u64;
    let mut memory = match memory {
        Some(memory) => memory,
        None => model.memory.tenant(arrival.tenant).reservation(),
    };
    if !is_whole {
        memory.grow(REQUEST_BYTES + share)?;
    }
    let begin = arrival.at;
    let check = move || {
        let message = rows.message(range);
        let message = message.map_err(|e| InferenceError::bad_request(e.to_string()))?;
        let no_regions = Err(SharedMemoryError::Off);
        let checked = ReceivedRequest::checked(message, memory, no_regions, &model, (clock, begin));
        checked.map(|request| request.shortened_by(waited))
    };
    let request = if has_raw || share >= LARGE_TEXT {
        inference.pool.parse(party(call), check).await?
    } else {
        check()
    };
    let request = request.inspect_err(|error| record_refusal(&arrival, path, error))?;
    let computed = compute(inference, &arrival, path, request, None).await;
    let Computed {
        answer,
        mut memory,
        ending,
    } = computed?;
    let bytes = if has_raw {
        bound(&answer, count) + bound_of_classes(&answer, count)
    } else {
        bound(&answer, count)
    };
    let format = move || {
        let mut text = Vec::new();
        write(&answer, count, has_raw, &mut text)?;
        Ok(text)
    };
    let written = match memory.grow(bytes) {
        Ok(()) if bytes < LARGE_TEXT => format(),
        Ok(()) => {
            let party = Party {
                model: ending.model.key,
                tenant: arrival.tenant,
            };
            inference.pool.format(party, format).await
        }
        Err(exhausted) => Err(exhausted.into()),
    };
    let cache = ending.course.cache;
    let (mut text, _) = ending.end(written)?;
    text.shrink_to_fit();
    memory.resize(text.len() as u64)?;
    Ok(Portion {
        text,
        cache,
        memory,
    })
}

/// Returns the answer of all portions.
fn respond(call: &Call<'_>, portions: Vec<Portion>) -> Result<Response, InferenceError> {
    const BEGIN: &[u8] = br#"{"predictions":["#;
    let books = &call.path.requested.model.memory;
    let mut memory = books.tenant(call.arrival.tenant).reservation();
    let bytes: usize = portions.iter().map(|portion| portion.text.len() + 1).sum();
    memory.grow((BEGIN.len() + bytes + 2) as u64)?;
    let cache = of_call(portions.iter().map(|portion| portion.cache));
    let mut body = Vec::with_capacity(BEGIN.len() + bytes + 2);
    body.extend_from_slice(BEGIN);
    for (index, portion) in portions.into_iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&portion.text);
        drop(portion.memory);
    }
    body.extend_from_slice(b"]}");
    let body = Arc::new(memory).hold(body.into());
    let mut response = Body::from(body).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    tell(response.headers_mut(), cache);
    Ok(response)
}
