//! The sockets on which a worker listens for one of its replicas.

use std::{
    fs::{self, Permissions},
    io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use packhorse_cluster::ReplicaId;
use packhorse_reconcile::AlsoListening;
use packhorse_worker_agent::handoff::LinkSettings;
use socket2::SockRef;

use crate::{
    connection::{self, Link},
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
    sockets: Vec<OwnedFd>,
    ended: Arc<AtomicBool>,
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
    /// There are no free file descriptors.
    pub(crate) fn accept(
        self,
        link: &Arc<Link>,
        connections: &Arc<Semaphore>,
    ) -> io::Result<Listening> {
        let mut listening = Listening {
            sockets: vec![self.anywhere.as_fd().try_clone_to_owned()?],
            ended: Arc::default(),
        };
        if let Some((listener, _)) = &self.local {
            listening
                .sockets
                .push(listener.as_fd().try_clone_to_owned()?);
        }
        let (anywhere, ended) = (self.anywhere, &listening.ended);
        let accept = move || anywhere.accept().map(|(stream, _)| stream);
        spawn_accept(accept, connection::serve, link, connections, ended);
        if let Some((listener, _)) = self.local {
            let accept = move || listener.accept().map(|(stream, _)| stream);
            spawn_accept(accept, connection::serve_local, link, connections, ended);
        }
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for socket in &self.sockets {
            // The thread that waits for a connection is woken.
            let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
        }
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

fn spawn_accept<S: Send + 'static>(
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    serve: fn(S, &Link),
    link: &Arc<Link>,
    connections: &Arc<Semaphore>,
    ended: &Arc<AtomicBool>,
) {
    let (link, connections) = (Arc::clone(link), Arc::clone(connections));
    let ended = Arc::clone(ended);
    thread::spawn(move || {
        loop {
            let permit = connections.acquire();
            match accept() {
                _ if ended.load(Ordering::Relaxed) => return,
                Ok(stream) => {
                    let link = Arc::clone(&link);
                    thread::spawn(move || {
                        serve(stream, &link);
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Most likely there are no free file descriptors, and a later attempt succeeds.
                    tracing::error!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    });
}
