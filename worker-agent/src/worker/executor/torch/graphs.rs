//! The recorded runs of a program (CUDA graphs).

use std::collections::BTreeMap;

use super::shim::Graph;

/// The shapes of a batch's inputs.
pub(super) type InputShapes = Vec<Vec<i64>>;

/// The recorded runs of a program.
#[derive(Default)]
pub(super) struct Graphs {
    by_shapes: BTreeMap<InputShapes, Graph>,
    /// The batch sizes of the recorded runs, in ascending order.
    batch_sizes: Vec<u32>,
}

impl Graphs {
    /// Adds the recording of a batch size below those before.
    pub(super) fn insert_smaller(&mut self, batch_size: u32, shapes: InputShapes, graph: Graph) {
        self.by_shapes.insert(shapes, graph);
        self.batch_sizes.insert(0, batch_size);
    }

    /// Returns the recording for inputs of these shapes.
    pub(super) fn for_shapes(&self, shapes: &InputShapes) -> Option<&Graph> {
        self.by_shapes.get(shapes)
    }

    /// Returns any of the recordings, all of which share their memory.
    pub(super) fn any(&self) -> Option<&Graph> {
        self.by_shapes.values().next()
    }

    /// Returns the batch sizes of the recorded runs, in ascending order.
    pub(super) fn batch_sizes(&self) -> &[u32] {
        &self.batch_sizes
    }
}
