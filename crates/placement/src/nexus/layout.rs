//! Nodes become devices: models stay where they are.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{DeviceIndex, ModelIndex, Problem};

/// A device for each node, all of one class and no more than it has. `nodes` are the models of each. The node with the most
/// models in place chooses first, then by number, each the device with the lowest index; nodes with none take what is left.
pub(super) fn lay_out(
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
    let mut in_place = Vec::new();
    for (node, models) in nodes.iter().enumerate() {
        let mut overlap: BTreeMap<DeviceIndex, usize> = BTreeMap::new();
        for device in models.iter().filter_map(|model| hosts.get(model)).flatten() {
            *overlap.entry(*device).or_default() += 1;
        }
        in_place.extend(
            overlap
                .into_iter()
                .map(|(device, count)| (count, node, device)),
        );
    }
    in_place.sort_by_key(|&(count, node, device)| (std::cmp::Reverse(count), node, device));
    let mut free: BTreeSet<DeviceIndex> = devices.iter().copied().collect();
    let mut chosen: Vec<Option<DeviceIndex>> = vec![None; nodes.len()];
    for (_, node, device) in in_place {
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
