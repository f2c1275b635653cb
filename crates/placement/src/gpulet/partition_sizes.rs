//! The sizes of gpulets, in percent of a device.

/// The size of a device without partitions.
pub(super) const WHOLE: u8 = 100;

/// The sizes in ascending order.
pub(super) const SIZES: [u8; 6] = [20, 40, 50, 60, 80, WHOLE];

/// The index of a whole device in [`SIZES`].
pub(super) const WHOLE_INDEX: usize = SIZES.len() - 1;

/// Returns the index of a size in [`SIZES`].
pub(super) fn index_of(percent: u8) -> usize {
    SIZES
        .iter()
        .position(|size| *size == percent)
        .expect("every gpulet has one of the sizes")
}
