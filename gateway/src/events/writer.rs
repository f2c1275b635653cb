//! The task that numbers and stores events, and then gives them to the readers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use packhorse_api::events::EventView;
use tokio::{sync::mpsc, task::yield_now, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    new_event::{AppendedEvent, NewEvent},
    shared::Shared,
};
use crate::store::{Store, StoredEvent};

/// The time for which events are collected before they are stored together, in one transaction with one fsync.
const COLLECT: Duration = Duration::from_millis(50);
/// The largest number of events that are taken from the queue at a time.
const BATCH: usize = 512;
/// The number of events that readers get at a time.
const PUBLISHED_AT_ONCE: usize = 8;
/// The time after which a transaction that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The largest size of the events that wait because the database fails, in bytes. The oldest ones are lost, which leaves a gap.
const MAX_UNSTORED_BYTES: usize = 8 << 20;

/// The task's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    store: Store,
    /// The number of the next event.
    next_id: u64,
    /// The events that are not stored yet, in ascending order.
    unstored: VecDeque<StoredEvent>,
    /// The size of `unstored`, in bytes.
    unstored_bytes: usize,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Self {
        let next_id = shared.stream().retention.last() + 1;
        Self {
            shared,
            store,
            next_id,
            unstored: VecDeque::new(),
            unstored_bytes: 0,
        }
    }

    /// Stores events until `stop`, and then the last ones.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<AppendedEvent>,
        stop: CancellationToken,
    ) {
        let mut taken = Vec::with_capacity(BATCH);
        let mut failing = false;
        loop {
            if self.unstored.is_empty() {
                tokio::select! {
                    _ = inbox.recv_many(&mut taken, BATCH) => {}
                    () = stop.cancelled() => {}
                }
            }
            let last = tokio::select! {
                () = stop.cancelled() => true,
                () = sleep(if failing { RETRY } else { COLLECT }) => false,
            };
            if last {
                inbox.close();
            }
            loop {
                while taken.len() < BATCH
                    && let Ok(appended) = inbox.try_recv()
                {
                    taken.push(appended);
                }
                let may_be_more = taken.len() == BATCH;
                self.number(taken.drain(..));
                failing = !self.write(failing).await;
                self.note_lost();
                if !may_be_more || (failing && !last) {
                    break;
                }
            }
            if last {
                // Otherwise a reader would wait for events that nobody stores.
                self.shared.stream().close();
                return;
            }
        }
    }

    /// Gives events their numbers.
    fn number(&mut self, events: impl Iterator<Item = AppendedEvent>) {
        for AppendedEvent { at_ms, event } in events {
            let NewEvent {
                kind,
                subject,
                state,
                reason,
                text,
                object,
            } = event;
            let view = EventView {
                id: self.next_id,
                kind,
                at_ms,
                subject,
                state,
                reason,
                text,
                object,
            };
            let body = serde_json::to_string(&view).expect("our own messages are JSON");
            self.next_id += 1;
            self.unstored_bytes += body.len();
            self.unstored.push_back(StoredEvent {
                id: view.id,
                kind,
                body,
            });
        }
        let mut lost = 0_u64;
        while self.unstored_bytes > MAX_UNSTORED_BYTES && self.unstored.len() > BATCH {
            let Some(event) = self.unstored.pop_front() else {
                break;
            };
            self.unstored_bytes -= event.body.len();
            lost += 1;
        }
        if lost > 0 {
            tracing::warn!(
                events.lost = lost,
                "events were lost because the database fails"
            );
        }
    }

    /// Stores what is not stored yet, and gives it to the readers. Returns false if the database fails.
    async fn write(&mut self, failed_before: bool) -> bool {
        let events = self.unstored.make_contiguous();
        let Some(first) = events.first() else {
            return true;
        };
        let sizes: Vec<usize> = events.iter().map(|event| event.body.len()).collect();
        let oldest_kept = {
            let stream = self.shared.stream();
            stream.retention.oldest_with(first.id, &sizes)
        };
        if let Err(error) = self.store.insert_events(events, oldest_kept).await {
            if !failed_before {
                tracing::error!(error = %error, "cannot store events; trying again");
            }
            return false;
        }
        if failed_before {
            tracing::info!("events are stored again");
        }
        for chunk in events.chunks(PUBLISHED_AT_ONCE) {
            self.shared.stream().publish(chunk);
            // Readers take these before the next ones, so that a burst does not put them too far behind.
            yield_now().await;
        }
        self.shared.stream().retention.prune(oldest_kept);
        self.unstored.clear();
        self.unstored_bytes = 0;
        true
    }

    /// Leaves a gap for the events that found the queue full.
    fn note_lost(&mut self) {
        let lost = self.shared.take_lost();
        if lost == 0 {
            return;
        }
        tracing::warn!(
            events.lost = lost,
            "events were lost because too many were appended at once"
        );
        self.next_id += lost;
        if self.unstored.is_empty() {
            self.shared.stream().lose(lost);
        }
    }
}
