//! The batch sizes that there is memory for, where workers found less of it than their models' profiles promised: nothing larger is
//! planned, until the model is measured or its profile imported anew.
//!
//! A cache, like all that is observed: after a restart the workers that still know it say it again.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId, NodeName, ProfileTable, ReplicaId};

use super::{cluster::Cluster, spoken};

/// By model and kind of device, the most rows that fit.
#[derive(Debug, Default)]
pub(super) struct Fitting(BTreeMap<(ModelId, DeviceKind), u32>);

impl Fitting {
    /// Takes what a worker found. Whether it is news.
    fn found(&mut self, model: &ModelId, kind: &DeviceKind, rows: u32) -> bool {
        let key = (model.clone(), kind.clone());
        let limit = self.0.entry(key).or_insert(u32::MAX);
        let lower = rows < *limit;
        *limit = rows.min(*limit);
        lower
    }

    /// There is a new profile, which knows better.
    pub(super) fn forget(&mut self, model: &ModelId, kind: &DeviceKind) {
        self.0.remove(&(model.clone(), kind.clone()));
    }

    /// The model was removed.
    pub(super) fn forget_model(&mut self, gone: &ModelId) {
        self.0.retain(|(model, _), _| model != gone);
    }

    /// The profiles, without what does not fit.
    pub(super) fn of_what_fits(&self, profiles: &ProfileTable) -> ProfileTable {
        let mut fitting = profiles.clone();
        for ((model, kind), rows) in &self.0 {
            if let Some(profile) = profiles.get(model, kind) {
                fitting.insert(model.clone(), kind.clone(), profile.up_to(*rows));
            }
        }
        fitting
    }

    /// The most rows of a model that fit on any of these kinds of device; `None` where one of them sets no limit.
    pub(super) fn limit<'a>(
        &self,
        model: &ModelId,
        kinds: impl Iterator<Item = &'a DeviceKind>,
    ) -> Option<u32> {
        let limits = kinds.map(|kind| self.0.get(&(model.clone(), kind.clone())).copied());
        limits.collect::<Option<Vec<u32>>>()?.into_iter().max()
    }
}

impl Cluster {
    /// Looks whether a node's workers found memory for smaller batches than were planned; plans anew where they did.
    pub(super) fn note_what_fits(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let fitting = |id: ReplicaId| Some(node.status(id)?.capacity?.batch_size);
        let mut reasons = Vec::new();
        for replica in &self.plan.replicas {
            let device = node.device(replica.device.local());
            let found = fitting(replica.id).filter(|rows| *rows < replica.batch_size);
            if let (Some(device), Some(rows)) = (device, found)
                && replica.device.node() == name
                && self
                    .fitting
                    .found(&replica.program.model, &device.kind, rows)
            {
                reasons.push(format!(
                    "{} has memory for batches of {rows} on {}, not of {}",
                    spoken(&replica.program.model),
                    device.kind,
                    replica.batch_size
                ));
            }
        }
        for reason in reasons {
            tracing::warn!(reason, "less memory than was planned with");
            self.request_plan(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_of_the_profiles_until_there_is_a_new_one() {
        let csv = "\nm,T4,2,,10,,100,,,50\nm,T4,8,,20,,200,,,60\nm,V100,8,,9,,200,,,60\nn,T4,8,,9,,200,,,60\n";
        let csv = format!("{}{csv}", ProfileTable::CSV_HEADER);
        let profiles = ProfileTable::from_csv(&csv).unwrap();
        let model: ModelId = "m".parse().unwrap();
        let [t4, v100]: [DeviceKind; 2] = ["T4", "V100"].map(|kind| kind.parse().unwrap());
        let mut fitting = Fitting::default();
        assert_eq!(fitting.of_what_fits(&profiles), profiles);
        assert!(fitting.found(&model, &t4, 4));
        // Whoever says it again, or has more room, is no reason for another plan.
        assert!(!fitting.found(&model, &t4, 4));
        assert!(!fitting.found(&model, &t4, 6));
        let left = fitting.of_what_fits(&profiles);
        let sizes = |kind| {
            let rows = left.get(&model, kind).unwrap().whole().iter();
            rows.map(|row| row.batch_size).collect::<Vec<_>>()
        };
        assert_eq!((sizes(&t4), sizes(&v100)), (vec![2], vec![8]));
        assert_eq!(left.len(), profiles.len());
        assert_eq!(fitting.limit(&model, [&t4].into_iter()), Some(4));
        assert_eq!(fitting.limit(&model, [&t4, &v100].into_iter()), None);
        fitting.forget(&model, &t4);
        assert_eq!(fitting.of_what_fits(&profiles), profiles);
        fitting.found(&model, &v100, 1);
        fitting.forget_model(&model);
        assert_eq!(fitting.of_what_fits(&profiles), profiles);
    }
}
