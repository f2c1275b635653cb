//! Nodes: leases, what their agents report, and what the admin wants of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_api::{
    NodeView,
    agent::{AgentStatus, DeviceReport, GpuStatus, LeaseGrant, LeaseRequest},
};
use packhorse_cluster::{
    DeviceId, ModelId, NodeName, ProfileProgress, ReplicaId, ReplicaState, ReplicaStatus,
    WantedState,
};
use tokio::{sync::watch, time::Instant};

use super::cluster::Cluster;
use crate::store::{Scheduling, StoreError, StoredNode};

/// The most nodes.
const MAX_NODES: usize = 1024;
/// The most devices of a node.
const MAX_DEVICES: usize = 64;
/// The most replicas, and the most measurements, that one status may speak of.
const MAX_STATUSES: usize = 4096;
/// The most processes, and the most reasons for low clocks, of one GPU.
const MAX_PER_GPU: usize = 1024;
/// The longest text that is kept of what an agent says.
const MAX_TEXT: usize = 2000;

/// A node as the control plane knows it.
pub(super) struct Node {
    pub(super) stored: StoredNode,
    pub(super) lease: Lease,
    /// When its agent was last heard, if it was since the gateway's start.
    pub(super) last_heard: Option<Instant>,
    /// What its agent last said, if it has said anything since the gateway's start.
    pub(super) report: Option<Report>,
    /// What is wanted of it; none before it has reported.
    pub(super) wanted: watch::Sender<Option<WantedState>>,
}

/// How a node stands with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// The gateway has just started, and the agent has until then to come back.
    Awaited { until: Instant },
    /// An agent holds it.
    Held { instance: String, until: Instant },
    /// It has run out.
    Lost,
}

/// What an agent last said.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) replicas: BTreeMap<ReplicaId, ReplicaStatus>,
    pub(super) profiles: Vec<ProfileProgress>,
    pub(super) gpus: Vec<GpuStatus>,
}

/// Why a lease is not granted.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another agent holds it.
    #[error(
        "node {0} is held by another agent; give this one another --node, or wait until the lease of the other has run out"
    )]
    Held(NodeName),
    /// A field is out of its limits.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// There are too many nodes.
    #[error("there are {MAX_NODES} nodes already, which is the most")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a status is not taken.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// This agent does not hold the lease.
    #[error("the lease of node {0} is not held by this agent: renew it first")]
    NotHeld(NodeName),
    /// It speaks of too much.
    #[error("{field}: at most {limit}")]
    TooMany {
        /// The field.
        field: &'static str,
        /// The most.
        limit: usize,
    },
}

/// Why a node is not told what is wanted of it.
#[derive(Debug, thiserror::Error)]
pub enum WantedError {
    /// Nobody holds its lease.
    #[error("the lease of node {0} is not held: renew it first")]
    NotHeld(NodeName),
    /// It must say first what it has.
    #[error("the node has not reported its status yet")]
    NotReported,
}

/// Why a node is not scheduled as asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is none of that name.
    #[error("no node {0} is known")]
    Unknown(NodeName),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Node {
    /// A node of which only what is stored is known.
    pub(super) fn awaited(stored: StoredNode, until: Instant) -> Self {
        Self {
            stored,
            lease: Lease::Awaited { until },
            last_heard: None,
            report: None,
            wanted: watch::Sender::new(None),
        }
    }

    pub(super) fn device(&self, local: &str) -> Option<&DeviceReport> {
        self.stored
            .devices
            .iter()
            .find(|device| device.name == local)
    }

    /// Its devices with their full names.
    pub(super) fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceReport)> {
        self.stored.devices.iter().map(|device| {
            let id = DeviceId::new(self.stored.name.clone(), &device.name);
            (id.expect("checked when it was reported"), device)
        })
    }

    pub(super) fn holds_lease(&self) -> bool {
        matches!(self.lease, Lease::Held { .. })
    }

    /// Whether new replicas may be placed on it.
    pub(super) fn takes_replicas(&self) -> bool {
        self.holds_lease() && self.stored.scheduling == Scheduling::Open
    }

    pub(super) fn lease_ends(&self) -> Option<Instant> {
        match self.lease {
            Lease::Awaited { until } | Lease::Held { until, .. } => Some(until),
            Lease::Lost => None,
        }
    }

    /// What its agent last read of one of its GPUs.
    pub(super) fn gpu(&self, local: &str) -> Option<&GpuStatus> {
        let gpus = &self.report.as_ref()?.gpus;
        gpus.iter().find(|gpu| gpu.device == local)
    }

    pub(super) fn status(&self, replica: ReplicaId) -> Option<&ReplicaStatus> {
        self.report.as_ref()?.replicas.get(&replica)
    }
}

