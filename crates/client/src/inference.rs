//! The client of the Open Inference Protocol.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use packhorse_api::STAGES_HEADER;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_protocol::{
    EncodeError, HEADER_LENGTH, InferResponse, Limits, MessageError, ModelMetadata,
    RepositoryEntry, RequestMessage, ServerMetadata, Statistics,
};
use packhorse_tls::{Authorities, AuthoritiesError};
use reqwest::{
    Body, Method, RequestBuilder, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{
    BaseUrl, CallError, EncodedRequest, LoadConnection,
    admin::{ClientError, bearer},
    call::Caller,
};

/// A client of the inference listener. Cheap to clone.
///
/// ```
/// use packhorse_client::{Authorities, InferenceClient};
/// use packhorse_cluster::Shape;
/// use packhorse_protocol::{Form, RequestMessage, Tensor};
/// # use packhorse_protocol::{HEADER_LENGTH, InferResponse};
/// # use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gateway = MockServer::start().await;
/// # let y = Tensor::from_values("y", Shape::new(&[1, 2])?, &[3.0_f32, -0.5])?;
/// # let message = InferResponse { model_name: "double".into(), model_version: "1".into(), id: String::new(), variant: None, outputs: vec![y] }.encode()?;
/// # let length = message.header_length().expect("binary tensors have a header").to_string();
/// # let body = message.into_body().to_bytes().to_vec();
/// # let response = ResponseTemplate::new(200).insert_header(HEADER_LENGTH, length).set_body_raw(body, "application/octet-stream");
/// # Mock::given(path("/v2/models/double/infer")).respond_with(response).mount(&gateway).await;
/// # let url = gateway.uri();
/// // let url = "http://127.0.0.1:8080";
/// let client = InferenceClient::new(url.parse()?, &Authorities::Machine)?;
/// let input = Tensor::from_values("x", Shape::new(&[1, 2])?, &[1.5_f32, -0.25])?;
/// let request = RequestMessage {
///     inputs: vec![input],
///     output_form: Some(Form::Binary),
///     ..RequestMessage::default()
/// };
/// let response = client.infer(&"double".parse()?, None, &request).await?;
/// assert_eq!(response.outputs[0].values::<f32>(), Some(vec![3.0, -0.5]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct InferenceClient {
    caller: Caller,
}

/// The reason why an inference request failed.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// The request cannot be encoded.
    #[error("the request cannot be encoded")]
    Request(#[source] EncodeError),
    /// The call failed, or the gateway refused the request.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The body is not an inference response.
    #[error("the response cannot be parsed")]
    Response(#[source] MessageError),
}

impl InferenceClient {
    /// Creates a client of the listener at this address, which has a certificate of these authorities unless the address is an `http`
    /// one.
    ///
    /// # Errors
    /// If the authorities cannot be read.
    pub fn new(base: BaseUrl, authorities: &Authorities) -> Result<Self, AuthoritiesError> {
        Ok(Self {
            caller: Caller::new(base, authorities, None)?,
        })
    }

    /// Creates a client that sends this API key. Spaces and line ends around the key are removed.
    ///
    /// # Errors
    /// If the text is not a key, or the authorities cannot be read.
    pub fn with_key(
        base: BaseUrl,
        key: &str,
        authorities: &Authorities,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            caller: Caller::new(base, authorities, Some(bearer(key)?))?,
        })
    }

    /// Returns the server's name, its version and its extensions of the protocol.
    pub async fn server_metadata(&self) -> Result<ServerMetadata, CallError> {
        self.caller
            .fetch(self.caller.request(Method::GET, ["v2"]))
            .await
    }

    /// Returns true if the server is ready for inference requests.
    pub async fn ready(&self) -> Result<bool, CallError> {
        self.is_ready(self.caller.request(Method::GET, ["v2", "health", "ready"]))
            .await
    }

    /// Returns true if a version of a model, by default the newest, is ready for requests.
    pub async fn model_ready(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<bool, CallError> {
        self.is_ready(self.model_request(Method::GET, name, version, Some("ready")))
            .await
    }

    /// Returns the signature of a version of a model, by default of the newest.
    pub async fn model_metadata(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelMetadata, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version, None))
            .await
    }

    /// Returns the counters of a version of a model, by default of the newest, since the gateway serves it.
    pub async fn model_statistics(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Statistics, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version, Some("stats")))
            .await
    }

    /// Returns all versions of all models with their states.
    pub async fn index(&self) -> Result<Vec<RepositoryEntry>, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::POST, ["v2", "repository", "index"]),
            )
            .await
    }

    /// Sends an inference request to a version of a model, by default to the newest. The request selects whether tensors are sent and
    /// returned as JSON or as binary data.
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
        let (response, body) = self
            .caller
            .send(call.body(Body::wrap_stream(chunks)))
            .await?;
        let header_length = response
            .headers()
            .get(HEADER_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        InferResponse::parse(body.into(), header_length, &Limits::default())
            .map_err(InferError::Response)
    }

    /// Sends a JSON body unchanged and returns the body of the response unchanged.
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

    /// Encodes a request to a version of a model, by default to the newest, for [`LoadConnection::exchange`]. With `stages` the gateway
    /// answers with the durations of the request's stages, too.
    ///
    /// # Errors
    /// An input has the JSON form, but JSON cannot represent it.
    pub fn encode(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        request: &RequestMessage,
        stages: bool,
    ) -> Result<EncodedRequest, EncodeError> {
        let message = request.encode()?;
        let (header_length, content_type) = (message.header_length(), message.content_type());
        let body = message.into_body();
        let version = version.map(|version| version.to_string());
        let url = self
            .caller
            .route(model_segments(name, version.as_deref(), Some("infer")));
        let authority = url.authority();
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n",
            url.path(),
            body.len()
        )
        .into_bytes();
        let mut header = |name: &str, value: &[u8]| {
            head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        };
        if let Some(length) = header_length {
            header(HEADER_LENGTH, length.to_string().as_bytes());
        }
        if let Some(value) = self.caller.authorization() {
            header("authorization", value.as_bytes());
        }
        if stages {
            header(STAGES_HEADER, b"1");
        }
        head.extend(b"\r\n");
        Ok(EncodedRequest::new(
            head.into(),
            body.into_chunks().collect(),
        ))
    }

    /// Returns a connection that is not pooled, for benchmarks. It connects with its first request.
    ///
    /// # Errors
    /// If the authorities cannot be read.
    pub fn load_connection(&self) -> Result<LoadConnection, AuthoritiesError> {
        Ok(LoadConnection::new(self.caller.listener()?))
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
        self.caller
            .request(method, model_segments(name, version.as_deref(), last))
    }
}

/// Returns the path segments of a route of a model.
fn model_segments<'a>(
    name: &'a ModelName,
    version: Option<&'a str>,
    last: Option<&'a str>,
) -> impl Iterator<Item = &'a str> {
    let version = version
        .into_iter()
        .flat_map(|version| ["versions", version]);
    ["v2", "models", name.as_str()]
        .into_iter()
        .chain(version)
        .chain(last)
}
