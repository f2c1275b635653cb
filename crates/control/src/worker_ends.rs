//! The processes that ended while their models served, and what that cost.
//!
//! All replicas of a device whose links end within some seconds count as one: they ran in one process, or what ended theirs was the same.
//! A process that hangs answers nothing before its first link ends: what its models miss from then on is of its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{DeviceId, ModelId, ReplicaId, Time};

use crate::service_levels::ServiceLevels;

/// The time within which the replicas of a device end together.
const TOGETHER: Duration = Duration::from_secs(10);
/// The time for which an end is remembered once all of its replicas serve again: that for which its missed requests are findings.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The newest end of a process on each device, until a minute after its models serve again.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerEnds {
    devices: BTreeMap<DeviceId, WorkerEnd>,
}

/// The end of a process with its models.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerEnd {
    /// The time at which the first link ended.
    pub(crate) at: Time,
    /// The time since which its process answered nothing, if it hung before.
    pub(crate) hung_since: Option<Time>,
    /// The time from which all of its replicas that are still planned served again; none before.
    pub(crate) served_again: Option<Time>,
    /// The models that it ran.
    pub(crate) models: BTreeSet<ModelId>,
    /// The number of requests of each model that missed its SLO between both times, where there are some.
    pub(crate) missed: BTreeMap<ModelId, u64>,
    /// Its replicas.
    replicas: BTreeSet<ReplicaId>,
    /// The time up to which missed requests are counted.
    counted: Time,
}

/// A pool's process that answered nothing before the link to one of its members ended.
pub(crate) struct Hang {
    /// The time since which it answered nothing.
    pub(crate) since: Time,
    /// The models of the pool.
    pub(crate) models: BTreeSet<ModelId>,
}

impl WorkerEnds {
    /// Notes that the link to a serving replica ended, maybe after a hang.
    pub(crate) fn link_ended(
        &mut self,
        now: Time,
        device: &DeviceId,
        (id, model): (ReplicaId, &ModelId),
        hang: Option<Hang>,
    ) {
        let known = self.devices.get_mut(device);
        let known = known.filter(|end| end.served_again.is_none() || now <= end.at + TOGETHER);
        let Some(end) = known else {
            let hung_since = hang.as_ref().map(|hang| hang.since);
            let mut models = hang.map_or_else(BTreeSet::new, |hang| hang.models);
            models.insert(model.clone());
            let end = WorkerEnd {
                at: now,
                hung_since,
                served_again: None,
                models,
                missed: BTreeMap::new(),
                replicas: BTreeSet::from([id]),
                counted: hung_since.unwrap_or(now),
            };
            self.devices.insert(device.clone(), end);
            return;
        };
        end.served_again = None;
        end.models.insert(model.clone());
        end.replicas.insert(id);
    }

    /// Counts what was missed in the period that ends now, and forgets what is long over. `waits` says whether a replica is planned and does not serve.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        levels: &ServiceLevels,
        waits: impl Fn(ReplicaId) -> bool,
    ) {
        for end in self.devices.values_mut() {
            if end.served_again.is_some() {
                continue;
            }
            for model in &end.models {
                let missed = levels.missed_since(model, end.counted);
                if missed > 0 {
                    *end.missed.entry(model.clone()).or_default() += missed;
                }
            }
            end.counted = now;
            if !end.replicas.iter().any(|id| waits(*id)) {
                end.served_again = Some(now);
            }
        }
        self.devices.retain(|_, end| {
            let again = end.served_again;
            again.is_none_or(|again| now.saturating_since(again) <= REMEMBERED)
        });
    }

    /// Returns the ends, by device.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DeviceId, &WorkerEnd)> {
        self.devices.iter()
    }
}

impl WorkerEnd {
    /// Returns the time from which its models miss requests because of it.
    pub(crate) fn begin(&self) -> Time {
        self.hung_since.unwrap_or(self.at)
    }

