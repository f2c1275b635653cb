//! The log of failed batches: a line for the first of a model, and then one for all that follow within a few seconds. A client whose requests
//! make a model throw would otherwise write the gateway's disk full.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ModelId, Time};

/// The time for which the failed batches of a model are counted before they are logged in one line.
const INTERVAL: Duration = Duration::from_secs(10);

/// A batch that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailedBatch {
    pub(super) model: ModelId,
    /// The replica as text.
    pub(super) replica: String,
    pub(super) requests: usize,
    pub(super) rows: u32,
    pub(super) reason: String,
}

/// The failed batches of all models that were not logged yet.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    models: BTreeMap<ModelId, Since>,
}

/// The failed batches of a model since the last line.
#[derive(Debug)]
struct Since {
    logged: Time,
    batches: u64,
    requests: usize,
    last: Option<FailedBatch>,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    batches: u64,
    requests: usize,
    last: FailedBatch,
}

impl Line {
    fn write(self) {
        let Self {
            batches,
            requests,
            last,
        } = self;
        let FailedBatch {
            model,
            replica,
            rows,
            reason,
            ..
        } = last;
        if batches == 1 {
            tracing::warn!(
                model.name = %model, replica.id = replica, batch.requests = requests, batch.rows = rows, reason,
                "a batch failed"
            );
        } else {
            tracing::warn!(
                model.name = %model, replica.id = replica, batches, batch.requests = requests, seconds = INTERVAL.as_secs(), reason,
                "batches failed; the last of them for this reason"
            );
        }
    }
}

impl FailureLog {
    /// Logs a failed batch, now or together with those that follow.
    pub(super) fn record(&mut self, now: Time, failed: FailedBatch) {
        if let Some(line) = self.add(now, failed) {
            line.write();
        }
    }

    /// Logs what was counted for long enough.
    pub(super) fn flush(&mut self, now: Time) {
        for line in self.take_due(now) {
            line.write();
        }
    }

    /// Returns the time of the next line, if one is due.
    pub(super) fn due(&self) -> Option<Time> {
        let counted = self.models.values().filter(|since| since.batches > 0);
        counted.map(|since| since.logged + INTERVAL).min()
    }

    fn add(&mut self, now: Time, failed: FailedBatch) -> Option<Line> {
        let Some(since) = self.models.get_mut(&failed.model) else {
            let since = Since {
                logged: now,
                batches: 0,
                requests: 0,
                last: None,
            };
            self.models.insert(failed.model.clone(), since);
            return Some(Line {
                batches: 1,
                requests: failed.requests,
                last: failed,
            });
        };
        since.batches += 1;
        since.requests += failed.requests;
        since.last = Some(failed);
        None
    }

    /// Forgets the models of which nothing failed since the last line, and begins to count the others anew.
    fn take_due(&mut self, now: Time) -> Vec<Line> {
        let mut lines = Vec::new();
        self.models.retain(|_, since| {
            if now < since.logged + INTERVAL {
                return true;
            }
            let Some(last) = since.last.take() else {
                return false;
            };
            lines.push(Line {
                batches: std::mem::take(&mut since.batches),
                requests: std::mem::take(&mut since.requests),
                last,
            });
            since.logged = now;
            true
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn failed(model: &str, reason: &str) -> FailedBatch {
        FailedBatch {
            model: model.parse().unwrap(),
            replica: "1.2".to_owned(),
            requests: 3,
            rows: 4,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_thousand_failed_batches_are_two_lines() {
        let mut log = FailureLog::default();
        let first = log.add(at(0), failed("a:1", "first")).unwrap();
        assert_eq!((first.batches, first.requests), (1, 3));
        for _ in 0..1000 {
            assert_eq!(log.add(at(1), failed("a:1", "later")), None);
        }
        assert_eq!(log.due(), Some(at(10)));
        assert_eq!(log.take_due(at(9)), []);
        let lines = log.take_due(at(10));
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].batches, lines[0].requests), (1000, 3000));
        assert_eq!(lines[0].last.reason, "later");
        assert_eq!(log.due(), None);
    }

    #[test]
    fn another_model_and_a_failure_after_a_quiet_time_are_logged_at_once() {
        let mut log = FailureLog::default();
        assert!(log.add(at(0), failed("a:1", "x")).is_some());
        assert!(log.add(at(1), failed("b:1", "x")).is_some());
        assert!(log.take_due(at(11)).is_empty());
        assert!(log.models.is_empty(), "nothing is remembered");
        assert!(log.add(at(12), failed("a:1", "x")).is_some());
    }
}
