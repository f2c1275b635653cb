//! Which artifacts the node has, fetches, or could not fetch.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ArtifactDigest, Time};

use super::task::pause;

#[derive(Debug)]
enum Artifact {
    Fetching {
        failures: u32,
        reason: Option<String>,
    },
    Failed {
        failures: u32,
        reason: String,
        again: Time,
    },
    Present,
}

/// The artifacts by digest; what is not here was never asked for.
#[derive(Debug, Default)]
pub(super) struct Artifacts(BTreeMap<ArtifactDigest, Artifact>);

impl Artifacts {
    pub(super) fn has(&self, digest: ArtifactDigest) -> bool {
        matches!(self.0.get(&digest), Some(Artifact::Present))
    }

    /// What went wrong last, while the artifact is missing.
    pub(super) fn reason(&self, digest: ArtifactDigest) -> Option<&str> {
        match self.0.get(&digest)? {
            Artifact::Fetching { reason, .. } => reason.as_deref(),
            Artifact::Failed { reason, .. } => Some(reason),
            Artifact::Present => None,
        }
    }

    pub(super) fn fetched(&mut self, digest: ArtifactDigest) {
        self.0.insert(digest, Artifact::Present);
    }

    pub(super) fn failed(&mut self, now: Time, digest: ArtifactDigest, reason: String) {
        let failures = match self.0.get(&digest) {
            Some(Artifact::Fetching { failures, .. }) => *failures,
            _ => 0,
        };
        let again = now + pause(failures);
        let failures = failures.saturating_add(1);
        self.0.insert(
            digest,
            Artifact::Failed {
                failures,
                reason,
                again,
            },
        );
    }

    /// Whether a missing artifact is to be fetched now; it counts as being fetched then.
    pub(super) fn fetch(&mut self, now: Time, digest: ArtifactDigest) -> bool {
        let (failures, reason) = match self.0.get(&digest) {
            None => (0, None),
            Some(Artifact::Failed {
                failures,
                reason,
                again,
            }) if *again <= now => (*failures, Some(reason.clone())),
            Some(_) => return false,
        };
        self.0
            .insert(digest, Artifact::Fetching { failures, reason });
        true
    }

    /// Takes out what is there and no task uses.
    pub(super) fn evict_unused(&mut self, used: &BTreeSet<ArtifactDigest>) -> Vec<ArtifactDigest> {
        let unused = self
            .0
            .extract_if(.., |digest, artifact| {
                !used.contains(digest) && !matches!(artifact, Artifact::Fetching { .. })
            })
            .filter(|(_, artifact)| matches!(artifact, Artifact::Present));
        unused.map(|(digest, _)| digest).collect()
    }

    pub(super) fn wakeup(&self) -> Option<Time> {
        let again = |artifact: &Artifact| match artifact {
            Artifact::Failed { again, .. } => Some(*again),
            Artifact::Fetching { .. } | Artifact::Present => None,
        };
        self.0.values().filter_map(again).min()
    }
}
