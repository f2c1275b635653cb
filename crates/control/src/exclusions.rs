//! The devices on which models could not start. Plans leave them out until the back-off has passed; then they are tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{DeviceId, ModelId, ReplicaId, ReplicaState, ReplicaStatus, Time};

/// The time for which a model is not planned on a device after its first failure there. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(30);
/// The time without a success after which a replica that fails to start is a finding. A worker that died once is ready again before.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// The longest time for which a model is not planned on a device.
const MAX_BACKOFF: Duration = Duration::from_mins(30);

/// The devices on which models could not start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exclusions {
    by_device: BTreeMap<DeviceId, BTreeMap<ModelId, Exclusion>>,
}

/// The exclusion of a model from a device.
#[derive(Clone, Debug)]
struct Exclusion {
    /// The number of failures without a success since.
    failures: u32,
    /// The time at which the model is tried again; none while it is being tried.
    until: Option<Time>,
    /// The reason of the last failure, as text for people.
    reason: String,
}

impl Exclusions {
    /// Excludes a model from a device after a failure there. Returns the time until it is tried again; `None` if it is excluded
    /// already.
    pub(crate) fn exclude(
        &mut self,
        now: Time,
        device: &DeviceId,
        model: &ModelId,
        reason: &str,
    ) -> Option<Duration> {
        let models = self.by_device.entry(device.clone()).or_default();
        let exclusion = models.entry(model.clone()).or_insert(Exclusion {
            failures: 0,
            until: None,
            reason: String::new(),
        });
        if exclusion.until.is_some() {
            return None;
        }
        let doubled = FIRST_BACKOFF.saturating_mul(1 << exclusion.failures.min(16));
        let backoff = doubled.min(MAX_BACKOFF);
        exclusion.failures += 1;
        exclusion.until = Some(now + backoff);
        reason.clone_into(&mut exclusion.reason);
        Some(backoff)
    }

    /// Ends the exclusion of a model that has become ready on a device, and forgets its failures.
    pub(crate) fn forgive(&mut self, device: &DeviceId, model: &ModelId) {
        if let Some(models) = self.by_device.get_mut(device) {
            models.remove(model);
            if models.is_empty() {
                self.by_device.remove(device);
            }
        }
    }

    /// Ends the exclusions of a model from all devices.
    pub(crate) fn remove_model(&mut self, model: &ModelId) {
        for models in self.by_device.values_mut() {
            models.remove(model);
        }
        self.by_device.retain(|_, models| !models.is_empty());
    }

    /// Returns the models that are excluded from a device now.
    pub(crate) fn of_device(&self, device: &DeviceId) -> BTreeSet<&ModelId> {
        let models = self.by_device.get(device).into_iter().flatten();
        models
            .filter(|(_, exclusion)| exclusion.until.is_some())
            .map(|(model, _)| model)
            .collect()
    }

    /// Returns the devices from which a model is excluded now, with the reasons.
    pub(crate) fn of_model<'a>(
        &'a self,
        model: &'a ModelId,
    ) -> impl Iterator<Item = (&'a DeviceId, &'a str)> {
        self.by_device.iter().filter_map(move |(device, models)| {
            let exclusion = models.get(model)?;
            exclusion
                .until
                .is_some()
                .then_some((device, exclusion.reason.as_str()))
        })
    }

    /// Returns all exclusions: device, model and reason.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DeviceId, &ModelId, &str)> {
        self.by_device.iter().flat_map(|(device, models)| {
            models
                .iter()
                .filter(|(_, exclusion)| exclusion.until.is_some())
                .map(move |(model, exclusion)| (device, model, exclusion.reason.as_str()))
        })
    }

    /// Returns the time at which the next exclusion ends.
    pub(crate) fn next_end(&self) -> Option<Time> {
        let all = self.by_device.values().flat_map(BTreeMap::values);
        all.filter_map(|exclusion| exclusion.until).min()
    }

    /// Ends the exclusions that are over. Returns them.
    pub(crate) fn end_due(&mut self, now: Time) -> Vec<(DeviceId, ModelId)> {
        let mut ended = Vec::new();
        for (device, models) in &mut self.by_device {
            for (model, exclusion) in models {
                if exclusion.until.is_some_and(|until| until <= now) {
                    exclusion.until = None;
                    ended.push((device.clone(), model.clone()));
                }
            }
        }
        ended
    }
}

