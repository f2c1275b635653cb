//! The limits of the search: the size of a cell, and the number of changes tried in it.
//!
//! The default limits take a second or two; larger clusters have fewer changes. With `n` times the effort a search tries about `n`
//! times as many changes, in cells that are larger by the square root of `n`. A plan of some effort is the best of several searches
//! ([`efforts`]).

use packhorse_cluster::Effort;

/// The most devices of a cluster that is searched as a whole. A larger one is divided into cells.
const MAX_WHOLE: usize = 8;
/// The most devices of a cell.
const MAX_CELL: usize = 6;
/// The number of changes that are tried in a cell, for clusters of at most so many devices. The largest need more effort than the default for
/// any.
const CHANGES: [(usize, usize); 4] = [(MAX_WHOLE, 400), (32, 16), (256, 40), (usize::MAX, 0)];
/// The number of changes that are tried over all cells after that, for clusters of at most so many devices. They cost the search of nine to 256 devices two fifths
/// of its time, and of up to 32 devices more: these take a third of the time of eight devices, which are searched as a whole.
const ACROSS: [(usize, usize); 2] = [(32, 64), (256, 40)];
/// The number of changes per device without improvement after which the search of a cell ends.
const PATIENCE: usize = 40;
/// The number of changes without improvement after which the search of a cell ends if it serves everything with headroom: then only
/// cost can be saved.
const SERVED_PATIENCE: usize = 10;

/// Returns the efforts of the searches of which the best is the plan of an effort: the powers of two up to it.
///
/// No search continues another one, and one with twice the effort may end in a worse placement. A larger effort never has a worse
/// plan, because it has the same searches and more. For an effort of `n` they try at least `n` and less than `2 n` times the changes of the default.
pub(super) fn efforts(most: Effort) -> impl Iterator<Item = Effort> {
    let powers = (0..=most.get().ilog2()).map(|power| 1 << power);
    powers.map(|times| Effort::new(times).expect("at most the largest effort"))
}

/// Returns the least number of cells in which a cluster with so many devices is searched with the default effort.
pub(super) fn usual_cells(devices: usize) -> usize {
    if devices > MAX_WHOLE {
        devices.div_ceil(MAX_CELL)
    } else {
        1
    }
}

/// The limits of the search in the cells of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchLimits {
    /// The devices of the cluster.
    devices: usize,
    effort: usize,
    /// The size of a cell over the default size.
    cell_scale: usize,
    /// True for the search that continues over all cells.
    across: bool,
}

impl SearchLimits {
    pub(super) fn new(devices: usize, effort: Effort) -> Self {
        let effort = effort.get() as usize;
        Self {
            devices,
            effort,
            cell_scale: effort.isqrt(),
            across: false,
        }
    }

    /// Returns the limits of the search that continues over all cells of a cluster.
    pub(super) fn across_cells(devices: usize, effort: Effort) -> Self {
        Self {
            across: true,
            ..Self::new(devices, effort)
        }
    }

    /// Returns true if the cluster is searched as a whole.
    pub(super) fn is_whole(self) -> bool {
        self.devices <= MAX_WHOLE * self.cell_scale
    }

    /// Returns the most devices of a cell.
    pub(super) fn cell_size(self) -> usize {
        MAX_CELL * self.cell_scale
    }

    /// Returns the number of changes that are tried in a cell, or over all cells.
    pub(super) fn changes(self) -> usize {
        if self.across {
            let mut usual = ACROSS.iter().filter(|entry| self.devices <= entry.0);
            return usual.next().map_or(0, |entry| entry.1) * self.effort;
        }
        let usual = CHANGES
            .iter()
            .find(|(devices, _)| self.devices <= *devices)
            .map_or(0, |entry| entry.1);
        let cells = self.cell_size().min(self.devices) / MAX_CELL;
        (usual * self.effort + self.effort - 1) * cells.max(1)
    }

    /// Returns the number of changes without improvement after which the search of a cell with `devices` devices ends.
    pub(super) fn patience(self, devices: usize, serves_all: bool) -> usize {
        let usual = if serves_all {
            SERVED_PATIENCE
        } else {
            PATIENCE * devices
        };
        usual * self.effort
    }
}
