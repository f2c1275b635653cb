//! The weights in the memory and on the disk of a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::network::ConnectionKey;

/// The weights of a device's members that are not on the device.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Those in the memory of the node, with the time at which they came there and their bytes.
    pub(crate) warm: BTreeMap<ConnectionKey, (u64, u64)>,
    /// Those on its disk only.
    pub(crate) cold: BTreeSet<ConnectionKey>,
}

impl Shelf {
    /// Removes weights. Returns true if they were on the disk only.
    pub(crate) fn remove(&mut self, key: ConnectionKey) -> bool {
        self.warm.remove(&key);
        self.cold.remove(&key)
    }
}
