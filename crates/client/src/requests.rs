//! Single requests that ended lately, their trace, and requests that an admin tries.

use bytes::Bytes;
use packhorse_api::{AuditEntry, RequestFilter, RequestView, TryView};
use packhorse_cluster::{ModelName, ModelVersion};
use reqwest::{Method, header::CONTENT_TYPE};

use crate::{AdminClient, CallError};

impl AdminClient {
    /// Returns requests that ended lately, the newest first: those with one end, or all; of one model, or of all.
    pub async fn requests(
        &self,
        filter: Option<RequestFilter>,
        model: Option<(&ModelName, Option<ModelVersion>)>,
        limit: usize,
    ) -> Result<Vec<RequestView>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "requests"]);
        let request = request
            .query(&filter.map(|filter| [("outcome", filter)]))
            .query(&model.map(|(name, _)| [("model", name)]))
            .query(&model.and_then(|(_, version)| Some([("version", version?)])))
            .query(&[("limit", limit)]);
        self.caller.fetch(request).await
    }

    /// Returns the newest acts of admins with a number below `before`, newest first, at most `limit`.
    pub async fn audit(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "audit"]);
        let request = request
            .query(&before.map(|before| [("before", before)]))
            .query(&[("limit", limit)]);
        self.caller.fetch(request).await
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
