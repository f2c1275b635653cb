//! `/v1/history`.

use packhorse_api::HistoryView;
use packhorse_cluster::{DeviceId, ModelName, ModelVersion};
use reqwest::Method;
use serde::Serialize;

use crate::{AdminClient, CallError};

/// The history to return.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WhichHistory {
    /// The model; all together if neither it nor a device is given.
    pub model: Option<ModelName>,
    /// The version of this model; all together if absent.
    pub version: Option<ModelVersion>,
    /// The device.
    pub device: Option<DeviceId>,
    /// The begin, in milliseconds since 1970, or before now if it is negative.
    #[serde(rename = "from_ms")]
    pub since: i64,
    /// The end, likewise; now if absent.
    #[serde(rename = "to_ms")]
    pub until: Option<i64>,
    /// The length of a step, in seconds; chosen by the gateway if absent.
    pub step_s: Option<u64>,
}

impl AdminClient {
    /// Returns the last day of a model, a device or all models.
    pub async fn history(&self, which: &WhichHistory) -> Result<HistoryView, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "history"]);
        self.caller.fetch(request.query(which)).await
    }
}
