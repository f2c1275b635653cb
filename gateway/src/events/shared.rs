//! The state that the handles and the task of the log share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    frame::stored_frame,
    new_event::AppendedEvent,
    reader::{Reader, ReaderQueue},
    retention::Retention,
};
use crate::store::{Store, StoredEvent};

/// The state of the log.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) appended: mpsc::Sender<AppendedEvent>,
    /// The number of appended events that found the queue full, since the log's task last asked.
    pub(super) lost: AtomicU64,
    pub(super) stream: Mutex<Stream>,
    /// The permits of readers.
    pub(super) readers: Arc<Semaphore>,
    /// One permit: stored events are read by one reader at a time, so that the control plane always finds a connection to the database.
    pub(super) history: Semaphore,
    pub(super) snapshot: tokio::sync::Mutex<Option<SharedSnapshot>>,
    pub(super) stop: CancellationToken,
}

/// The stored events and their readers.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) retention: Retention,
    pub(super) readers: Vec<Arc<ReaderQueue>>,
    /// True once the log is closed: readers end when they have read everything.
    closed: bool,
}

/// A snapshot that readers share.
#[derive(Debug)]
pub(super) struct SharedSnapshot {
    pub(super) id: u64,
    pub(super) made: Instant,
    pub(super) frame: Bytes,
}

impl Shared {
    pub(super) fn stream(&self) -> MutexGuard<'_, Stream> {
        // Whoever panicked has not left a change half done.
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of events that were lost since the last call.
    pub(super) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Relaxed)
    }
}

impl Stream {
    /// Creates the stream of the stored events, without readers.
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            readers: Vec::new(),
            closed: false,
        }
    }

    /// Returns a reader of the events from now on.
    pub(super) fn subscribe(&mut self) -> Reader {
        let queue = Arc::new(ReaderQueue::default());
        if self.closed {
            queue.close();
        } else {
            self.readers.push(Arc::clone(&queue));
        }
        Reader::new(queue)
    }

    /// Adds stored events and gives them to all readers. If a number is missing before one of them, the readers are closed: they find
    /// the gap when they read on.
    pub(super) fn publish(&mut self, events: &[StoredEvent]) {
        for event in events {
            if event.id != self.retention.last() + 1 {
                self.close_readers();
            }
            self.retention.push(event.id, event.body.len());
            let frame = stored_frame(event);
            self.readers.retain(|reader| reader.push(&frame));
        }
    }

    /// Notes that events were lost, which leaves a gap of as many numbers.
    pub(super) fn lose(&mut self, events: u64) {
        self.retention.lose(events);
        self.close_readers();
    }

    /// Ends the streams of all readers, and of those to come.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.close_readers();
    }

    fn close_readers(&mut self) {
        for reader in self.readers.drain(..) {
            reader.close();
        }
    }
}
