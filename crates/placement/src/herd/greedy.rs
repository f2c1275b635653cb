//! Groups by a heuristic that takes almost no time.
//!
//! Streams in descending order of load join the first group of their affinity set that has the memory, or open a group while there are
//! devices. Every group gets one device, and each further device goes to the group with the smallest burst tolerance. Where all groups are as
//! large as allowed, the one with the smallest tolerance is split in two.

use packhorse_cluster::ByteCount;

use super::{Cluster, Group, LARGEST_GROUP};

/// Returns the groups, with at most the devices of each class.
pub(super) fn groups(cluster: &Cluster<'_>) -> Vec<Group> {
    let mut order: Vec<usize> = (0..cluster.streams.len()).collect();
    order.sort_by(|&a, &b| largest_load(cluster, b).total_cmp(&largest_load(cluster, a)));
    let mut free: Vec<usize> = cluster
        .classes
        .iter()
        .map(|class| class.devices.len())
        .collect();
    let mut groups: Vec<Group> = Vec::new();
    for stream in order {
        if let Some(group) = groups
            .iter_mut()
            .find(|group| accepts(cluster, group, stream))
        {
            group.streams.push(stream);
        } else if let Some(class) = class_with_most_devices(cluster, &free, stream) {
            free[class] -= 1;
            groups.push(Group {
                class,
                streams: vec![stream],
                size: 1,
            });
        }
    }
    for (class, left) in free.into_iter().enumerate() {
        for _ in 0..left {
            add_device(cluster, &mut groups, class);
        }
    }
    for group in &mut groups {
        group.streams.sort_unstable();
    }
    groups
}

fn largest_load(cluster: &Cluster<'_>, stream: usize) -> f64 {
    let on_class = cluster.streams[stream].on_class.iter().flatten();
    on_class.map(|on_class| on_class.load).fold(0.0, f64::max)
}

/// Returns true if the stream is of the group's affinity set and the group's devices have the memory for it.
fn accepts(cluster: &Cluster<'_>, group: &Group, stream: usize) -> bool {
    let candidate = &cluster.streams[stream];
    let same_set = group
        .streams
        .iter()
        .all(|&member| cluster.streams[member].set == candidate.set);
    let memory = |stream: usize| {
        let on_class = cluster.streams[stream].on_class[group.class]?;
        Some(on_class.memory)
    };
    let Some(needed) = memory(stream).filter(|_| same_set) else {
        return false;
    };
    let used: ByteCount = group
        .streams
        .iter()
        .filter_map(|&member| memory(member))
        .sum();
    used.saturating_add(needed) <= cluster.classes[group.class].memory
}

/// Returns the class with the most free devices on which the stream can run; the first of equals.
fn class_with_most_devices(cluster: &Cluster<'_>, free: &[usize], stream: usize) -> Option<usize> {
    let runs = |class: &usize| cluster.streams[stream].on_class[*class].is_some();
    let possible = (0..free.len())
        .filter(runs)
        .filter(|class| free[*class] > 0);
    possible.min_by_key(|class| std::cmp::Reverse(free[*class]))
}

/// Adds a device of a class to the group that needs it most, or to a part of a group that is split for it.
fn add_device(cluster: &Cluster<'_>, groups: &mut Vec<Group>, class: usize) {
    let of_class = groups.iter_mut().filter(|group| group.class == class);
    let tightest = of_class.min_by(|a, b| {
        let is_full = |group: &Group| group.size >= LARGEST_GROUP && group.streams.len() < 2;
        let tolerances = cluster.tolerance(a).total_cmp(&cluster.tolerance(b));
        is_full(a).cmp(&is_full(b)).then(tolerances)
    });
    let Some(group) = tightest else {
        return;
    };
    if group.size < LARGEST_GROUP {
        group.size += 1;
    } else if group.streams.len() >= 2 {
        // The loads of the two halves are similar: streams stand in descending order of load.
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (i, &stream) in group.streams.iter().enumerate() {
            let half = if i % 4 == 0 || i % 4 == 3 {
                &mut first
            } else {
                &mut second
            };
            half.push(stream);
        }
        group.streams = first;
        groups.push(Group {
            class,
            streams: second,
            size: 1,
        });
    }
}
