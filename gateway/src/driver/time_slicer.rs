//! Time slicing of devices, as a plan with duty cycles requires it: of the replicas that share a device in time, one batch is
//! away at a time, and then it is the turn of the next of them with a waiting batch. A turn that no replica takes costs no time,
//! so that a cycle lasts as long as its batches do and no longer. Replicas without a duty cycle compute beside them on the same
//! device.
//!
//! The simulator's devices do the same, with one difference: here a batch waits at the gateway and not at its worker, so that
//! its transmission is part of its time slice.

use std::collections::{BTreeMap, VecDeque};

use packhorse_cluster::DeviceId;
use packhorse_serving::{BatchKey, ReplicaKey};

/// The running and the waiting batches of every device that is shared in time. `B` is the message to the worker.
#[derive(Debug)]
pub(super) struct TimeSlicer<B> {
    devices: BTreeMap<DeviceId, SharedDevice<B>>,
}

#[derive(Debug)]
struct SharedDevice<B> {
    /// The replica whose turn it is, and its batch.
    running: (ReplicaKey, BatchKey),
    /// The waiting batches by replica; none of the queues is empty.
    waiting: BTreeMap<ReplicaKey, VecDeque<(BatchKey, B)>>,
}

/// A batch, to be sent to a replica in its time slice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TimeSlice<B> {
    pub(super) replica: ReplicaKey,
    pub(super) batch: BatchKey,
    pub(super) outgoing: B,
}

impl<B> Default for TimeSlicer<B> {
    fn default() -> Self {
        Self {
            devices: BTreeMap::new(),
        }
    }
}

impl<B> TimeSlicer<B> {
    /// Adds a batch for a replica that shares a device in time. Returns it if its time slice begins at once.
    pub(super) fn enqueue(
        &mut self,
        device: &DeviceId,
        slice: TimeSlice<B>,
    ) -> Option<TimeSlice<B>> {
        let (replica, batch) = (slice.replica, slice.batch);
        if let Some(shared) = self.devices.get_mut(device) {
            let waiting = shared.waiting.entry(replica).or_default();
            waiting.push_back((batch, slice.outgoing));
            return None;
        }
        let shared = SharedDevice {
            running: (replica, batch),
            waiting: BTreeMap::new(),
        };
        self.devices.insert(device.clone(), shared);
        Some(slice)
    }

    /// Ends the time slice of a batch, if it had one. Returns the next time slice on its device.
    pub(super) fn end_batch(&mut self, batch: BatchKey) -> Option<TimeSlice<B>> {
        let mut devices = self.devices.iter();
        let (device, _) = devices.find(|(_, shared)| shared.running.1 == batch)?;
        self.next_slice(&device.clone())
    }

    /// Removes a lost replica with all its batches. Returns the next time slice if one of them was running.
    pub(super) fn remove_replica(&mut self, replica: ReplicaKey) -> Option<TimeSlice<B>> {
        let mut freed = None;
        for (device, shared) in &mut self.devices {
            shared.waiting.remove(&replica);
            if shared.running.0 == replica {
                freed = Some(device.clone());
            }
        }
        self.next_slice(&freed?)
    }

    fn next_slice(&mut self, device: &DeviceId) -> Option<TimeSlice<B>> {
        let shared = self.devices.get_mut(device)?;
        let last = shared.running.0;
        let next = shared.waiting.keys().find(|replica| **replica > last);
        let Some(replica) = next.or_else(|| shared.waiting.keys().next()).copied() else {
            self.devices.remove(device);
            return None;
        };
        let waiting = shared.waiting.get_mut(&replica)?;
        let (batch, outgoing) = waiting.pop_front()?;
        if waiting.is_empty() {
            shared.waiting.remove(&replica);
        }
        shared.running = (replica, batch);
        Some(TimeSlice {
            replica,
            batch,
            outgoing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a batch on a device. Returns true if its time slice begins at once.
    fn enqueue(slicer: &mut TimeSlicer<()>, device: &str, replica: u32, batch: u64) -> bool {
        let slice = TimeSlice {
            replica: ReplicaKey(replica),
            batch: BatchKey(batch),
            outgoing: (),
        };
        slicer.enqueue(&device.parse().unwrap(), slice).is_some()
    }

    fn batch(slice: Option<TimeSlice<()>>) -> Option<u64> {
        slice.map(|slice| slice.batch.0)
    }

    #[test]
    fn replicas_take_turns_without_waiting_for_those_without_batches() {
        let mut slicer = TimeSlicer::default();
        assert!(enqueue(&mut slicer, "n/gpu0", 0, 10));
        assert!(!enqueue(&mut slicer, "n/gpu0", 0, 11));
        assert!(!enqueue(&mut slicer, "n/gpu0", 2, 30));
        assert!(!enqueue(&mut slicer, "n/gpu0", 2, 31));
        for (ended, next) in [(10, 30), (30, 11), (11, 31)] {
            assert_eq!(batch(slicer.end_batch(BatchKey(ended))), Some(next));
        }
        assert_eq!(slicer.end_batch(BatchKey(31)), None);
        assert!(enqueue(&mut slicer, "n/gpu0", 1, 20), "no batch is running");
    }

    #[test]
    fn devices_have_time_slices_of_their_own_and_other_batches_none() {
        let mut slicer = TimeSlicer::default();
        assert!(enqueue(&mut slicer, "n/gpu0", 0, 10));
        assert!(enqueue(&mut slicer, "n/gpu1", 1, 20));
        assert!(!enqueue(&mut slicer, "n/gpu1", 2, 30));
        assert_eq!(slicer.end_batch(BatchKey(99)), None);
        assert_eq!(slicer.end_batch(BatchKey(10)), None);
        assert_eq!(batch(slicer.end_batch(BatchKey(20))), Some(30));
    }

    #[test]
    fn batches_of_a_lost_replica_block_no_other() {
        let mut slicer = TimeSlicer::default();
        assert!(enqueue(&mut slicer, "n/gpu0", 0, 10));
        assert!(!enqueue(&mut slicer, "n/gpu0", 0, 11));
        assert!(!enqueue(&mut slicer, "n/gpu0", 1, 20));
        assert!(!enqueue(&mut slicer, "n/gpu0", 1, 21));
        assert_eq!(batch(slicer.remove_replica(ReplicaKey(0))), Some(20));
        assert_eq!(slicer.end_batch(BatchKey(10)), None, "it is void");
        assert_eq!(batch(slicer.end_batch(BatchKey(20))), Some(21));
        assert_eq!(slicer.remove_replica(ReplicaKey(1)), None);
        assert!(enqueue(&mut slicer, "n/gpu0", 2, 30));
    }

    #[test]
    fn a_lost_replica_that_only_waited_does_not_end_the_time_slice() {
        let mut slicer = TimeSlicer::default();
        assert!(enqueue(&mut slicer, "n/gpu0", 0, 10));
        assert!(!enqueue(&mut slicer, "n/gpu0", 1, 20));
        assert_eq!(slicer.remove_replica(ReplicaKey(1)), None);
        assert!(!enqueue(&mut slicer, "n/gpu0", 2, 30));
        assert_eq!(batch(slicer.end_batch(BatchKey(10))), Some(30));
    }
}
