//! The connections to workers, as the links ask for them.

use packhorse_control::Target;
use packhorse_links::Connect;
use packhorse_serving::ReplicaKey;
use packhorse_wire::WorkerIdentity;

use super::message::{DriverMessage, Post};
use crate::{
    clock::Clock,
    input_memory::InputMemories,
    workers::{BatchSender, Endpoint, LinkConfig, Runtimes, WorkerLink},
};

/// Makes connections whose events come to the driver's inbox.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) inbox: Post,
    pub(super) runtimes: Runtimes,
    pub(super) clock: Clock,
    pub(super) config: LinkConfig,
    /// The memory that links of this host share with their workers.
    pub(super) inputs: InputMemories,
}

impl Connect for Connector {
    type Link = WorkerLink;
    type Batches = BatchSender;

    fn connect(&self, key: ReplicaKey, target: &Target) -> WorkerLink {
        let program = &target.replica.spec.model;
        let identity = WorkerIdentity {
            replica: target.replica.id,
            artifact: program.artifact,
            batch_size: target.replica.spec.batch_size,
        };
        let endpoint = Endpoint {
            address: target.address,
            local_path: target.local_path.clone(),
            inputs: self.inputs.of(&program.model),
            identity,
            in_flight: target.capacity.map(|capacity| capacity.in_flight),
        };
        let (inbox, clock) = (self.inbox.clone(), self.clock);
        WorkerLink::open(
            &self.runtimes,
            endpoint,
            self.config.clone(),
            move |event| {
                inbox.send(DriverMessage::Link(key, event, clock.now()));
            },
        )
    }
}
