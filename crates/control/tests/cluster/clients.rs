//! The clients of a cluster, and what became of their requests.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, Time};
use packhorse_serving::RequestOutcome;

use crate::data_plane::Tag;

/// The end of a request, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// It was answered in time.
    InTime,
    /// It was answered late.
    Late,
    /// It was refused.
    Refused,
    /// It was accepted, and its deadline passed.
    Expired,
    /// It was accepted, and its worker was lost with no time or attempts left.
    Lost,
    /// Its batch failed.
    Failed,
    /// The client hung up.
    Cancelled,
    /// The connection to the gateway broke.
    Broken,
    /// No gateway took the connection.
    Unreachable,
}

/// The clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// The requests/s for each model, and a number that outdates the arrivals that were scheduled for an earlier rate.
    pub(crate) rates: BTreeMap<ModelId, (f64, u64)>,
    /// The deadlines of the requests that have not ended.
    waiting: BTreeMap<Tag, Time>,
    ends: BTreeMap<End, u64>,
    /// The requests on which the model throws.
    pub(crate) poison: BTreeSet<Tag>,
    /// The requests that kill their workers.
    pub(crate) killers: BTreeSet<Tag>,
    next: u64,
}

impl Clients {
    /// Sends a request with this deadline.
    pub(crate) fn send(&mut self, deadline: Time) -> Tag {
        let tag = Tag(self.next);
        self.next += 1;
        self.waiting.insert(tag, deadline);
        tag
    }

    /// Notes the end of a request.
    ///
    /// Panics if it had ended.
    pub(crate) fn end(&mut self, tag: Tag, end: End) {
        let waited = self.waiting.remove(&tag);
        assert!(waited.is_some(), "{tag:?} ends again: {end:?}");
        *self.ends.entry(end).or_default() += 1;
    }

    /// Notes the outcome of a request that the gateway has taken.
    pub(crate) fn outcome(&mut self, now: Time, tag: Tag, outcome: RequestOutcome) {
        let deadline = self.waiting.get(&tag).copied();
        let end = match outcome {
            RequestOutcome::Answered if deadline.is_some_and(|deadline| now <= deadline) => {
                End::InTime
            }
            RequestOutcome::Answered => End::Late,
            RequestOutcome::Refused(_) => End::Refused,
            RequestOutcome::Expired => End::Expired,
            RequestOutcome::Lost => End::Lost,
            RequestOutcome::Failed => End::Failed,
            RequestOutcome::Cancelled => End::Cancelled,
        };
        self.end(tag, end);
    }

    /// The connections of all clients break.
    pub(crate) fn break_all(&mut self) {
        let waiting: Vec<Tag> = self.waiting.keys().copied().collect();
        for tag in waiting {
            self.end(tag, End::Broken);
        }
    }

    /// Returns the number of requests that ended so.
    pub(crate) fn count(&self, end: End) -> u64 {
        self.ends.get(&end).copied().unwrap_or(0)
    }

    /// Returns the number of requests that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ends.values().sum()
    }

    /// Returns the requests that have not ended.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Tag, Time)> {
        self.waiting.iter().map(|(tag, deadline)| (*tag, *deadline))
    }

    /// Returns the number of requests by their ends.
    pub(crate) fn ends(&self) -> &BTreeMap<End, u64> {
        &self.ends
    }
}
