//! The nodes: their leases, the reports of their agents, and their scheduling.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    DeviceId, DeviceReport, ModelName, NodeName, NodeState, ReplicaId, ReplicaStatus, Scheduling,
    Time,
};

use crate::{
    agent_message::{LeaseClaim, NodeReport},
    command::CommandError,
    limits::MAX_NODES,
    record::NodeRecord,
};

/// The largest number of devices of a node.
const MAX_DEVICES: usize = 64;
/// The largest number of bytes of an agent's instance and of its version.
const MAX_ID_BYTES: usize = 128;
/// The largest number of bytes of a device's description.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// A node and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The node as it is stored.
    pub record: NodeRecord,
    /// The state of the node's lease.
    pub(crate) lease: Lease,
    /// The time of the agent's last message; none since the gateway's start.
    pub last_heard: Option<Time>,
    /// The version of libtorch of the node's workers; none if it is unknown.
    pub libtorch: Option<String>,
    /// The agent's last report; none since the gateway's start.
    pub report: Option<NodeReport>,
    /// The models that had replicas on the node when its lease expired last.
    pub(crate) lost_models: BTreeSet<ModelName>,
}

/// The state of a node's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The gateway has started, and the agent has until this time to take its lease again.
    Awaited { until: Time },
    /// The agent with this instance holds the lease.
    Held { instance: String, until: Time },
    /// The lease has expired.
    Lost,
}

/// The parts of a node that a claim to its lease changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    /// True if the node held no lease before.
    pub(crate) joined: bool,
    /// True if the node's record changed.
    pub(crate) changed: bool,
}

/// The parts of a report that differ from the report before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportChange {
    /// True if this is the first report since the gateway's start, or since the lease was lost.
    pub(crate) first: bool,
    /// The replicas whose status changed, appeared or disappeared.
    pub(crate) replicas: BTreeSet<ReplicaId>,
    /// True if the measurements or inspections changed, or the agent reports on another revision of its wanted state.
    pub(crate) measurements: bool,
}

/// All nodes, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    by_name: BTreeMap<NodeName, Node>,
    /// The ends of the leases.
    expiries: BTreeSet<(Time, NodeName)>,
}

impl Node {
    /// Returns a device by its name within the node.
    pub fn device(&self, local: &str) -> Option<&DeviceReport> {
        let mut devices = self.record.devices.iter();
        devices.find(|device| device.name == local)
    }

    /// Returns the devices with their identities.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceReport)> {
        self.record.devices.iter().map(|device| {
            let id = DeviceId::new(self.record.name.clone(), &device.name);
            (id.expect("checked when it was reported"), device)
        })
    }

    /// Returns true if the node's agent holds the lease.
    pub fn holds_lease(&self) -> bool {
        matches!(self.lease, Lease::Held { .. })
    }

    /// Returns true if the node's lease has expired.
    pub(crate) fn is_lost(&self) -> bool {
        self.lease == Lease::Lost
    }

    /// Returns true if new replicas may be placed on the node.
    pub fn takes_replicas(&self) -> bool {
        self.holds_lease() && self.record.scheduling == Scheduling::Open
    }

    /// Returns true if the node can inspect programs.
    pub(crate) fn inspects(&self) -> bool {
        let report = self.report.as_ref();
        self.takes_replicas() && report.is_some_and(|report| report.inspections.is_some())
    }

    /// Returns the state of the node.
    pub fn state(&self) -> NodeState {
        match self.record.scheduling {
            _ if !self.holds_lease() => NodeState::Lost,
            Scheduling::Open => NodeState::Ready,
            Scheduling::Cordoned => NodeState::Cordoned,
            Scheduling::Draining => NodeState::Draining,
        }
    }

    /// Returns the last reported status of a replica.
    pub fn status(&self, replica: ReplicaId) -> Option<&ReplicaStatus> {
        self.report.as_ref()?.replicas.get(&replica)
    }

    /// Returns the end of the lease; `None` if it has ended.
    fn lease_ends(&self) -> Option<Time> {
        match self.lease {
            Lease::Awaited { until } | Lease::Held { until, .. } => Some(until),
            Lease::Lost => None,
        }
    }
}

