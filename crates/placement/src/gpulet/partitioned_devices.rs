//! The devices with their partitions and the models on them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ByteCount, Device, ModelIndex, Problem};

use super::{
    partition_sizes::{SIZES, WHOLE},
    throughput_curve::BatchSchedule,
};
use crate::tolerance::ROUNDING;

/// A model on a gpulet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) model: ModelIndex,
    /// The size of the gpulet in percent of the device; [`WHOLE`] on a time-shared device.
    pub(super) percent: u8,
    /// The batches of the model.
    pub(super) schedule: BatchSchedule,
    /// The memory of the replica.
    pub(super) memory: ByteCount,
}

/// A device with its gpulets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PartitionedDevice {
    /// The class of the device.
    pub(super) class: usize,
    memory: ByteCount,
    /// The models on the device, in the order in which they were placed.
    pub(super) members: Vec<Member>,
    /// The free part, in percent.
    free: u8,
    /// True if the whole device is shared in time.
    pub(super) time_shared: bool,
    /// The bytes per second that the members receive.
    used_bandwidth: f64,
}

/// The resources that a gpulet requires of a device beside its partition.
#[derive(Clone, Copy)]
pub(super) struct RequiredResources {
    /// The memory of the replica.
    pub(super) memory: ByteCount,
    /// The bandwidth of the link, in bytes per second.
    pub(super) bandwidth: f64,
}

/// All devices, with a log of changes that can be undone.
pub(super) struct PartitionedDevices {
    /// The devices by index.
    all: Vec<PartitionedDevice>,
    /// The indices of the devices with a free part, by class and size of the part.
    free: BTreeMap<(usize, u8), BTreeSet<usize>>,
    /// The bandwidth of a device's link, in bytes per second.
    link: f64,
    /// The changed devices as they were before each change.
    changed: Vec<(usize, PartitionedDevice)>,
}

impl PartitionedDevices {
    pub(super) fn new(problem: &Problem, class_of: &[usize]) -> Self {
        let device = |(device, class): (&Device, &usize)| PartitionedDevice {
            class: *class,
            memory: device.memory,
            members: Vec::new(),
            free: WHOLE,
            time_shared: false,
            used_bandwidth: 0.0,
        };
        let mut devices = Self {
            all: problem.devices.iter().zip(class_of).map(device).collect(),
            free: BTreeMap::new(),
            link: problem.network.bytes_per_second,
            changed: Vec::new(),
        };
        (0..devices.all.len()).for_each(|number| devices.add_to_index(number));
        devices
    }

