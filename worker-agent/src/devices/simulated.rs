//! Devices that are only announced: their workers take as long as the profiles say.

use packhorse_cluster::{ByteCount, DeviceKind, known_kind};

use super::{Backend, Device};

/// What a kind without a built-in data sheet gets.
const DEFAULT_MEMORY: ByteCount = ByteCount::new(16 << 30);

/// So many devices of a kind, named `sim` and a number that counts from `first`.
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
