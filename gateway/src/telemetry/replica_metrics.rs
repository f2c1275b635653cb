//! The replicas of models and what devices hold, in Prometheus' text format, as the control plane last told it. Replicas come and go, so that
//! no series is of one: their number is bounded by the registered versions and the devices.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_cluster::{DeviceId, DeviceKind, ModelId};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_samples;

/// The replicas and devices of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReplicaState {
    /// The replicas of each registered version.
    pub(crate) models: BTreeMap<ModelId, ModelReplicas>,
    /// The memory that the workers of a version on a device reported, in bytes.
    pub(crate) memory: BTreeMap<(ModelId, DeviceId), u64>,
    /// The devices that nodes report.
    pub(crate) devices: BTreeMap<DeviceId, DeviceMemory>,
}

/// The replicas of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelReplicas {
    /// Those of the newest plan.
    pub(crate) planned: u64,
    /// Those that the data plane serves.
    pub(crate) serving: u64,
    /// The restarts of their workers since the gateway's start.
    pub(crate) restarts: u64,
}

/// The memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    pub(crate) kind: DeviceKind,
    /// The bytes that replicas may use.
    pub(crate) total: u64,
    /// The bytes that the wanted replicas need according to their profiles.
    pub(crate) planned: u64,
}

/// The last state.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaMetrics(Arc<RwLock<ReplicaState>>);

type OfModel = (
    &'static str,
    &'static str,
    MetricType,
    fn(&ModelReplicas) -> u64,
);

const OF_MODELS: [OfModel; 3] = [
    (
        "packhorse_replicas_planned",
        "Replicas of the current plan.",
        MetricType::Gauge,
        |replicas| replicas.planned,
    ),
    (
        "packhorse_replicas_ready",
        "Replicas that take batches.",
        MetricType::Gauge,
        |replicas| replicas.serving,
    ),
    (
        "packhorse_worker_restarts_total",
        "Workers that were started again after a failure.",
        MetricType::Counter,
        |replicas| replicas.restarts,
    ),
];

impl ReplicaMetrics {
    /// Returns the memory that the workers on each device reported, in bytes.
    pub(super) fn device_memory(&self) -> BTreeMap<DeviceId, u64> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let devices = state.devices.keys().map(|device| (device.clone(), 0));
        let mut memory: BTreeMap<DeviceId, u64> = devices.collect();
        for ((_, device), bytes) in &state.memory {
            *memory.entry(device.clone()).or_default() += bytes;
        }
        memory
    }

    pub(super) fn set(&self, state: ReplicaState) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Collector for ReplicaMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_model = |id: &ModelId| {
            [
                ("model", id.name.to_string()),
                ("version", id.version.to_string()),
            ]
        };
        for (name, help, kind, read) in OF_MODELS {
            let models = state.models.iter();
            // There may be thousands of versions without a replica.
            let models = models.filter(|(_, replicas)| **replicas != ModelReplicas::default());
            let values = models.map(|(id, replicas)| (of_model(id), read(replicas)));
            encode_samples(&mut encoder, name, help, kind, values)?;
        }
        let memory = state.memory.iter().map(|((model, device), bytes)| {
            let [name, version] = of_model(model);
            let [node, device] = of_device(device);
            ([name, version, node, device], *bytes)
        });
        encode_samples(
            &mut encoder,
            "packhorse_replica_memory_bytes",
            "Memory that the workers of a model on a device need, as they report it.",
            MetricType::Gauge,
            memory,
        )?;
        let devices = |read: fn(&DeviceMemory) -> u64| {
            state.devices.iter().map(move |(id, memory)| {
                let [node, device] = of_device(id);
                let kind = ("kind", memory.kind.to_string());
                ([node, device, kind], read(memory))
            })
        };
        encode_samples(
            &mut encoder,
            "packhorse_device_memory_bytes",
            "Memory of a device that replicas may use, of CPUs, too.",
            MetricType::Gauge,
            devices(|memory| memory.total),
        )?;
        encode_samples(
            &mut encoder,
            "packhorse_device_memory_planned_bytes",
            "Memory that the replicas on a device need according to their profiles.",
            MetricType::Gauge,
            devices(|memory| memory.planned),
        )
    }
}

pub(super) fn of_device(id: &DeviceId) -> [(&'static str, String); 2] {
    [
        ("node", id.node().to_string()),
        ("device", id.local().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn replicas_are_counted_by_version_and_memory_by_device() {
        let metrics = ReplicaMetrics::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        let model: ModelId = "m:2".parse().unwrap();
        let device: DeviceId = "n/cpu0".parse().unwrap();
        let replicas = ModelReplicas {
            planned: 2,
            serving: 1,
            restarts: 5,
        };
        let memory = DeviceMemory {
            kind: "cpu-x".parse().unwrap(),
            total: 100,
            planned: 40,
        };
        metrics.set(ReplicaState {
            models: [(model.clone(), replicas)].into(),
            memory: [((model, device.clone()), 30)].into(),
            devices: [(device, memory)].into(),
        });
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "packhorse_replicas_planned{model=\"m\",version=\"2\"} 2",
            "packhorse_replicas_ready{model=\"m\",version=\"2\"} 1",
            "# TYPE packhorse_worker_restarts_total counter",
            "packhorse_worker_restarts_total{model=\"m\",version=\"2\"} 5",
            "packhorse_replica_memory_bytes{model=\"m\",version=\"2\",node=\"n\",device=\"cpu0\"} 30",
            "packhorse_device_memory_bytes{node=\"n\",device=\"cpu0\",kind=\"cpu-x\"} 100",
            "packhorse_device_memory_planned_bytes{node=\"n\",device=\"cpu0\",kind=\"cpu-x\"} 40",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