impl Nodes {
    /// Restores stored nodes, whose agents have until this time to take their leases again.
    pub(crate) fn restore(records: Vec<NodeRecord>, until: Time) -> Self {
        let mut nodes = Self::default();
        for record in records {
            let name = record.name.clone();
            nodes.expiries.insert((until, name.clone()));
            nodes.by_name.insert(
                name,
                Node {
                    record,
                    lease: Lease::Awaited { until },
                    last_heard: None,
                    libtorch: None,
                    report: None,
                    lost_models: BTreeSet::new(),
                },
            );
        }
        nodes
    }

    pub(crate) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.by_name.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.by_name.iter()
    }

    /// Returns the device of this identity and its node.
    pub(crate) fn device(&self, id: &DeviceId) -> Option<&DeviceReport> {
        self.by_name.get(id.node())?.device(id.local())
    }

    /// Grants or renews the lease of a node until `until`.
    pub(crate) fn take_lease(
        &mut self,
        now: Time,
        name: &NodeName,
        claim: LeaseClaim,
        until: Time,
    ) -> Result<Leased, CommandError> {
        check_claim(name, &claim)?;
        let node = self.by_name.get(name);
        if let Some(Lease::Held { instance, until }) = node.map(|node| &node.lease)
            && *instance != claim.instance
            && *until > now
        {
            return Err(CommandError::LeaseHeld(name.clone()));
        }
        if node.is_none() && self.by_name.len() >= MAX_NODES {
            return Err(CommandError::TooManyNodes);
        }
        let record = NodeRecord {
            name: name.clone(),
            agent_version: claim.agent_version,
            devices: claim.devices,
            scheduling: node.map_or(Scheduling::Open, |node| node.record.scheduling),
        };
        let leased = Leased {
            joined: !node.is_some_and(Node::holds_lease),
            changed: node.is_none_or(|node| node.record != record),
        };
        if let Some(ends) = node.and_then(Node::lease_ends) {
            self.expiries.remove(&(ends, name.clone()));
        }
        self.expiries.insert((until, name.clone()));
        let lease = Lease::Held {
            instance: claim.instance,
            until,
        };
        if let Some(node) = self.by_name.get_mut(name) {
            node.lease = lease;
            node.last_heard = Some(now);
            node.libtorch = claim.libtorch;
            if leased.changed {
                node.record = record;
            }
        } else {
            let node = Node {
                record,
                lease,
                last_heard: Some(now),
                libtorch: claim.libtorch,
                report: None,
                lost_models: BTreeSet::new(),
            };
            self.by_name.insert(name.clone(), node);
        }
        Ok(leased)
    }

    /// Takes the report of a node.
    pub(crate) fn report(
        &mut self,
        now: Time,
        name: &NodeName,
        report: NodeReport,
    ) -> Result<ReportChange, CommandError> {
        let not_held = || CommandError::LeaseNotHeld(name.clone());
        let node = self.by_name.get_mut(name).ok_or_else(not_held)?;
        match &node.lease {
            Lease::Held { instance, .. } if *instance == report.instance => {}
            _ => return Err(not_held()),
        }
        node.last_heard = Some(now);
        let Some(before) = &node.report else {
            let change = ReportChange {
                first: true,
                replicas: report.replicas.keys().copied().collect(),
                measurements: true,
            };
            node.report = Some(report);
            return Ok(change);
        };
        let change = ReportChange {
            first: false,
            replicas: differing(&before.replicas, &report.replicas),
            measurements: before.profiles != report.profiles
                || before.inspections != report.inspections
                || (before.epoch, before.revision) != (report.epoch, report.revision),
        };
        node.report = Some(report);
        Ok(change)
    }

    /// Changes the scheduling of a node. Returns false if it was so already, or there is no such node.
    pub(crate) fn schedule(&mut self, name: &NodeName, scheduling: Scheduling) -> bool {
        match self.by_name.get_mut(name) {
            Some(node) if node.record.scheduling != scheduling => {
                node.record.scheduling = scheduling;
                true
            }
            _ => false,
        }
    }

    /// Removes a node that holds no lease. Returns false if it holds one, or there is no such node.
    pub(crate) fn remove(&mut self, name: &NodeName) -> bool {
        let Some(node) = self.by_name.get(name) else {
            return false;
        };
        if node.holds_lease() {
            return false;
        }
        if let Some(ends) = node.lease_ends() {
            self.expiries.remove(&(ends, name.clone()));
        }
        self.by_name.remove(name);
        true
    }

    /// Returns the end of the lease that ends next.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.expiries.first().map(|(until, _)| *until)
    }

    /// Ends the leases that end by `now`. Returns the nodes, each with true if an agent held its lease.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<(NodeName, bool)> {
        let mut expired = Vec::new();
        while let Some((until, name)) = self.expiries.first().cloned()
            && until <= now
        {
            self.expiries.pop_first();
            if let Some(node) = self.by_name.get_mut(&name) {
                expired.push((name, node.holds_lease()));
                node.lease = Lease::Lost;
            }
        }
        expired
    }

    /// Notes which models had replicas on a node that is lost.
    pub(crate) fn set_lost_models(&mut self, name: &NodeName, models: BTreeSet<ModelName>) {
        if let Some(node) = self.by_name.get_mut(name) {
            node.lost_models = models;
        }
    }

    /// Extends the leases that end before `until` to that time, because the gateway could not take renewals.
    pub(crate) fn extend_leases(&mut self, until: Time) {
        let ended: Vec<(Time, NodeName)> = self
            .expiries
            .iter()
            .take_while(|(ends, _)| *ends < until)
            .cloned()
            .collect();
        for entry in ended {
            self.expiries.remove(&entry);
            let name = entry.1;
            if let Some(node) = self.by_name.get_mut(&name) {
                match &mut node.lease {
                    Lease::Awaited { until: ends } | Lease::Held { until: ends, .. } => {
                        *ends = until;
                    }
                    Lease::Lost => {}
                }
            }
            self.expiries.insert((until, name));
        }
    }

    /// Returns the number of nodes whose agents hold their leases.
    pub(crate) fn count_held(&self) -> usize {
        self.by_name
            .values()
            .filter(|node| node.holds_lease())
            .count()
    }
}

