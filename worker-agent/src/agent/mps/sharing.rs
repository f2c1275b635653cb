//! The way in which the replicas of a GPU share it.

use super::failure::MpsFailure;

/// The way in which the replicas of a GPU share it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GpuSharing {
    /// The MPS daemon is being started.
    Starting,
    /// The replicas compute at the same time, through MPS.
    Mps,
    /// The replicas are time-sliced, because MPS is not available.
    TimeSliced(MpsFailure),
}
