//! One exchange with the gateway: send, wait with a limit, tell success from refusal.

use std::{error::Error, time::Duration};

use bytes::{Bytes, BytesMut};
use packhorse_api::ErrorBody;
use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{HeaderValue, RETRY_AFTER},
};
use serde::de::DeserializeOwned;

use crate::BaseUrl;

/// How long a connection may take to come about.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an exchange may take that moves little data. Longer than any deadline a request can have.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(70);
/// The largest answer that is read.
const ANSWER_LIMIT: usize = 1 << 30;

/// What goes wrong in an exchange with the gateway.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there, or the host is not known.
    #[error("cannot connect to {url}")]
    Connect {
        /// The listener.
        url: BaseUrl,
        /// What the operating system says.
        #[source]
        source: Cause,
    },
    /// The answer did not come in time.
    #[error("{url} did not answer within {} s", .limit.as_secs())]
    Timeout {
        /// The listener.
        url: BaseUrl,
        /// How long was waited.
        limit: Duration,
    },
    /// The connection was lost before the answer was complete.
    #[error("the connection to {url} broke off")]
    Broken {
        /// The listener.
        url: BaseUrl,
        /// What the HTTP library says.
        #[source]
        source: Cause,
    },
    /// The gateway answered that it will not.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The gateway's own words.
        message: String,
        /// After how many seconds it asks to be tried again.
        retry_after_s: Option<u64>,
    },
    /// The answer is not what the API promises: another version, or no Packhorse gateway at all.
    #[error("the answer of {url} cannot be read")]
    Answer {
        /// The listener.
        url: BaseUrl,
        /// What is wrong with it.
        #[source]
        source: Cause,
    },
}

impl CallError {
    /// The HTTP status, if the gateway refused.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The innermost cause of a failure, without the layers of the HTTP library around it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    pub(crate) fn of(error: &dyn Error) -> Self {
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        Self(innermost.to_string())
    }
}

/// A listener of the gateway and how to talk to it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    http: reqwest::Client,
    base: BaseUrl,
    authorization: Option<HeaderValue>,
}

impl Caller {
    pub(crate) fn new(base: BaseUrl, authorization: Option<HeaderValue>) -> Self {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("packhorse/", env!("CARGO_PKG_VERSION")))
            .build()
            .expect("a client without TLS needs nothing of the system");
        Self {
            http,
            base,
            authorization,
        }
    }

    /// A request for the route of these path segments.
    pub(crate) fn request<'a>(
        &self,
        method: Method,
        segments: impl IntoIterator<Item = &'a str>,
    ) -> RequestBuilder {
        let request = self.http.request(method, self.base.route(segments));
        match &self.authorization {
            Some(value) => request.header(reqwest::header::AUTHORIZATION, value),
            None => request,
        }
    }

    /// Sends a request and returns the answer's head and body if the status is a success.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
    ) -> Result<(Response, Bytes), CallError> {
        self.send_within(EXCHANGE_LIMIT, request).await
    }

    /// [`Caller::send`] with a limit of its own.
    pub(crate) async fn send_within(
        &self,
        limit: Duration,
        request: RequestBuilder,
    ) -> Result<(Response, Bytes), CallError> {
        let failed = |error: &reqwest::Error| self.failure(limit, error);
        let mut answer = request
            .timeout(limit)
            .send()
            .await
            .map_err(|e| failed(&e))?;
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await.map_err(|e| failed(&e))? {
            if chunk.len() > ANSWER_LIMIT - body.len() {
                return Err(self.unreadable(Cause(format!(
                    "it is over the limit of {ANSWER_LIMIT} bytes"
                ))));
            }
            body.extend_from_slice(&chunk);
        }
        if answer.status().is_success() {
            Ok((answer, body.freeze()))
        } else {
            Err(refusal(&answer, &body))
        }
    }

    /// Sends a request and reads the answer as JSON.
    pub(crate) async fn fetch<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, CallError> {
        let (_, body) = self.send(request).await?;
        self.json(&body)
    }

    /// Reads a body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, CallError> {
        serde_json::from_slice(body).map_err(|e| self.unreadable(Cause::of(&e)))
    }

    pub(crate) fn unreadable(&self, source: Cause) -> CallError {
        CallError::Answer {
            url: self.base.clone(),
            source,
        }
    }

    fn failure(&self, limit: Duration, error: &reqwest::Error) -> CallError {
        let url = self.base.clone();
        // An attempt to connect that takes too long is both, and the connection is what matters.
        if error.is_connect() {
            CallError::Connect {
                url,
                source: Cause::of(error),
            }
        } else if error.is_timeout() {
            CallError::Timeout { url, limit }
        } else {
            CallError::Broken {
                url,
                source: Cause::of(error),
            }
        }
    }
}

fn refusal(answer: &Response, body: &[u8]) -> CallError {
    let status = answer.status();
    let message = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.error,
        // Not ours: a proxy, or another server. Its page says less than its status.
        Err(_) => format!("the server answered {status}"),
    };
    let retry_after_s = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    CallError::Refused {
        status,
        message,
        retry_after_s,
    }
}
