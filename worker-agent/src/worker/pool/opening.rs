//! The thread that opens the sockets of members. It begins before the process is confined, and only it can listen afterwards.

use std::{
    sync::mpsc::{self, Sender},
    thread,
};

use packhorse_cluster::ReplicaId;
use packhorse_worker_agent::handoff::LinkSettings;

use crate::{executor::StartError, listeners::Listeners};

/// The thread that opens sockets.
pub(super) struct Opening(Sender<Request>);

struct Request {
    replica: ReplicaId,
    socket: Option<String>,
    opened: Sender<Result<Listeners, StartError>>,
}

impl Opening {
    /// Starts the thread.
    pub(super) fn start(links: LinkSettings) -> Self {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for request in requests {
                let listeners = Listeners::open(request.replica, &links, request.socket);
                let _ = request.opened.send(listeners);
            }
        });
        Self(sender)
    }

    /// Listens for a replica, also at the path of this Unix socket.
    ///
    /// # Errors
    /// The address is in use.
    pub(super) fn open(
        &self,
        replica: ReplicaId,
        socket: Option<String>,
    ) -> Result<Listeners, StartError> {
        let (opened, listeners) = mpsc::channel();
        let request = Request {
            replica,
            socket,
            opened,
        };
        let sent = self.0.send(request);
        sent.expect("the thread ends with its last sender");
        listeners.recv().expect("every request is answered")
    }
}
