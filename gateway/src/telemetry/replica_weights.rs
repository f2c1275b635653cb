//! The weights of replicas on devices with a pool: where they are, and how often they came and went.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_api::WeightsView;
use packhorse_cluster::{DeviceId, PoolPlace, ReplicaId, Residency};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::{replica_metrics::of_device, samples::encode_samples};

/// The weights of all replicas that are members of pools and connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaWeights(Arc<RwLock<BTreeMap<ReplicaId, Weights>>>);

#[derive(Debug)]
struct Weights {
    device: DeviceId,
    place: PoolPlace,
    loads: u64,
    evictions: u64,
}

impl ReplicaWeights {
    /// Takes note of where the weights of a replica are.
    pub(crate) fn set(&self, replica: ReplicaId, device: &DeviceId, place: PoolPlace) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let weights = all.entry(replica).or_insert_with(|| Weights {
            device: device.clone(),
            place,
            loads: 0,
            evictions: 0,
        });
        weights.place = place;
    }

    /// Counts a copy to the device.
    pub(crate) fn count_load(&self, replica: ReplicaId) {
        self.change(replica, |weights| weights.loads += 1);
    }

    /// Counts weights that left the device for others.
    pub(crate) fn count_eviction(&self, replica: ReplicaId) {
        self.change(replica, |weights| {
            weights.evictions += 1;
            weights.place = weights.place.warm();
        });
    }

    /// Forgets a replica that is no longer connected.
    pub(crate) fn remove(&self, replica: ReplicaId) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&replica);
    }

    /// Returns the weights of a replica as the API shows them; `None` if it is in no pool.
    pub(crate) fn view(&self, replica: ReplicaId) -> Option<WeightsView> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let weights = all.get(&replica)?;
        Some(WeightsView {
            residency: weights.place.residency,
            bytes: weights.place.weights,
            pool_bytes: (weights.place.memory.as_u64() < u64::MAX).then_some(weights.place.memory),
            load_ms: weights.place.load.as_secs_f64() * 1e3,
            loads: weights.loads,
            evictions: weights.evictions,
        })
    }

    /// Returns the replicas whose weights are larger than what their device has for all weights, with both.
    pub(crate) fn without_room(&self) -> BTreeMap<ReplicaId, PoolPlace> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let places = all.iter().map(|(id, weights)| (*id, weights.place));
        places
            .filter(|(_, place)| place.weights > place.memory)
            .collect()
    }

    fn change(&self, replica: ReplicaId, change: impl FnOnce(&mut Weights)) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = all.get_mut(&replica) {
            change(weights);
        }
    }
}

impl Collector for ReplicaWeights {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut devices: BTreeMap<DeviceId, [u64; 3]> = BTreeMap::new();
        {
            let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
            for weights in all.values() {
                let bytes = weights.place.weights;
                let [resident, warm, memory] = devices.entry(weights.device.clone()).or_default();
                match weights.place.residency {
                    Residency::Resident => *resident += bytes.as_u64(),
                    Residency::Warm => *warm += bytes.as_u64(),
                }
                *memory = weights.place.memory.as_u64();
            }
        }
        let gauges: [(&str, &str, usize); 3] = [
            (
                "packhorse_weights_resident_bytes",
                "Weights on a device that can leave it for others.",
                0,
            ),
            (
                "packhorse_weights_warm_bytes",
                "Weights in the memory of a device's node, which are copied to the device when they are asked for.",
                1,
            ),
            (
                "packhorse_weights_memory_bytes",
                "Memory of a device that the weights of all its models may have together, as its worker reported it last.",
                2,
            ),
        ];
        for (name, help, index) in gauges {
            let values = { devices.iter() }.map(|(id, bytes)| (of_device(id), bytes[index]));
            let known = values.filter(|(_, bytes)| *bytes < u64::MAX);
            encode_samples(&mut encoder, name, help, MetricType::Gauge, known)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packhorse_cluster::ByteCount;

    use super::*;

    #[test]
    fn weights_are_counted_and_their_bytes_are_those_of_their_place() {
        let weights = ReplicaWeights::default();
        let (id, device): (ReplicaId, DeviceId) =
            ("1-0".parse().unwrap(), "n/cpu0".parse().unwrap());
        assert_eq!(weights.view(id), None);
        let place = PoolPlace {
            weights: ByteCount::new(100),
            memory: ByteCount::new(u64::MAX),
            load: Duration::from_millis(2),
            residency: Residency::Resident,
        };
        weights.set(id, &device, place);
        weights.count_load(id);
        weights.count_eviction(id);
        let view = weights.view(id).unwrap();
        assert_eq!((view.loads, view.evictions), (1, 1));
        assert_eq!((view.residency, view.pool_bytes), (Residency::Warm, None));
        assert!((view.load_ms - 2.0).abs() < 1e-9);
        assert!(weights.without_room().is_empty());
        let small = PoolPlace {
            memory: ByteCount::new(99),
            ..place
        };
        weights.set(id, &device, small);
        assert_eq!(weights.without_room(), BTreeMap::from([(id, small)]));
        weights.remove(id);
        assert_eq!(weights.view(id), None);
    }
}
