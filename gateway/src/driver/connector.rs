//! The connections to workers, as the links ask for them.

use std::sync::Arc;

use packhorse_control::Target;
use packhorse_links::Connect;
use packhorse_serving::ReplicaKey;
use packhorse_wire::WorkerIdentity;

use super::{
    home::Home,
    message::{DriverMessage, Post},
};
use crate::{
    clock::Clock,
    input_memory::InputMemories,
    workers::{BatchSender, Endpoint, LinkConfig, Runtimes, WorkerLink},
};

/// Makes connections whose events come to the drivers' inboxes.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) inbox: Post,
    pub(super) runtimes: Runtimes,
    pub(super) clock: Clock,
    pub(super) config: LinkConfig,
    /// The memory that links of this host share with their workers.
    pub(super) inputs: InputMemories,
}

/// Makes the connections of the models with one home.
#[derive(Debug)]
pub(super) struct HomeConnector {
    pub(super) connector: Arc<Connector>,
    pub(super) home: Arc<Home>,
}

impl Connect for HomeConnector {
    type Link = WorkerLink;
    type Batches = BatchSender;

    fn connect(&self, key: ReplicaKey, target: &Target) -> WorkerLink {
        let Self { connector, home } = self;
        let program = &target.replica.spec.model;
        let identity = WorkerIdentity {
            replica: target.replica.id,
            artifact: program.artifact,
            batch_size: target.replica.spec.batch_size,
        };
        let endpoint = Endpoint {
            address: target.address,
            local_path: target.local_path.clone(),
            inputs: connector.inputs.of(&program.model),
            program: Arc::clone(program),
            identity,
            in_flight: target.capacity.map(|capacity| capacity.in_flight),
        };
        let (inbox, clock) = (connector.inbox.clone(), connector.clock);
        let home = Arc::clone(home);
        WorkerLink::open(
            &connector.runtimes,
            endpoint,
            connector.config.clone(),
            move |event| {
                inbox.send(DriverMessage::Link(
                    Arc::clone(&home),
                    key,
                    event,
                    clock.now(),
                ));
            },
        )
    }
}
