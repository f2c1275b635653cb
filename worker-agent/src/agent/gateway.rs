//! The client of the gateway's agent API over HTTP.

use std::{io, net::IpAddr, path::PathBuf, time::Duration};

use packhorse_api::agent::{AgentStatus, LeaseGrant, LeaseRequest, WantedState};
use packhorse_cluster::ArtifactDigest;
use packhorse_tls::{Authorities, AuthoritiesError, RefusedCertificate};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::{Deserialize, de::DeserializeOwned};

use crate::config::Settings;

/// The time limit for a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of a request that the gateway answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that the gateway may hold a long poll.
const LONG_POLL: Duration = Duration::from_secs(25);
/// The time without data after which a connection counts as broken; longer than a long poll.
const READ_TIMEOUT: Duration = Duration::from_secs(35);
/// The most bytes of a message from the gateway.
const MAX_MESSAGE: usize = 64 << 20;
/// The most characters of the gateway's reason that are passed on.
const MAX_REASON: usize = 500;

/// A node's client of the gateway.
#[derive(Clone, Debug)]
pub(super) struct GatewayClient {
    http: Client,
    node_url: Url,
    artifacts_url: Url,
    token_file: PathBuf,
    authorities: Authorities,
}

/// A failed request to the gateway.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatewayError {
    #[error("the gateway does not answer: {}", root_cause(.0))]
    Unreachable(#[from] reqwest::Error),
    #[error("the gateway cannot be trusted: {0}")]
    Untrusted(RefusedCertificate),
    #[error("the gateway refuses with status {}: {message}", .status.as_u16())]
    Refused { status: StatusCode, message: String },
    #[error("the gateway's answer is larger than the limit of {MAX_MESSAGE} bytes")]
    TooLarge,
    #[error("the gateway's answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("--token-file cannot be read: {0}")]
    Token(#[source] io::Error),
}

/// The reason why there is no client of the gateway.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("--ca-file: {0}")]
    Authorities(#[from] AuthoritiesError),
    #[error("cannot make an HTTP client: {0}")]
    Http(#[from] reqwest::Error),
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// Returns the innermost cause: reqwest's own messages do not contain it.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl GatewayError {
    /// Returns true if the gateway does not accept what the request says.
    pub(super) fn is_bad_request(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::BAD_REQUEST)
    }

    /// Returns true if the gateway answers that the lease is not held.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::CONFLICT)
    }
}

impl GatewayClient {
    /// Creates a client. It does not connect yet.
    pub(super) fn new(settings: &Settings) -> Result<Self, ClientError> {
        let tls = settings
            .authorities
            .client_config(settings.gateway.scheme())?;
        let http = Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // The gateway is reached directly, even if the environment has a proxy for the outside world.
            .no_proxy()
            .build()?;
        let url = |path: &str| {
            let mut url = settings.gateway.clone();
            let path = format!("{}/{path}", url.path().trim_end_matches('/'));
            url.set_path(&path);
            url
        };
        if settings.gateway.scheme() == "http" && !is_loopback(&settings.gateway) {
            tracing::warn!(gateway = %settings.gateway, "the agent's token is sent to another machine in clear text; give the gateway a certificate (--tls-cert)");
        }
        Ok(Self {
            http,
            node_url: url(&format!("v1/agents/{}/", settings.node)),
            artifacts_url: url("v1/artifacts/"),
            token_file: settings.token_file.clone(),
            authorities: settings.authorities.clone(),
        })
    }

    fn node_url(&self, resource: &str) -> Url {
        self.node_url
            .join(resource)
            .expect("a plain word is a relative URL")
    }

    /// Reads the token. It is read for every request, because it may have been replaced.
    async fn token(&self) -> Result<String, GatewayError> {
        let token = tokio::fs::read_to_string(&self.token_file).await;
        Ok(token.map_err(GatewayError::Token)?.trim().to_owned())
    }

