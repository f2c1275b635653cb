//! The phases of a connection: between requests, in a request's head, in a request.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;

use super::limits::ConnectionLimits;

/// The phase that a connection is in. The connection's stream and service set it, its task reads it.
#[derive(Debug)]
pub(super) struct Activity {
    phase: Mutex<Phase>,
    /// True if several requests are on the connection at a time: then bytes alone are no head, because peers greet each other, too.
    multiplexes: AtomicBool,
    /// The number of times that bytes came or were sent.
    moves: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The first request's head has not arrived; the connection began at this time.
    First(Instant),
    /// No byte of the next head has arrived since this time.
    Idle(Instant),
    /// A head began to arrive at this time.
    Head(Instant),
    /// A request's body is being received since this time, or the client makes no room for answers; that has limits of its own.
    Body(Instant),
    /// A request is being answered.
    Request,
}

/// The part of a request that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The next request, or the rest of its head, since this time.
    Head(Instant),
    /// The rest of a body, since this time.
    Body(Instant),
}

/// The result of comparing a connection's phase with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// The connection is within its limits, at least until this time.
    NextAt(Instant),
    /// The connection has been idle for too long.
    Idle,
    /// The head has taken too long.
    SlowHead,
}

impl Activity {
    /// The activity of a connection that begins now.
    pub(super) fn begin() -> Self {
        Self {
            phase: Mutex::new(Phase::First(Instant::now())),
            multiplexes: AtomicBool::new(false),
            moves: AtomicU64::default(),
        }
    }

    /// Several requests will be on the connection at a time.
    pub(super) fn multiplex(&self) {
        self.multiplexes.store(true, Relaxed);
    }

    /// The handshake has ended: the time for the first head begins.
    pub(super) fn begin_first_head(&self) {
        *self.lock() = Phase::First(Instant::now());
    }

    /// Bytes came or were sent.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Relaxed);
    }

    /// Returns the number of times that bytes came or were sent.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }

    /// Bytes arrived.
    pub(super) fn received(&self) {
        let mut phase = self.lock();
        if self.multiplexes.load(Relaxed) {
            if matches!(*phase, Phase::First(_)) {
                *phase = Phase::Idle(Instant::now());
            }
            return;
        }
        match *phase {
            Phase::First(since) => *phase = Phase::Head(since),
            Phase::Idle(_) => *phase = Phase::Head(Instant::now()),
            Phase::Head(_) | Phase::Body(_) | Phase::Request => {}
        }
    }

    /// Returns true if no request is being received or answered, on a connection that has one at a time.
    pub(super) fn is_between_requests(&self) -> bool {
        !self.multiplexes.load(Relaxed) && !matches!(*self.lock(), Phase::Body(_) | Phase::Request)
    }

    /// A head is complete, and a body follows.
    pub(super) fn begin_body(&self) {
        *self.lock() = Phase::Body(Instant::now());
    }

    /// The body is complete, or is not needed.
    pub(super) fn end_body(&self) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Body(_)) {
            *phase = Phase::Request;
        }
    }

    /// A request is complete.
    pub(super) fn begin_request(&self) {
        *self.lock() = Phase::Request;
    }

    /// Returns what the connection waits for; `None` while a request is answered.
    pub(super) fn waiting(&self) -> Option<Waiting> {
        match *self.lock() {
            Phase::First(since) | Phase::Idle(since) | Phase::Head(since) => {
                Some(Waiting::Head(since))
            }
            Phase::Body(since) => Some(Waiting::Body(since)),
            Phase::Request => None,
        }
    }

    /// Nothing is left to do until the client makes room for its answers, which it has not done since a time.
    pub(super) fn wait_for_client(&self, since: Instant) {
        *self.lock() = Phase::Body(since);
    }

    /// The last byte of an answer was passed on.
    pub(super) fn end_request(&self) {
        *self.lock() = Phase::Idle(Instant::now());
    }

    /// Compares the phase with its limit.
    pub(super) fn check(&self, now: Instant, limits: &ConnectionLimits) -> Check {
        let shortest = limits.head_timeout.min(limits.idle_timeout);
        let (end, over) = match *self.lock() {
            Phase::First(since) | Phase::Head(since) => {
                (since + limits.head_timeout, Check::SlowHead)
            }
            Phase::Idle(since) => (since + limits.idle_timeout, Check::Idle),
            Phase::Body(_) | Phase::Request => return Check::NextAt(now + shortest),
        };
        if now >= end {
            over
        } else {
            // The phase may change to one that ends earlier.
            Check::NextAt(end.min(now + shortest))
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
