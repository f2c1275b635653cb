//! The requests of a connection that has several at a time: what the connection does, and whether its client takes the answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::activity::Activity;

/// The requests of a connection. Clones share them.
#[derive(Clone)]
pub(super) struct Streams {
    state: Arc<Mutex<State>>,
    activity: Arc<Activity>,
}

#[derive(Default)]
struct State {
    /// The requests whose body is not complete.
    receiving: usize,
    /// The requests whose body is complete, or is not needed.
    answering: usize,
    next: u64,
    /// The answers of which a part was passed on and the client has not made room for the next, each since a time.
    blocked: BTreeMap<u64, Blocked>,
    /// The time since which the client has made no room for any answer, as long as it has requests.
    owed_since: Option<Instant>,
}

/// An answer whose client makes no room for it.
struct Blocked {
    since: Instant,
    /// True if the body of its request is complete, or is not needed.
    is_received: bool,
}

impl State {
    /// Returns the time since which nothing but the client is waited for.
    fn waits_for_client(&self) -> Option<Instant> {
        let blocked = self.blocked.values().filter(|blocked| blocked.is_received);
        let is_blocked = self.answering > 0 && blocked.count() >= self.answering;
        self.owed_since.filter(|_| is_blocked)
    }
}

/// A request of a connection, until its answer has been passed on.
pub(super) struct StreamMember {
    streams: Streams,
    number: u64,
    is_received: Mutex<bool>,
}

impl Streams {
    /// Creates the requests of a connection, of which there is none yet.
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        Self {
            state: Arc::default(),
            activity,
        }
    }

    /// Adds a request whose head has come.
    pub(super) fn begin(&self) -> StreamMember {
        let mut state = self.lock();
        state.receiving += 1;
        state.next += 1;
        if state.receiving == 1 && state.answering == 0 {
            self.activity.begin_body();
        }
        StreamMember {
            number: state.next,
            streams: self.clone(),
            is_received: Mutex::new(false),
        }
    }

    /// Returns true if the client has taken nothing of an answer for this long.
    pub(super) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        let state = self.lock();
        let since = state.blocked.values().map(|blocked| &blocked.since);
        let mut since = since.chain(&state.owed_since);
        since.any(|since| now.saturating_duration_since(*since) >= limit)
    }

    /// Returns true if there is no request.
    pub(super) fn are_none(&self) -> bool {
        let state = self.lock();
        state.receiving + state.answering == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamMember {
    /// The body of the request is complete.
    pub(super) fn received(&self) {
        let is_received = self.is_received.lock();
        let mut is_received = is_received.unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_received, true) {
            return;
        }
        let mut state = self.streams.lock();
        state.receiving -= 1;
        state.answering += 1;
        if let Some(blocked) = state.blocked.get_mut(&self.number) {
            blocked.is_received = true;
        }
        match state.waits_for_client() {
            Some(since) => self.streams.activity.wait_for_client(since),
            None => self.streams.activity.begin_request(),
        }
    }

    /// Nothing is done for the request until something changes: the connection waits for its client, as for the rest of a body.
    pub(super) fn watches(&self) {
        let is_received = self.is_received.lock();
        let mut is_received = is_received.unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_received, false) {
            return;
        }
        let mut state = self.streams.lock();
        state.answering -= 1;
        state.receiving += 1;
        if state.answering == 0 {
            self.streams.activity.begin_body();
        }
    }

    /// A part of the answer was passed on; the next is asked for when there is room.
    pub(super) fn passed_on(&self) {
        let is_received = self.is_received.lock();
        let is_received = *is_received.unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        let mut state = self.streams.lock();
        let blocked = Blocked { since, is_received };
        state.blocked.insert(self.number, blocked);
        state.owed_since.get_or_insert(since);
        if let Some(since) = state.waits_for_client() {
            self.streams.activity.wait_for_client(since);
        }
    }

    /// There is room for more of the answer.
    pub(super) fn has_room(&self) {
        let mut state = self.streams.lock();
        let was_waiting = state.waits_for_client().is_some();
        if state.blocked.remove(&self.number).is_some() {
            state.owed_since = None;
            if was_waiting {
                self.streams.activity.begin_request();
            }
        }
    }
}

impl Drop for StreamMember {
    fn drop(&mut self) {
        let is_received = self.is_received.get_mut();
        let is_received = *is_received.unwrap_or_else(PoisonError::into_inner);
        let mut state = self.streams.lock();
        state.blocked.remove(&self.number);
        if is_received {
            state.answering -= 1;
        } else {
            state.receiving -= 1;
        }
        let activity = &self.streams.activity;
        if let Some(since) = state.waits_for_client() {
            activity.wait_for_client(since);
        }
        match (state.receiving, state.answering) {
            (0, 0) => {
                state.owed_since = None;
                activity.end_request();
            }
            (_, 0) => activity.begin_body(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::activity::Waiting;

    #[tokio::test]
    async fn a_connection_waits_for_bodies_unless_it_answers() {
        let activity = Arc::new(Activity::begin());
        let streams = Streams::new(Arc::clone(&activity));
        let is_body = || matches!(activity.waiting(), Some(Waiting::Body(_)));
        let first = streams.begin();
        let second = streams.begin();
        assert!(is_body());
        first.received();
        first.received();
        assert_eq!(activity.waiting(), None);
        drop(first);
        assert!(is_body());
        drop(second);
        assert!(matches!(activity.waiting(), Some(Waiting::Head(_))));
    }

    #[tokio::test]
    async fn a_connection_that_only_watches_waits_for_its_client() {
        let activity = Arc::new(Activity::begin());
        let streams = Streams::new(Arc::clone(&activity));
        let is_body = || matches!(activity.waiting(), Some(Waiting::Body(_)));
        let watching = streams.begin();
        watching.received();
        assert_eq!(activity.waiting(), None);
        watching.watches();
        assert!(is_body());
        let other = streams.begin();
        other.received();
        assert_eq!(activity.waiting(), None);
        drop(other);
        assert!(is_body());
        drop(watching);
        assert!(matches!(activity.waiting(), Some(Waiting::Head(_))));
        assert!(streams.are_none());
    }

    #[tokio::test]
    async fn a_client_stalls_that_makes_no_room() {
        let streams = Streams::new(Arc::new(Activity::begin()));
        let member = streams.begin();
        let limit = Duration::from_secs(10);
        let later = Instant::now() + limit;
        member.passed_on();
        assert!(!streams.is_stalled(Instant::now(), limit));
        assert!(streams.is_stalled(later + limit, limit));
        member.has_room();
        assert!(!streams.is_stalled(later + limit, limit));
        member.passed_on();
        drop(member);
        assert!(!streams.is_stalled(later + limit, limit));
    }

    #[tokio::test]
    async fn a_connection_whose_answers_all_wait_for_room_waits_for_its_client() {
        let activity = Arc::new(Activity::begin());
        let streams = Streams::new(Arc::clone(&activity));
        let since = || match activity.waiting() {
            Some(Waiting::Body(since)) => Some(since),
            _ => None,
        };
        let first = streams.begin();
        first.received();
        first.passed_on();
        let began = since().expect("it waits for its client");
        // Another request, and the end of the first one, make no room.
        let second = streams.begin();
        second.received();
        assert_eq!(activity.waiting(), None, "one is answered");
        second.passed_on();
        drop(first);
        assert_eq!(since(), Some(began));
        let limit = Duration::from_secs(10);
        assert!(streams.is_stalled(began + limit, limit));
        second.has_room();
        assert_eq!(activity.waiting(), None);
        assert!(!streams.is_stalled(began + limit, limit));
    }
}
