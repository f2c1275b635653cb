//! The inbox of a driver. A thread that puts a message into it, while no other handles messages, handles it itself: a request goes to its
//! worker, and a result to its clients, without waiting for another thread to wake up. One thread at a time has the driver. A thread of its own
//! keeps the time of the engine, and goes on for a thread that has handled many messages and still finds more.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packhorse_cluster::Time;

use super::{
    end::End,
    home::Home,
    message::DriverMessage,
    task::{Driver, Next},
};
use crate::clock::Clock;

/// The most messages that are handled at one time of the clock.
const MESSAGES_AT_ONCE: usize = 64;
/// The number of messages after which a thread that is not the driver's own lets that go on.
const MESSAGES_OF_OTHERS: usize = 256;

/// The inbox of a driver, and the driver while nobody handles messages.
#[derive(Debug)]
pub(super) struct Inbox {
    clock: Clock,
    /// The driver's number.
    number: usize,
    state: Mutex<State>,
    /// Wakes the driver's own thread.
    call: Condvar,
    /// Wakes the thread that waits for the driver.
    reserved: Condvar,
    end: Arc<End>,
}

#[derive(Debug)]
struct State {
    messages: VecDeque<DriverMessage>,
    driver: Place,
    /// True if a thread waits to take the driver.
    is_awaited: bool,
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
    /// Here, for the thread that waits to take it.
    Reserved(Box<Driver>),
    /// With a thread, which handles all messages.
    Taken,
    /// Gone: after a shutdown, with its last handle, or by a panic.
    Ended,
}

/// The messages that wait in an inbox, which nobody else puts a message into meanwhile.
pub(super) struct Waiting<'a>(MutexGuard<'a, State>);

impl Waiting<'_> {
    /// Takes all messages, in their order.
    pub(super) fn take(&mut self) -> VecDeque<DriverMessage> {
        mem::take(&mut self.0.messages)
    }

    pub(super) fn push(&mut self, message: DriverMessage) {
        self.0.messages.push_back(message);
    }
}

impl Inbox {
    /// Creates the inbox of a driver.
    pub(super) fn new(clock: Clock, number: usize, driver: Driver, end: Arc<End>) -> Self {
        Self {
            clock,
            number,
            state: Mutex::new(State {
                messages: VecDeque::new(),
                driver: Place::Idle(Box::new(driver)),
                is_awaited: false,
                wake: None,
                sleeps_until: None,
            }),
            call: Condvar::new(),
            reserved: Condvar::new(),
            end,
        }
    }

    /// Puts a message into the inbox, and handles what is in it if nobody does. After the end the message is dropped. Returns a message whose model has
    /// another driver.
    pub(super) fn send(&self, message: DriverMessage) -> Option<DriverMessage> {
        let mut state = self.lock();
        let is_elsewhere = |home: &Home| home.driver() != self.number;
        if message.home().is_some_and(is_elsewhere) {
            return Some(message);
        }
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
        None
    }

    /// Takes the driver, once the thread that has it has handled the messages that it is at. Returns `None` once the driver has ended.
    pub(super) fn take(&self) -> Option<Box<Driver>> {
        let mut state = self.lock();
        loop {
            match mem::replace(&mut state.driver, Place::Taken) {
                Place::Idle(driver) | Place::Left(driver) | Place::Reserved(driver) => {
                    state.is_awaited = false;
                    return Some(driver);
                }
                Place::Ended => {
                    state.driver = Place::Ended;
                    return None;
                }
                Place::Taken => {
                    state.is_awaited = true;
                    state = { self.reserved.wait(state) }.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Puts the driver back that was taken, and handles what has come meanwhile.
    pub(super) fn put_back(&self, driver: Box<Driver>) {
        self.handle(driver, MESSAGES_OF_OTHERS);
    }

    /// Gives a driver up, whose state a panic has left half changed.
    pub(super) fn lose(&self, driver: Box<Driver>) {
        drop(driver);
        drop(EndOnPanic(self));
    }

    /// Returns the messages that wait.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        Waiting(self.lock())
    }

    /// Ends the driver. If a thread has it, that thread does.
    pub(super) fn end(&self) {
        let place = mem::replace(&mut self.lock().driver, Place::Ended);
        if let Place::Idle(driver) | Place::Left(driver) | Place::Reserved(driver) = place {
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
                place @ Place::Reserved(_) => {
                    state.driver = place;
                    state = self.sleep(state, None);
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
            let is_left = handled >= limit || state.is_awaited;
            if !state.messages.is_empty() && !is_left {
                continue;
            }
            state.wake = wake;
            if state.is_awaited {
                state.driver = Place::Reserved(driver);
                drop(state);
                self.reserved.notify_one();
                return mem::forget(unwinding);
            }
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
        self.end.one();
        self.call.notify_one();
        self.reserved.notify_one();
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
        self.0.end.panicked();
        self.0.note_end();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::{config::DataPlaneConfig, data_plane::DataPlane};

    #[tokio::test]
    async fn every_message_is_handled_whichever_threads_send_them() {
        let config = DataPlaneConfig {
            drivers: 3,
            ..DataPlaneConfig::default()
        };
        let (data_plane, _links) = DataPlane::spawn(config).unwrap();
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
