//! How long is searched, and how much of a cluster at a time.
//!
//! By itself the policy does what a second or two allow, the less the larger the cluster is. With `n` times the effort it tries about
//! `n` times as many changes, in cells that are larger by the square root of that.

use crate::Effort;

/// A cluster of more devices is cut into cells.
const UNDIVIDED: usize = 8;
/// Devices of a cell, at most.
const CELL: usize = 6;
/// How many changes the search of one cell tries, by the devices of the cluster. In the largest only more effort has some.
const CHANGES: [(usize, usize); 4] = [(UNDIVIDED, 400), (32, 16), (256, 40), (usize::MAX, 0)];
/// It ends before, after this many changes per device that were no better.
const PATIENCE: usize = 40;
/// The same, whatever the devices, once everything is served, with headroom: then only cost can be saved.
const EASY_PATIENCE: usize = 10;

/// How long the cells of a cluster are searched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    /// Devices of the cluster.
    cluster: usize,
    effort: usize,
    /// How many times as large as usual a cell is.
    wider: usize,
}

impl Depth {
    pub(super) fn new(cluster: usize, effort: Effort) -> Self {
        let effort = effort.get() as usize;
        Self {
            cluster,
            effort,
            wider: effort.isqrt(),
        }
    }

    /// Whether the cluster is one cell.
    pub(super) fn is_whole(self) -> bool {
        self.cluster <= UNDIVIDED * self.wider
    }

    /// The most devices of a cell.
    pub(super) fn cell(self) -> usize {
        CELL * self.wider
    }

    /// How many changes are tried in a cell.
    pub(super) fn changes(self) -> usize {
        let usual = CHANGES
            .iter()
            .find(|(devices, _)| self.cluster <= *devices)
            .map_or(0, |entry| entry.1);
        let cells = self.cell().min(self.cluster) / CELL;
        (usual * self.effort + self.effort - 1) * cells.max(1)
    }

    /// After how many changes in vain a cell of so many devices is let be.
    pub(super) fn patience(self, devices: usize, serves_all: bool) -> usize {
        let usual = if serves_all {
            EASY_PATIENCE
        } else {
            PATIENCE * devices
        };
        usual * self.effort
    }
}