impl Cluster {
    /// Takes or renews the lease of a node.
    pub(super) async fn lease(
        &mut self,
        name: NodeName,
        request: LeaseRequest,
    ) -> Result<LeaseGrant, LeaseError> {
        check_lease(&name, &request)?;
        let now = Instant::now();
        let node = self.nodes.get(&name);
        if let Some(Lease::Held { instance, until }) = node.map(|node| &node.lease)
            && *instance != request.instance
            && *until > now
        {
            return Err(LeaseError::Held(name));
        }
        if node.is_none() && self.nodes.len() >= MAX_NODES {
            return Err(LeaseError::TooMany);
        }
        let stored = StoredNode {
            name: name.clone(),
            agent_version: request.agent_version,
            devices: request.devices,
            scheduling: node.map(|node| node.stored.scheduling).unwrap_or_default(),
        };
        let joins = !node.is_some_and(Node::holds_lease);
        let differs = node.is_none_or(|node| node.stored != stored);
        if differs {
            self.store.put_node(&stored).await?;
        }
        let until = now + self.config.lease;
        let node = self
            .nodes
            .entry(name.clone())
            .or_insert_with(|| Node::awaited(stored.clone(), until));
        node.lease = Lease::Held {
            instance: request.instance,
            until,
        };
        node.last_heard = Some(now);
        if differs {
            node.stored = stored;
        }
        if joins {
            tracing::info!(node.name = %name, devices = node.stored.devices.len(), "a node joined");
            self.request_plan(format!("node {name} joined"));
        } else if differs {
            self.request_plan(format!("the devices of node {name} changed"));
        }
        Ok(LeaseGrant {
            epoch: self.epoch,
            lease_ms: u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Takes what an agent reports of its node.
    pub(super) async fn status(
        &mut self,
        name: NodeName,
        status: AgentStatus,
    ) -> Result<(), StatusError> {
        let processes = |gpu: &GpuStatus| gpu.processes.len().max(gpu.throttle_reasons.len());
        for (field, count, limit) in [
            ("replicas", status.replicas.len(), MAX_STATUSES),
            ("profiles", status.profiles.len(), MAX_STATUSES),
            ("gpus", status.gpus.len(), MAX_DEVICES),
            (
                "gpus.processes and gpus.throttle_reasons",
                status.gpus.iter().map(processes).max().unwrap_or(0),
                MAX_PER_GPU,
            ),
        ] {
            if count > limit {
                return Err(StatusError::TooMany { field, limit });
            }
        }
        let Some(node) = self.nodes.get_mut(&name) else {
            return Err(StatusError::NotHeld(name));
        };
        match &node.lease {
            Lease::Held { instance, .. } if *instance == status.instance => {}
            _ => return Err(StatusError::NotHeld(name)),
        }
        let mut gpus = status.gpus;
        gpus.retain(|gpu| node.device(&gpu.device).is_some());
        for gpu in &mut gpus {
            gpu.mps_reason = gpu.mps_reason.as_deref().map(shortened);
            for reason in &mut gpu.throttle_reasons {
                *reason = shortened(reason);
            }
        }
        self.data_plane.telemetry().set_gpus(&name, gpus.clone());
        node.last_heard = Some(Instant::now());
        node.report = Some(Report {
            gpus,
            replicas: status
                .replicas
                .into_iter()
                .map(|mut replica| {
                    replica.reason = replica.reason.map(|text| shortened(&text));
                    (replica.id, replica)
                })
                .collect(),
            profiles: status.profiles,
        });
        self.changed = true;
        self.note_what_fits(&name);
        self.collect_measurements(&name, (status.epoch, status.revision))
            .await;
        self.fail_models_of(&name).await;
        Ok(())
    }

    /// The channel over which a node is told what is wanted of it.
    pub(super) fn wanted(
        &self,
        name: &NodeName,
    ) -> Result<watch::Receiver<Option<WantedState>>, WantedError> {
        match self.nodes.get(name) {
            Some(node) if node.holds_lease() => Ok(node.wanted.subscribe()),
            _ => Err(WantedError::NotHeld(name.clone())),
        }
    }

    /// Says what shall be placed on a node.
    pub(super) async fn schedule_node(
        &mut self,
        name: NodeName,
        scheduling: Scheduling,
    ) -> Result<NodeView, NodeError> {
        let Some(node) = self.nodes.get_mut(&name) else {
            return Err(NodeError::Unknown(name));
        };
        if node.stored.scheduling != scheduling {
            let stored = StoredNode {
                scheduling,
                ..node.stored.clone()
            };
            self.store.put_node(&stored).await?;
            node.stored = stored;
            let what = match scheduling {
                Scheduling::Open => "uncordoned",
                Scheduling::Cordoned => "cordoned",
                Scheduling::Draining => "drained",
            };
            self.request_plan(format!("node {name} was {what}"));
        }
        self.node_view(&name)
    }

    /// Counts nodes as lost whose agents were silent for too long.
    pub(super) fn expire_leases(&mut self, now: Instant) {
        let mut lost = Vec::new();
        for (name, node) in &mut self.nodes {
            if node.lease_ends().is_some_and(|until| until <= now) {
                if node.holds_lease() {
                    tracing::warn!(node.name = %name, "a node's agent is silent; its lease has run out");
                }
                node.lease = Lease::Lost;
                lost.push(name.clone());
            }
        }
        for name in lost {
            self.data_plane.telemetry().set_gpus(&name, Vec::new());
            self.request_plan(format!("node {name} was lost"));
        }
    }

    /// Whether a replica answers requests now.
    pub(super) fn serves(&self, replica: ReplicaId) -> bool {
        self.links.get(&replica) == Some(&crate::driver::LinkState::Serving)
    }

    /// A program that a node cannot serve as it is registered, and that no replica serves, is a failed model.
    async fn fail_models_of(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let failed: Vec<(Arc<packhorse_cluster::Program>, String)> = self
            .plan
            .replicas
            .iter()
            .filter(|replica| replica.device.node() == name)
            .filter_map(|replica| {
                let status = node.status(replica.id)?;
                let reason = status.reason.clone().unwrap_or_default();
                (status.state == ReplicaState::Failed)
                    .then(|| (Arc::clone(&replica.program), reason))
            })
            .collect();
        for (program, reason) in failed {
            let current = self
                .models
                .get(&program.model)
                .is_some_and(|model| *model.program == *program);
            if current && !self.is_served(&program.model) {
                self.fail_model(&program.model, reason).await;
            }
        }
    }

    fn is_served(&self, model: &ModelId) -> bool {
        let planned = self.plan.replicas.iter();
        planned
            .chain(self.earlier.iter().map(|earlier| &earlier.replica))
            .any(|replica| replica.program.model == *model && self.serves(replica.id))
    }
}

fn check_lease(name: &NodeName, request: &LeaseRequest) -> Result<(), LeaseError> {
    let invalid = |field, problem: String| Err(LeaseError::Invalid { field, problem });
    if request.instance.is_empty() || request.instance.len() > 128 {
        return invalid("instance", "expected 1 to 128 bytes".to_owned());
    }
    if request.agent_version.len() > 128 {
        return invalid("agent_version", "expected at most 128 bytes".to_owned());
    }
    if request.devices.len() > MAX_DEVICES {
        return invalid(
            "devices",
            format!(
                "{} are over the limit of {MAX_DEVICES}",
                request.devices.len()
            ),
        );
    }
    let mut names = BTreeSet::new();
    for device in &request.devices {
        if let Err(e) = DeviceId::new(name.clone(), &device.name) {
            return invalid("devices.name", e.to_string());
        }
        if device.description.len() > 1024 {
            return invalid(
                "devices.description",
                "expected at most 1024 bytes".to_owned(),
            );
        }
        if !names.insert(&device.name) {
            return invalid("devices.name", format!("{:?} is given twice", device.name));
        }
    }
    Ok(())
}

/// The beginning of a text that came from outside.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
