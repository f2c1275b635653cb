//! The requests that were refused before they reached a model, because they were wrong in themselves or not permitted.
//!
//! They are apart from those that a model had: each status has a ring of its own, so that a flood of requests without a key pushes out neither
//! requests that were served nor those that were refused for another reason. All of them take 5 MB at most.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use packhorse_api::{EndOfRequest, RequestStages, RequestView};
use packhorse_cluster::{ModelName, Time};

use super::{request_log::Micros, which_requests::WhichRequests};
use crate::clock::Clock;

/// The number of the first rejected request: others never come so far, and a number of JavaScript is exact up to 2^53.
pub(super) const FIRST: u64 = 1 << 48;
/// The number of requests that are kept of a status.
const KEPT: usize = 1000;
/// The statuses with a ring of their own: key missing or unknown, forbidden, no such model, too large, too many. Other statuses share one.
const APART: [u16; 5] = [401, 403, 404, 413, 429];
/// The largest length of a reason, in bytes.
const MAX_REASON: usize = 255;

/// A request that was refused before it reached a model.
#[derive(Clone, Debug)]
pub(crate) struct RejectedRequest {
    /// The status of its answer.
    pub(crate) status: u16,
    /// The message of its answer.
    pub(crate) reason: String,
    /// Its id.
    pub(crate) id: String,
    /// The id of its trace; empty without one.
    pub(crate) trace: String,
    /// The id of the API key that it came with, if the key is valid.
    pub(crate) key: Option<String>,
    /// The address that it came from.
    pub(crate) address: Option<IpAddr>,
    /// The model that its path names.
    pub(crate) model: Option<ModelName>,
    /// The time of its head.
    pub(crate) arrived: Time,
    /// The time from then until the head of its answer.
    pub(crate) latency: Micros,
}

/// The rejected requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RejectedRequests(Arc<Mutex<Rings>>);

#[derive(Debug, Default)]
struct Rings {
    count: u64,
    /// The requests by status with their numbers, the oldest first.
    kept: BTreeMap<Option<u16>, VecDeque<(u64, Arc<RejectedRequest>)>>,
}

impl RejectedRequests {
    /// Adds a request.
    pub(crate) fn add(&self, mut request: RejectedRequest) {
        let end = request.reason.floor_char_boundary(MAX_REASON);
        request.reason.truncate(end);
        request.reason.shrink_to_fit();
        let status = Some(request.status).filter(|status| APART.contains(status));
        let mut rings = self.rings();
        let number = FIRST + rings.count;
        rings.count += 1;
        let ring = rings.kept.entry(status).or_default();
        if ring.len() >= KEPT {
            ring.pop_front();
        }
        ring.push_back((number, Arc::new(request)));
    }

    /// Returns the request with this number, unless it was forgotten.
    pub(super) fn get(&self, number: u64) -> Option<Arc<RejectedRequest>> {
        let rings = self.rings();
        let mut all = rings.kept.values().flatten();
        let (_, found) = all.find(|(known, _)| *known == number)?;
        Some(Arc::clone(found))
    }