/// The successive failed starts of replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartFailures {
    by_replica: BTreeMap<ReplicaId, FailedStarts>,
}

#[derive(Clone, Debug, Default)]
struct FailedStarts {
    /// The state that the node last reported.
    state: Option<ReplicaState>,
    /// The number of restarts that the node last reported.
    restarts: u32,
    count: u32,
    /// The time since which the node reports what keeps the replica from starting; none if nothing does.
    since: Option<Time>,
}

impl StartFailures {
    /// Takes the reported status of a replica. Returns the number of failed starts since it was last ready.
    pub(crate) fn note(&mut self, now: Time, status: &ReplicaStatus) -> u32 {
        let failures = self.count(status.id, status.state, status.restarts);
        if let Some(starts) = self.by_replica.get_mut(&status.id) {
            let fails = match status.state {
                ReplicaState::BackingOff => true,
                // The file is fetched again and again.
                ReplicaState::Fetching => status.reason.is_some(),
                // The next attempt tells.
                _ => starts.since.is_some() && starts.count > 0,
            };
            starts.since = fails.then(|| starts.since.unwrap_or(now));
        }
        failures
    }

    /// Returns true if a replica has failed to start for longer than a restart takes.
    pub(crate) fn is_stuck(&self, now: Time, id: ReplicaId) -> bool {
        let since = self.by_replica.get(&id).and_then(|starts| starts.since);
        since.is_some_and(|since| now.saturating_since(since) >= STUCK_AFTER)
    }

    fn count(&mut self, id: ReplicaId, state: ReplicaState, restarts: u32) -> u32 {
        if state == ReplicaState::Ready {
            self.by_replica.remove(&id);
            return 0;
        }
        let starts = self.by_replica.entry(id).or_default();
        // What was reported before may be the start that has failed now, or the failure of an earlier one.
        let is_new = starts.state != Some(ReplicaState::BackingOff) || restarts > starts.restarts;
        if state == ReplicaState::BackingOff && is_new {
            starts.count += 1;
        }
        (starts.state, starts.restarts) = (Some(state), restarts);
        starts.count
    }

    /// Forgets the replicas for which the predicate is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(ReplicaId) -> bool) {
        self.by_replica.retain(|id, _| keep(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_that_fails_counts_once_until_the_replica_is_ready() {
        let id: ReplicaId = "1-0".parse().unwrap();
        let mut failures = StartFailures::default();
        for (state, restarts, count) in [
            (ReplicaState::Loading, 0, 0),
            (ReplicaState::BackingOff, 0, 1),
            (ReplicaState::BackingOff, 0, 1),
            (ReplicaState::Loading, 1, 1),
            (ReplicaState::BackingOff, 1, 2),
            // The start between the two was not reported.
            (ReplicaState::BackingOff, 2, 3),
            (ReplicaState::Ready, 3, 0),
            (ReplicaState::BackingOff, 3, 1),
        ] {
            assert_eq!(failures.count(id, state, restarts), count);
        }
    }

    #[test]
    fn a_model_is_tried_again_after_a_back_off_that_doubles_until_it_becomes_ready() {
        let device: DeviceId = "n/sim0".parse().unwrap();
        let model: ModelId = "m".parse().unwrap();
        let mut exclusions = Exclusions::default();
        let mut now = Time::ZERO;
        for seconds in [30, 60, 120, 240, 480, 960, 1800, 1800] {
            let backoff = Duration::from_secs(seconds);
            assert_eq!(
                exclusions.exclude(now, &device, &model, "oom"),
                Some(backoff)
            );
            assert_eq!(exclusions.exclude(now, &device, &model, "oom"), None);
            assert_eq!(exclusions.of_device(&device).len(), 1);
            now += backoff;
            assert_eq!(exclusions.next_end(), Some(now));
            let ended = exclusions.end_due(now);
            assert_eq!(ended, [(device.clone(), model.clone())]);
            assert!(exclusions.of_device(&device).is_empty());
        }
        exclusions.forgive(&device, &model);
        let first = exclusions.exclude(now, &device, &model, "oom");
        assert_eq!(first, Some(FIRST_BACKOFF));
        exclusions.remove_model(&model);
        assert_eq!(exclusions.next_end(), None);
    }
}
