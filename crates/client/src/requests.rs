//! Single requests that ended lately, their trace, and requests that an admin tries.

use bytes::Bytes;
use packhorse_api::{AuditEntry, RequestFilter, RequestView, TryView};
use packhorse_cluster::{ModelName, ModelVersion};
use reqwest::{Method, header::CONTENT_TYPE};
use serde::Serialize;

use crate::{AdminClient, CallError};

/// The requests to list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedRequests {
    /// The ends to list; all if none is given.
    pub outcome: Option<RequestFilter>,
    /// The model; all if none is given.
    pub model: Option<ModelName>,
    /// Its version; all if none is given.
    pub version: Option<ModelVersion>,
    /// The id of the request, or of its trace.
    pub id: Option<String>,
    /// The id or the name of the API key that the requests came with.
    pub key: Option<String>,
    /// The time before which they did not arrive, in milliseconds since 1970, or before now if it is negative.
    pub since: Option<i64>,
    /// The time by which they had arrived, likewise.
    pub until: Option<i64>,
    /// The largest number of requests.
    pub limit: usize,
}

/// The acts to list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedActs {
    /// The number below which they are.
    pub before: Option<u64>,
    /// The model, node, key or file that they are about.
    pub subject: Option<String>,
    /// The name of who acted, or the id of the key.
    pub actor: Option<String>,
    /// The act, or the kind of its subject.
    pub action: Option<String>,
    /// The time before which they did not happen, in milliseconds since 1970, or before now if it is negative.
    pub since: Option<i64>,
    /// The time by which they had happened, likewise.
    pub until: Option<i64>,
    /// The largest number of acts, at least 1.
    pub limit: usize,
}

impl ListedActs {
    /// The largest number of acts in an answer.
    const PAGE: usize = 1000;
}

impl AdminClient {
    /// Returns requests that ended lately, the newest first.
    pub async fn requests(&self, which: &ListedRequests) -> Result<Vec<RequestView>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "requests"]);
        self.caller.fetch(request.query(which)).await
    }

    /// Returns acts of admins, newest first, in as many answers as they need.
    pub async fn audit(&self, which: &ListedActs) -> Result<Vec<AuditEntry>, CallError> {
        let mut all: Vec<AuditEntry> = Vec::new();
        loop {
            let page = ListedActs {
                before: all.last().map_or(which.before, |last| Some(last.id)),
                limit: (which.limit - all.len()).min(ListedActs::PAGE),
                ..which.clone()
            };
            let request = self.caller.request(Method::GET, ["v1", "audit"]);
            let listed: Vec<AuditEntry> = self.caller.fetch(request.query(&page)).await?;
            let is_last = listed.len() < page.limit;
            all.extend(listed);
            if is_last || all.len() >= which.limit {
                return Ok(all);
            }
        }
    }

    /// Returns a trace of a time window in Chrome's trace event format. The times are in milliseconds since 1970, or count from the
    /// gateway's now if they are negative; without `to_ms` the window ends now.
    pub async fn trace(&self, from_ms: i64, to_ms: Option<i64>) -> Result<Bytes, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "trace"]);
        let request = request
            .query(&[("from_ms", from_ms)])
            .query(&to_ms.map(|to_ms| [("to_ms", to_ms)]));
        Ok(self.caller.send(request).await?.1)
    }

    /// Sends the JSON body of an inference request to a version of a model, by default to the newest that is ready. Returns the answer
    /// with the parts of its latency.
    pub async fn try_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        body: Vec<u8>,
    ) -> Result<TryView<serde_json::Value>, CallError> {
        let segments = ["v1", "models", name.as_str(), "try"];
        let request = self.caller.request(Method::POST, segments);
        let request = request
            .query(&version.map(|version| [("version", version)]))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        self.caller.fetch(request).await
    }
}
