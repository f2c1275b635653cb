//! The sockets on which a worker listens for one of its replicas.

use std::{
    fs::{self, Permissions},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
    sync::Arc,
};

use packhorse_cluster::ReplicaId;
use packhorse_reconcile::AlsoListening;
use packhorse_worker_agent::handoff::LinkSettings;

use crate::{
    acceptor::{Accepting, Acceptor, Listener},
    connection::Link,
    executor::StartError,
    semaphore::Semaphore,
};

/// The sockets on which a worker listens for one of its replicas.
pub(crate) struct Listeners {
    replica: ReplicaId,
    anywhere: TcpListener,
    address: SocketAddr,
    local: Option<(UnixListener, String)>,
}

/// The listening of a replica, which ends when this is dropped.
pub(crate) struct Listening {
    _sockets: Vec<Accepting>,
}

impl Listeners {
    /// Listens for a replica: at the address of the settings, and at the path of this Unix socket.
    ///
    /// # Errors
    /// The address is in use.
    pub(crate) fn open(
        replica: ReplicaId,
        links: &LinkSettings,
        socket: Option<String>,
    ) -> Result<Self, StartError> {
        let listen = links.listen;
        let anywhere = TcpListener::bind(listen)
            .map_err(|e| StartError::transient(format!("cannot listen on {listen}: {e}")))?;
        let address = anywhere.local_addr();
        Ok(Self {
            replica,
            address: address.map_err(|e| StartError::transient(e.to_string()))?,
            anywhere,
            local: socket.and_then(|socket| listen_locally(socket, links.own_user)),
        })
    }

    /// Returns where gateways find the replica.
    pub(crate) fn places(&self) -> AlsoListening {
        AlsoListening {
            replica: self.replica,
            address: self.address,
            local_path: self.local.as_ref().map(|(_, path)| path.clone()),
        }
    }

    /// Accepts connections from anywhere, and those of this host.
    ///
    /// # Errors
    /// The kernel watches no more sockets.
    pub(crate) fn accept(
        self,
        acceptor: &Arc<Acceptor>,
        link: &Arc<Link>,
        connections: &Arc<Semaphore>,
    ) -> io::Result<Listening> {
        let mut sockets =
            vec![acceptor.accept(Listener::Anywhere(self.anywhere), link, connections)?];
        if let Some((listener, _)) = self.local {
            sockets.push(acceptor.accept(Listener::Local(listener), link, connections)?);
        }
        Ok(Listening { _sockets: sockets })
    }
}

/// Listens on a Unix socket of the hand-over folder, to which only this user connects, or its group, too, and returns its path, too. Without it gateways of this host connect by TCP.
fn listen_locally(socket: String, for_group: bool) -> Option<(UnixListener, String)> {
    let folder = Path::new(&socket).parent();
    let is_new = folder.is_some_and(|folder| fs::create_dir(folder).is_ok());
    // Of a process that ended in the same folder.
    let _ = fs::remove_file(&socket);
    let listen = || {
        let listener = UnixListener::bind(&socket)?;
        if for_group {
            let folder = folder.filter(|_| is_new);
            for (path, mode) in folder
                .map(|path| (path, 0o710))
                .into_iter()
                .chain([(Path::new(&socket), 0o660)])
            {
                fs::set_permissions(path, Permissions::from_mode(mode))?;
            }
        }
        io::Result::Ok(listener)
    };
    match listen() {
        Ok(listener) => Some((listener, socket)),
        Err(error) => {
            tracing::warn!(%error, "cannot listen on link.sock; gateways connect by TCP");
            None
        }
    }
}
