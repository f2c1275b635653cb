//! Nodes: their leases, the reports of their agents, and their scheduling.

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

use super::{cluster::Cluster, plan_reason::PlanReason};
use crate::{
    events::NewEvent,
    store::{Scheduling, StoreError, StoredNode},
};

/// The largest number of nodes.
const MAX_NODES: usize = 1024;
/// The largest number of devices of a node.
const MAX_DEVICES: usize = 64;
/// The largest number of replicas, and of measurements, in one status.
const MAX_STATUSES: usize = 4096;
/// The largest number of processes, and of reasons for reduced clocks, of one GPU.
const MAX_PER_GPU: usize = 1024;
/// The largest number of characters that are kept of a text from an agent.
const MAX_TEXT: usize = 2000;
/// The largest number of bytes of an agent's instance and of its version.
const MAX_ID_BYTES: usize = 128;
/// The largest number of bytes of a device's description.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// A node and its state.
pub(super) struct Node {
    /// The node as it is stored.
    pub(super) stored: StoredNode,
    /// The state of the node's lease.
    pub(super) lease: Lease,
    /// The time of the agent's last message; none since the gateway's start.
    pub(super) last_heard: Option<Instant>,
    /// The agent's last report; none since the gateway's start.
    pub(super) report: Option<Report>,
    /// The wanted state of the node; none before its first report.
    pub(super) wanted: watch::Sender<Option<WantedState>>,
}

/// The state of a node's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// The gateway has started, and the agent has until this time to take its lease again.
    Awaited { until: Instant },
    /// The agent with this instance holds the lease.
    Held { instance: String, until: Instant },
    /// The lease has expired.
    Lost,
}

/// The last report of an agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) replicas: BTreeMap<ReplicaId, ReplicaStatus>,
    pub(super) profiles: Vec<ProfileProgress>,
    pub(super) gpus: Vec<GpuStatus>,
}

/// The reason why a lease is not granted.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another agent holds the lease.
    #[error(
        "another agent holds the lease of node {0}; start this agent with another --node, or wait until that lease expires"
    )]
    Held(NodeName),
    /// A field is out of its limits.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The violated limit.
        problem: String,
    },
    /// There are too many nodes.
    #[error("at most {MAX_NODES} nodes can join")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why a status is refused.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The agent does not hold the lease.
    #[error("this agent does not hold the lease of node {0}; take the lease first")]
    NotHeld(NodeName),
    /// A list is too long.
    #[error("{field}: at most {limit} entries are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// The largest number of entries.
        limit: usize,
    },
}

/// The reason why a node does not get its wanted state.
#[derive(Debug, thiserror::Error)]
pub enum WantedError {
    /// No agent holds the lease.
    #[error("no agent holds the lease of node {0}; take the lease first")]
    NotHeld(NodeName),
    /// The agent has not reported its status yet.
    #[error("the node has not reported its status yet; report the status first")]
    NotReported,
}

/// The reason why the scheduling of a node is not changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No node has this name.
    #[error("no node has the name {0}")]
    Unknown(NodeName),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Node {
    /// Restores a stored node, whose agent has until this time to take its lease.
    pub(super) fn awaited(stored: StoredNode, until: Instant) -> Self {
        Self {
            stored,
            lease: Lease::Awaited { until },
            last_heard: None,
            report: None,
            wanted: watch::Sender::new(None),
        }
    }

    /// Returns a device by its name within the node.
    pub(super) fn device(&self, local: &str) -> Option<&DeviceReport> {
        self.stored
            .devices
            .iter()
            .find(|device| device.name == local)
    }

    /// Returns the devices with their identities.
    pub(super) fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceReport)> {
        self.stored.devices.iter().map(|device| {
            let id = DeviceId::new(self.stored.name.clone(), &device.name);
            (id.expect("checked when it was reported"), device)
        })
    }

    /// Returns true if the node's agent holds the lease.
    pub(super) fn holds_lease(&self) -> bool {
        matches!(self.lease, Lease::Held { .. })
    }

    /// Returns true if new replicas may be placed on the node.
    pub(super) fn takes_replicas(&self) -> bool {
        self.holds_lease() && self.stored.scheduling == Scheduling::Open
    }

    /// Returns the time at which the lease expires; `None` if it has.
    pub(super) fn lease_ends(&self) -> Option<Instant> {
        match self.lease {
            Lease::Awaited { until } | Lease::Held { until, .. } => Some(until),
            Lease::Lost => None,
        }
    }

    /// Returns the last reported state of a GPU, by its name within the node.
    pub(super) fn gpu(&self, local: &str) -> Option<&GpuStatus> {
        let gpus = &self.report.as_ref()?.gpus;
        gpus.iter().find(|gpu| gpu.device == local)
    }

    /// Returns the last reported status of a replica.
    pub(super) fn status(&self, replica: ReplicaId) -> Option<&ReplicaStatus> {
        self.report.as_ref()?.replicas.get(&replica)
    }
}

