//! The inbox of the driver. A thread that puts a message into it, while no other handles messages, handles it itself: a request goes to its
//! worker, and a result to its clients, without waiting for another thread to wake up. One thread at a time has the driver. A thread of its own
//! keeps the time of the engine, and goes on for a thread that has handled many messages and still finds more.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use packhorse_cluster::Time;
use tokio_util::sync::CancellationToken;

use super::{
    message::{DriverMessage, Post},
    task::{Driver, Next},
};
use crate::clock::Clock;

/// The most messages that are handled at one time of the clock.
const MESSAGES_AT_ONCE: usize = 64;
/// The number of messages after which a thread that is not the driver's own lets that go on.
const MESSAGES_OF_OTHERS: usize = 256;

/// The inbox, and the driver while nobody handles messages.
#[derive(Debug)]
pub(super) struct Inbox {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the driver's own thread.
    call: Condvar,
    /// Cancelled when the driver has ended.
    ended: CancellationToken,
}

#[derive(Debug)]
struct State {
    messages: VecDeque<DriverMessage>,
    driver: Place,
    /// The time at which the engine has something to do, as of when the driver was put back.
    wake: Option<Time>,
    /// The time until which the driver's own thread sleeps at most.
    sleeps_until: Option<Time>,
}

/// The place where the driver is.
#[derive(Debug)]
enum Place {
    /// Here, and all messages are handled.
    Idle(Box<Driver>),
    /// Here, and its own thread is called to handle the messages.
    Left(Box<Driver>),
    /// With a thread, which handles all messages.
    Taken,
    /// Gone: after a shutdown, with its last handle, or by a panic.
    Ended,
}

impl Inbox {
    /// Creates an inbox with the driver that `driver` makes.
    pub(super) fn new(clock: Clock, driver: impl FnOnce(Post) -> Driver) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak = Weak::clone(weak);
            let post = Post::new(move |message| {
                if let Some(inbox) = weak.upgrade() {
                    inbox.send(message);
                }
            });
            Self {
                clock,
                state: Mutex::new(State {
                    messages: VecDeque::new(),
                    driver: Place::Idle(Box::new(driver(post))),
                    wake: None,
                    sleeps_until: None,
                }),
                call: Condvar::new(),
                ended: CancellationToken::new(),
            }
        })
    }

    /// Puts a message into the inbox, and handles what is in it if nobody does. After the end the message is dropped.
    pub(super) fn send(&self, message: DriverMessage) {
        let mut state = self.lock();
        match mem::replace(&mut state.driver, Place::Taken) {
            Place::Idle(driver) => {
                state.messages.push_back(message);
                drop(state);
                self.handle(driver, MESSAGES_OF_OTHERS);
            }
            Place::Ended => {
                state.driver = Place::Ended;
                drop(state);
                drop(message);
            }
            place => {
                state.driver = place;
                state.messages.push_back(message);
            }
        }
    }

    /// Returns true once the driver has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits until the driver has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Ends the driver. If a thread has it, that thread does.
    pub(super) fn end(&self) {
        let place = mem::replace(&mut self.lock().driver, Place::Ended);
        if let Place::Idle(driver) | Place::Left(driver) = place {
            driver.end();
            self.note_end();
        }
    }

    /// Handles messages and the engine's time until the driver ends. Called by the driver's own thread.
    pub(super) fn keep_time(&self) {
        let mut state = self.lock();
        loop {
            let due = state.wake.is_some_and(|wake| wake <= self.clock.now());
            match mem::replace(&mut state.driver, Place::Taken) {
                Place::Ended => {
                    state.driver = Place::Ended;
                    return;
                }
                Place::Idle(driver) if !due => {
                    state.driver = Place::Idle(driver);
                    let wake = state.wake;
                    state = self.sleep(state, wake);
                }
                Place::Idle(driver) | Place::Left(driver) => {
                    drop(state);
                    self.handle(driver, usize::MAX);
                    state = self.lock();
                }
                // The thread that has it says anew when it is due.
                Place::Taken => state = self.sleep(state, None),
            }
        }
    }

    /// Waits until the thread is called, at most until this time.
    fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Option<Time>,
    ) -> MutexGuard<'a, State> {
        state.sleeps_until = until;
        let mut state = match until {
            None => self
                .call
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_since(self.clock.now());
                // Nobody waits longer than a day; a platform's clock may not be able to.
                let left = left.min(Duration::from_hours(24));
                let woken = self.call.wait_timeout(state, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        // The thread looks at everything before it sleeps again.
        state.sleeps_until = Some(Time::ZERO);
        state
    }

    /// Handles the messages until there is none, or `limit` is reached. Each time of the clock is one time for the engine.
    fn handle(&self, mut driver: Box<Driver>, limit: usize) {
        let unwinding = EndOnPanic(self);
        let mut batch = Vec::new();
        let mut handled = 0;
        loop {
            {
                let mut state = self.lock();
                let count = state.messages.len().min(MESSAGES_AT_ONCE);
                batch.extend(state.messages.drain(..count));
            }
            handled += batch.len();
            let now = self.clock.now();
            for message in batch.drain(..) {
                driver.handle_message(now, message);
            }
            let next = driver.advance(now);
            let mut state = self.lock();
            let wake = match next {
                Next::Wait(wake) if !matches!(state.driver, Place::Ended) => wake,
                Next::Wait(_) | Next::End => {
                    state.driver = Place::Ended;
                    drop(state);
                    mem::forget(unwinding);
                    driver.end();
                    return self.note_end();
                }
            };
            let is_left = handled >= limit;
            if !state.messages.is_empty() && !is_left {
                continue;
            }
            state.wake = wake;
            state.driver = if state.messages.is_empty() {
                Place::Idle(driver)
            } else {
                Place::Left(driver)
            };
            let is_called = matches!(state.driver, Place::Left(_))
                || wake.is_some_and(|wake| state.sleeps_until.is_none_or(|until| wake < until));
            drop(state);
            if is_called {
                self.call.notify_one();
            }
            return mem::forget(unwinding);
        }
    }

    /// Drops the messages that nobody handles any more, and tells those who wait for the end.
    fn note_end(&self) {
        let messages = mem::take(&mut self.lock().messages);
        drop(messages);
        self.ended.cancel();
        self.call.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the driver if the thread that has it panics.
struct EndOnPanic<'a>(&'a Inbox);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.lock().driver = Place::Ended;
        self.0.note_end();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::{config::DataPlaneConfig, data_plane::DataPlane};

    #[tokio::test]
    async fn every_message_is_handled_whichever_threads_send_them() {
        let (data_plane, _links) = DataPlane::spawn(DataPlaneConfig::default()).unwrap();
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let data_plane = data_plane.clone();
                thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = { runtime }.build().unwrap();
                    // More at once than a thread handles for others.
                    runtime.block_on(async {
                        for _ in 0..20 {
                            let asked = (0..500).map(|_| data_plane.work());
                            futures_util::future::join_all(asked).await;
                        }
                    });
                })
            })
            .collect();
        for sender in senders {
            sender.join().unwrap();
        }
    }

    #[tokio::test]
    async fn after_a_panic_nothing_waits_for_an_answer() {
        let (data_plane, _links) = DataPlane::spawn(DataPlaneConfig::default()).unwrap();
        data_plane.panic();
        data_plane.ended().await;
        assert!(data_plane.work().await.is_empty());
    }

    #[tokio::test]
    async fn the_driver_ends_with_its_last_handle() {
        let (data_plane, mut links) = DataPlane::spawn(DataPlaneConfig::default()).unwrap();
        drop(data_plane);
        assert!(links.recv().await.is_none());
    }
}
