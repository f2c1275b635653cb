//! The choice of a version for a request that names none.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use packhorse_cluster::{ModelVersion, Sticky};
use packhorse_control::VersionShares;

/// The step between the positions of successive requests. It has no common factor with 100, so that each hundred requests have every
/// position once, and any few of them are spread evenly.
const STEP: u64 = 61;

/// The shares of a model's versions, and the choice by them.
#[derive(Debug)]
pub(super) struct VersionRoute {
    shares: BTreeMap<ModelVersion, u32>,
    sticky: Sticky,
    /// The version that answers what those on trial cannot answer in time.
    former: Option<ModelVersion>,
    /// The number of requests so far.
    requests: AtomicU64,
}

impl VersionRoute {
    /// Creates the choice by these shares.
    pub(super) fn new(shares: VersionShares) -> Self {
        let VersionShares {
            shares,
            sticky,
            former,
        } = shares;
        Self {
            shares,
            sticky,
            former,
            requests: AtomicU64::new(0),
        }
    }

    /// Returns the version that answers what this one cannot answer in time: the one before it, while this one is on trial.
    pub(super) fn former_of(&self, version: ModelVersion) -> Option<ModelVersion> {
        self.former.filter(|former| *former != version)
    }

    /// Returns the version for a request with this id, if it has one. If the version takes no requests, the one with the largest share
    /// of those that do is chosen, so that nothing is refused which another version can answer.
    pub(super) fn choose(
        &self,
        request_id: Option<&[u8]>,
        is_ready: impl Fn(ModelVersion) -> bool,
    ) -> Option<ModelVersion> {
        let position = match (self.sticky, request_id) {
            (Sticky::RequestId, Some(id)) => {
                let mut hasher = DefaultHasher::new();
                id.hash(&mut hasher);
                hasher.finish() % 100
            }
            _ => self.requests.fetch_add(1, Relaxed).wrapping_mul(STEP) % 100,
        };
        let mut end = 0;
        let shares = || {
            self.shares
                .iter()
                .map(|(version, share)| (*version, *share))
        };
        let chosen = shares().find(|(_, share)| {
            end += u64::from(*share);
            position < end
        });
        let (chosen, _) = chosen?;
        if is_ready(chosen) {
            return Some(chosen);
        }
        let ready = shares().filter(|(version, _)| is_ready(*version));
        let largest = ready.max_by_key(|(_, share)| *share);
        Some(largest.map_or(chosen, |(version, _)| version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(number: u32) -> ModelVersion {
        ModelVersion::new(number).unwrap()
    }

    fn route(shares: &[(u32, u32)], sticky: Sticky) -> VersionRoute {
        let shares = shares.iter().map(|(version, share)| (v(*version), *share));
        VersionRoute::new(VersionShares {
            shares: shares.collect(),
            sticky,
            former: None,
        })
    }

    #[test]
    fn of_a_hundred_requests_each_version_gets_its_share_and_of_ten_about_that() {
        let route = route(&[(1, 70), (2, 20), (3, 10)], Sticky::None);
        let mut counts = BTreeMap::new();
        for round in 1..=10 {
            for _ in 0..10 {
                *counts
                    .entry(route.choose(None, |_| true).unwrap())
                    .or_insert(0) += 1;
            }
            for (version, share) in [(1, 7), (2, 2), (3, 1)] {
                let count: i32 = counts.get(&v(version)).copied().unwrap_or(0);
                assert!((count - share * round).abs() <= 1, "{round}: {counts:?}");
            }
        }
        assert_eq!(counts, BTreeMap::from([(v(1), 70), (v(2), 20), (v(3), 10)]));
    }

    #[test]
    fn a_request_id_has_always_the_same_version() {
        let route = route(&[(1, 50), (2, 50)], Sticky::RequestId);
        let choose = |id: &str| route.choose(Some(id.as_bytes()), |_| true).unwrap();
        let ids: Vec<String> = (0..200).map(|n| format!("user-{n}")).collect();
        let first: Vec<ModelVersion> = ids.iter().map(|id| choose(id)).collect();
        let again: Vec<ModelVersion> = ids.iter().map(|id| choose(id)).collect();
        assert_eq!(first, again);
        let of_first = first.iter().filter(|version| **version == v(1)).count();
        assert!((70..130).contains(&of_first), "{of_first} of 200");
    }

    #[test]
    fn a_version_that_takes_no_requests_is_passed_over_if_another_takes_them() {
        let route = route(&[(1, 60), (2, 30), (3, 10)], Sticky::None);
        let chosen = (0..100).map(|_| route.choose(None, |version| version != v(1)).unwrap());
        let of_third = chosen.filter(|version| {
            assert_ne!(*version, v(1));
            *version == v(3)
        });
        assert_eq!(of_third.count(), 10, "the other has the share of both");
        assert!(route.choose(None, |_| false).is_some());
    }
}
