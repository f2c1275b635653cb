//! Devices in parts, and who is on them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ByteCount, ModelIndex, Problem};

use super::{PARTITIONS, ROUNDING, WHOLE, curve::Demand};

/// A model on a gpulet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) model: ModelIndex,
    /// Of the device, in percent; [`WHOLE`] for those that take turns.
    pub(super) percent: u8,
    pub(super) demand: Demand,
    pub(super) memory: ByteCount,
}

/// A device with its gpulets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Device {
    pub(super) class: usize,
    memory: ByteCount,
    pub(super) members: Vec<Member>,
    /// The part that nobody has, in percent.
    free: u8,
    /// Whether all of it is shared in time.
    pub(super) turns: bool,
    /// What its members receive, in bytes per second.
    received: f64,
}

/// What a gpulet needs of a device.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub(super) memory: ByteCount,
    /// In bytes per second.
    pub(super) received: f64,
}

/// All devices, by index, with what is free of them, and a memory of what they were before a model was placed.
pub(super) struct Devices {
    all: Vec<Device>,
    /// By class and free part.
    free: BTreeMap<(usize, u8), BTreeSet<usize>>,
    /// Bytes per second that a device's link brings.
    link: f64,
    changed: Vec<(usize, Device)>,
}

impl Devices {
    pub(super) fn new(problem: &Problem, class_of: &[usize]) -> Self {
        let device = |(device, class): (&packhorse_cluster::Device, &usize)| Device {
            class: *class,
            memory: device.memory,
            members: Vec::new(),
            free: WHOLE,
            turns: false,
            received: 0.0,
        };
        let mut devices = Self {
            all: problem.devices.iter().zip(class_of).map(device).collect(),
            free: BTreeMap::new(),
            link: problem.network.bytes_per_second,
            changed: Vec::new(),
        };
        (0..devices.all.len()).for_each(|number| devices.index(number));
        devices
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.all.iter().enumerate()
    }

    pub(super) fn at(&self, number: usize) -> &Device {
        &self.all[number]
    }

    fn index(&mut self, number: usize) {
        let Device { class, free, .. } = self.all[number];
        if free > 0 {
            self.free.entry((class, free)).or_default().insert(number);
        }
    }

    fn unindex(&mut self, number: usize) {
        let Device { class, free, .. } = self.all[number];
        if let Some(numbers) = self.free.get_mut(&(class, free)) {
            numbers.remove(&number);
        }
    }

    /// Replaces a device, and remembers what it was.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Device)) {
        self.unindex(number);
        self.changed.push((number, self.all[number].clone()));
        change(&mut self.all[number]);
        self.index(number);
    }

    /// From here on changes may be taken back.
    pub(super) fn begin(&mut self) {
        self.changed.clear();
    }

    /// Takes back all changes since [`Devices::begin`]; returns what the devices had become, for [`Devices::restore`].
    pub(super) fn take_back(&mut self) -> Vec<(usize, Device)> {
        let mut undone = Vec::new();
        while let Some((number, before)) = self.changed.pop() {
            self.unindex(number);
            undone.push((number, std::mem::replace(&mut self.all[number], before)));
            self.index(number);
        }
        undone
    }

    pub(super) fn restore(&mut self, mut undone: Vec<(usize, Device)>) {
        while let Some((number, device)) = undone.pop() {
            self.change(number, |there| *there = device);
        }
    }

    /// Where a gpulet of a size goes, and what part of the device it gets: an exact fit, else an untouched device, else the smallest
    /// free part that is larger.
    pub(super) fn best_fit(&self, class: usize, percent: u8, needs: Needs) -> Option<(usize, u8)> {
        let exact = self.first(class, percent, needs);
        let part = |free: u8| if free == WHOLE { percent } else { free };
        if let Some(number) = exact {
            return Some((number, percent));
        }
        if let Some(number) = self.first(class, WHOLE, needs) {
            return Some((number, part(WHOLE)));
        }
        let larger = PARTITIONS
            .into_iter()
            .filter(|free| *free > percent && *free < WHOLE);
        let mut found = larger.filter_map(|free| Some((self.first(class, free, needs)?, free)));
        found.next()
    }

    /// The first device with such a free part that has what is needed.
    fn first(&self, class: usize, free: u8, needs: Needs) -> Option<usize> {
        let numbers = self.free.get(&(class, free))?;
        numbers
            .iter()
            .copied()
            .find(|&number| self.has(number, needs))
    }

    fn has(&self, number: usize, needs: Needs) -> bool {
        let device = &self.all[number];
        let used: ByteCount = device.members.iter().map(|member| member.memory).sum();
        used.saturating_add(needs.memory) <= device.memory
            && device.received + needs.received <= self.link * (1.0 + ROUNDING)
    }

    /// The largest free part of a class that has what is needed, by [`PARTITIONS`].
    pub(super) fn largest_free(
        &self,
        class: usize,
        needs: impl Fn(usize) -> Option<Needs>,
    ) -> Option<(usize, usize)> {
        let sizes = (0..PARTITIONS.len()).rev();
        let mut found = sizes
            .filter_map(|size| Some((self.first(class, PARTITIONS[size], needs(size)?)?, size)));
        found.next()
    }

    /// Gives a model a part of a device that has it free.
    pub(super) fn put(&mut self, number: usize, member: Member, received: f64) {
        self.change(number, |device| {
            // At most two on a device: what is left beside a second one stays empty.
            device.free = if device.members.is_empty() {
                WHOLE - member.percent
            } else {
                0
            };
            device.received += received;
            device.members.push(member);
        });
    }

    /// Has a model that has a gpulet of its own there carry more.
    pub(super) fn grow(&mut self, number: usize, place: usize, demand: Demand, needs: Needs) {
        self.change(number, |device| {
            device.received += needs.received;
            device.members[place].demand = demand;
            device.members[place].memory = needs.memory;
        });
    }

    /// Whether a member's gpulet may change to this.
    pub(super) fn may_grow(&self, number: usize, place: usize, needs: Needs) -> bool {
        let device = &self.all[number];
        let others = device.members.iter().enumerate();
        let used: ByteCount = others
            .filter(|(other, _)| *other != place)
            .map(|(_, member)| member.memory)
            .sum();
        used.saturating_add(needs.memory) <= device.memory
            && device.received + needs.received <= self.link * (1.0 + ROUNDING)
    }

    /// Whether a device that takes turns has what these members need together, and its link the bytes of one more.
    pub(super) fn holds(&self, number: usize, members: &[Member], received: f64) -> bool {
        let device = &self.all[number];
        let used: ByteCount = members.iter().map(|member| member.memory).sum();
        used <= device.memory && device.received + received <= self.link * (1.0 + ROUNDING)
    }

    /// Makes a device one gpulet whose members take turns.
    pub(super) fn share_in_time(&mut self, number: usize, members: Vec<Member>, received: f64) {
        self.change(number, |device| {
            device.members = members;
            device.received += received;
            device.free = 0;
            device.turns = true;
        });
    }
}
