//! The events of a cluster, in the order of their times, and of their numbers where the times are equal.

use std::{cmp::Ordering, collections::BinaryHeap};

use packhorse_cluster::{NodeName, Time};
use packhorse_contention::CompletedBatch;
use packhorse_control::{Solution, SolveError, SolveKey};
use packhorse_serving::{ReplicaKey, RequestKey};

use crate::{
    network::{ConnectionKey, Message},
    node::{HeldBatch, Later},
};

/// An event that happens later. The frequent ones are small.
#[derive(Debug)]
pub(crate) enum Event {
    /// The next request of a model's clients arrives. Outdated unless they still have this number.
    Arrives { model: u32, number: u32 },
    /// A batch reaches its worker.
    BatchAtWorker(u64),
    /// A device of a node has computed a batch. Outdated unless it still has this revision.
    DeviceCompletes {
        node: u32,
        device: u32,
        revision: u64,
    },
    /// The answer of a batch reaches the gateway.
    BatchAnswered(u64),
    /// The owner of the cluster has asked to be called.
    Alarm(u64),
    /// Something that happens seldom.
    Rare(Box<RareEvent>),
}

/// An event that happens seldom. The first number of those of a gateway is that of its start, of those of an agent that of its start.
#[derive(Debug)]
pub(crate) enum RareEvent {
    AgentRenews(NodeName, u64),
    AgentWakes(NodeName, u64),
    Node(NodeName, Later),
    Stored(u64),
    Solved(u64, SolveKey, Result<Solution, SolveError>),
    Connects(u64, ReplicaKey, u64),
    Delivers(ConnectionKey, Message),
    GivesUp(ConnectionKey),
    /// The weights of a replica are on its device, over the connection that asked for them.
    WeightsLoaded(ConnectionKey),
    /// The weights of a replica have left the memory of its node.
    WeightsCooled(ConnectionKey),
    Overdue(u64),
    /// A stopped worker goes on, which has a computed batch.
    WorkerResumes(u32, u32, CompletedBatch<HeldBatch>),
    HangsUp(RequestKey),
    GatewayResumes(u64),
}

impl Event {
    /// Returns true if a gateway that does not run cannot notice it.
    pub(crate) fn is_for_gateway(&self) -> bool {
        match self {
            Self::Arrives { .. } | Self::BatchAnswered(_) => true,
            Self::BatchAtWorker(_) | Self::DeviceCompletes { .. } | Self::Alarm(_) => false,
            Self::Rare(event) => matches!(
                **event,
                RareEvent::Connects(..)
                    | RareEvent::GivesUp(_)
                    | RareEvent::Overdue(_)
                    | RareEvent::WeightsLoaded(_)
                    | RareEvent::WeightsCooled(_)
                    | RareEvent::HangsUp(_)
                    | RareEvent::Delivers(..)
            ),
        }
    }
}

impl From<RareEvent> for Event {
    fn from(event: RareEvent) -> Self {
        Self::Rare(Box::new(event))
    }
}

/// The events that were scheduled.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Scheduled>,
    scheduled: u64,
}

#[derive(Debug)]
struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl Events {
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.heap.push(Scheduled {
            at,
            number: self.scheduled,
            event,
        });
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|next| next.at)
    }

    /// Removes the next event if its time has come.
    pub(crate) fn pop(&mut self, now: Time) -> Option<Event> {
        let due = self.next_at().is_some_and(|at| at <= now);
        due.then(|| self.heap.pop().expect("just peeked").event)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The greatest is the next.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
