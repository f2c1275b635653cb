//! The assignment of nodes to devices such that models stay on their devices.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{DeviceIndex, ModelIndex, Problem};

/// Assigns a device of a class to each node. `nodes` contains the models of each node; there are at most as many nodes as devices. The
/// pair of a node and a device on which the most of the node's models run comes first, then the pair with the lower indices. Nodes
/// without such a device get the remaining ones.
pub(super) fn assign_devices(
    problem: &Problem,
    devices: &[DeviceIndex],
    nodes: &[Vec<ModelIndex>],
) -> Vec<DeviceIndex> {
    let mut hosts: BTreeMap<ModelIndex, BTreeSet<DeviceIndex>> = BTreeMap::new();
    for replica in &problem.current {
        if devices.binary_search(&replica.device).is_ok() {
            hosts
                .entry(replica.model)
                .or_default()
                .insert(replica.device);
        }
    }
    let mut pairs = Vec::new();
    for (node, models) in nodes.iter().enumerate() {
        let mut overlap: BTreeMap<DeviceIndex, usize> = BTreeMap::new();
        for device in models.iter().filter_map(|model| hosts.get(model)).flatten() {
            *overlap.entry(*device).or_default() += 1;
        }
        pairs.extend(
            overlap
                .into_iter()
                .map(|(device, count)| (count, node, device)),
        );
    }
    pairs.sort_by_key(|&(count, node, device)| (std::cmp::Reverse(count), node, device));
    let mut free: BTreeSet<DeviceIndex> = devices.iter().copied().collect();
    let mut chosen: Vec<Option<DeviceIndex>> = vec![None; nodes.len()];
    for (_, node, device) in pairs {
        if chosen[node].is_none() && free.remove(&device) {
            chosen[node] = Some(device);
        }
    }
    chosen
        .into_iter()
        .map(|device| {
            device.unwrap_or_else(|| free.pop_first().expect("there is a device for every node"))
        })
        .collect()
}
