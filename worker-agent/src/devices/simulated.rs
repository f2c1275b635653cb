//! Simulated devices, whose workers take their times from profiles.

use packhorse_cluster::{ByteCount, DeviceKind, known_kind};

use super::{Backend, Device};

/// The memory of a device whose kind has no built-in data sheet.
const DEFAULT_MEMORY: ByteCount = ByteCount::new(16 << 30);

/// The speed at which weights come to a simulated device from the memory of its node, in bytes per second: as by sixteen lanes of their usual bus.
pub const SIMULATED_HOST_LINK_BYTES_PER_SECOND: f64 = 12e9;

/// Returns `count` devices of a kind, with the names `simN` for numbers from `first` on.
pub(super) fn devices(kind: &DeviceKind, first: usize, count: u32) -> impl Iterator<Item = Device> {
    let known = known_kind(kind);
    (first..).take(count as usize).map(move |number| Device {
        name: format!("sim{number}"),
        kind: kind.clone(),
        memory: known.map_or(DEFAULT_MEMORY, |(memory, _)| memory),
        multiprocessors: known.map(|(_, multiprocessors)| multiprocessors),
        description: format!("simulated {kind}"),
        backend: Backend::Simulated,
    })
}
