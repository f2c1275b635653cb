//! A device of `clockwork`: its batches, and the weights of models in its memory.

use std::collections::BTreeMap;

use packhorse_cluster::Time;

use super::device_clock::DeviceClock;

/// A device of `clockwork`.
#[derive(Debug)]
pub(super) struct ClockworkDevice {
    pub(super) clock: DeviceClock,
    /// The models whose weights are there or on their way.
    pub(super) weights: BTreeMap<usize, Weights>,
    /// The memory without weights, in bytes.
    pub(super) free_bytes: u64,
    /// The bytes per second from the host.
    pub(super) host_link: f64,
    /// The time at which the link to the host should be done.
    pub(super) link_free: Time,
    pub(super) loads: usize,
    /// The time at which to look at the device again; `None` if an event must come first.
    pub(super) look: Option<Time>,
}

/// The weights of a model on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) bytes: u64,
    /// False while they are on their way.
    pub(super) loaded: bool,
    /// The time of the last batch, or of the load.
    pub(super) used: Time,
    /// The batches that the device holds.
    pub(super) batches: u32,
}

impl ClockworkDevice {
    /// Returns the models whose weights make room for some bytes, those first that were not used for the longest time; `None` if there
    /// is not so much. Weights that are on their way, or of a batch that the device holds, stay.
    pub(super) fn room_for(&self, bytes: u64) -> Option<Vec<usize>> {
        let mut free = self.free_bytes;
        let idle = self.weights.iter();
        let idle = idle.filter(|(_, weights)| weights.loaded && weights.batches == 0);
        let mut idle: Vec<(Time, usize, u64)> = idle
            .map(|(model, weights)| (weights.used, *model, weights.bytes))
            .collect();
        if free < bytes {
            idle.sort_unstable();
        }
        let mut evicted = Vec::new();
        for (_, model, freed) in idle {
            if free >= bytes {
                break;
            }
            free += freed;
            evicted.push(model);
        }
        (free >= bytes).then_some(evicted)
    }
}
