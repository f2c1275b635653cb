//! The outputs of an answer in memory of their own.

use std::sync::Arc;

use bytes::Bytes;
use packhorse_cluster::Shape;

/// The memory of an answer beside its outputs, in bytes: its key, its places in the tables, of which some are free, and what the allocator adds.
const ANSWER_BYTES: u64 = 400;
/// The memory of an output beside its bytes and its dimensions, in bytes.
const OUTPUT_BYTES: u64 = 96;

/// A kept output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptOutput {
    /// Its shape.
    pub(crate) shape: Shape,
    /// Its bytes.
    pub(crate) data: Bytes,
}

/// The outputs of an answer, in the model's order. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptOutputs {
    outputs: Arc<[KeptOutput]>,
    bytes: u64,
}

impl KeptOutputs {
    /// Copies outputs into one piece of memory: they may be a small part of a worker's result.
    pub(crate) fn copy<'a>(outputs: impl Iterator<Item = (&'a Shape, &'a Bytes)> + Clone) -> Self {
        let length = outputs.clone().map(|(_, data)| data.len()).sum();
        let mut memory = Vec::with_capacity(length);
        for (_, data) in outputs.clone() {
            memory.extend_from_slice(data);
        }
        let mut memory = Bytes::from(memory);
        let kept = outputs.map(|(shape, data)| KeptOutput {
            shape: shape.clone(),
            data: memory.split_to(data.len()),
        });
        let outputs: Arc<[KeptOutput]> = kept.collect();
        let of_output = |output: &KeptOutput| OUTPUT_BYTES + 8 * output.shape.rank() as u64;
        let beside: u64 = outputs.iter().map(of_output).sum();
        Self {
            outputs,
            bytes: ANSWER_BYTES + beside + length as u64,
        }
    }

    /// Returns the outputs.
    pub(crate) fn outputs(&self) -> &[KeptOutput] {
        &self.outputs
    }

    /// Returns the memory of the answer in the cache.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
