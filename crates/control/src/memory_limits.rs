//! The batch sizes that there is memory for, where workers found less memory than their models' profiles promise, in rows as long as
//! those that were profiled. No larger ones are planned for a while, or until the model is measured again or its profile is imported.
//!
//! The limits are a cache: after a restart of the gateway, the workers that know them report them again.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{DeviceKind, ModelId, ProfileTable, Time};

/// The time for which a limit holds. It doubles with each further limit.
const FIRST_HOLD: Duration = Duration::from_mins(10);
/// The longest time for which a limit holds.
const MAX_HOLD: Duration = Duration::from_hours(8);

/// The limits of batches, by model and kind of device.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryLimits(BTreeMap<(ModelId, DeviceKind), MemoryLimit>);

#[derive(Clone, Debug)]
struct MemoryLimit {
    /// The largest number of rows in one batch that there is memory for; none while a larger one is tried again.
    rows: Option<u32>,
    /// The time at which a larger one is tried again.
    until: Time,
    /// The time for which the next limit holds.
    next_hold: Duration,
}

impl MemoryLimits {
    /// Lowers the limit to what a worker found. Returns true if the limit changed.
    pub(crate) fn lower(
        &mut self,
        now: Time,
        model: &ModelId,
        kind: &DeviceKind,
        rows: u32,
    ) -> bool {
        let key = (model.clone(), kind.clone());
        let limit = self.0.entry(key).or_insert(MemoryLimit {
            rows: None,
            until: now,
            next_hold: FIRST_HOLD,
        });
        if limit.rows.is_some_and(|limit| limit <= rows) {
            return false;
        }
        if limit.rows.is_none() {
            limit.until = now + limit.next_hold;
            limit.next_hold = MAX_HOLD.min(limit.next_hold * 2);
        }
        limit.rows = Some(rows);
        true
    }

    /// Returns the time at which the next limit ends.
    pub(crate) fn next_end(&self) -> Option<Time> {
        let holding = self.0.values().filter(|limit| limit.rows.is_some());
        holding.map(|limit| limit.until).min()
    }

    /// Ends the limits that have held long enough. Returns their models and kinds of device.
    pub(crate) fn end_due(&mut self, now: Time) -> Vec<(ModelId, DeviceKind)> {
        let mut ended = Vec::new();
        for (key, limit) in &mut self.0 {
            if limit.until <= now && limit.rows.take().is_some() {
                ended.push(key.clone());
            }
        }
        ended
    }

    /// Removes the limit of a model on a kind of device, because there is a new profile.
    pub(crate) fn remove(&mut self, model: &ModelId, kind: &DeviceKind) {
        self.0.remove(&(model.clone(), kind.clone()));
    }

    /// Removes the limits of a model, because the model was removed.
    pub(crate) fn remove_model(&mut self, removed: &ModelId) {
        self.0.retain(|(model, _), _| model != removed);
    }

    /// Returns the profiles without the batch sizes above the limits.
    pub(crate) fn apply(&self, profiles: &ProfileTable) -> ProfileTable {
        let mut limited = profiles.clone();
        for ((model, kind), limit) in &self.0 {
            if let (Some(profile), Some(rows)) = (profiles.get(model, kind), limit.rows) {
                limited.insert(model.clone(), kind.clone(), profile.up_to(rows));
            }
        }
        limited
    }

    /// Returns the largest limit of a model on these kinds of device; `None` if one of them has no limit.
    pub(crate) fn batch_limit<'a>(
        &self,
        model: &ModelId,
        kinds: impl Iterator<Item = &'a DeviceKind>,
    ) -> Option<u32> {
        let limits = kinds.map(|kind| self.0.get(&(model.clone(), kind.clone()))?.rows);
        limits.collect::<Option<Vec<u32>>>()?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_above_the_limit_are_left_out_of_the_profiles_until_there_is_a_new_one() {
        let csv = "\nm,T4,2,,10,,100,,,50\nm,T4,8,,20,,200,,,60\nm,V100,8,,9,,200,,,60\nn,T4,8,,9,,200,,,60\n";
        let csv = format!("{}{csv}", ProfileTable::CSV_HEADER);
        let profiles = ProfileTable::from_csv(&csv).unwrap();
        let model: ModelId = "m".parse().unwrap();
        let [t4, v100]: [DeviceKind; 2] = ["T4", "V100"].map(|kind| kind.parse().unwrap());
        let mut limits = MemoryLimits::default();
        assert_eq!(limits.apply(&profiles), profiles);
        assert!(limits.lower(Time::ZERO, &model, &t4, 4));
        // Neither the same limit again nor a higher one is a reason for another plan.
        assert!(!limits.lower(Time::ZERO, &model, &t4, 4));
        assert!(!limits.lower(Time::ZERO, &model, &t4, 6));
        let left = limits.apply(&profiles);
        let sizes = |kind| {
            let rows = left.get(&model, kind).unwrap().whole().iter();
            rows.map(|row| row.batch_size).collect::<Vec<_>>()
        };
        assert_eq!((sizes(&t4), sizes(&v100)), (vec![2], vec![8]));
        assert_eq!(left.len(), profiles.len());
        assert_eq!(limits.batch_limit(&model, [&t4].into_iter()), Some(4));
        assert_eq!(limits.batch_limit(&model, [&t4, &v100].into_iter()), None);
        limits.remove(&model, &t4);
        assert_eq!(limits.apply(&profiles), profiles);
        limits.lower(Time::ZERO, &model, &v100, 1);
        limits.remove_model(&model);
        assert_eq!(limits.apply(&profiles), profiles);
    }

    #[test]
    fn a_limit_ends_after_a_while_that_doubles_each_time() {
        let model: ModelId = "m".parse().unwrap();
        let kind: DeviceKind = "T4".parse().unwrap();
        let mut limits = MemoryLimits::default();
        let mut now = Time::ZERO;
        for minutes in [10, 20, 40, 80, 160, 320, 480, 480] {
            assert!(limits.lower(now, &model, &kind, 4));
            assert!(limits.lower(now, &model, &kind, 2));
            assert_eq!(limits.batch_limit(&model, [&kind].into_iter()), Some(2));
            assert_eq!(limits.end_due(now), []);
            now += Duration::from_mins(minutes);
            assert_eq!(limits.next_end(), Some(now));
            assert_eq!(limits.end_due(now), [(model.clone(), kind.clone())]);
            assert_eq!(limits.batch_limit(&model, [&kind].into_iter()), None);
            assert_eq!((limits.next_end(), limits.end_due(now)), (None, vec![]));
        }
    }
}
