//! A call: its body is read, its model found, its client authorised, and its texts answered.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use packhorse_cluster::Time;
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::spawn_blocking;

use super::{
    BODY_LIMIT,
    answers::{Rows, answers},
    ask::Ask,
    texts::{Part, cut_query, cut_texts, parts, portions},
};
use crate::{
    api::{
        bearer,
        inference::{
            authorize::{grant, use_key},
            body::{IncomingBody, Place},
            computation::{Arrival, LARGE_TEXT, record_refusal, refusal},
            error::InferenceError,
            inflate::{Encoding, inflate},
            middleware::sender_of,
            model_path::{ModelPath, name_and_version},
            predictions::tell,
            state::{Inference, InferenceLimits},
            texts::TextInput,
            work_pool::Party,
        },
    },
    keys::KeyUse,
    memory::Reservation,
    serve::HeldUntilSent,
    telemetry::RequestIdentity,
    tenant::{tenant_name_of, tenant_of},
};

/// A call whose body has come.
pub(super) struct Received<T> {
    parts: Parts,
    at: Time,
    identity: RequestIdentity,
    /// The use of the key, where the model is named in the body.
    used: Option<KeyUse>,
    /// The body.
    pub(super) body: T,
    _memory: Reservation,
}

/// A call whose model is known.
pub(in crate::api::inference) struct Call<'a> {
    pub(in crate::api::inference) inference: &'a Inference,
    pub(in crate::api::inference) arrival: Arrival<'a>,
    pub(in crate::api::inference) path: ModelPath,
}

/// Receives a call and reads its body, which is JSON.
pub(super) async fn receive<T: DeserializeOwned + Send + 'static>(
    inference: &Inference,
    request: Request,
) -> Result<Received<T>, InferenceError> {
    let at = inference.data_plane.clock().now();
    let (parts, body) = request.into_parts();
    let mut body = IncomingBody::new(&parts.headers, body);
    let identity = sender_of(&parts, inference.telemetry());
    let books = inference.unnamed.tenant(tenant_of(&parts.extensions));
    let mut memory = books.reservation();
    match read(inference, &parts, &mut body, &mut memory).await {
        Ok(read) => Ok(Received {
            parts,
            at,
            identity,
            used: None,
            body: read,
            _memory: memory,
        }),
        Err(error) => {
            body.discard();
            Err(error)
        }
    }
}

async fn read<T: DeserializeOwned + Send + 'static>(
    inference: &Inference,
    parts: &Parts,
    body: &mut IncomingBody,
    memory: &mut Reservation,
) -> Result<T, InferenceError> {
    let limits = InferenceLimits {
        body_bytes: BODY_LIMIT.min(inference.limits.body_bytes),
        ..inference.limits
    };
    let encoding = Encoding::from_headers(&parts.headers)?;
    let body = body.receive(&limits, Place::OnePiece, memory).await?;
    let body = inflate(body, encoding, limits.body_bytes, memory)?.to_bytes();
    // The texts are copied.
    memory.grow(body.len() as u64)?;
    let parse = move || {
        let mut read = serde_json::Deserializer::from_slice(&body);
        let parsed = serde_path_to_error::deserialize(&mut read).map_err(|e| {
            let at = e.path().to_string();
            let at = if at == "." {
                String::new()
            } else {
                format!("{at}: ")
            };
            InferenceError::bad_request(format!("{at}{}", e.into_inner()))
        })?;
        let rest = read.end();
        rest.map_err(|e| InferenceError::bad_request(e.to_string()))?;
        Ok(parsed)
    };
    if memory.bytes() < LARGE_TEXT {
        return parse();
    }
    let failed =
        |_| InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, "the body was not read");
    spawn_blocking(parse).await.map_err(failed)?
}

