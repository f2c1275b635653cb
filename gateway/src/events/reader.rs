//! The events that wait for one reader of the stream.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::Notify;

/// The number of bytes by which a reader may be behind. One that is further behind is closed; it reads on from its last event.
pub(crate) const MAX_BEHIND: usize = 1 << 20;
/// The number of successive `goodput` events, one per second, after which a reader that has read none of them is closed.
const MAX_UNREAD_GOODPUT: u32 = 60;

/// The queue of a reader, which the log's task fills. Events are shared between readers: each holds only references.
#[derive(Debug, Default)]
pub(super) struct ReaderQueue {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    changes: VecDeque<Bytes>,
    /// The sizes of `changes`.
    bytes: usize,
    /// The newest `goodput` event that was not read. A newer one replaces it.
    goodput: Option<Bytes>,
    /// The number of successive `goodput` events that replaced an unread one.
    unread_goodput: u32,
    /// True once nothing more is added.
    closed: bool,
}

impl ReaderQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        // Whoever panicked has not left a change half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change. Returns false if the reader is closed, also because of this change.
    pub(super) fn push(&self, change: &Bytes) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        // One change always fits, however large it is.
        if !state.changes.is_empty() && state.bytes + change.len() > MAX_BEHIND {
            tracing::info!(
                behind.bytes = state.bytes,
                "closed the stream of a reader of events that is too slow"
            );
            *state = QueueState {
                closed: true,
                ..QueueState::default()
            };
        } else {
            state.bytes += change.len();
            state.changes.push_back(change.clone());
        }
        self.changed.notify_one();
        !state.closed
    }

    /// Replaces the `goodput` event. Returns false if the reader is closed.
    pub(super) fn set_goodput(&self, goodput: &Bytes) -> bool {
        let mut state = self.state();
        if state.goodput.replace(goodput.clone()).is_some() {
            state.unread_goodput += 1;
            if state.unread_goodput >= MAX_UNREAD_GOODPUT {
                state.closed = true;
            }
        } else {
            state.unread_goodput = 0;
        }
        self.changed.notify_one();
        !state.closed
    }

    /// Ends the stream once the reader has read what is there.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }
}

/// A reader of the events from now on.
#[derive(Debug)]
pub(crate) struct Reader {
    queue: Arc<ReaderQueue>,
}

impl Reader {
    pub(super) fn new(queue: Arc<ReaderQueue>) -> Self {
        Self { queue }
    }

    /// Waits for the next event; `None` once the reader is closed.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            {
                let mut state = self.queue.state();
                if let Some(change) = state.changes.pop_front() {
                    state.bytes -= change.len();
                    return Some(change);
                }
                if let Some(goodput) = state.goodput.take() {
                    state.unread_goodput = 0;
                    return Some(goodput);
                }
                if state.closed {
                    return None;
                }
            }
            self.queue.changed.notified().await;
        }
    }
}

impl Drop for Reader {
    /// The log's task removes the queue at the next event.
    fn drop(&mut self) {
        let mut state = self.queue.state();
        *state = QueueState {
            closed: true,
            ..QueueState::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn reader() -> (Arc<ReaderQueue>, Reader) {
        let queue = Arc::new(ReaderQueue::default());
        (Arc::clone(&queue), Reader::new(queue))
    }

    /// Returns the next event; nothing if none is there yet; an error once the reader is closed.
    fn next(reader: &mut Reader) -> Result<Option<Bytes>, &'static str> {
        match reader.next().now_or_never() {
            Some(Some(event)) => Ok(Some(event)),
            Some(None) => Err("closed"),
            None => Ok(None),
        }
    }

    #[test]
    fn a_reader_that_is_too_far_behind_is_closed_and_holds_nothing() {
        let (queue, mut reader) = reader();
        let change = Bytes::from(vec![0; MAX_BEHIND / 4]);
        for _ in 0..4 {
            assert!(queue.push(&change));
        }
        assert!(!queue.push(&Bytes::from_static(b"x")));
        assert_eq!(queue.state().bytes, 0);
        assert_eq!(next(&mut reader), Err("closed"));
        assert!(!queue.push(&change));
    }

    #[test]
    fn a_single_change_of_any_size_is_read() {
        let (queue, mut reader) = reader();
        let large = Bytes::from(vec![0; 3 * MAX_BEHIND]);
        assert!(queue.push(&large));
        assert_eq!(next(&mut reader), Ok(Some(large)));
        assert_eq!(next(&mut reader), Ok(None), "nothing more is there yet");
    }

    #[test]
    fn only_the_newest_goodput_waits_and_after_a_minute_nobody_is_believed_to_read() {
        let (queue, mut reader) = reader();
        for second in 0..10 {
            assert!(queue.set_goodput(&Bytes::from(second.to_string())));
        }
        assert_eq!(next(&mut reader), Ok(Some(Bytes::from("9"))));
        for _ in 0..MAX_UNREAD_GOODPUT {
            assert!(queue.set_goodput(&Bytes::from_static(b"g")));
        }
        assert!(!queue.set_goodput(&Bytes::from_static(b"g")));
    }

    #[test]
    fn a_closed_reader_still_reads_what_was_there() {
        let (queue, mut reader) = reader();
        queue.push(&Bytes::from_static(b"last"));
        queue.close();
        assert_eq!(next(&mut reader), Ok(Some(Bytes::from_static(b"last"))));
        assert_eq!(next(&mut reader), Err("closed"));
    }
}
