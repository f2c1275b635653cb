//! The restarts of workers on which batches fail. The data plane ejects such a replica and probes it; a new process often helps where
//! probes do not, for instance after an error of the device's context. The agent starts a worker again when the number of the
//! [attempt](packhorse_cluster::WantedReplica::attempt) rises.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ReplicaId, Time};

/// The least time between two restarts of one replica. In between, the data plane's probes decide.
const MIN_INTERVAL: Duration = Duration::from_mins(1);

/// The restarts that the agents have been asked for.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    asked: BTreeMap<ReplicaId, Asked>,
}

#[derive(Debug)]
struct Asked {
    attempt: u32,
    at: Time,
}

impl Restarts {
    /// Asks for a restart of a replica's worker. Returns false if the last one was too short ago.
    pub(crate) fn ask(&mut self, now: Time, id: ReplicaId) -> bool {
        let asked = self.asked.get(&id);
        if asked.is_some_and(|asked| now.saturating_since(asked.at) < MIN_INTERVAL) {
            return false;
        }
        let attempt = self.attempt(id).saturating_add(1);
        self.asked.insert(id, Asked { attempt, at: now });
        true
    }

    /// Returns the number of restarts that were asked for.
    pub(crate) fn attempt(&self, id: ReplicaId) -> u32 {
        self.asked.get(&id).map_or(0, |asked| asked.attempt)
    }

    /// Forgets a replica that is no longer wanted.
    pub(crate) fn remove(&mut self, id: ReplicaId) {
        self.asked.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_restarted_at_most_once_a_minute() {
        let id: ReplicaId = "1-0".parse().unwrap();
        let at = |secs| Time::ZERO + Duration::from_secs(secs);
        let mut restarts = Restarts::default();
        assert_eq!(restarts.attempt(id), 0);
        assert!(restarts.ask(at(5), id));
        assert!(!restarts.ask(at(64), id));
        assert_eq!(restarts.attempt(id), 1);
        assert!(restarts.ask(at(65), id));
        assert_eq!(restarts.attempt(id), 2);
        restarts.remove(id);
        assert_eq!(restarts.attempt(id), 0);
    }
}
