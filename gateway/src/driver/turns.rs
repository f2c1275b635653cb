//! Devices that replicas share in time, as a plan with duty cycles wants it: one batch of theirs is away at a time, and then it is
//! the turn of the next of them that has one waiting. A turn that nobody takes costs no time, so that a cycle lasts as long as
//! its batches do and no longer. Replicas without a duty cycle on the same device compute beside them.
//!
//! This is what the simulator's devices do, but for one thing: a batch that waits for its turn waits here and not at its worker,
//! so that its way there is part of its turn.

use std::collections::{BTreeMap, VecDeque};

use packhorse_cluster::DeviceId;
use packhorse_serving::{BatchId, ReplicaKey};

/// Whose turn it is on every device that is shared in time. `B` is what is sent to a worker.
#[derive(Debug)]
pub(super) struct Turns<B> {
    devices: BTreeMap<DeviceId, Ring<B>>,
}

#[derive(Debug)]
struct Ring<B> {
    /// The replica whose turn it is, and its batch.
    away: (ReplicaKey, BatchId),
    /// Never empty.
    waiting: BTreeMap<ReplicaKey, VecDeque<(BatchId, B)>>,
}

/// A batch whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn<B> {
    pub(super) replica: ReplicaKey,
    pub(super) batch: BatchId,
    pub(super) outgoing: B,
}

impl<B> Default for Turns<B> {
    fn default() -> Self {
        Self {
            devices: BTreeMap::new(),
        }
    }
}

impl<B> Turns<B> {
    /// A batch is there for a replica that takes turns on a device. It comes back if it is its turn at once.
    pub(super) fn ask(&mut self, device: &DeviceId, turn: Turn<B>) -> Option<Turn<B>> {
        let (replica, batch) = (turn.replica, turn.batch);
        if let Some(ring) = self.devices.get_mut(device) {
            let waiting = ring.waiting.entry(replica).or_default();
            waiting.push_back((batch, turn.outgoing));
            return None;
        }
        let ring = Ring {
            away: (replica, batch),
            waiting: BTreeMap::new(),
        };
        self.devices.insert(device.clone(), ring);
        Some(turn)
    }

    /// A batch has ended, whether it took a turn or not. Gives the batch whose turn comes with that.
    pub(super) fn ended(&mut self, batch: BatchId) -> Option<Turn<B>> {
        let mut rings = self.devices.iter();
        let (device, _) = rings.find(|(_, ring)| ring.away.1 == batch)?;
        self.pass_on(&device.clone())
    }

    /// A replica is lost, and with it all batches that it had or waited with. Gives the batch whose turn comes with that.
    pub(super) fn lost(&mut self, replica: ReplicaKey) -> Option<Turn<B>> {
        let mut ended = None;
        for (device, ring) in &mut self.devices {
            ring.waiting.remove(&replica);
            if ring.away.0 == replica {
                ended = Some(device.clone());
            }
        }
        self.pass_on(&ended?)
    }

    fn pass_on(&mut self, device: &DeviceId) -> Option<Turn<B>> {
        let ring = self.devices.get_mut(device)?;
        let last = ring.away.0;
        let next = ring.waiting.keys().find(|replica| **replica > last);
        let Some(replica) = next.or_else(|| ring.waiting.keys().next()).copied() else {
            self.devices.remove(device);
            return None;
        };
        let waiting = ring.waiting.get_mut(&replica)?;
        let (batch, outgoing) = waiting.pop_front()?;
        if waiting.is_empty() {
            ring.waiting.remove(&replica);
        }
        ring.away = (replica, batch);
        Some(Turn {
            replica,
            batch,
            outgoing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for a turn on a device: whether it came at once.
    fn ask(turns: &mut Turns<()>, device: &str, replica: u32, batch: u64) -> bool {
        let turn = Turn {
            replica: ReplicaKey(replica),
            batch: BatchId(batch),
            outgoing: (),
        };
        turns.ask(&device.parse().unwrap(), turn).is_some()
    }

    fn batch(turn: Option<Turn<()>>) -> Option<u64> {
        turn.map(|turn| turn.batch.0)
    }

    #[test]
    fn replicas_take_turns_without_waiting_for_who_has_nothing() {
        let mut turns = Turns::default();
        assert!(ask(&mut turns, "n/gpu0", 0, 10));
        assert!(!ask(&mut turns, "n/gpu0", 0, 11));
        assert!(!ask(&mut turns, "n/gpu0", 2, 30));
        assert!(!ask(&mut turns, "n/gpu0", 2, 31));
        for (ended, next) in [(10, 30), (30, 11), (11, 31)] {
            assert_eq!(batch(turns.ended(BatchId(ended))), Some(next));
        }
        assert_eq!(turns.ended(BatchId(31)), None);
        assert!(ask(&mut turns, "n/gpu0", 1, 20), "nobody has the turn");
    }

    #[test]
    fn devices_have_turns_of_their_own_and_other_batches_none() {
        let mut turns = Turns::default();
        assert!(ask(&mut turns, "n/gpu0", 0, 10));
        assert!(ask(&mut turns, "n/gpu1", 1, 20));
        assert!(!ask(&mut turns, "n/gpu1", 2, 30));
        assert_eq!(turns.ended(BatchId(99)), None);
        assert_eq!(turns.ended(BatchId(10)), None);
        assert_eq!(batch(turns.ended(BatchId(20))), Some(30));
    }

    #[test]
    fn what_a_lost_replica_had_holds_nobody_up() {
        let mut turns = Turns::default();
        assert!(ask(&mut turns, "n/gpu0", 0, 10));
        assert!(!ask(&mut turns, "n/gpu0", 0, 11));
        assert!(!ask(&mut turns, "n/gpu0", 1, 20));
        assert!(!ask(&mut turns, "n/gpu0", 1, 21));
        assert_eq!(batch(turns.lost(ReplicaKey(0))), Some(20));
        assert_eq!(turns.ended(BatchId(10)), None, "it is void");
        assert_eq!(batch(turns.ended(BatchId(20))), Some(21));
        assert_eq!(turns.lost(ReplicaKey(1)), None);
        assert!(ask(&mut turns, "n/gpu0", 2, 30));
    }

    #[test]
    fn a_lost_replica_that_only_waited_leaves_the_turn_where_it_is() {
        let mut turns = Turns::default();
        assert!(ask(&mut turns, "n/gpu0", 0, 10));
        assert!(!ask(&mut turns, "n/gpu0", 1, 20));
        assert_eq!(turns.lost(ReplicaKey(1)), None);
        assert!(!ask(&mut turns, "n/gpu0", 2, 30));
        assert_eq!(batch(turns.ended(BatchId(10))), Some(30));
    }
}
