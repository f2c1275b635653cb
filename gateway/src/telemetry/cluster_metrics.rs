//! The state of the cluster in Prometheus' text format, as the control plane last told it.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_cluster::{DeviceKind, ModelId, NodeState};
use packhorse_control::Problem;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::{encode_samples, encode_value};

/// The state of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterState {
    /// The generation of the current plan; none before the first.
    pub(crate) generation: Option<u64>,
    /// The number of findings of each kind about each model, and about anything else.
    pub(crate) findings: BTreeMap<(Problem, Option<ModelId>), usize>,
    /// The number of nodes in each state.
    pub(crate) nodes: BTreeMap<NodeState, usize>,
    /// The number of devices of each kind that take replicas.
    pub(crate) devices: BTreeMap<DeviceKind, usize>,
    /// The number of devices of each kind that are needed, as far as it is known.
    pub(crate) devices_needed: BTreeMap<DeviceKind, usize>,
}

/// The last state of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterMetrics(Arc<RwLock<ClusterState>>);

/// The states of nodes with their names.
const NODE_STATES: [(NodeState, &str); 4] = [
    (NodeState::Ready, "ready"),
    (NodeState::Cordoned, "cordoned"),
    (NodeState::Draining, "draining"),
    (NodeState::Lost, "lost"),
];

impl ClusterMetrics {
    pub(super) fn generation(&self) -> Option<u64> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .generation
    }

    pub(super) fn set(&self, state: ClusterState) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Collector for ClusterMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let count = |counted: Option<&usize>| counted.copied().unwrap_or_default() as u64;
        let mut findings = state.findings.clone();
        for problem in Problem::ALL {
            // That nothing is wrong is a sample, too.
            findings.entry((problem, None)).or_default();
        }
        let findings = findings.iter().map(|((problem, model), number)| {
            let (name, version) = match model {
                Some(model) => (model.name.to_string(), model.version.to_string()),
                None => Default::default(),
            };
            let problem = problem.name().to_owned();
            let labels = [("problem", problem), ("model", name), ("version", version)];
            (labels, *number as u64)
        });
        let nodes = NODE_STATES.iter().map(|(of, name)| {
            let label = [("state", *name)];
            (label, count(state.nodes.get(of)))
        });
        encode_samples(
            &mut encoder,
            "packhorse_findings",
            "What is wrong in the cluster now: the number of findings of each kind, by model where they are about one.",
            MetricType::Gauge,
            findings,
        )?;
        encode_samples(
            &mut encoder,
            "packhorse_nodes",
            "Nodes by state.",
            MetricType::Gauge,
            nodes,
        )?;
        encode_samples(
            &mut encoder,
            "packhorse_devices_have",
            "Devices that take replicas, by kind.",
            MetricType::Gauge,
            by_kind(&state.devices),
        )?;
        encode_samples(
            &mut encoder,
            "packhorse_devices_needed",
            "Devices of the smallest cluster for the rates that are forecast for the time at which a new node serves, by kind: the largest number of the last 15 minutes that two searches in a row found.",
            MetricType::Gauge,
            by_kind(&state.devices_needed),
        )?;
        encode_value(
            &mut encoder,
            "packhorse_plan_generation",
            "Generation of the current plan, 0 before the first.",
            MetricType::Gauge,
            &state.generation.unwrap_or_default(),
        )
    }
}

fn by_kind(
    devices: &BTreeMap<DeviceKind, usize>,
) -> impl Iterator<Item = ([(&'static str, &str); 1], u64)> {
    let devices = devices.iter();
    devices.map(|(kind, count)| ([("kind", kind.as_str())], *count as u64))
}
