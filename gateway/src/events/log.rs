//! The handle to the events.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use packhorse_api::{
    ModelView, NodeView, PlanView,
    events::{EventKind, EventObject, EventState, Finding, SNAPSHOT_EVENT, Snapshot, Subject},
};
use packhorse_cluster::ModelId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, mpsc::error::TrySendError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    frame,
    reader::{Reader, ReaderQueue},
    retention::{Position, Retention},
    writer::{AppendedEvent, Writer},
};
use crate::store::{Store, StoreError, StoredEvent, unix_ms};

/// The number of appended events that may wait for the log's task. Further ones are lost, which leaves a gap.
const APPENDED_QUEUE: usize = 4096;
/// The largest number of readers at a time.
const MAX_READERS: usize = 1024;
/// The time for which readers that begin share a snapshot. It is their state of the same past event; the later events follow for each.
const SNAPSHOT_AGE: Duration = Duration::from_millis(500);

/// A change, as the control plane tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The kind of change.
    pub kind: EventKind,
    /// The object that has changed; none if it is the cluster.
    pub subject: Option<Subject>,
    /// The state of the subject after the change.
    pub state: EventState,
    /// The reason for the change.
    pub reason: Option<String>,
    /// The change in a sentence for people.
    pub text: String,
    /// The subject after the change; none if it no longer exists.
    pub object: Option<EventObject>,
}

impl NewEvent {
    /// A model was registered, or is in another state.
    pub fn model(view: ModelView, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Model,
            subject: Some(Subject::Model(ModelId {
                name: view.name.clone(),
                version: view.version,
            })),
            state: view.state.into(),
            reason: view.reason.clone(),
            text: text.into(),
            object: Some(EventObject::Model(Box::new(view))),
        }
    }

    /// A model was removed.
    pub fn model_removed(id: &ModelId) -> Self {
        Self {
            kind: EventKind::Model,
            subject: Some(Subject::Model(id.clone())),
            state: EventState::Removed,
            reason: None,
            text: format!("model {id} was removed"),
            object: None,
        }
    }

    /// A node joined, was lost, or is in another state.
    pub fn node(view: NodeView, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Node,
            subject: Some(Subject::Node(view.name.clone())),
            state: view.state.into(),
            reason: None,
            text: text.into(),
            object: Some(EventObject::Node(Box::new(view))),
        }
    }

    /// A plan is in this state.
    pub fn plan(view: PlanView, state: EventState, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Plan,
            subject: view.generation.map(Subject::Plan),
            state,
            reason: Some(view.reason.clone()),
            text: text.into(),
            object: Some(EventObject::Plan(Box::new(view))),
        }
    }

    /// A finding was raised or cleared.
    pub(super) fn finding(finding: Finding, state: EventState) -> Self {
        Self {
            kind: EventKind::Finding,
            subject: finding.subject.clone(),
            state,
            reason: Some(finding.cause.clone()),
            text: finding.text.clone(),
            object: Some(EventObject::Finding(Box::new(finding))),
        }
    }
}

/// A handle to the events. Clones share them.
#[derive(Clone, Debug)]
pub struct EventLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    store: Store,
    appended: mpsc::Sender<AppendedEvent>,
    /// The number of appended events that found the queue full, since the log's task last asked.
    lost: AtomicU64,
    stream: Mutex<Stream>,
    /// The permits of readers.
    readers: Arc<Semaphore>,
    /// One permit: stored events are read by one reader at a time, so that the control plane always finds a connection to the database.
    history: Semaphore,
    snapshot: tokio::sync::Mutex<Option<SharedSnapshot>>,
    stop: CancellationToken,
}

/// The stored events and their readers.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) retention: Retention,
    readers: Vec<Arc<ReaderQueue>>,
    /// True once the log is closed: readers end when they have read everything.
    closed: bool,
}

/// A snapshot that readers share.
#[derive(Debug)]
struct SharedSnapshot {
    id: u64,
    made: Instant,
    frame: Bytes,
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
    pub async fn open(store: Store) -> Result<Self, StoreError> {
        let retention = Retention::new(store.event_sizes().await?);
        let (appended, inbox) = mpsc::channel(APPENDED_QUEUE);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            store: store.clone(),
            appended,
            lost: AtomicU64::new(0),
            stream: Mutex::new(Stream {
                retention,
                readers: Vec::new(),
                closed: false,
            }),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            history: Semaphore::new(1),
            snapshot: tokio::sync::Mutex::new(None),
            stop: stop.clone(),
        });
        tokio::spawn(Writer::new(Arc::clone(&shared), store).run(inbox, stop));
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
        let made = Instant::now();
        // The number is read before the state: what happens between them is in the snapshot, and follows as an event, too.
        let id = self.shared.stream().retention.last();
        let snapshot = make(id).await?;
        let data = serde_json::to_string(&snapshot).expect("our own messages are JSON");
        let frame = frame(Some(id), SNAPSHOT_EVENT, &data);
        *shared = Some(SharedSnapshot {
            id,
            made,
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
    fn subscribe(&mut self) -> Reader {
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

/// Returns a stored event as an event of the stream.
fn stored_frame(event: &StoredEvent) -> Bytes {
    frame(Some(event.id), event.kind.name(), &event.body)
}