impl<T> Received<T> {
    /// Finds the model of a call, which names it in its body as `NAME` or `NAME:VERSION`, and uses its client's key for that.
    pub(super) async fn of_named<'a>(
        &'a mut self,
        inference: &'a Inference,
        model: &str,
    ) -> Result<Call<'a>, InferenceError> {
        let (name, version) = name_and_version(model)?;
        if let Some(keys) = &inference.keys {
            let used = use_key(keys, bearer(&self.parts.headers), Some(name))?;
            grant(&used, Some(name), &mut self.parts.extensions);
            self.used = Some(used);
            let tenant = tenant_name_of(&self.parts.extensions);
            self.identity = self.identity.clone().sent_by(tenant);
        }
        let named = self.of(inference, name, version).await;
        named.map_err(|error| {
            if error.status() == StatusCode::BAD_REQUEST {
                return InferenceError::bad_request(format!("model: {}", error.message()));
            }
            error
        })
    }

    /// Finds the model of a call, which names it in its path.
    pub(super) async fn of<'a>(
        &'a self,
        inference: &'a Inference,
        name: &str,
        version: &str,
    ) -> Result<Call<'a>, InferenceError> {
        let headers = &self.parts.headers;
        let path = ModelPath::find(inference, name, version, headers)?;
        let path = path.started(inference, self.at, headers).await?;
        let arrival = Arrival::new(self.at, &self.identity, &self.parts);
        Ok(Call {
            inference,
            arrival,
            path,
        })
    }

    /// Counts the use of the key by the answer, which has the request in flight until it has left.
    pub(super) fn end(self, inference: &Inference, mut response: Response) -> Response {
        let after = inference.data_plane.clock().now().saturating_since(self.at);
        let in_flight = self
            .used
            .and_then(|used| used.answered(response.status(), after));
        if let Some(in_flight) = in_flight.map(HeldUntilSent::new) {
            response.extensions_mut().insert(in_flight);
        }
        response
    }
}

impl Call<'_> {
    fn party(&self) -> Party {
        Party {
            model: self.path.requested.model.key,
            tenant: self.arrival.tenant,
        }
    }

    /// Returns the answers to texts, in their order.
    pub(in crate::api::inference) async fn rows(&self, ask: Ask) -> Result<Rows, InferenceError> {
        let refused = |error: InferenceError| {
            record_refusal(&self.arrival, &self.path, &error);
            let now = self.inference.data_plane.clock().now();
            error.or_retry_after(self.path.requested.retry_after(now))
        };
        if let Some(refusal) = refusal(&self.path, self.arrival.tenant) {
            return Err(refused(refusal.into()));
        }
        let wanted = ask.wanted;
        let parts = self.parts(ask).await.map_err(refused)?;
        let answered = answers(self.inference, &self.arrival, &self.path, parts, wanted).await;
        answered.map_err(|error| {
            let now = self.inference.data_plane.clock().now();
            error.or_retry_after(self.path.requested.retry_after(now))
        })
    }

    /// Returns the requests of a call's texts, which are cut portion by portion.
    async fn parts(&self, ask: Ask) -> Result<Vec<Part>, InferenceError> {
        let pool = &self.inference.pool;
        let model = &self.path.requested.model;
        let books = model.memory.tenant(self.arrival.tenant);
        let mut memory = books.reservation();
        let ask = Arc::new(ask);
        let query = match &ask.query {
            None => None,
            Some(query) => {
                memory.grow(TextInput::work([query.len()].into_iter()))?;
                let (ask, model) = (Arc::clone(&ask), Arc::clone(model));
                let cut = move || cut_query(&ask, &model);
                pool.parse(self.party(), cut).await??
            }
        };
        let query = Arc::new(query);
        memory.grow(TextInput::work(ask.texts.iter().map(String::len)))?;
        let clock = self.inference.data_plane.clock();
        let mut rows = Vec::with_capacity(ask.texts.len());
        for range in portions(&ask.texts, ask.query.as_ref().map_or(0, String::len)) {
            let (ask, query, model) = (Arc::clone(&ask), Arc::clone(&query), Arc::clone(model));
            let cut = move || cut_texts(&ask, Option::as_ref(&query), range, &model, clock);
            let cut = pool.parse(self.party(), cut).await??;
            // Two numbers for each token.
            let bytes: u64 = cut.iter().map(|text| 8 * text.tokens.len() as u64).sum();
            memory.grow(bytes)?;
            rows.extend(cut);
        }
        let model = Arc::clone(model);
        let make = move || parts(&ask, rows, &model, &books, clock);
        pool.parse(self.party(), make).await?
    }

    /// Writes an answer, which `make` makes of the rows, as JSON of about so many bytes.
    pub(in crate::api::inference) async fn respond<A: Serialize>(
        &self,
        rows: Rows,
        bytes: usize,
        make: impl FnOnce(Rows) -> A + Send + 'static,
    ) -> Result<Response, InferenceError> {
        let books = self.path.requested.model.memory.tenant(self.arrival.tenant);
        let mut memory = books.reservation();
        memory.grow(bytes as u64)?;
        let cache = rows.cache;
        let write = move || serde_json::to_vec(&make(rows));
        let written = if (bytes as u64) < LARGE_TEXT {
            write()
        } else {
            self.inference.pool.format(self.party(), write).await
        };
        let failed = |e: serde_json::Error| {
            InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())
        };
        let body = Bytes::from(written.map_err(failed)?);
        memory.resize(body.len() as u64)?;
        let mut response = Body::from(Arc::new(memory).hold(body)).into_response();
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        tell(response.headers_mut(), cache);
        Ok(response)
    }
}
