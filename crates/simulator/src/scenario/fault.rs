//! The faults of a scenario: what breaks, and what admins do.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{Device, DeviceIndex, ModelIndex, NodeName, Time};

use packhorse_scenario::{FaultEntry, FaultKindEntry};

use super::values::{MS, S, ScenarioError, duration, field_error, positive};

/// A fault that lasts for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// The time at which the fault begins.
    pub at: Time,
    /// The time from its begin to its end.
    pub duration: Duration,
    /// The kind of the fault.
    pub kind: FaultKind,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The workers of a device die, as do those that are started there until the fault ends, and their connections break at once. Without agents,
    /// in a run that keeps its plan, they are back when the fault ends.
    WorkerDies(DeviceIndex),
    /// Batches on a device take this many times as long.
    SlowWorker(DeviceIndex, f64),
    /// Every message between gateway and workers takes this much longer.
    NetworkDelay(Duration),
    /// The network of a node, counted from 0 in the scenario's order, is cut. The gateway notices at the end of the lease, or when a connection has
    /// acknowledged nothing for as long.
    NodeLost(usize),
    /// The agent of a node, counted likewise, dies, and another one is there when the fault ends. Workers go on without it.
    AgentDies(usize),
    /// The gateway dies, and another one starts when the fault ends, with what is stored. Clients send what was not answered again until the deadline.
    GatewayDies,
    /// A node, counted likewise, is drained, and opened again when the fault ends.
    NodeDrained(usize),
    /// A model is registered. Its clients begin once a replica of it serves.
    ModelAdded(ModelIndex),
    /// The clients of a model end; when the fault ends, the model is removed.
    ModelRemoved(ModelIndex),
}

impl FaultKind {
    /// Returns true if an admin does it, which has an effect only in a run with a control plane.
    pub(crate) fn is_admins(self) -> bool {
        matches!(
            self,
            Self::NodeDrained(_) | Self::ModelAdded(_) | Self::ModelRemoved(_)
        )
    }
}

/// Reads a fault. `models` has the name in the file and the SLO of each model.
pub(super) fn parse_fault(
    i: usize,
    entry: &FaultEntry,
    devices: &[Device],
    models: &[(&str, Duration)],
) -> Result<Fault, ScenarioError> {
    use FaultKindEntry as Kind;
    let at = |key: &str| format!("simulation.faults[{i}].{key}");
    let check_key = |key: &str, given: bool, required: bool| match (given, required) {
        (true, false) => field_error(at(key), "not a key of this kind of fault"),
        (false, true) => field_error(at(key), "required for this kind of fault"),
        _ => Ok(()),
    };
    let kind = entry.kind;
    let on_device = matches!(kind, Kind::WorkerDies | Kind::SlowWorker);
    let on_node = matches!(kind, Kind::NodeLost | Kind::AgentDies | Kind::NodeDrained);
    let on_model = matches!(kind, Kind::ModelAdded | Kind::ModelRemoved);
    check_key("device", entry.device.is_some(), on_device)?;
    check_key("node", entry.node.is_some(), on_node)?;
    check_key("model", entry.model.is_some(), on_model)?;
    check_key("factor", entry.factor.is_some(), kind == Kind::SlowWorker)?;
    let delays = kind == Kind::NetworkDelay;
    check_key("delay_ms", entry.delay_ms.is_some(), delays)?;
    check_key("for_s", entry.for_s.is_some(), !on_model)?;
    let device = || {
        let device = DeviceIndex(entry.device.unwrap_or_default());
        if device.0 < devices.len() {
            return Ok(device);
        }
        field_error(
            at("device"),
            format!("expected below {}, the number of devices", devices.len()),
        )
    };
    let node = || {
        let node = entry.node.unwrap_or_default();
        let nodes: BTreeSet<&NodeName> = devices.iter().map(|device| &device.node).collect();
        if node < nodes.len() {
            return Ok(node);
        }
        field_error(
            at("node"),
            format!("expected below {}, the number of nodes", nodes.len()),
        )
    };
    let model = || {
        let name = entry.model.as_deref().unwrap_or_default();
        match models.iter().position(|(known, _)| *known == name) {
            Some(model) => Ok(ModelIndex(model)),
            None => field_error(at("model"), format!("no model is named {name:?}")),
        }
    };
    let mut lasts = duration(at("for_s"), entry.for_s.unwrap_or_default(), S)?;
    let kind = match kind {
        Kind::WorkerDies => FaultKind::WorkerDies(device()?),
        Kind::SlowWorker => {
            let factor = entry.factor.unwrap_or_default();
            FaultKind::SlowWorker(device()?, positive(at("factor"), factor, 1e3)?)
        }
        Kind::NetworkDelay => {
            let delay = entry.delay_ms.unwrap_or_default();
            FaultKind::NetworkDelay(duration(at("delay_ms"), delay, MS)?)
        }
        Kind::NodeLost => FaultKind::NodeLost(node()?),
        Kind::AgentDies => FaultKind::AgentDies(node()?),
        Kind::GatewayDies => FaultKind::GatewayDies,
        Kind::NodeDrained => FaultKind::NodeDrained(node()?),
        Kind::ModelAdded => FaultKind::ModelAdded(model()?),
        Kind::ModelRemoved => {
            let model = model()?;
            // Its last requests end within the SLO.
            lasts = models[model.0].1;
            FaultKind::ModelRemoved(model)
        }
    };
    Ok(Fault {
        at: Time::ZERO + duration(at("at_s"), entry.at_s, S)?,
        duration: lasts,
        kind,
    })
}

/// Checks that the models that are added during the run are the last of a scenario's `models`, and not all of them.
pub(super) fn check_added_models(faults: &[Fault], models: usize) -> Result<(), ScenarioError> {
    let is_added = |model: usize| {
        let added = FaultKind::ModelAdded(ModelIndex(model));
        faults.iter().any(|fault| fault.kind == added)
    };
    let present = (0..models).take_while(|&model| !is_added(model)).count();
    let late = (present..models).all(is_added);
    if (present > 0 || models == 0) && late {
        return Ok(());
    }
    field_error(
        "simulation.faults",
        "models that are added during the run must be the last ones of the scenario, behind at least one other",
    )
}
