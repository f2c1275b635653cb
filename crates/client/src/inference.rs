//! The Open Inference Protocol.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_protocol::{
    EncodeError, HEADER_LENGTH, InferResponse, Limits, MessageError, ModelMetadata,
    RepositoryEntry, RequestMessage, ServerMetadata, Statistics,
};
use reqwest::{
    Body, Method, RequestBuilder, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{BaseUrl, CallError, call::Caller};

/// A client of the inference listener. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InferenceClient {
    caller: Caller,
}

/// Why an inference came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request(#[source] EncodeError),
    /// The exchange failed, or the gateway refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer is no inference response.
    #[error("the response cannot be read")]
    Response(#[source] MessageError),
}

impl InferenceClient {
    /// A client of the listener there.
    pub fn new(base: BaseUrl) -> Self {
        Self {
            caller: Caller::new(base, None),
        }
    }

    /// What the server is and which extensions of the protocol it has.
    pub async fn server_metadata(&self) -> Result<ServerMetadata, CallError> {
        self.caller
            .fetch(self.caller.request(Method::GET, ["v2"]))
            .await
    }

    /// Whether the server takes inference requests.
    pub async fn ready(&self) -> Result<bool, CallError> {
        self.is_ready(self.caller.request(Method::GET, ["v2", "health", "ready"]))
            .await
    }

    /// Whether a version of a model, the newest if none is named, takes requests.
    pub async fn model_ready(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<bool, CallError> {
        self.is_ready(self.model_request(Method::GET, name, version, Some("ready")))
            .await
    }

    /// The signature of a version of a model, the newest if none is named.
    pub async fn model_metadata(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelMetadata, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version, None))
            .await
    }

    /// What a version of a model, the newest if none is named, has done since the gateway serves it.
    pub async fn model_statistics(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Statistics, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version, Some("stats")))
            .await
    }

    /// All versions of all models and whether they can be used.
    pub async fn index(&self) -> Result<Vec<RepositoryEntry>, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::POST, ["v2", "repository", "index"]),
            )
            .await
    }

    /// Asks a version of a model, the newest if none is named. Inputs and outputs travel in the form that the request says.
    pub async fn infer(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        request: &RequestMessage,
    ) -> Result<InferResponse, InferError> {
        let message = request.encode().map_err(InferError::Request)?;
        let (header_length, content_type) = (message.header_length(), message.content_type());
        let body = message.into_body();
        let mut call = self
            .infer_request(name, version)
            .header(CONTENT_TYPE, content_type)
            .header(CONTENT_LENGTH, body.len());
        if let Some(length) = header_length {
            call = call.header(HEADER_LENGTH, length);
        }
        let chunks = stream::iter(
            body.into_chunks()
                .map(Ok::<_, Infallible>)
                .collect::<Vec<_>>(),
        );
        let (answer, body) = self
            .caller
            .send(call.body(Body::wrap_stream(chunks)))
            .await?;
        let header_length = answer
            .headers()
            .get(HEADER_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        InferResponse::parse(body.into(), header_length, &Limits::default())
            .map_err(InferError::Response)
    }

    /// Posts a body as it is, as JSON, and returns the answer's body as it is.
    pub async fn infer_raw(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        body: Vec<u8>,
    ) -> Result<Bytes, CallError> {
        let call = self
            .infer_request(name, version)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        self.caller.send(call).await.map(|(_, body)| body)
    }

    async fn is_ready(&self, request: RequestBuilder) -> Result<bool, CallError> {
        match self.caller.send(request).await {
            Ok(_) => Ok(true),
            Err(e) if e.status() == Some(StatusCode::SERVICE_UNAVAILABLE) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn infer_request(&self, name: &ModelName, version: Option<ModelVersion>) -> RequestBuilder {
        self.model_request(Method::POST, name, version, Some("infer"))
    }

    fn model_request(
        &self,
        method: Method,
        name: &ModelName,
        version: Option<ModelVersion>,
        last: Option<&str>,
    ) -> RequestBuilder {
        let version = version.map(|version| version.to_string());
        let mut segments = vec!["v2", "models", name.as_str()];
        segments.extend(
            version
                .iter()
                .flat_map(|version| ["versions", version.as_str()]),
        );
        segments.extend(last);
        self.caller.request(method, segments)
    }
}