    /// Returns the number of requests that it cost.
    pub(crate) fn missed_requests(&self) -> u64 {
        self.missed.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RequestCounts;

    #[test]
    fn what_ends_together_is_one_and_counts_what_is_missed_until_all_serve_again() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let (a, b): (ModelId, ModelId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let ids: [ReplicaId; 2] = ["1-0".parse().unwrap(), "1-1".parse().unwrap()];
        let device: DeviceId = "n/0".parse().unwrap();
        let mut levels = ServiceLevels::default();
        let mut counts = BTreeMap::from([(a.clone(), RequestCounts::default())]);
        counts.insert(b.clone(), RequestCounts::default());
        let mut ends = WorkerEnds::default();
        let mut pass = |ends: &mut WorkerEnds, seconds, missed, waiting: &[ReplicaId]| {
            counts.get_mut(&a).unwrap().missed += missed;
            levels.sample(at(seconds), &counts, &BTreeMap::new(), &BTreeMap::new());
            ends.sample(at(seconds), &levels, |id| waiting.contains(&id));
            ends.iter().next().map(|(_, end)| end.clone())
        };
        pass(&mut ends, 5, 0, &[]);
        // Requests that were missed before are not of it.
        pass(&mut ends, 10, 100, &[]);
        ends.link_ended(at(12), &device, (ids[0], &a), None);
        ends.link_ended(at(13), &device, (ids[1], &b), None);
        let end = pass(&mut ends, 15, 4, &ids).unwrap();
        assert_eq!((end.at, end.served_again), (at(12), None));
        assert_eq!(end.models, BTreeSet::from([a.clone(), b.clone()]));
        pass(&mut ends, 20, 3, &ids[1..]);
        let end = pass(&mut ends, 25, 2, &[]).unwrap();
        assert_eq!(end.missed, BTreeMap::from([(a.clone(), 9)]));
        assert_eq!(end.served_again, Some(at(25)));
        // What is missed later is not of it, and after a minute it is forgotten.
        let end = pass(&mut ends, 85, 50, &[]).unwrap();
        assert_eq!(end.missed_requests(), 9);
        assert_eq!(pass(&mut ends, 90, 0, &[]), None);
        // Another one begins anew.
        ends.link_ended(at(91), &device, (ids[0], &a), None);
        let end = pass(&mut ends, 95, 1, &[]).unwrap();
        assert_eq!((end.at, end.missed_requests()), (at(91), 1));
    }
    #[test]
    fn what_the_members_of_a_pool_miss_while_its_process_hangs_is_of_its_end() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let models: [ModelId; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let id: ReplicaId = "1-0".parse().unwrap();
        let device: DeviceId = "n/0".parse().unwrap();
        let (mut levels, mut ends) = (ServiceLevels::default(), WorkerEnds::default());
        let counts = models.clone().map(|id| (id, RequestCounts::default()));
        let mut counts = BTreeMap::from(counts);
        let mut pass = |levels: &mut ServiceLevels, seconds, answered, missed| {
            for counts in counts.values_mut() {
                counts.answer(answered, 1);
                counts.missed += missed;
            }
            levels.sample(at(seconds), &counts, &BTreeMap::new(), &BTreeMap::new());
        };
        pass(&mut levels, 5, 10, 100);
        pass(&mut levels, 10, 10, 0);
        assert_eq!(levels.unanswered_since(&models, at(12)), None);
        // It hangs from somewhen in this period.
        pass(&mut levels, 15, 5, 3);
        assert_eq!(levels.unanswered_since(&models, at(15)), None);
        pass(&mut levels, 20, 0, 20);
        let since = levels.unanswered_since(&models, at(22));
        assert_eq!(since, Some(at(10)));
        let hang = since.map(|since| Hang {
            since,
            models: models.iter().cloned().collect(),
        });
        ends.link_ended(at(22), &device, (id, &models[0]), hang);
        pass(&mut levels, 25, 8, 4);
        ends.sample(at(25), &levels, |_| false);
        let (_, end) = ends.iter().next().unwrap();
        assert_eq!((end.begin(), end.at), (at(10), at(22)));
        let missed = models.map(|id| (id, 27));
        assert_eq!(end.missed, BTreeMap::from(missed));
    }
}
