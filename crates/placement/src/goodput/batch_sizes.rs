//! The batch sizes that the policy chooses from.

use packhorse_cluster::{ByteCount, DeviceIndex, ModelIndex, Problem};

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

/// Returns the batch size, with its memory, of a further replica on a device with this much memory left, of those that are allowed: that of the replica which
/// runs there now, for which the last value is true, or else the smallest.
pub(crate) fn kept_or_smallest(
    problem: &Problem,
    candidates: &Candidates<'_>,
    (model, device): (ModelIndex, DeviceIndex),
    room: ByteCount,
    is_allowed: impl Fn(u32) -> bool,
) -> Option<(u32, ByteCount, bool)> {
    let fitting = || {
        let sizes = batch_sizes(candidates, model.0, device.0);
        sizes.filter(|(batch, memory)| *memory <= room && is_allowed(*batch))
    };
    let mut running = problem.current.iter();
    let runs = running.find(|replica| (replica.model, replica.device) == (model, device));
    let kept = runs.and_then(|replica| fitting().find(|(batch, _)| *batch == replica.batch_size));
    let (batch, memory) = kept.or_else(|| fitting().min())?;
    Some((batch, memory, kept.is_some()))
}
