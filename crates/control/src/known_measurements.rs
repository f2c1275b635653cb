//! The measurements that were made, by what they depend on: a program that was measured is not measured again under another name.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{ArtifactDigest, DeviceKind, InputShapes, Profile, Program};
use sha2::{Digest as _, Sha256};

/// The identity of a measurement: all that its numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeasurementKey {
    /// The program.
    pub artifact: ArtifactDigest,
    /// The kind of device.
    pub device_kind: DeviceKind,
    /// The largest batch, the datatypes and shapes of inputs and outputs, and a digest of the examples.
    pub signature: String,
    /// The version of libtorch.
    pub libtorch: String,
}

/// The known measurements, at most [`MeasurementKey::MAX_KNOWN`] of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownMeasurements {
    profiles: BTreeMap<MeasurementKey, Arc<Profile>>,
    /// The keys, the oldest first.
    order: VecDeque<MeasurementKey>,
}

impl MeasurementKey {
    /// The largest number of measurements that are kept. Each takes some kilobytes.
    pub const MAX_KNOWN: u16 = 4096;

    /// Returns the identity of a measurement of a program, with the shapes that it is measured with.
    pub fn new(program: &Program, kind: &DeviceKind, libtorch: &str) -> Self {
        let list = |specs: Vec<String>| specs.join(",");
        let inputs = program.inputs.iter();
        let inputs = list(inputs.map(|spec| spec.datatype.to_string()).collect());
        let outputs = program.outputs.iter();
        let outputs = outputs.map(|spec| format!("{}{}", spec.datatype, spec.shape_text()));
        let signature = format!(
            "{} {inputs} {} {}{}",
            program.max_batch_size,
            shapes_text(program),
            list(outputs.collect()),
            example_text(program),
        );
        Self {
            artifact: program.artifact,
            device_kind: kind.clone(),
            signature,
            libtorch: libtorch.to_owned(),
        }
    }
}

/// Returns the shapes that a program is measured with, with their weights if there are several.
fn shapes_text(program: &Program) -> String {
    match &InputShapes::usual(program)[..] {
        [(_, one)] => one.to_string(),
        several => {
            let texts = several
                .iter()
                .map(|(weight, shapes)| format!("{weight}*{shapes}"));
            texts.collect::<Vec<String>>().join(";")
        }
    }
}

/// Returns what stands for the examples that a program is measured with; nothing without one.
fn example_text(program: &Program) -> String {
    if program.inputs.iter().all(|spec| spec.example.is_none()) {
        return String::new();
    }
    let mut hash = Sha256::new();
    for spec in &program.inputs {
        let example = spec.example.as_deref().unwrap_or_default();
        hash.update((example.len() as u64).to_le_bytes());
        for number in example {
            hash.update(number.to_le_bytes());
        }
    }
    format!(
        " example {}",
        ArtifactDigest::from_sha256(hash.finalize().into())
    )
}

impl KnownMeasurements {
    /// Restores the stored measurements, the oldest first.
    pub(crate) fn restore(stored: Vec<(MeasurementKey, Profile)>) -> Self {
        let mut known = Self::default();
        for (key, profile) in stored {
            known.insert(key, Arc::new(profile));
        }
        known
    }

    /// Adds a measurement, or replaces the one of the same identity. Where there are too many, the oldest is forgotten.
    pub(crate) fn insert(&mut self, key: MeasurementKey, profile: Arc<Profile>) {
        if self.profiles.insert(key.clone(), profile).is_some() {
            self.order.retain(|other| *other != key);
        }
        self.order.push_back(key);
        if self.order.len() > usize::from(MeasurementKey::MAX_KNOWN)
            && let Some(oldest) = self.order.pop_front()
        {
            self.profiles.remove(&oldest);
        }
    }

    /// Removes a measurement. Returns false if it is not known.
    pub(crate) fn remove(&mut self, key: &MeasurementKey) -> bool {
        self.order.retain(|other| other != key);
        self.profiles.remove(key).is_some()
    }

    /// Returns the profile of a measurement, if it is known.
    pub(crate) fn get(&self, key: &MeasurementKey) -> Option<&Arc<Profile>> {
        self.profiles.get(key)
    }

    /// Returns true if nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::ProfileTable;

    use super::*;

    fn key(number: usize) -> MeasurementKey {
        MeasurementKey {
            artifact: ArtifactDigest::from_sha256([0; 32]),
            device_kind: "T4".parse().unwrap(),
            signature: number.to_string(),
            libtorch: "2".to_owned(),
        }
    }

    fn profile() -> Arc<Profile> {
        let csv = format!("{}\na,T4,1,,4,,100,,,50\n", ProfileTable::CSV_HEADER);
        let table = ProfileTable::from_csv(&csv).unwrap();
        Arc::new(table.iter().next().unwrap().2.clone())
    }

    #[test]
    fn the_oldest_measurements_are_forgotten() {
        let most = usize::from(MeasurementKey::MAX_KNOWN);
        let mut known = KnownMeasurements::default();
        for number in 0..most {
            known.insert(key(number), profile());
        }
        known.insert(key(0), profile());
        known.insert(key(most), profile());
        assert!(known.get(&key(0)).is_some(), "it was measured again");
        assert!(known.get(&key(1)).is_none());
        assert_eq!(known.profiles.len(), most);
        assert!(known.remove(&key(2)) && !known.remove(&key(2)));
        assert_eq!(known.order.len(), known.profiles.len());
    }
}
