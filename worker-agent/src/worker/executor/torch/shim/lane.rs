//! Lanes and marks: in which order a device works, and when it has done what.

use std::{
    ptr::{self, NonNull},
    thread,
    time::Duration,
};

use tch::Tensor;

use super::{Thrown, call, device_code, ffi, make_tensor};

/// How often it is looked whether a device has got somewhere. libtorch's events would be waited for on a core that does nothing
/// else, one for every replica of the node.
const LOOK: Duration = Duration::from_micros(20);

/// A queue of work: a stream of a CUDA device, which works by itself, or on the CPU the calling thread.
pub(in super::super) struct Lane(NonNull<ffi::Lane>);

// SAFETY: a stream's handle belongs to no thread.
unsafe impl Send for Lane {}
// SAFETY: a lane does not change; the driver takes work for one stream from several threads.
unsafe impl Sync for Lane {}

/// A point in a lane's work.
pub(in super::super) struct Mark(NonNull<ffi::Mark>);

// SAFETY: an event belongs to no thread; that it is not used on two at a time is what `&mut`-less `Send` without `Sync` says.
unsafe impl Send for Mark {}

impl Lane {
    /// One more lane of the device; none is the CPU.
    pub(in super::super) fn new(cuda_device: Option<u32>) -> Result<Self, Thrown> {
        let mut lane = ptr::null_mut();
        // SAFETY: the arguments are places to write to.
        call(|message| unsafe {
            ffi::packhorse_lane_new(device_code(cuda_device), &raw mut lane, message)
        })?;
        Ok(Self(NonNull::new(lane).expect("a lane")))
    }

    pub(super) fn as_ptr(&self) -> *const ffi::Lane {
        self.0.as_ptr()
    }

    /// Marks what the lane has been told so far.
    pub(in super::super) fn mark(&self) -> Result<Mark, Thrown> {
        let mut mark = ptr::null_mut();
        // SAFETY: the lane lives as long as `self`, and the others are places to write to.
        call(|message| unsafe { ffi::packhorse_lane_mark(self.as_ptr(), &raw mut mark, message) })?;
        Ok(Mark(NonNull::new(mark).expect("a mark")))
    }

    /// What the lane is told from now on waits for the mark. Does not wait itself.
    pub(in super::super) fn follow(&self, mark: &Mark) -> Result<(), Thrown> {
        // SAFETY: both live across the call.
        call(|message| unsafe {
            ffi::packhorse_lane_follow(self.as_ptr(), mark.0.as_ptr(), message)
        })
    }

    /// The same elements in the memory of the lane's device: `source` itself where it is there already. `source` is not to be
    /// written to, or given up, before the lane has done it.
    pub(in super::super) fn bring(&self, source: &Tensor) -> Result<Tensor, Thrown> {
        // SAFETY: lane and source live across the call, and the others are places to write to.
        make_tensor(|tensor, message| unsafe {
            ffi::packhorse_lane_bring(self.as_ptr(), source.as_ptr(), tensor, message)
        })
    }

    /// The same elements without gaps, where they are.
    pub(in super::super) fn straighten(&self, source: &Tensor) -> Result<Tensor, Thrown> {
        // SAFETY: lane and source live across the call, and the others are places to write to.
        make_tensor(|tensor, message| unsafe {
            ffi::packhorse_lane_straighten(self.as_ptr(), source.as_ptr(), tensor, message)
        })
    }

    /// Overwrites a tensor of the same shape. Neither is to be given up before the lane has done it.
    pub(in super::super) fn copy(&self, to: &Tensor, from: &Tensor) -> Result<(), Thrown> {
        // SAFETY: lane and tensors live across the call, which writes to the memory of `to` but does not change its handle.
        call(|message| unsafe {
            ffi::packhorse_lane_copy(
                self.as_ptr(),
                to.as_ptr().cast_mut(),
                from.as_ptr(),
                message,
            )
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: the lane is ours, and this is its end; the stream itself is libtorch's.
        unsafe { ffi::packhorse_lane_free(self.0.as_ptr()) }
    }
}

impl Mark {
    /// Waits until the device has got there.
    pub(in super::super) fn wait(&self) -> Result<(), Thrown> {
        loop {
            let mut past = 0;
            // SAFETY: the mark lives as long as `self`, and the others are places to write to.
            call(|message| unsafe {
                ffi::packhorse_mark_is_past(self.0.as_ptr(), &raw mut past, message)
            })?;
            if past != 0 {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
    }

    /// The time from an earlier mark of the same lane to this one. Both are past.
    pub(in super::super) fn since(&self, earlier: &Self) -> Result<Duration, Thrown> {
        let mut nanoseconds = 0;
        // SAFETY: both marks live across the call, and the others are places to write to.
        call(|message| unsafe {
            ffi::packhorse_mark_since(
                self.0.as_ptr(),
                earlier.0.as_ptr(),
                &raw mut nanoseconds,
                message,
            )
        })?;
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the mark is ours, and this is its end; the driver keeps an event that is still awaited.
        unsafe { ffi::packhorse_mark_free(self.0.as_ptr()) }
    }
}
