//! The ways on which weights come to a device.

use packhorse_cluster::Time;

use crate::refused_loads::SpareRoom;

/// The room and the time that a member which is copied next finds at a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyPlace {
    /// The present.
    pub(super) now: Time,
    /// The bytes that are free, or can be made so.
    pub(super) bytes: u64,
    /// The part of them for a load for requests that were refused.
    pub(super) spare: SpareRoom,
    /// The times at which what comes before it from memory, and from files, should be there; `None` where too many wait.
    pub(super) free_at: Lanes<Option<Time>>,
    /// True if the device has batches.
    pub(crate) is_busy: bool,
}

impl CopyPlace {
    /// Returns the first time at which weights could begin to come.
    pub(crate) fn soonest(&self) -> Option<Time> {
        self.free_at
            .memory
            .into_iter()
            .chain(self.free_at.disk)
            .min()
    }
}

/// Something of each of the two ways on which weights come to a device. What takes long on one keeps nothing on the other waiting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes<T> {
    pub(super) memory: T,
    pub(super) disk: T,
}

impl<T> Lanes<T> {
    pub(super) fn of(&self, on_disk: bool) -> &T {
        if on_disk { &self.disk } else { &self.memory }
    }

    pub(super) fn of_mut(&mut self, on_disk: bool) -> &mut T {
        if on_disk {
            &mut self.disk
        } else {
            &mut self.memory
        }
    }
}