    /// Returns the devices with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &PartitionedDevice)> {
        self.all.iter().enumerate()
    }

    /// Returns the device with an index.
    pub(super) fn get(&self, number: usize) -> &PartitionedDevice {
        &self.all[number]
    }

    fn add_to_index(&mut self, number: usize) {
        let PartitionedDevice { class, free, .. } = self.all[number];
        if free > 0 {
            self.free.entry((class, free)).or_default().insert(number);
        }
    }

    fn remove_from_index(&mut self, number: usize) {
        let PartitionedDevice { class, free, .. } = self.all[number];
        if let Some(numbers) = self.free.get_mut(&(class, free)) {
            numbers.remove(&number);
        }
    }

    /// Changes a device and logs its former state.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut PartitionedDevice)) {
        self.remove_from_index(number);
        self.changed.push((number, self.all[number].clone()));
        change(&mut self.all[number]);
        self.add_to_index(number);
    }

    /// Clears the log: only later changes can be undone.
    pub(super) fn begin_changes(&mut self) {
        self.changed.clear();
    }

    /// Undoes all changes since [`Self::begin_changes`], and returns them for [`Self::redo_changes`].
    pub(super) fn undo_changes(&mut self) -> Vec<(usize, PartitionedDevice)> {
        let mut undone = Vec::new();
        while let Some((number, before)) = self.changed.pop() {
            self.remove_from_index(number);
            undone.push((number, std::mem::replace(&mut self.all[number], before)));
            self.add_to_index(number);
        }
        undone
    }

    /// Repeats changes that were undone.
    pub(super) fn redo_changes(&mut self, mut undone: Vec<(usize, PartitionedDevice)>) {
        while let Some((number, device)) = undone.pop() {
            self.change(number, |current| *current = device);
        }
    }

    /// Returns the device for a gpulet of a size, and the part of the device that the gpulet gets: a free part of exactly the size, else
    /// a part of an unused device, else the smallest larger free part.
    pub(super) fn best_fit(
        &self,
        class: usize,
        percent: u8,
        required: RequiredResources,
    ) -> Option<(usize, u8)> {
        let exact = self.first_with_free(class, percent, required);
        let exact_or_unused = exact.or_else(|| self.first_with_free(class, WHOLE, required));
        if let Some(number) = exact_or_unused {
            return Some((number, percent));
        }
        let mut larger = SIZES
            .into_iter()
            .filter(|free| *free > percent && *free < WHOLE);
        larger.find_map(|free| Some((self.first_with_free(class, free, required)?, free)))
    }

    /// Returns the first device with a free part of a size and the required resources.
    fn first_with_free(
        &self,
        class: usize,
        free: u8,
        required: RequiredResources,
    ) -> Option<usize> {
        let numbers = self.free.get(&(class, free))?;
        numbers
            .iter()
            .copied()
            .find(|&number| self.has_left(number, None, required))
    }

    /// Returns true if a device has the required resources left, where `replaced` is the index of a member whose memory is given up.
    fn has_left(
        &self,
        number: usize,
        replaced: Option<usize>,
        required: RequiredResources,
    ) -> bool {
        let device = &self.all[number];
        let members = device.members.iter().enumerate();
        let used: ByteCount = members
            .filter(|(index, _)| Some(*index) != replaced)
            .map(|(_, member)| member.memory)
            .sum();
        used.saturating_add(required.memory) <= device.memory
            && self.link_carries(device, required.bandwidth)
    }

    fn link_carries(&self, device: &PartitionedDevice, more: f64) -> bool {
        device.used_bandwidth + more <= self.link * (1.0 + ROUNDING)
    }

    /// Returns the device with the largest free part that has the resources required for its size, and the index of the size.
    pub(super) fn largest_free_part(
        &self,
        class: usize,
        required: impl Fn(usize) -> Option<RequiredResources>,
    ) -> Option<(usize, usize)> {
        let mut sizes = (0..SIZES.len()).rev();
        sizes.find_map(|size| {
            let number = self.first_with_free(class, SIZES[size], required(size)?)?;
            Some((number, size))
        })
    }

    /// Adds a gpulet to a device with a free part.
    pub(super) fn add_gpulet(&mut self, number: usize, member: Member, bandwidth: f64) {
        self.change(number, |device| {
            // A device has at most two gpulets: what a second one leaves stays unused.
            device.free = if device.members.is_empty() {
                WHOLE - member.percent
            } else {
                0
            };
            device.used_bandwidth += bandwidth;
            device.members.push(member);
        });
    }

    /// Changes the schedule of a member. `required` contains the new memory and the additional bandwidth.
    pub(super) fn grow(
        &mut self,
        number: usize,
        index: usize,
        schedule: BatchSchedule,
        required: RequiredResources,
    ) {
        self.change(number, |device| {
            device.used_bandwidth += required.bandwidth;
            device.members[index].schedule = schedule;
            device.members[index].memory = required.memory;
        });
    }

    /// Returns true if a device has the resources for [`Self::grow`].
    pub(super) fn can_grow(
        &self,
        number: usize,
        index: usize,
        required: RequiredResources,
    ) -> bool {
        self.has_left(number, Some(index), required)
    }

    /// Returns true if a device has the resources for [`Self::share_in_time`].
    pub(super) fn can_share_in_time(
        &self,
        number: usize,
        members: &[Member],
        bandwidth: f64,
    ) -> bool {
        let device = &self.all[number];
        let used: ByteCount = members.iter().map(|member| member.memory).sum();
        used <= device.memory && self.link_carries(device, bandwidth)
    }

    /// Shares a device in time among new members, which receive `bandwidth` more bytes per second than the former ones.
    pub(super) fn share_in_time(&mut self, number: usize, members: Vec<Member>, bandwidth: f64) {
        self.change(number, |device| {
            device.members = members;
            device.used_bandwidth += bandwidth;
            device.free = 0;
            device.time_shared = true;
        });
    }
}
