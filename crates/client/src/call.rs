//! One call to the gateway: sends a request, waits for the response within limits, and checks its status.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use packhorse_api::ErrorBody;
use packhorse_tls::{Authorities, AuthoritiesError, RefusedCertificate};
use reqwest::{
    Method, RequestBuilder, Response, StatusCode, Url,
    header::{HeaderValue, RETRY_AFTER},
};
use serde::de::DeserializeOwned;

use crate::{BaseUrl, load_connection::Listener};

/// The longest time to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest time of a call that transfers little data. It exceeds the largest timeout of an inference request.
const CALL_LIMIT: Duration = Duration::from_secs(70);
/// The largest response body that is read, in bytes.
const RESPONSE_LIMIT: usize = 1 << 30;

/// The number of bytes after which no more of the message of a refusal is read.
const REFUSAL_LIMIT: usize = 64 << 10;

/// The reason why a call to the gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection: nothing listens at the address, or the host is unknown.
    #[error("cannot connect to {url}")]
    Connect {
        /// The address of the listener.
        url: BaseUrl,
        /// The error of the operating system.
        #[source]
        source: Cause,
    },
    /// The listener has no certificate that this client accepts.
    #[error("cannot trust {url}")]
    Untrusted {
        /// The address of the listener.
        url: BaseUrl,
        /// The reason.
        #[source]
        source: RefusedCertificate,
    },
    /// The response did not arrive in time.
    #[error("{url} did not respond within {} s", .limit.as_secs())]
    Timeout {
        /// The address of the listener.
        url: BaseUrl,
        /// The time limit.
        limit: Duration,
    },
    /// The connection was lost before the response was complete.
    #[error("the connection to {url} was lost")]
    Broken {
        /// The address of the listener.
        url: BaseUrl,
        /// The error of the HTTP library.
        #[source]
        source: Cause,
    },
    /// The gateway responded with an error status.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The gateway's error message.
        message: String,
        /// The seconds of the response's `Retry-After` header.
        retry_after_s: Option<u64>,
    },
    /// The response is not in the form of the API: the server is another version, or not a Packhorse gateway.
    #[error("the response of {url} cannot be parsed")]
    InvalidResponse {
        /// The address of the listener.
        url: BaseUrl,
        /// The problem of the response.
        #[source]
        source: Cause,
    },
}

impl CallError {
    /// Returns the HTTP status if the gateway responded with an error.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The innermost cause of a failure, without the errors of the HTTP library that wrap it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    pub(crate) fn innermost(error: &dyn Error) -> Self {
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        Self(innermost.to_string())
    }
}

/// A listener of the gateway with the HTTP client that calls it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    http: reqwest::Client,
    base: BaseUrl,
    authorities: Authorities,
    authorization: Option<HeaderValue>,
}

