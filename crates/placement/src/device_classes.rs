//! Classes of equal devices.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, Device, DeviceIndex, DeviceKind, Problem, Profile};

/// A class of devices of the same kind, memory and cost, which are interchangeable for a plan.
#[derive(Debug)]
pub(crate) struct DeviceClass<'a> {
    /// The kind of the devices.
    pub(crate) kind: &'a DeviceKind,
    /// The memory of one device.
    pub(crate) memory: ByteCount,
    /// The cost of one device per hour; 1 unless every device of the problem has a cost above 0.
    pub(crate) cost: f64,
    /// The devices, in ascending order.
    pub(crate) devices: Vec<DeviceIndex>,
}

impl DeviceClass<'_> {
    /// Returns the memory that a replica needs: all of a device if it was not measured.
    pub(crate) fn replica_memory(&self, profile: &Profile, batch_size: u32) -> ByteCount {
        profile.memory(batch_size).unwrap_or(self.memory)
    }
}

/// Returns the classes of the devices, ordered by their first device.
pub(crate) fn device_classes(problem: &Problem) -> Vec<DeviceClass<'_>> {
    let cost = |device: &Device| device.cost_per_hour.filter(|cost| *cost > 0.0);
    let priced = problem.devices.iter().all(|device| cost(device).is_some());
    let mut numbers = BTreeMap::new();
    let mut classes: Vec<DeviceClass<'_>> = Vec::new();
    for (index, device) in problem.devices() {
        let cost = cost(device).filter(|_| priced).unwrap_or(1.0);
        let number = *numbers
            .entry((&device.kind, device.memory, cost.to_bits()))
            .or_insert(classes.len());
        if number == classes.len() {
            classes.push(DeviceClass {
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

/// Returns the index of each device's class.
pub(crate) fn class_of_each_device(classes: &[DeviceClass<'_>]) -> Vec<usize> {
    let devices = classes.iter().map(|class| class.devices.len()).sum();
    let mut class_of = vec![0; devices];
    for (number, class) in classes.iter().enumerate() {
        for device in &class.devices {
            class_of[device.0] = number;
        }
    }
    class_of
}
