//! The artifacts that the node has, fetches, or could not fetch.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ArtifactDigest, Time};

use crate::{Task, backoff::backoff};

/// The state of one artifact.
#[derive(Debug)]
enum Artifact {
    /// The driver fetches the artifact.
    Fetching {
        /// The number of failed attempts.
        failures: u32,
        /// The error of the last failed attempt.
        error: Option<String>,
    },
    /// The last attempt failed.
    Failed {
        /// The number of failed attempts.
        failures: u32,
        /// The error of the last attempt.
        error: String,
        /// The time of the next attempt.
        retry_at: Time,
    },
    /// The artifact is in the cache.
    Present,
}

/// The artifacts by digest. An artifact that no task has needed has no entry.
#[derive(Debug, Default)]
pub(crate) struct Artifacts(BTreeMap<ArtifactDigest, Artifact>);

impl Artifacts {
    /// Returns true if all artifacts of a task are in the cache.
    pub(crate) fn are_present(&self, task: &Task) -> bool {
        let mut digests = task.artifacts().into_iter();
        digests.all(|digest| matches!(self.0.get(&digest), Some(Artifact::Present)))
    }

    /// Returns the error of the last attempt to fetch an artifact of a task, while it is missing.
    pub(crate) fn fetch_error(&self, task: &Task) -> Option<&str> {
        let error = |digest| match self.0.get(&digest)? {
            Artifact::Fetching { error, .. } => error.as_deref(),
            Artifact::Failed { error, .. } => Some(error.as_str()),
            Artifact::Present => None,
        };
        task.artifacts().into_iter().find_map(error)
    }

    /// Notes that the artifact is in the cache.
    pub(crate) fn fetched(&mut self, digest: ArtifactDigest) {
        self.0.insert(digest, Artifact::Present);
    }

    /// Notes that the artifact is not in the cache any more.
    pub(crate) fn gone(&mut self, digest: ArtifactDigest) {
        self.0.remove(&digest);
    }

    /// Notes that the artifact could not be fetched; the next attempt follows after a delay.
    pub(crate) fn fetch_failed(&mut self, now: Time, digest: ArtifactDigest, error: String) {
        let failures = match self.0.get(&digest) {
            Some(Artifact::Fetching { failures, .. }) => *failures,
            _ => 0,
        };
        let failed = Artifact::Failed {
            failures: failures.saturating_add(1),
            error,
            retry_at: now + backoff(failures),
        };
        self.0.insert(digest, failed);
    }

    /// Returns true if a missing artifact is to be fetched now, and then notes that it is being fetched.
    pub(crate) fn begin_fetch(&mut self, now: Time, digest: ArtifactDigest) -> bool {
        let (failures, error) = match self.0.get(&digest) {
            None => (0, None),
            Some(Artifact::Failed {
                failures,
                error,
                retry_at,
            }) if *retry_at <= now => (*failures, Some(error.clone())),
            Some(_) => return false,
        };
        self.0
            .insert(digest, Artifact::Fetching { failures, error });
        true
    }

    /// Removes the artifacts that no task uses, except those being fetched, and returns the ones that were in the cache.
    pub(crate) fn evict_unused(&mut self, used: &BTreeSet<ArtifactDigest>) -> Vec<ArtifactDigest> {
        let unused = self
            .0
            .extract_if(.., |digest, artifact| {
                !used.contains(digest) && !matches!(artifact, Artifact::Fetching { .. })
            })
            .filter(|(_, artifact)| matches!(artifact, Artifact::Present));
        unused.map(|(digest, _)| digest).collect()
    }

    /// Returns the time of the next attempt to fetch a needed artifact; none if none failed.
    pub(crate) fn wakeup(&self, needed: &BTreeSet<ArtifactDigest>) -> Option<Time> {
        let retry_at = |artifact: &Artifact| match artifact {
            Artifact::Failed { retry_at, .. } => Some(*retry_at),
            Artifact::Fetching { .. } | Artifact::Present => None,
        };
        let needed = self.0.iter().filter(|(digest, _)| needed.contains(digest));
        needed.filter_map(|(_, artifact)| retry_at(artifact)).min()
    }
}
