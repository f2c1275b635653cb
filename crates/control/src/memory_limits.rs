//! The batch sizes that there is memory for, where workers found less memory than their models' profiles promise. No larger ones
//! are planned until the model is measured again or its profile is imported.
//!
//! The limits are a cache: after a restart of the gateway, the workers that know them report them again.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId, ProfileTable};

/// The largest number of rows in one batch that there is memory for, by model and kind of device.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimits(BTreeMap<(ModelId, DeviceKind), u32>);

impl MemoryLimits {
    /// Lowers the limit to what a worker found. Returns true if the limit changed.
    pub(crate) fn lower(&mut self, model: &ModelId, kind: &DeviceKind, rows: u32) -> bool {
        let key = (model.clone(), kind.clone());
        let limit = self.0.entry(key).or_insert(u32::MAX);
        let lower = rows < *limit;
        *limit = rows.min(*limit);
        lower
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
        for ((model, kind), rows) in &self.0 {
            if let Some(profile) = profiles.get(model, kind) {
                limited.insert(model.clone(), kind.clone(), profile.up_to(*rows));
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
        let limits = kinds.map(|kind| self.0.get(&(model.clone(), kind.clone())).copied());
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
        assert!(limits.lower(&model, &t4, 4));
        // Neither the same limit again nor a higher one is a reason for another plan.
        assert!(!limits.lower(&model, &t4, 4));
        assert!(!limits.lower(&model, &t4, 6));
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
        limits.lower(&model, &v100, 1);
        limits.remove_model(&model);
        assert_eq!(limits.apply(&profiles), profiles);
    }
}
