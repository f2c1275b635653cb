//! Streams and events: the order in which a device works, and the progress of its work.

use std::{
    ptr::{self, NonNull},
    thread,
    time::{Duration, Instant},
};

use tch::Tensor;

use super::{
    call::{call, create_tensor, device_code},
    ffi,
};
use crate::{clock::now, executor::torch::error::TorchError};

/// The interval between two queries of an event. libtorch's own wait occupies a core, one for every replica of the node.
const QUERY_INTERVAL: Duration = Duration::from_micros(20);

/// A stream of one or several stages: on a CUDA device a CUDA stream, which works asynchronously; on the CPU the calling thread.
pub(in crate::executor::torch) struct StageStream {
    handle: NonNull<ffi::Stream>,
    is_cuda: bool,
}

// SAFETY: a stream's handle belongs to no thread.
unsafe impl Send for StageStream {}
// SAFETY: the handle does not change, and the driver accepts work for one stream from several threads.
unsafe impl Sync for StageStream {}

/// A point in a stream's work.
pub(in crate::executor::torch) enum StreamEvent {
    /// An event of a CUDA stream.
    Cuda(CudaEvent),
    /// The time on the CPU, whose work is done when a call returns.
    Cpu(Instant),
}

/// An event of a CUDA stream.
pub(in crate::executor::torch) struct CudaEvent(NonNull<ffi::Event>);

// SAFETY: an event belongs to no thread. It is not `Sync`, so that no two threads use it at the same time.
unsafe impl Send for CudaEvent {}

impl StageStream {
    /// Creates a stream of a CUDA device, or of the CPU for `None`.
    pub(in crate::executor::torch) fn new(cuda_device: Option<u32>) -> Result<Self, TorchError> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointers are valid for writes during the call.
        call(|message| unsafe {
            ffi::packhorse_stream_new(device_code(cuda_device), &raw mut stream, message)
        })?;
        Ok(Self {
            handle: NonNull::new(stream).expect("a stream"),
            is_cuda: cuda_device.is_some(),
        })
    }

    pub(super) fn as_ptr(&self) -> *const ffi::Stream {
        self.handle.as_ptr()
    }

    /// Records an event after the work that the stream has so far.
    pub(in crate::executor::torch) fn record_event(&self) -> Result<StreamEvent, TorchError> {
        if !self.is_cuda {
            return Ok(StreamEvent::Cpu(now()));
        }
        let mut event = ptr::null_mut();
        // SAFETY: the stream lives as long as `self`, and the pointers are valid for writes during the call.
        call(|message| unsafe {
            ffi::packhorse_stream_record_event(self.as_ptr(), &raw mut event, message)
        })?;
        let event = NonNull::new(event).expect("an event");
        Ok(StreamEvent::Cuda(CudaEvent(event)))
    }

    /// Makes the stream's later work wait for an event. Does not block the calling thread.
    pub(in crate::executor::torch) fn wait_event(
        &self,
        event: &StreamEvent,
    ) -> Result<(), TorchError> {
        let StreamEvent::Cuda(CudaEvent(event)) = event else {
            return Ok(());
        };
        // SAFETY: stream and event live during the call.
        call(|message| unsafe {
            ffi::packhorse_stream_wait_event(self.as_ptr(), event.as_ptr(), message)
        })
    }

    /// Copies a tensor of the host to the stream's device; returns the tensor itself if that is the CPU.
    pub(in crate::executor::torch) fn to_device(
        &self,
        source: Tensor,
    ) -> Result<Tensor, TorchError> {
        if !self.is_cuda {
            return Ok(source);
        }
        // SAFETY: stream and tensor live during the call, and the pointers are valid for writes.
        create_tensor(|tensor, message| unsafe {
            ffi::packhorse_stream_to_device(self.as_ptr(), source.as_ptr(), tensor, message)
        })
    }

    /// Makes a tensor contiguous on its device. Returns the tensor itself if it is contiguous already.
    pub(in crate::executor::torch) fn contiguous(
        &self,
        source: &Tensor,
    ) -> Result<Tensor, TorchError> {
        // SAFETY: stream and tensor live during the call, and the pointers are valid for writes.
        create_tensor(|tensor, message| unsafe {
            ffi::packhorse_stream_contiguous(self.as_ptr(), source.as_ptr(), tensor, message)
        })
    }

    /// Overwrites a tensor with another of the same shape. Both must live until the stream has done the copy.
    pub(in crate::executor::torch) fn copy(
        &self,
        to: &Tensor,
        from: &Tensor,
    ) -> Result<(), TorchError> {
        // SAFETY: stream and tensors live during the call, which writes to the memory of `to` but does not change its handle.
        call(|message| unsafe {
            ffi::packhorse_stream_copy(
                self.as_ptr(),
                to.as_ptr().cast_mut(),
                from.as_ptr(),
                message,
            )
        })
    }
}

impl Drop for StageStream {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the handle; the CUDA stream itself belongs to libtorch.
        unsafe { ffi::packhorse_stream_free(self.handle.as_ptr()) }
    }
}

impl StreamEvent {
    /// Waits until the device has reached the event.
    pub(in crate::executor::torch) fn wait_until_complete(&self) -> Result<(), TorchError> {
        let Self::Cuda(CudaEvent(event)) = self else {
            return Ok(());
        };
        loop {
            let mut complete = 0;
            // SAFETY: the event lives as long as `self`, and the pointers are valid for writes during the call.
            call(|message| unsafe {
                ffi::packhorse_event_query(event.as_ptr(), &raw mut complete, message)
            })?;
            if complete != 0 {
                return Ok(());
            }
            thread::sleep(QUERY_INTERVAL);
        }
    }

    /// Returns the time from an earlier event of the same device to this one. Both must be complete.
    pub(in crate::executor::torch) fn elapsed_since(
        &self,
        earlier: &Self,
    ) -> Result<Duration, TorchError> {
        let (start, end) = match (earlier, self) {
            (Self::Cuda(CudaEvent(start)), Self::Cuda(CudaEvent(end))) => (start, end),
            (Self::Cpu(start), Self::Cpu(end)) => return Ok(*end - *start),
            _ => unreachable!("the streams of a batch are of one device"),
        };
        let mut nanoseconds = 0;
        // SAFETY: both events live during the call, and the pointers are valid for writes.
        call(|message| unsafe {
            ffi::packhorse_event_elapsed(
                start.as_ptr(),
                end.as_ptr(),
                &raw mut nanoseconds,
                message,
            )
        })?;
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the handle; the driver keeps an event that is still awaited.
        unsafe { ffi::packhorse_event_free(self.0.as_ptr()) }
    }
}
