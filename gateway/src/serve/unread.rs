//! The time in which a connection's requests are not read.
//!
//! The requests of a connection of HTTP/2 share a window. Bytes of one that nobody reads close it for the others, whose client then waits for the
//! gateway: no limit on the client's pauses may count that time. A request is not read while, for example, as many of its stream as may are computed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::bodies::RequestWatch;

/// The bodies of a connection that may have bytes which nobody has read. Clones share them. An extension of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadBodies(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The number of such bodies.
    bodies: usize,
    /// The time since which there is one.
    since: Option<Instant>,
    /// The time for which there was one before.
    before: Duration,
}

impl State {
    fn add(&mut self, now: Instant) {
        self.bodies += 1;
        self.since.get_or_insert(now);
    }

    fn remove(&mut self, now: Instant) {
        self.bodies -= 1;
        if self.bodies == 0 {
            self.before = self.time(now);
            self.since = None;
        }
    }

    fn time(&self, now: Instant) -> Duration {
        let present = self.since.map(|since| now.saturating_duration_since(since));
        self.before + present.unwrap_or_default()
    }
}

impl UnreadBodies {
    /// Adds a body, of which a part may have come.
    pub(super) fn begin(&self) -> UnreadBody {
        let mut body = UnreadBody {
            bodies: self.clone(),
            is_unread: false,
        };
        body.set(true);
        body
    }

    /// Returns the time for which there was such a body so far.
    pub(crate) fn time(&self) -> Duration {
        self.lock().time(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body of a connection, until it is complete or not needed.
#[derive(Debug)]
pub(super) struct UnreadBody {
    bodies: UnreadBodies,
    is_unread: bool,
}

impl UnreadBody {
    fn set(&mut self, is_unread: bool) {
        if std::mem::replace(&mut self.is_unread, is_unread) == is_unread {
            return;
        }
        let (now, mut state) = (Instant::now(), self.bodies.lock());
        if is_unread {
            state.add(now);
        } else {
            state.remove(now);
        }
    }
}

impl RequestWatch for UnreadBody {
    fn waits(&mut self) {
        self.set(false);
    }

    fn read(&mut self) {
        self.set(true);
    }

    fn ends(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_while_any_body_is_not_read() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut state = State::default();
        let at = |seconds| begin + seconds * second;
        assert_eq!(state.time(at(1)), Duration::ZERO);
        state.add(at(1));
        state.add(at(2));
        state.remove(at(3));
        assert_eq!(state.time(at(4)), 3 * second);
        state.remove(at(5));
        assert_eq!(state.time(at(9)), 4 * second);
        state.add(at(9));
        assert_eq!(state.time(at(10)), 5 * second);
    }

    #[test]
    fn a_body_counts_once_until_it_ends() {
        let bodies = UnreadBodies::default();
        let mut body = bodies.begin();
        assert_eq!(bodies.lock().bodies, 1);
        body.read();
        assert_eq!(bodies.lock().bodies, 1);
        body.waits();
        assert_eq!(bodies.lock().bodies, 0);
        body.read();
        body.ends();
        body.ends();
        assert_eq!(bodies.lock().bodies, 0);
    }
}
