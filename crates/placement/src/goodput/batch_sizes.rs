//! The batch sizes that the policy chooses from.

use packhorse_cluster::{ByteCount, DeviceIndex, ModelIndex};

use crate::candidates::Candidates;

/// Returns the batch sizes of known memory that a model may have on a device, with that memory.
pub(super) fn batch_sizes<'s>(
    candidates: &'s Candidates<'_>,
    model: usize,
    device: usize,
) -> impl Iterator<Item = (u32, ByteCount)> + 's {
    let all = candidates
        .on_device(ModelIndex(model), DeviceIndex(device))
        .iter();
    all.filter_map(|candidate| Some((candidate.batch_size, candidate.memory?)))
}