impl Caller {
    pub(crate) fn new(
        base: BaseUrl,
        authorities: &Authorities,
        authorization: Option<HeaderValue>,
    ) -> Result<Self, AuthoritiesError> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(authorities.client_config(base.scheme())?)
            .connect_timeout(CONNECT_LIMIT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("packhorse/", env!("CARGO_PKG_VERSION")))
            .build()
            .expect("a client with its TLS depends on nothing that can fail");
        Ok(Self {
            http,
            base,
            authorities: authorities.clone(),
            authorization,
        })
    }

    /// Returns the URL of the route with these path segments.
    pub(crate) fn route<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        self.base.route(segments)
    }

    /// Returns the listener, for connections that are not pooled.
    pub(crate) fn listener(&self) -> Result<Listener, AuthoritiesError> {
        let (host, port) = self.base.host_and_port();
        let scheme = self.base.scheme();
        let tls = match scheme {
            "https" => Some(Arc::new(self.authorities.client_config(scheme)?)),
            _ => None,
        };
        Ok(Listener { host, port, tls })
    }

    /// Returns the value of `Authorization` that requests have.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Creates a request for the route with these path segments.
    pub(crate) fn request<'a>(
        &self,
        method: Method,
        segments: impl IntoIterator<Item = &'a str>,
    ) -> RequestBuilder {
        let request = self.http.request(method, self.route(segments));
        match &self.authorization {
            Some(value) => request.header(reqwest::header::AUTHORIZATION, value),
            None => request,
        }
    }

    /// Sends a request and returns the response's head and body if its status is a success.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
    ) -> Result<(Response, Bytes), CallError> {
        self.send_within(CALL_LIMIT, request).await
    }

    /// Sends a request like [`Caller::send`], with another time limit.
    pub(crate) async fn send_within(
        &self,
        limit: Duration,
        request: RequestBuilder,
    ) -> Result<(Response, Bytes), CallError> {
        let failed = |error: &reqwest::Error| self.failure(limit, error);
        let mut response = request
            .timeout(limit)
            .send()
            .await
            .map_err(|e| failed(&e))?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| failed(&e))? {
            if chunk.len() > RESPONSE_LIMIT - body.len() {
                return Err(self.invalid_response(Cause(format!(
                    "the response is over the limit of {RESPONSE_LIMIT} bytes"
                ))));
            }
            body.extend_from_slice(&chunk);
        }
        if response.status().is_success() {
            Ok((response, body.freeze()))
        } else {
            Err(refusal(&response, &body))
        }
    }

    /// Sends a request and returns the response, whose body is then read with [`Caller::chunk`], if its status is a success.
    pub(crate) async fn open(&self, request: RequestBuilder) -> Result<Response, CallError> {
        let sent = tokio::time::timeout(CALL_LIMIT, request.send()).await;
        let sent = sent.map_err(|_| self.timed_out())?;
        let mut response = sent.map_err(|e| self.failure(CALL_LIMIT, &e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let mut body = BytesMut::new();
        while body.len() < REFUSAL_LIMIT
            && let Some(chunk) = self.chunk(&mut response).await?
        {
            body.extend_from_slice(&chunk);
        }
        Err(refusal(&response, &body))
    }

    /// Returns the next part of a body, which may be as long as it will but must not stall.
    pub(crate) async fn chunk(&self, response: &mut Response) -> Result<Option<Bytes>, CallError> {
        let chunk = tokio::time::timeout(CALL_LIMIT, response.chunk()).await;
        let chunk = chunk.map_err(|_| self.timed_out())?;
        chunk.map_err(|e| self.failure(CALL_LIMIT, &e))
    }

    fn timed_out(&self) -> CallError {
        self.silent(CALL_LIMIT)
    }

    /// Returns the error of a gateway that has sent nothing for this long.
    pub(crate) fn silent(&self, limit: Duration) -> CallError {
        CallError::Timeout {
            url: self.base.clone(),
            limit,
        }
    }

    /// Sends a request and parses the response as JSON.
    pub(crate) async fn fetch<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, CallError> {
        let (_, body) = self.send(request).await?;
        self.parse_json(&body)
    }

    /// Parses a body as JSON.
    pub(crate) fn parse_json<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, CallError> {
        serde_json::from_slice(body).map_err(|e| self.invalid_response(Cause::innermost(&e)))
    }

    pub(crate) fn invalid_response(&self, source: Cause) -> CallError {
        CallError::InvalidResponse {
            url: self.base.clone(),
            source,
        }
    }

    pub(crate) fn failure(&self, limit: Duration, error: &reqwest::Error) -> CallError {
        let url = self.base.clone();
        // An attempt to connect that takes too long has both properties, and counts as an error of connecting.
        if let Some(source) = self.authorities.refusal(error) {
            CallError::Untrusted { url, source }
        } else if error.is_connect() {
            CallError::Connect {
                url,
                source: Cause::innermost(error),
            }
        } else if error.is_timeout() {
            CallError::Timeout { url, limit }
        } else {
            CallError::Broken {
                url,
                source: Cause::innermost(error),
            }
        }
    }
}

fn refusal(response: &Response, body: &[u8]) -> CallError {
    let status = response.status();
    let message = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.error,
        // The body comes from a proxy or another server, and its status is more useful than its page.
        Err(_) => format!("the server responded with {status}"),
    };
    let retry_after_s = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    CallError::Refused {
        status,
        message,
        retry_after_s,
    }
}
