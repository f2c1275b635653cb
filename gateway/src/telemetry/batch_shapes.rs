//! The shapes of a model's batches, for the control plane.

use std::sync::{Mutex, MutexGuard, PoisonError};

use packhorse_cluster::Program;
use packhorse_control::ShapeCounts;
use packhorse_wire::TensorHeader;

/// The counted shapes of a model's batches. The driver that has the model counts, and the control plane reads them every few seconds: nobody
/// waits.
#[derive(Debug, Default)]
pub(crate) struct BatchShapes(Mutex<ShapeCounts>);

impl BatchShapes {
    /// Counts a batch, if inputs of its model vary.
    pub(crate) fn count(&self, program: &Program, rows: u32, inputs: &[TensorHeader]) {
        let sizes = program.variable_dims();
        let sizes = sizes.map(|(input, axis)| inputs[input].shape().dims()[axis]);
        let sizes: Vec<u64> = sizes.collect();
        if !sizes.is_empty() {
            self.lock().add_batch(rows, &sizes);
        }
    }

    /// Returns the counts.
    pub(super) fn counts(&self) -> ShapeCounts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, ShapeCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