impl Cluster {
    /// Grants or renews the lease of a node.
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
            self.store.upsert_node(&stored).await?;
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
            self.tell_node(&name, "joined");
            self.request_plan(PlanReason::NodeJoined(name));
        } else if differs {
            self.request_plan(PlanReason::DevicesChanged(name));
        }
        Ok(LeaseGrant {
            epoch: self.epoch,
            lease_ms: u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Takes the status of a node.
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
            gpu.mps_reason = gpu.mps_reason.as_deref().map(truncated);
            for reason in &mut gpu.throttle_reasons {
                *reason = truncated(reason);
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
                    replica.reason = replica.reason.map(|text| truncated(&text));
                    (replica.id, replica)
                })
                .collect(),
            profiles: status.profiles,
        });
        self.changed = true;
        self.update_memory_limits(&name);
        self.collect_measurements(&name, (status.epoch, status.revision))
            .await;
        self.fail_unservable_models(&name).await;
        Ok(())
    }

    /// Returns a receiver of the wanted state of a node.
    pub(super) fn subscribe_wanted(
        &self,
        name: &NodeName,
    ) -> Result<watch::Receiver<Option<WantedState>>, WantedError> {
        match self.nodes.get(name) {
            Some(node) if node.holds_lease() => Ok(node.wanted.subscribe()),
            _ => Err(WantedError::NotHeld(name.clone())),
        }
    }

    /// Changes the scheduling of a node.
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
            self.store.upsert_node(&stored).await?;
            node.stored = stored;
            self.request_plan(PlanReason::NodeScheduled(name.clone(), scheduling));
        }
        self.node_view(&name)
    }

    /// Marks the nodes whose lease has expired as lost.
    pub(super) fn expire_leases(&mut self, now: Instant) {
        let mut lost = Vec::new();
        for (name, node) in &mut self.nodes {
            if node.lease_ends().is_some_and(|until| until <= now) {
                if node.holds_lease() {
                    tracing::warn!(node.name = %name, "the lease of a node has expired");
                }
                node.lease = Lease::Lost;
                lost.push(name.clone());
            }
        }
        for name in lost {
            self.data_plane.telemetry().set_gpus(&name, Vec::new());
            self.tell_node(&name, "was lost: its lease expired");
            self.request_plan(PlanReason::NodeLost(name));
        }
    }

    /// Tells what happened to a node.
    fn tell_node(&self, name: &NodeName, what: &str) {
        if let Ok(view) = self.node_view(name) {
            let text = format!("node {name} {what}");
            self.events.append(NewEvent::node(view, text));
        }
    }

    /// Returns true if a replica gets batches.
    pub(super) fn serves(&self, replica: ReplicaId) -> bool {
        self.links.get(&replica) == Some(&crate::driver::LinkState::Serving)
    }

    /// Marks the models as failed that a node cannot serve as they are registered and that no replica serves.
    async fn fail_unservable_models(&mut self, name: &NodeName) {
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
                self.fail_model(&program.model, &reason).await;
            }
        }
    }

    /// Returns true if a replica of the model gets batches.
    fn is_served(&self, model: &ModelId) -> bool {
        let planned = self.plan.replicas.iter();
        planned
            .chain(self.earlier.iter().map(|earlier| &earlier.replica))
            .any(|replica| replica.program.model == *model && self.serves(replica.id))
    }
}

/// Checks the fields of a lease request.
fn check_lease(name: &NodeName, request: &LeaseRequest) -> Result<(), LeaseError> {
    let invalid = |field, problem: String| Err(LeaseError::Invalid { field, problem });
    if request.instance.is_empty() || request.instance.len() > MAX_ID_BYTES {
        return invalid("instance", format!("expected 1 to {MAX_ID_BYTES} bytes"));
    }
    if request.agent_version.len() > MAX_ID_BYTES {
        let problem = format!("expected at most {MAX_ID_BYTES} bytes");
        return invalid("agent_version", problem);
    }
    if request.devices.len() > MAX_DEVICES {
        let count = request.devices.len();
        let problem = format!("at most {MAX_DEVICES} devices are allowed, got {count}");
        return invalid("devices", problem);
    }
    let mut names = BTreeSet::new();
    for device in &request.devices {
        if let Err(e) = DeviceId::new(name.clone(), &device.name) {
            return invalid("devices.name", e.to_string());
        }
        if device.description.len() > MAX_DESCRIPTION_BYTES {
            let problem = format!("expected at most {MAX_DESCRIPTION_BYTES} bytes");
            return invalid("devices.description", problem);
        }
        if !names.insert(&device.name) {
            return invalid("devices.name", format!("{:?} appears twice", device.name));
        }
    }
    Ok(())
}

/// Returns the first [`MAX_TEXT`] characters of a text.
pub(super) fn truncated(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
