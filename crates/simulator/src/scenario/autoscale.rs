//! The devices that an autoscaler adds to those of a scenario.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{Device, DeviceKind, IdError, NodeName};

use packhorse_scenario::{AutoscaleEntry, DeviceGroup};

use super::values::{MAX_DEVICES, S, ScenarioError, duration, field_error};

/// The devices that an autoscaler adds and removes, each with its node. A run begins with those of the scenario's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscale {
    /// The kind of the devices.
    pub kind: DeviceKind,
    /// The smallest number of devices of the kind.
    pub min: usize,
    /// The largest number of devices of the kind.
    pub max: usize,
    /// The time from when a node is asked for until its agent joins.
    pub node_start: Duration,
    /// The number of devices of all kinds at the start of the run. The problem's devices from this number on are added later.
    pub devices_at_start: usize,
}

/// Reads the section, and appends the devices that may be added to those of the groups.
pub(super) fn parse_autoscale(
    entry: &AutoscaleEntry,
    groups: &[DeviceGroup],
    devices: &mut Vec<Device>,
) -> Result<Autoscale, ScenarioError> {
    let kind: DeviceKind = entry
        .kind
        .parse()
        .or_else(|e: IdError| field_error("autoscale.kind", e.to_string()))?;
    let of_kind = groups.iter().enumerate();
    let of_kind = of_kind.filter(|(_, group)| group.kind == entry.kind);
    let [(number, group)] = of_kind.collect::<Vec<_>>()[..] else {
        let problem = format!("expected the kind of exactly one group of devices, not {kind}");
        return field_error("autoscale.kind", problem);
    };
    if entry.min == 0 {
        return field_error("autoscale.min", "expected at least 1");
    }
    let others = devices.len() - group.count;
    let most = MAX_DEVICES - others;
    if !(entry.min..=most).contains(&entry.max) {
        let problem = format!("expected {} (min) to {most}, not {}", entry.min, entry.max);
        return field_error("autoscale.max", problem);
    }
    if !(entry.min..=entry.max).contains(&group.count) {
        let problem = format!(
            "expected {} to {} devices (autoscale.min to max), not {}",
            entry.min, entry.max, group.count
        );
        return field_error(format!("devices[{number}].count"), problem);
    }
    if group.count > 1 && group.gpus_per_node != Some(1) {
        let problem = "expected 1, because [autoscale] adds and removes nodes of one device";
        return field_error(format!("devices[{number}].gpus_per_node"), problem);
    }
    let devices_at_start = devices.len();
    let first = devices.iter().find(|device| device.kind == kind);
    let first = first.expect("a group has at least one device").clone();
    let nodes: BTreeSet<&NodeName> = devices.iter().map(|device| &device.node).collect();
    let nodes = nodes.len();
    for number in 0..entry.max - group.count {
        let node = format!("node{}", nodes + number);
        devices.push(Device {
            node: node.parse().expect("a letter and digits are a name"),
            ..first.clone()
        });
    }
    Ok(Autoscale {
        kind,
        min: entry.min,
        max: entry.max,
        node_start: duration("autoscale.start_s", entry.start_s, S)?,
        devices_at_start,
    })
}
