//! The choice of requests that are listed.

use packhorse_api::RequestFilter;
use packhorse_cluster::{ModelId, ModelName, ModelVersion, Time};

use super::{request_end::end_of, request_log::RequestRecord, request_texts::RequestTexts};

/// The requests to list.
#[derive(Clone, Debug)]
pub(crate) struct WhichRequests {
    /// The ends to list; all if none is given.
    pub(crate) filter: Option<RequestFilter>,
    /// The model; all models if none is given.
    pub(crate) model: Option<ModelName>,
    /// Its version; all if none is given.
    pub(crate) version: Option<ModelVersion>,
    /// The id of the request, or of its trace; all if none is given.
    pub(crate) id: Option<String>,
    /// The ids of the API keys that it may have come with; all if none are given.
    pub(crate) keys: Option<Vec<String>>,
    /// The time before which they did not arrive.
    pub(crate) since: Option<Time>,
    /// The time before which they had arrived.
    pub(crate) until: Option<Time>,
    /// The largest number of requests.
    pub(crate) limit: usize,
}

impl WhichRequests {
    pub(super) fn contains(&self, request: &RequestRecord, model: &ModelId) -> bool {
        self.filter.is_none_or(|f| f.matches(end_of(request)))
            && self.since.is_none_or(|since| request.arrived >= since)
            && self.until.is_none_or(|until| request.arrived < until)
            && self.model.as_ref().is_none_or(|name| *name == model.name)
            && self.version.is_none_or(|version| version == model.version)
    }

    /// Returns true if it is looked for among texts.
    pub(super) fn has_texts(&self) -> bool {
        self.id.is_some() || self.keys.is_some()
    }

    pub(super) fn contains_texts(&self, texts: &RequestTexts) -> bool {
        self.is_id(&texts.id, &texts.trace)
            && self
                .keys
                .as_ref()
                .is_none_or(|keys| keys.contains(&texts.key))
    }

    /// Returns true if a request with this id and this trace may be listed.
    pub(super) fn is_id(&self, id: &str, trace: &str) -> bool {
        let is_it = |asked: &String| asked == id || asked.eq_ignore_ascii_case(trace);
        self.id.as_ref().is_none_or(is_it)
    }
}
