//! The handle to the events.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use packhorse_api::events::{SNAPSHOT_EVENT, Snapshot};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, mpsc::error::TrySendError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    frame::{frame, stored_frame},
    new_event::{AppendedEvent, NewEvent},
    reader::Reader,
    retention::{Position, Retention},
    shared::{Shared, SharedSnapshot, Stream},
    writer::Writer,
};
use crate::{
    store::{Store, StoreError, StoredEvent, unix_ms},
    tasks::Tasks,
};

/// The number of appended events that may wait for the log's task. Further ones are lost, which leaves a gap.
const APPENDED_QUEUE: usize = 4096;
/// The largest number of readers at a time.
const MAX_READERS: usize = 1024;
/// The time for which readers that begin share a snapshot. It is their state of the same past event; the later events follow for each.
const SNAPSHOT_AGE: Duration = Duration::from_millis(500);

/// A handle to the events. Clones share them.
#[derive(Clone, Debug)]
pub struct EventLog {
    shared: Arc<Shared>,
}

/// The permission to read the stream.
pub(crate) type ReaderPermit = OwnedSemaphorePermit;

/// The next thing for a reader that may be behind.
#[derive(Debug)]
pub(crate) enum CatchUp {
    /// Stored events, and the number of the last one.
    Page(Bytes, u64),
    /// Nothing is stored that the reader has not read; this is what comes from now on.
    Live(Reader),
    /// Events are missing between what the reader has read and what is stored.
    Gap,
}

impl EventLog {
    /// Reads which events are stored, and starts the task that stores further ones.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn open(store: Store, tasks: &Tasks) -> Result<Self, StoreError> {
        let retention = Retention::new(store.event_sizes().await?);
        let (appended, inbox) = mpsc::channel(APPENDED_QUEUE);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            store: store.clone(),
            appended,
            lost: AtomicU64::new(0),
            stream: Mutex::new(Stream::new(retention)),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            history: Semaphore::new(1),
            snapshot: tokio::sync::Mutex::new(None),
            stop: stop.clone(),
        });
        let writer = Writer::new(Arc::clone(&shared), store);
        tasks.spawn("event writer", writer.run(inbox, stop));
        Ok(Self { shared })
    }

    /// Appends an event. It returns at once; the event is stored and given to readers a little later.
    pub fn append(&self, event: NewEvent) {
        let appended = AppendedEvent {
            at_ms: u64::try_from(unix_ms()).unwrap_or_default(),
            event,
        };
        if let Err(TrySendError::Full(_)) = self.shared.appended.try_send(appended) {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Stores what was appended, and ends the streams of all readers.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.appended.closed().await;
    }

    /// Returns a token that is cancelled when the log is closed.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Returns the permission to read the stream, unless there are too many readers.
    pub(crate) fn reader_permit(&self) -> Option<ReaderPermit> {
        Arc::clone(&self.shared.readers).try_acquire_owned().ok()
    }

    /// Returns true if a reader whose last event is `since` can read on without a snapshot.
    pub(crate) fn can_resume(&self, since: u64) -> bool {
        self.shared.stream().retention.position(since) != Position::Gap
    }

    /// Returns what comes next for a reader whose last event is `since`.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn catch_up(&self, since: u64) -> Result<CatchUp, StoreError> {
        let (first, last) = {
            let mut stream = self.shared.stream();
            match stream.retention.position(since) {
                Position::AtEnd => return Ok(CatchUp::Live(stream.subscribe())),
                Position::Behind(first, last) => (first, last),
                Position::Gap => return Ok(CatchUp::Gap),
            }
        };
        let events = {
            let _permit = self.shared.history.acquire().await;
            self.shared.store.events(first, last).await?
        };
        // Some may have been pruned meanwhile.
        if events.len() as u64 != last - first + 1 {
            return Ok(CatchUp::Gap);
        }
        let frames = events.iter().map(stored_frame);
        Ok(CatchUp::Page(
            frames.collect::<Vec<_>>().concat().into(),
            last,
        ))
    }

    /// Returns the newest stored events in ascending order, at most `limit`, and only those after `since`.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn newest(
        &self,
        since: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let range = self.shared.stream().retention.newest(since, limit);
        let Some((first, last)) = range else {
            return Ok(Vec::new());
        };
        let _permit = self.shared.history.acquire().await;
        self.shared.store.events(first, last).await
    }

    /// Returns the snapshot of a moment ago as an event of the stream, with the number of the last event that it contains. If there is
    /// none, `make` makes one that contains the event of this number.
    pub(crate) async fn snapshot<E>(
        &self,
        make: impl AsyncFnOnce(u64) -> Result<Snapshot, E>,
    ) -> Result<(u64, Bytes), E> {
        let mut shared = self.shared.snapshot.lock().await;
        if let Some(snapshot) = &*shared
            && snapshot.made.elapsed() < SNAPSHOT_AGE
            && self.can_resume(snapshot.id)
        {
            return Ok((snapshot.id, snapshot.frame.clone()));
        }
        let now = Instant::now();
        // The number is read before the state: what happens between them is in the snapshot, and follows as an event, too.
        let id = self.shared.stream().retention.last();
        let snapshot = make(id).await?;
        let data = serde_json::to_string(&snapshot).expect("our own messages are JSON");
        let frame = frame(Some(id), SNAPSHOT_EVENT, &data);
        *shared = Some(SharedSnapshot {
            id,
            made: now,
            frame: frame.clone(),
        });
        Ok((id, frame))
    }

    /// Returns true if anybody reads the stream.
    pub(super) fn has_readers(&self) -> bool {
        !self.shared.stream().readers.is_empty()
    }

    /// Gives all readers the goodput of this second.
    pub(super) fn set_goodput(&self, goodput: &Bytes) {
        let mut stream = self.shared.stream();
        stream.readers.retain(|reader| reader.set_goodput(goodput));
    }
}
