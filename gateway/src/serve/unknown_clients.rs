//! Connections whose clients have not proved who they are: on a listener where others must get in, the oldest of them gives its place to a new one.
//!
//! A new connection shows its client only with the first request. It gets a place for that, and keeps it once a handler has found it to be
//! known. Whoever opens many connections without a credential therefore ends his own, and keeps no agent out.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio_util::sync::CancellationToken;

/// The mark of a connection whose client has proved who he is. An extension of its requests, by which a handler sets it.
#[derive(Clone, Debug, Default)]
pub struct ClientMark(Arc<AtomicBool>);

impl ClientMark {
    /// Marks the connection: it keeps its place.
    pub fn set_known(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_known(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The connections without a mark, the oldest first. Some may have ended, or have got their mark by now.
#[derive(Default)]
pub(super) struct UnknownClients(VecDeque<(ClientMark, CancellationToken)>);

impl UnknownClients {
    /// Adds a connection. Returns its mark, and a token that is cancelled when it has to give its place up.
    pub(super) fn add(&mut self) -> (ClientMark, CancellationToken) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(may_yield);
        }
        let entry = (ClientMark::default(), CancellationToken::new());
        self.0.push_back(entry.clone());
        entry
    }

    /// Has the oldest connection give its place up. Returns false if there is none.
    pub(super) fn end_oldest(&mut self) -> bool {
        self.0.retain(may_yield);
        let oldest = self.0.pop_front();
        oldest.is_some_and(|(_, place)| {
            place.cancel();
            true
        })
    }
}

/// Returns true for a connection that is there and has no mark.
fn may_yield((mark, _): &(ClientMark, CancellationToken)) -> bool {
    // The connection has the other one.
    !mark.is_known() && Arc::strong_count(&mark.0) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_there_and_unknown_gives_its_place_up() {
        let mut clients = UnknownClients::default();
        let [gone, known, first, second] = [(); 4].map(|()| clients.add());
        drop(gone);
        known.0.set_known();
        assert!(clients.end_oldest());
        assert!(first.1.is_cancelled() && !known.1.is_cancelled() && !second.1.is_cancelled());
        drop(second);
        assert!(!clients.end_oldest());
        assert!(!known.1.is_cancelled());
    }

    #[test]
    fn connections_that_have_ended_take_no_memory() {
        let mut clients = UnknownClients::default();
        let held: Vec<_> = (0..100).map(|_| clients.add()).collect();
        for _ in 0..10_000 {
            clients.add();
        }
        assert!(clients.0.len() < 1000, "{}", clients.0.len());
        drop(held);
    }
}
