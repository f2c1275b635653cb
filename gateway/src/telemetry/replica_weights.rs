//! The weights of replicas on devices with a pool: where they are, and how often they came and went.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use packhorse_api::WeightsView;
use packhorse_cluster::{ByteCount, DeviceId, PoolPlace, ReplicaId, Residency, Time};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::{replica_metrics::of_device, samples::encode_samples};

/// The weights of all replicas that are members of pools and connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaWeights(Arc<RwLock<State>>);

#[derive(Debug, Default)]
struct State {
    replicas: BTreeMap<ReplicaId, Weights>,
    /// The bytes that the weights on a device may have together, as its worker reported it last.
    memory: BTreeMap<DeviceId, ByteCount>,
}

#[derive(Debug)]
struct Weights {
    device: DeviceId,
    place: PoolPlace,
    /// The time at which its worker was told to copy them, while they are not there.
    asked: Option<Time>,
    /// True if they were in its file only by then.
    asked_when_cold: bool,
    loads: u64,
    /// The loads from its file among them.
    cold_loads: u64,
    /// The time to load it from its file, as its worker said last; zero before it has.
    cold_load: Duration,
    evictions: u64,
}

impl ReplicaWeights {
    /// Takes note of where the weights of a replica are.
    pub(crate) fn set(&self, replica: ReplicaId, device: &DeviceId, place: PoolPlace) {
        self.set_memory(device, place.memory);
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let weights = { &mut state.replicas }.entry(replica);
        let weights = weights.or_insert_with(|| Weights {
            device: device.clone(),
            place,
            asked: None,
            asked_when_cold: false,
            loads: 0,
            cold_loads: 0,
            cold_load: Duration::ZERO,
            evictions: 0,
        });
        weights.place = place;
    }

    /// Takes note of the time to load a replica's program from its file.
    pub(crate) fn set_cold_load(&self, replica: ReplicaId, load: Duration) {
        self.change(replica, |weights| weights.cold_load = load);
    }

    /// Takes note of the memory of a device for weights.
    pub(crate) fn set_memory(&self, device: &DeviceId, memory: ByteCount) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match state.memory.get_mut(device) {
            Some(known) => *known = memory,
            None => {
                state.memory.insert(device.clone(), memory);
            }
        }
    }

    /// Notes that the worker of a replica was told to copy its weights.
    pub(crate) fn begin_load(&self, now: Time, replica: ReplicaId) {
        self.change(replica, |weights| {
            weights.asked = Some(now);
            weights.asked_when_cold = weights.place.residency == Residency::Cold;
        });
    }

    /// Counts a copy that is done, and returns the time that it took, and true if it was from a file; `None` if it was not asked for.
    pub(crate) fn end_load(&self, now: Time, replica: ReplicaId) -> Option<(Duration, bool)> {
        let asked = self.change(replica, |weights| {
            let asked = weights.asked.take()?;
            weights.loads += 1;
            weights.cold_loads += u64::from(weights.asked_when_cold);
            Some((asked, weights.asked_when_cold))
        });
        let (asked, from_file) = asked??;
        Some((now.saturating_since(asked), from_file))
    }

    /// Returns true if the weights of a replica are on its device, as far as is known.
    pub(crate) fn is_resident(&self, replica: ReplicaId) -> bool {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let weights = state.replicas.get(&replica);
        weights.is_some_and(|weights| weights.place.residency == Residency::Resident)
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
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Weights { device, .. }) = state.replicas.remove(&replica)
            && !{ state.replicas.values() }.any(|other| other.device == device)
        {
            state.memory.remove(&device);
        }
    }

    /// Returns the weights of a replica as the API shows them; `None` if it is in no pool.
    pub(crate) fn view(&self, replica: ReplicaId) -> Option<WeightsView> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let weights = state.replicas.get(&replica)?;
        let memory = state.memory_of(weights);
        Some(WeightsView {
            residency: weights.place.residency,
            bytes: weights.place.weights,
            pool_bytes: (memory.as_u64() < u64::MAX).then_some(memory),
            load_ms: weights.place.load.as_secs_f64() * 1e3,
            cold_load_ms: weights.cold_load.as_secs_f64() * 1e3,
            loads: weights.loads,
            cold_loads: weights.cold_loads,
            evictions: weights.evictions,
        })
    }

    /// Returns the replicas whose weights are larger than what their device has for all weights, with both.
    pub(crate) fn without_room(&self) -> BTreeMap<ReplicaId, PoolPlace> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let places = state.replicas.iter().map(|(id, weights)| {
            let memory = state.memory_of(weights);
            (
                *id,
                PoolPlace {
                    memory,
                    ..weights.place
                },
            )
        });
        places
            .filter(|(_, place)| place.weights > place.memory)
            .collect()
    }

    fn change<T>(&self, replica: ReplicaId, change: impl FnOnce(&mut Weights) -> T) -> Option<T> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        state.replicas.get_mut(&replica).map(change)
    }
}

impl State {
    fn memory_of(&self, weights: &Weights) -> ByteCount {
        let known = self.memory.get(&weights.device).copied();
        known.unwrap_or(weights.place.memory)
    }
}

impl Collector for ReplicaWeights {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut devices: BTreeMap<DeviceId, [u64; 4]> = BTreeMap::new();
        {
            let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
            for weights in state.replicas.values() {
                let bytes = weights.place.weights;
                let [resident, warm, memory, cold] =
                    devices.entry(weights.device.clone()).or_default();
                match weights.place.residency {
                    Residency::Resident => *resident += bytes.as_u64(),
                    Residency::Warm => *warm += bytes.as_u64(),
                    Residency::Cold => *cold += bytes.as_u64(),
                }
                *memory = state.memory_of(weights).as_u64();
            }
        }
        let gauges: [(&str, &str, usize); 4] = [
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
            (
                "packhorse_weights_cold_bytes",
                "Weights in the files of a device's node only, from which their programs are loaded when they are asked for.",
                3,
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
        assert_eq!(weights.end_load(Time::ZERO, id), None);
        weights.begin_load(Time::ZERO, id);
        let copied = Time::ZERO + Duration::from_millis(3);
        let took = weights.end_load(copied, id);
        assert_eq!(took, Some((Duration::from_millis(3), false)));
        weights.count_eviction(id);
        let view = weights.view(id).unwrap();
        assert_eq!((view.loads, view.evictions), (1, 1));
        assert_eq!((view.residency, view.pool_bytes), (Residency::Warm, None));
        assert!((view.load_ms - 2.0).abs() < 1e-9);
        assert!(weights.without_room().is_empty());
        let small = PoolPlace {
            memory: ByteCount::new(99),
            ..place.warm()
        };
        weights.set_memory(&device, ByteCount::new(99));
        assert_eq!(weights.without_room(), BTreeMap::from([(id, small)]));
        let cold = PoolPlace {
            residency: Residency::Cold,
            ..place
        };
        weights.set(id, &device, cold);
        weights.set_cold_load(id, Duration::from_millis(40));
        weights.begin_load(copied, id);
        let loaded = weights.end_load(copied + Duration::from_millis(50), id);
        assert_eq!(loaded, Some((Duration::from_millis(50), true)));
        let view = weights.view(id).unwrap();
        assert_eq!((view.loads, view.cold_loads), (2, 1));
        assert!((view.cold_load_ms - 40.0).abs() < 1e-9);
        weights.remove(id);
        assert_eq!(weights.view(id), None);
    }
}