/// Returns the replicas whose statuses differ between two reports.
fn differing(
    before: &BTreeMap<ReplicaId, ReplicaStatus>,
    after: &BTreeMap<ReplicaId, ReplicaStatus>,
) -> BTreeSet<ReplicaId> {
    if before == after {
        return BTreeSet::new();
    }
    let all = before.keys().chain(after.keys()).copied();
    all.filter(|id| before.get(id) != after.get(id)).collect()
}

/// Checks the fields of a claim to a lease.
fn check_claim(name: &NodeName, claim: &LeaseClaim) -> Result<(), CommandError> {
    let invalid = |field, problem: String| Err(CommandError::InvalidField { field, problem });
    if claim.instance.is_empty() || claim.instance.len() > MAX_ID_BYTES {
        return invalid("instance", format!("expected 1 to {MAX_ID_BYTES} bytes"));
    }
    if claim.agent_version.len() > MAX_ID_BYTES {
        let problem = format!("expected at most {MAX_ID_BYTES} bytes");
        return invalid("agent_version", problem);
    }
    if claim.devices.len() > MAX_DEVICES {
        let count = claim.devices.len();
        let problem = format!("at most {MAX_DEVICES} devices are allowed, got {count}");
        return invalid("devices", problem);
    }
    if claim
        .libtorch
        .as_ref()
        .is_some_and(|version| version.len() > MAX_ID_BYTES)
    {
        let problem = format!("expected at most {MAX_ID_BYTES} bytes");
        return invalid("libtorch", problem);
    }
    let mut names = BTreeSet::new();
    for device in &claim.devices {
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
