//! The restarts of workers on which batches fail. The data plane ejects such a replica and probes it; a new process often helps where
//! probes do not, for instance after an error of the device's context. The agent starts a worker again when the number of the
//! [attempt](packhorse_cluster::WantedReplica::attempt) rises. The numbers of each start of the gateway are above those of the starts before it,
//! of which an agent may still have one.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ReplicaId, Time};

/// The least time between two restarts of one replica. In between, the data plane's probes decide.
const MIN_INTERVAL: Duration = Duration::from_mins(1);

/// The number of attempts of each start of the gateway: as many as fit into 17 hours.
const PER_EPOCH: u32 = 1 << 10;

/// The restarts that the agents have been asked for.
#[derive(Clone, Debug)]
pub(crate) struct Restarts {
    /// The number before that of the first attempt.
    before_first: u32,
    asked: BTreeMap<ReplicaId, Asked>,
}

#[derive(Clone, Debug)]
struct Asked {
    attempt: u32,
    at: Time,
    /// True if another restart was refused, because this one was too short ago.
    again: bool,
}

impl Restarts {
    /// Creates the restarts of the start of the gateway with this epoch.
    pub(crate) fn new(epoch: u64) -> Self {
        let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
        Self {
            before_first: epoch.saturating_mul(PER_EPOCH),
            asked: BTreeMap::new(),
        }
    }

    /// Asks for a restart of a replica's worker. Returns false if the last one was too short ago.
    pub(crate) fn ask(&mut self, now: Time, id: ReplicaId) -> bool {
        if let Some(asked) = self.asked.get_mut(&id)
            && now.saturating_since(asked.at) < MIN_INTERVAL
        {
            asked.again = true;
            return false;
        }
        let asked = Asked {
            attempt: self.attempt(id).max(self.before_first).saturating_add(1),
            at: now,
            again: false,
        };
        self.asked.insert(id, asked);
        true
    }

    /// Returns the time at which the next refused restart may be asked for again.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let refused = self.asked.values().filter(|asked| asked.again);
        refused.map(|asked| asked.at + MIN_INTERVAL).min()
    }

    /// Returns the replicas whose refused restarts may be asked for again, once.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<ReplicaId> {
        let mut due = Vec::new();
        for (id, asked) in &mut self.asked {
            if asked.again && asked.at + MIN_INTERVAL <= now {
                asked.again = false;
                due.push(*id);
            }
        }
        due
    }

    /// Returns the number of the last restart that was asked for; 0 if none was.
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
        let mut restarts = Restarts::new(2);
        assert_eq!(restarts.attempt(id), 0);
        assert!(restarts.ask(at(5), id));
        assert_eq!(restarts.next_due(), None);
        assert!(!restarts.ask(at(64), id));
        assert_eq!(restarts.next_due(), Some(at(65)));
        assert!(restarts.take_due(at(64)).is_empty());
        assert_eq!(restarts.attempt(id), 2 * PER_EPOCH + 1);
        assert!(restarts.ask(at(65), id));
        assert_eq!(restarts.attempt(id), 2 * PER_EPOCH + 2);
        restarts.remove(id);
        assert_eq!(restarts.attempt(id), 0);
    }
}
