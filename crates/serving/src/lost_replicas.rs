//! The health of replicas that were lost, until they come back.
//!
//! A worker that drops its connection at every batch is a new replica with each connection. What spoke against it is kept, so that it is ejected
//! like one that fails its batches.

use std::collections::BTreeMap;

use packhorse_cluster::Time;

use crate::{ReplicaKey, health::Health};

/// The most lost replicas of a model that are remembered. Most do not come back: another worker has another number.
const MOST: usize = 64;

/// The lost replicas of a model that something speaks against.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostReplicas(BTreeMap<ReplicaKey, (Time, Health)>);

impl LostReplicas {
    /// Remembers a replica. The one that was lost first makes room for it.
    pub(crate) fn remember(&mut self, now: Time, key: ReplicaKey, health: Health) {
        if health.failures() == 0 && health.is_healthy() {
            return;
        }
        self.0.insert(key, (now, health));
        let lost_first = |(key, (lost, _)): (&ReplicaKey, &(Time, Health))| (*lost, *key);
        if self.0.len() > MOST
            && let Some((_, first)) = self.0.iter().map(lost_first).min()
        {
            self.0.remove(&first);
        }
    }

    /// Returns the health of a replica that comes back, if something spoke against it.
    pub(crate) fn take(&mut self, key: ReplicaKey) -> Option<Health> {
        self.0.remove(&key).map(|(_, health)| health)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_memory_of_lost_replicas_is_bounded_and_only_of_those_that_failed() {
        let mut lost = LostReplicas::default();
        lost.remember(Time::ZERO, ReplicaKey(0), Health::default());
        assert!(lost.take(ReplicaKey(0)).is_none());
        for number in 0..1000 {
            let now = Time::ZERO + Duration::from_secs(number.into());
            let mut health = Health::default();
            health.failed(now);
            lost.remember(now, ReplicaKey(number), health);
        }
        assert_eq!(lost.0.len(), MOST);
        assert!(lost.take(ReplicaKey(0)).is_none());
        assert_eq!(lost.take(ReplicaKey(999)).unwrap().failures(), 1);
    }
}
