//! Devices that are alike.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, Device, DeviceIndex, DeviceKind, Problem};

/// Devices of one kind, memory and price: whatever holds for one holds for all.
#[derive(Debug)]
pub(crate) struct Class<'a> {
    pub(crate) kind: &'a DeviceKind,
    pub(crate) memory: ByteCount,
    /// Per hour; 1 unless every device has one.
    pub(crate) cost: f64,
    /// By index.
    pub(crate) devices: Vec<DeviceIndex>,
}

/// The classes in the order of their first devices.
pub(crate) fn classes(problem: &Problem) -> Vec<Class<'_>> {
    let cost = |device: &Device| device.cost_per_hour.filter(|cost| *cost > 0.0);
    let priced = problem.devices.iter().all(|device| cost(device).is_some());
    let mut numbers = BTreeMap::new();
    let mut classes: Vec<Class<'_>> = Vec::new();
    for (index, device) in problem.devices() {
        let cost = cost(device).filter(|_| priced).unwrap_or(1.0);
        let number = *numbers
            .entry((&device.kind, device.memory, cost.to_bits()))
            .or_insert(classes.len());
        if number == classes.len() {
            classes.push(Class {
                kind: &device.kind,
                memory: device.memory,
                cost,
                devices: Vec::new(),
            });
        }
        classes[number].devices.push(index);
    }
    classes
}
