//! The memory of a gateway that is registered with CUDA: a device copies from it as from pinned memory, without this process's processors.
//!
//! It is registered in chunks, each when a batch first lies in it, and stays so until the connection has ended. The whole memory is large and
//! mostly untouched, and registering it would allocate all its pages. No limit but the memory's size is needed, because a gateway uses the
//! lowest free ranges again and again.

use std::{
    ffi::c_void,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use packhorse_mapped::View;
use packhorse_wire::{ByteRange, TensorHeader};
use tch::Tensor;

use super::{
    buffer::dims_and_type,
    call::{call, create_tensor, device_code},
    ffi,
    stream::StageStream,
};
use crate::executor::{pieces, stages::InputMemory, torch::error::TorchError};

/// The size of a chunk in bytes. Registering one takes about 0.4 ms on an H200. CUDA refuses a copy that begins in one and ends in the next.
const CHUNK: usize = 4 << 20;
/// The mean length of the pieces of a batch in bytes from which on each is copied to the device by itself. Launching a copy takes about 4 µs,
/// in which a core copies 40 kB, so that shorter ones are better gathered and copied at once.
const DIRECT_FROM: u64 = 64 << 10;

/// The memory of a gateway, of which a CUDA device can read the registered chunks.
pub(in crate::executor::torch) struct RegisteredMemory {
    view: View,
    cuda_device: u32,
    registrations: Mutex<Registrations>,
}

struct Registrations {
    /// True for each chunk that is registered.
    chunks: Vec<bool>,
    /// True after CUDA has refused to register a chunk. Nothing is copied from the memory any more.
    refused: bool,
}

impl InputMemory for RegisteredMemory {
    fn view(&self) -> &View {
        &self.view
    }
}

impl RegisteredMemory {
    /// Creates a memory of which nothing is registered yet.
    pub(in crate::executor::torch) fn new(view: View, cuda_device: u32) -> Self {
        let chunks = vec![false; view.size().div_ceil(CHUNK)];
        Self {
            view,
            cuda_device,
            registrations: Mutex::new(Registrations {
                chunks,
                refused: false,
            }),
        }
    }

    /// Registers the chunks of these pieces, each of which lies in one. Returns false if CUDA refuses that.
    fn register<'a>(&self, pieces: impl IntoIterator<Item = &'a ByteRange>) -> bool {
        let mut registrations = self.registrations();
        if registrations.refused {
            return false;
        }
        for piece in pieces {
            let index = piece.offset as usize / CHUNK;
            if registrations.chunks[index] {
                continue;
            }
            if let Err(error) = self.register_chunk(index) {
                let reason = error.summary();
                tracing::info!(
                    reason,
                    "CUDA does not register the gateway's memory; batches are gathered from it"
                );
                registrations.refused = true;
                return false;
            }
            registrations.chunks[index] = true;
        }
        true
    }

    fn register_chunk(&self, index: usize) -> Result<(), TorchError> {
        let (address, size) = self.chunk(index);
        let device = device_code(Some(self.cuda_device));
        // SAFETY: the chunk stays mapped until it is unregistered, and the pointer is valid for writes during the call.
        call(|message| unsafe {
            ffi::packhorse_host_register(device, address.as_ptr().cast(), size as u64, message)
        })
    }

    /// Returns the address and the size of a chunk.
    fn chunk(&self, index: usize) -> (NonNull<u8>, usize) {
        let start = index * CHUNK;
        let size = CHUNK.min(self.view.size() - start);
        let address = self.view.address(start as u64, size);
        (address.expect("within the memory"), size)
    }

    fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredMemory {
    /// Unregisters all chunks, while the memory is still mapped.
    fn drop(&mut self) {
        let device = device_code(Some(self.cuda_device));
        let chunks = &self.registrations().chunks;
        let registered = chunks.iter().enumerate().filter(|(_, chunk)| **chunk);
        for (index, _) in registered {
            let (address, _) = self.chunk(index);
            // SAFETY: the chunk is registered, nothing copies from it because each batch in it holds the memory, and the pointer is valid for
            // writes during the call.
            let outcome = call(|message| unsafe {
                ffi::packhorse_host_unregister(device, address.as_ptr().cast(), message)
            });
            if let Err(error) = outcome {
                tracing::warn!(
                    error = error.summary(),
                    "the gateway's memory stays registered with CUDA"
                );
            }
        }
    }
}

/// The inputs of a batch in registered memory.
pub(in crate::executor::torch) struct RegisteredInputs {
    /// The pieces of each input, all of them in registered chunks.
    pieces: Vec<Vec<ByteRange>>,
    memory: Arc<RegisteredMemory>,
}

impl RegisteredInputs {
    /// Finds inputs that lie in these ranges one after the other, and registers their memory; `None` if a range is not within the memory,
    /// CUDA does not register it, or the pieces are too short to be copied one by one.
    pub(in crate::executor::torch) fn find<'a>(
        memory: Arc<RegisteredMemory>,
        ranges: &[ByteRange],
        headers: impl IntoIterator<Item = &'a TensorHeader>,
    ) -> Option<Self> {
        let mut bytes = 0;
        for ByteRange { offset, length } in ranges {
            memory.view.address(*offset, *length as usize).ok()?;
            bytes += length;
        }
        let lengths = headers.into_iter().map(TensorHeader::byte_len);
        let pieces = pieces(ranges, lengths, CHUNK as u64);
        let count = pieces.iter().flatten().count() as u64;
        let direct = bytes >= count.max(1) * DIRECT_FROM;
        (direct && memory.register(pieces.iter().flatten())).then_some(Self { pieces, memory })
    }

    /// Copies the inputs, which have these headers, to a stream's CUDA device, or enqueues the copies. This must not be dropped before the
    /// stream has done them.
    pub(in crate::executor::torch) fn copy_to_device<'a>(
        &self,
        stream: &StageStream,
        headers: impl IntoIterator<Item = &'a TensorHeader>,
    ) -> Result<Vec<Tensor>, TorchError> {
        let inputs = self.pieces.iter().zip(headers);
        inputs
            .map(|(pieces, header)| self.copy_input(stream, pieces, header))
            .collect()
    }

    fn copy_input(
        &self,
        stream: &StageStream,
        pieces: &[ByteRange],
        header: &TensorHeader,
    ) -> Result<Tensor, TorchError> {
        let piece = |range: &ByteRange| ffi::Piece {
            memory: self.address(range).cast_const(),
            size: range.length,
        };
        let bytes: u64 = pieces.iter().map(|range| range.length).sum();
        assert_eq!(bytes, header.byte_len(), "the pieces are the input");
        let pieces: Vec<ffi::Piece> = pieces.iter().map(piece).collect();
        let (dims, scalar_type) = dims_and_type(header);
        // SAFETY: `pieces` has `pieces.len()` elements, which have as many bytes as the tensor and stay mapped and registered until the stream
        // has copied them; `dims` has `dims.len()` elements; the stream lives during the call, and the pointers are valid for writes.
        create_tensor(|tensor, message| unsafe {
            ffi::packhorse_stream_join(
                stream.as_ptr(),
                pieces.as_ptr(),
                pieces.len(),
                scalar_type,
                dims.as_ptr(),
                dims.len(),
                tensor,
                message,
            )
        })
    }

    fn address(&self, range: &ByteRange) -> *mut c_void {
        let address = self
            .memory
            .view
            .address(range.offset, range.length as usize);
        address.expect("within the memory").as_ptr().cast()
    }
}
