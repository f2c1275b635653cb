//! The thread that accepts connections, for all sockets on which the process listens: a thread for each would cost a pool worker a quarter of a MiB per
//! socket, which is what libtorch has in every thread.

use std::{
    collections::BTreeMap,
    io,
    net::TcpListener,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
};

use crate::{
    connection::{self, Link},
    semaphore::Semaphore,
};

/// The time after which a connection is accepted again that could not be: most likely there were no free file descriptors.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The sockets on which the process listens, and the thread that accepts their connections.
pub(crate) struct Acceptor {
    epoll: OwnedFd,
    sockets: Mutex<Sockets>,
}

#[derive(Default)]
struct Sockets {
    next: u64,
    open: BTreeMap<u64, Arc<Socket>>,
}

/// A socket on which the process listens for a replica.
struct Socket {
    listener: Listener,
    link: Arc<Link>,
    /// The semaphore of the replica's connections.
    connections: Arc<Semaphore>,
}

/// A socket that takes connections.
pub(crate) enum Listener {
    /// Connections from anywhere.
    Anywhere(TcpListener),
    /// Connections of this host.
    Local(UnixListener),
}

/// The listening on a socket, which ends when this is dropped.
pub(crate) struct Accepting {
    acceptor: Arc<Acceptor>,
    key: u64,
}

impl Acceptor {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no free file descriptors.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let acceptor = Arc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sockets: Mutex::default(),
        });
        let accepting = Arc::clone(&acceptor);
        thread::spawn(move || accepting.run());
        Ok(acceptor)
    }

    /// Accepts the connections of a socket for a replica.
    ///
    /// # Errors
    /// The kernel watches no more sockets.
    pub(crate) fn accept(
        self: &Arc<Self>,
        listener: Listener,
        link: &Arc<Link>,
        connections: &Arc<Semaphore>,
    ) -> io::Result<Accepting> {
        listener.set_nonblocking()?;
        let socket = Arc::new(Socket {
            listener,
            link: Arc::clone(link),
            connections: Arc::clone(connections),
        });
        let mut sockets = self.lock();
        let key = sockets.next;
        sockets.next += 1;
        let data = EventData::new_u64(key);
        epoll::add(&self.epoll, socket.listener.as_fd(), data, EventFlags::IN)?;
        sockets.open.insert(key, socket);
        Ok(Accepting {
            acceptor: Arc::clone(self),
            key,
        })
    }

    fn run(&self) {
        loop {
            let mut events = Vec::with_capacity(64);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "connections cannot be waited for");
                    thread::sleep(RETRY_AFTER);
                }
            }
            let mut failed = false;
            for event in events {
                let key = event.data.u64();
                let socket = self.lock().open.get(&key).cloned();
                if let Some(error) = socket.and_then(|socket| socket.accept().err()) {
                    tracing::error!(%error, "cannot accept a connection");
                    failed = true;
                }
            }
            if failed {
                thread::sleep(RETRY_AFTER);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    /// Accepts a connection, if one is there, and serves it on a thread of its own. One too many is closed.
    fn accept(&self) -> io::Result<()> {
        let (link, permit) = (Arc::clone(&self.link), self.connections.try_acquire());
        let served = match &self.listener {
            Listener::Anywhere(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                Ok(Box::new(move || connection::serve(stream, &link)) as Box<dyn FnOnce() + Send>)
            }),
            Listener::Local(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                Ok(Box::new(move || connection::serve_local(stream, &link)) as Box<_>)
            }),
        };
        match (served, permit) {
            (Ok(serve), Some(permit)) => {
                thread::spawn(move || {
                    serve();
                    drop(permit);
                });
                Ok(())
            }
            (Ok(_), None) => {
                tracing::warn!("a replica has as many connections as it may: one is closed");
                Ok(())
            }
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            (Err(error), _) => Err(error),
        }
    }
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Anywhere(listener) => listener.set_nonblocking(true),
            Self::Local(listener) => listener.set_nonblocking(true),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Anywhere(listener) => listener.as_fd(),
            Self::Local(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let socket = self.acceptor.lock().open.remove(&self.key);
        if let Some(socket) = socket {
            // The kernel forgets it by itself once its last handle is closed.
            let _ = epoll::delete(&self.acceptor.epoll, socket.listener.as_fd());
        }
    }
}