    /// Returns the requests that are listed, the newest first.
    pub(super) fn list(&self, which: &WhichRequests) -> Vec<(u64, Arc<RejectedRequest>)> {
        let is_wanted = which
            .filter
            .is_none_or(|f| f.matches(EndOfRequest::Rejected));
        if !is_wanted || which.version.is_some() {
            return Vec::new();
        }
        let rings = self.rings();
        let all = rings.kept.values().flatten();
        let all = all.filter(|(_, request)| request.is_in(which));
        let mut all: Vec<_> = all.cloned().collect();
        drop(rings);
        all.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        all.truncate(which.limit);
        all
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        // A panic of another thread has at worst lost a request.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RejectedRequest {
    fn is_in(&self, which: &WhichRequests) -> bool {
        let has_key = |keys: &Vec<String>| self.key.as_ref().is_some_and(|key| keys.contains(key));
        which.since.is_none_or(|since| self.arrived >= since)
            && which.until.is_none_or(|until| self.arrived < until)
            && (which.model.is_none() || which.model == self.model)
            && which.is_id(&self.id, &self.trace)
            && which.keys.as_ref().is_none_or(has_key)
    }

    /// Returns the time at which it was answered.
    pub(super) fn ended(&self) -> Time {
        self.arrived + self.latency.into()
    }

    /// Returns the request in the form of the API.
    pub(super) fn view(&self, number: u64, clock: Clock) -> RequestView {
        let given = |text: &String| (!text.is_empty()).then(|| text.clone());
        RequestView {
            id: number,
            request_id: given(&self.id),
            trace_id: given(&self.trace),
            key: self.key.clone(),
            key_name: None,
            at_ms: clock.unix_ms_f64(self.arrived),
            model: self.model.clone(),
            version: None,
            outcome: EndOfRequest::Rejected,
            status: Some(self.status),
            address: self.address.map(|address| address.to_string()),
            reason: given(&self.reason),
            latency_ms: self.latency.as_ms(),
            slo_ms: 0.0,
            rows: 0,
            cache: None,
            stages_ms: RequestStages {
                receive: self.latency.as_ms(),
                ..RequestStages::default()
            },
            batch: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rejected: &RejectedRequests, status: u16, at: u64, reason: &str) {
        rejected.add(RejectedRequest {
            status,
            reason: reason.to_owned(),
            id: format!("{status}-{at}"),
            trace: String::new(),
            key: (status == 429).then(|| "team-a".to_owned()),
            address: None,
            model: "m".parse().ok(),
            arrived: Time::from_nanos(at),
            latency: Micros(1),
        });
    }

    const ALL: WhichRequests = WhichRequests {
        filter: None,
        model: None,
        version: None,
        id: None,
        keys: None,
        since: None,
        until: None,
        limit: usize::MAX,
    };

    fn ids(rejected: &RejectedRequests, which: &WhichRequests) -> Vec<String> {
        let listed = rejected.list(which).into_iter();
        listed.map(|(_, request)| request.id.clone()).collect()
    }

    #[test]
    fn a_flood_of_strangers_pushes_out_nothing_else() {
        let rejected = RejectedRequests::default();
        add(&rejected, 429, 1, "too many");
        for status in [400, 408, 415] {
            add(&rejected, status, 2, "wrong");
        }
        for at in 0..10 * KEPT as u64 {
            add(&rejected, 401, 10 + at, "no key");
        }
        let all = ids(&rejected, &ALL);
        assert_eq!(all.len(), KEPT + 4);
        assert_eq!(all[0], format!("401-{}", 9 + 10 * KEPT));
        assert_eq!(all[KEPT..], ["415-2", "408-2", "400-2", "429-1"]);
        assert!(
            rejected
                .get(FIRST)
                .is_some_and(|request| request.status == 429)
        );
        assert!(rejected.get(FIRST + 4).is_none());
    }

    #[test]
    fn they_are_found_by_id_key_model_time_and_end() {
        let rejected = RejectedRequests::default();
        add(&rejected, 429, 10, "too many");
        add(&rejected, 400, 20, &"ä".repeat(200));
        let found = |which: WhichRequests| ids(&rejected, &which);
        let id = Some("429-10".to_owned());
        assert_eq!(found(WhichRequests { id, ..ALL }), ["429-10"]);
        let keys = Some(vec!["team-a".to_owned()]);
        assert_eq!(found(WhichRequests { keys, ..ALL }), ["429-10"]);
        let since = Some(Time::from_nanos(11));
        assert_eq!(found(WhichRequests { since, ..ALL }), ["400-20"]);
        let until = Some(Time::from_nanos(20));
        assert_eq!(found(WhichRequests { until, ..ALL }), ["429-10"]);
        assert_eq!(found(WhichRequests { limit: 1, ..ALL }), ["400-20"]);
        for (model, filter, count) in [
            ("m", "rejected", 2),
            ("n", "rejected", 0),
            ("m", "missed", 0),
        ] {
            let (model, filter) = (model.parse().ok(), filter.parse().ok());
            assert_eq!(
                found(WhichRequests {
                    filter,
                    model,
                    ..ALL
                })
                .len(),
                count
            );
        }
        let reason = rejected
            .get(FIRST + 1)
            .map(|request| request.reason.clone());
        assert_eq!(reason, Some("ä".repeat(127)));
    }
}