    /// Builds a request with the token.
    async fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, GatewayError> {
        let token = self.token().await?;
        Ok(self.http.request(method, url).bearer_auth(token))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, GatewayError> {
        let sent = request.send().await;
        sent.map_err(|e| match self.authorities.refusal(&e) {
            Some(refusal) => GatewayError::Untrusted(refusal),
            None => e.into(),
        })
    }

    /// Acquires or renews the lease. Returns also the token that the request had.
    pub(super) async fn acquire_lease(
        &self,
        lease: &LeaseRequest,
    ) -> Result<(LeaseGrant, String), GatewayError> {
        let token = self.token().await?;
        let request = self.http.request(Method::PUT, self.node_url("lease"));
        let request = request.bearer_auth(&token).timeout(REQUEST_TIMEOUT);
        let grant = read_json(self.send(request.json(lease)).await?).await?;
        Ok((grant, token))
    }

    /// Returns the wanted state as soon as it is newer than the given version, or when the long poll ends.
    pub(super) async fn poll_wanted(
        &self,
        (epoch, revision): (u64, u64),
    ) -> Result<WantedState, GatewayError> {
        let mut url = self.node_url("wanted");
        url.query_pairs_mut()
            .append_pair("epoch", &epoch.to_string())
            .append_pair("revision", &revision.to_string())
            .append_pair("wait_ms", &LONG_POLL.as_millis().to_string());
        let request = self.request(Method::GET, url).await?;
        let received: ReceivedWanted = read_json(self.send(request).await?).await?;
        Ok(received.readable())
    }

    /// Reports the node's status.
    pub(super) async fn report_status(&self, status: &AgentStatus) -> Result<(), GatewayError> {
        let request = self.request(Method::PUT, self.node_url("status")).await?;
        let request = request.timeout(REQUEST_TIMEOUT).json(status);
        check_status(self.send(request).await?).await.map(drop)
    }

    /// Requests an artifact. The response's body is to be read in chunks.
    pub(super) async fn get_artifact(
        &self,
        digest: ArtifactDigest,
    ) -> Result<Response, GatewayError> {
        let url = self.artifacts_url.join(&format!("./{digest}"));
        let url = url.expect("a digest is a relative URL");
        let request = self.request(Method::GET, url).await?;
        check_status(self.send(request).await?).await
    }
}

/// A wanted state whose entries may be of a newer gateway.
#[derive(Deserialize)]
struct ReceivedWanted {
    epoch: u64,
    revision: u64,
    replicas: Vec<serde_json::Value>,
    profiles: Vec<serde_json::Value>,
    #[serde(default)]
    inspections: Vec<serde_json::Value>,
}

impl ReceivedWanted {
    /// Returns the wanted state with the entries that this agent can read. One that it cannot read, for example because of a datatype
    /// that it does not know, must not keep the others from running.
    fn readable(self) -> WantedState {
        WantedState {
            epoch: self.epoch,
            revision: self.revision,
            replicas: readable(self.replicas, "replica"),
            profiles: readable(self.profiles, "measurement"),
            inspections: readable(self.inspections, "inspection"),
        }
    }
}

fn readable<T: DeserializeOwned>(entries: Vec<serde_json::Value>, what: &str) -> Vec<T> {
    let read = |entry: serde_json::Value| {
        let id = entry
            .get("id")
            .and_then(|id| id.as_str())
            .unwrap_or_default()
            .to_owned();
        serde_json::from_value(entry)
            .inspect_err(|e| {
                tracing::warn!(id, error = %e, "a wanted {what} cannot be read by this version of the agent");
            })
            .ok()
    };
    entries.into_iter().filter_map(read).collect()
}

/// The body of an error response.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

/// Returns a successful response, or the error that the gateway gives.
async fn check_status(response: Response) -> Result<Response, GatewayError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = read_body(response).await.unwrap_or_default();
    let message = serde_json::from_slice(&body).map_or_else(
        |_| "no reason given".to_owned(),
        |problem: Problem| problem.error.chars().take(MAX_REASON).collect(),
    );
    Err(GatewayError::Refused { status, message })
}

async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, GatewayError> {
    let body = read_body(check_status(response).await?).await?;
    Ok(serde_json::from_slice(&body)?)
}

async fn read_body(mut response: Response) -> Result<Vec<u8>, GatewayError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > MAX_MESSAGE - body.len() {
            return Err(GatewayError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_of_a_newer_gateway_does_not_hide_the_others() {
        let program = |datatype: &str| {
            let tensor = json!({"name": "x", "datatype": datatype, "shape": [-1], "new": 1});
            json!({"model": "m:1", "artifact": format!("sha256:{}", "0".repeat(64)), "max_batch_size": 4,
                   "inputs": [tensor], "outputs": [tensor], "also_new": true})
        };
        let replica = |id: &str, datatype: &str| {
            json!({"id": id, "program": program(datatype), "device": "gpu0", "batch_size": 4, "compute_share_pct": null,
                   "newer": {"a": 1}})
        };
        let profile = json!({"program": program("FP32"), "device": "gpu0", "device_kind": "T4", "time_limit_ms": 5});
        let message = json!({"epoch": 2, "revision": 3, "unheard_of": [], "profiles": [profile],
                             "inspections": [program("FP8"), program("FP32")],
                             "replicas": [replica("1-0", "FP32"), replica("1-1", "FP8")]});
        let received: ReceivedWanted = serde_json::from_value(message).unwrap();
        let wanted = received.readable();
        assert_eq!((wanted.epoch, wanted.revision), (2, 3));
        let ids: Vec<String> = wanted.replicas.iter().map(|r| r.id.to_string()).collect();
        assert_eq!(ids, ["1-0"]);
        assert_eq!((wanted.profiles.len(), wanted.inspections.len()), (1, 1));
    }
}
