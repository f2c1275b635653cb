//! The gateway's agent API over HTTP.

use std::{io, net::IpAddr, path::PathBuf, time::Duration};

use packhorse_api::agent::{AgentStatus, LeaseGrant, LeaseRequest, WantedState};
use packhorse_cluster::ArtifactDigest;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::{Deserialize, de::DeserializeOwned};

use super::Settings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For whole requests that are answered at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the gateway may hold a long poll.
const POLL: Duration = Duration::from_secs(25);
/// Silence on a connection after which it counts as broken; longer than a long poll.
const READ_TIMEOUT: Duration = Duration::from_secs(35);
/// The most bytes of a message from the gateway.
const MAX_MESSAGE: usize = 64 << 20;

/// One node's access to the gateway.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    http: Client,
    node_url: Url,
    artifacts_url: Url,
    token_file: PathBuf,
}

/// Why the gateway did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatewayError {
    #[error("the gateway does not answer: {}", innermost(.0))]
    Unreachable(#[from] reqwest::Error),
    #[error("the gateway refuses with status {}: {message}", .status.as_u16())]
    Refused { status: StatusCode, message: String },
    #[error("the gateway's answer is over the limit of {MAX_MESSAGE} bytes")]
    TooLarge,
    #[error("the gateway's answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("--token-file cannot be read: {0}")]
    Token(#[source] io::Error),
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// The cause that says something: reqwest's own words hide it.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl GatewayError {
    /// Whether the gateway says that the lease is not held.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::CONFLICT)
    }
}

impl Gateway {
    pub(super) fn new(settings: &Settings) -> Result<Self, reqwest::Error> {
        let http = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // The gateway is reached directly, whatever proxy the environment has for the world outside.
            .no_proxy()
            .build()?;
        let url = |path: &str| {
            let mut url = settings.gateway.clone();
            let path = format!("{}/{path}", url.path().trim_end_matches('/'));
            url.set_path(&path);
            url
        };
        if !is_loopback(&settings.gateway) {
            tracing::warn!(gateway = %settings.gateway, "the agent's token travels to another machine in clear text");
        }
        Ok(Self {
            http,
            node_url: url(&format!("v1/agents/{}/", settings.node)),
            artifacts_url: url("v1/artifacts/"),
            token_file: settings.token_file.clone(),
        })
    }

    fn node(&self, part: &str) -> Url {
        self.node_url
            .join(part)
            .expect("a plain word is a relative URL")
    }

    /// A request with the token, which is read anew each time: it may have been replaced.
    async fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, GatewayError> {
        let token = tokio::fs::read_to_string(&self.token_file).await;
        let token = token.map_err(GatewayError::Token)?;
        Ok(self.http.request(method, url).bearer_auth(token.trim()))
    }

    /// Takes or renews the lease.
    pub(super) async fn lease(&self, lease: &LeaseRequest) -> Result<LeaseGrant, GatewayError> {
        let request = self.request(Method::PUT, self.node("lease")).await?;
        answer(request.timeout(REQUEST_TIMEOUT).json(lease).send().await?).await
    }

    /// What is wanted, as soon as it is newer than this, or when the gateway has held the request long enough.
    pub(super) async fn wanted(
        &self,
        (epoch, revision): (u64, u64),
    ) -> Result<WantedState, GatewayError> {
        let mut url = self.node("wanted");
        url.query_pairs_mut()
            .append_pair("epoch", &epoch.to_string())
            .append_pair("revision", &revision.to_string())
            .append_pair("wait_ms", &POLL.as_millis().to_string());
        answer(self.request(Method::GET, url).await?.send().await?).await
    }

    /// Says how the node stands.
    pub(super) async fn report(&self, status: &AgentStatus) -> Result<(), GatewayError> {
        let request = self.request(Method::PUT, self.node("status")).await?;
        let response = request.timeout(REQUEST_TIMEOUT).json(status).send().await?;
        accepted(response).await.map(drop)
    }

    /// An artifact's bytes, to be read chunk by chunk.
    pub(super) async fn artifact(&self, digest: ArtifactDigest) -> Result<Response, GatewayError> {
        let url = self.artifacts_url.join(&format!("./{digest}"));
        let url = url.expect("a digest is a relative URL");
        accepted(self.request(Method::GET, url).await?.send().await?).await
    }
}

/// The body of every refusal.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

async fn accepted(response: Response) -> Result<Response, GatewayError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = read(response).await.unwrap_or_default();
    let message = serde_json::from_slice(&body).map_or_else(
        |_| "without a reason".to_owned(),
        |problem: Problem| problem.error.chars().take(500).collect(),
    );
    Err(GatewayError::Refused { status, message })
}

async fn answer<T: DeserializeOwned>(response: Response) -> Result<T, GatewayError> {
    let body = read(accepted(response).await?).await?;
    Ok(serde_json::from_slice(&body)?)
}

async fn read(mut response: Response) -> Result<Vec<u8>, GatewayError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > MAX_MESSAGE - body.len() {
            return Err(GatewayError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
