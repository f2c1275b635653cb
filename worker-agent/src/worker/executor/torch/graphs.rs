//! The recorded runs of a program (CUDA graphs).

use std::collections::BTreeMap;

use super::shim::Graph;

/// The shapes of a batch's inputs.
pub(super) type InputShapes = Vec<Vec<i64>>;

/// The recorded runs of a program, whose memory they share.
#[derive(Default)]
pub(super) struct Graphs {
    by_shapes: BTreeMap<InputShapes, Graph>,
    /// The batch sizes of the recorded runs, in ascending order.
    batch_sizes: Vec<u32>,
    /// The reason why a batch size could not be recorded.
    failure: Option<String>,
}

impl Graphs {
    /// Adds the recording of a batch size.
    pub(super) fn insert(&mut self, batch_size: u32, shapes: InputShapes, graph: Graph) {
        if self.by_shapes.insert(shapes, graph).is_none() {
            let at = self.batch_sizes.partition_point(|size| *size < batch_size);
            self.batch_sizes.insert(at, batch_size);
        }
    }

    /// Keeps the reason why a batch size could not be recorded.
    pub(super) fn set_failure(&mut self, reason: String) {
        self.failure = Some(reason);
    }

    /// Returns the recording for inputs of these shapes.
    pub(super) fn for_shapes(&self, shapes: &InputShapes) -> Option<&Graph> {
        self.by_shapes.get(shapes)
    }

    /// Returns the recording with the largest inputs, which have different numbers of rows.
    pub(super) fn largest(&self) -> Option<&Graph> {
        self.by_shapes.values().next_back()
    }

    /// Returns true if nothing is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.by_shapes.is_empty()
    }

    /// Returns the batch sizes of the recorded runs, in ascending order, or the reason why there are none.
    pub(super) fn batch_sizes(&self) -> Result<&[u32], &str> {
        match &self.failure {
            _ if !self.batch_sizes.is_empty() => Ok(&self.batch_sizes),
            Some(reason) => Err(reason),
            None => Err("not requested"),
        }
    }
}
