//! The drivers, each with its engine. They share no model and no device, so that threads decide side by side.
//!
//! A message for a model goes into the inbox of its driver. Where models shall be exchanged, the director takes all drivers; messages wait in the
//! inboxes meanwhile, and move to those of the models' new drivers.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
    thread,
};

use super::{
    end::End,
    home::Home,
    inbox::Inbox,
    message::{DriverMessage, Post},
    task::Driver,
};
use crate::clock::Clock;

/// The inboxes of the drivers, and the drivers while nobody has them.
#[derive(Debug)]
pub(super) struct Drivers {
    inboxes: Vec<Inbox>,
    end: Arc<End>,
}

impl Drivers {
    /// Creates so many drivers, by their numbers and the way of messages to all of them.
    pub(super) fn new(
        clock: Clock,
        count: usize,
        mut driver: impl FnMut(usize, Post) -> Driver,
    ) -> Arc<Self> {
        let end = Arc::new(End::of(count));
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let inboxes = (0..count).map(|number| {
                let weak = Weak::clone(weak);
                let post = Post::new(move |message| {
                    if let Some(drivers) = weak.upgrade() {
                        drivers.send(message);
                    }
                });
                Inbox::new(clock, number, driver(number, post), Arc::clone(&end))
            });
            Self {
                inboxes: inboxes.collect(),
                end,
            }
        })
    }

    /// Puts a message into the inbox of its model's driver, and handles what is in it if nobody does. After the end the message is dropped.
    pub(super) fn send(&self, message: DriverMessage) {
        let mut message = Some(message);
        // Again where the model has moved since the number was read.
        while let Some(unsent) = message {
            let driver = unsent.home().map_or(0, Home::driver);
            message = self.inboxes[driver].send(unsent);
        }
    }

    /// Sends a message to every driver.
    pub(super) fn send_to_all(&self, message: impl Fn() -> DriverMessage) {
        for inbox in &self.inboxes {
            let sent = inbox.send(message());
            debug_assert!(sent.is_none(), "it is for no model");
        }
    }

    /// Takes all drivers, once their threads have handled the messages that they are at. Returns `None` once one of them has ended.
    pub(super) fn take(&self) -> Option<TakenDrivers<'_>> {
        let mut taken = TakenDrivers {
            drivers: Vec::new(),
            of: self,
        };
        for inbox in &self.inboxes {
            // Those that were taken before go back.
            taken.drivers.push(inbox.take()?);
        }
        Some(taken)
    }

    /// Returns true once all drivers have ended, or one has panicked.
    pub(super) fn have_ended(&self) -> bool {
        self.end.has_come()
    }

    /// Waits until all drivers have ended, or one has panicked.
    pub(super) async fn ended(&self) {
        self.end.wait().await;
    }

    /// Ends the drivers.
    pub(super) fn end(&self) {
        for inbox in &self.inboxes {
            inbox.end();
        }
    }

    /// Returns the inboxes, by the numbers of their drivers.
    pub(super) fn inboxes(&self) -> &[Inbox] {
        &self.inboxes
    }
}

/// All drivers, while one thread has them. They go back when this is dropped.
pub(super) struct TakenDrivers<'a> {
    #[expect(clippy::vec_box, reason = "an inbox has its driver in a box")]
    drivers: Vec<Box<Driver>>,
    of: &'a Drivers,
}

impl TakenDrivers<'_> {
    /// Changes the drivers of homes, and has the messages that wait go with them. A thread sends its messages in the same order before and after.
    pub(super) fn redirect<'a>(&self, moves: impl IntoIterator<Item = (&'a Home, usize)>) {
        let mut inboxes: Vec<_> = self.of.inboxes.iter().map(Inbox::waiting).collect();
        for (home, driver) in moves {
            home.set_driver(driver);
        }
        for number in 0..inboxes.len() {
            for message in inboxes[number].take() {
                let driver = message.home().map_or(number, Home::driver);
                inboxes[driver].push(message);
            }
        }
    }
}

impl Deref for TakenDrivers<'_> {
    type Target = [Box<Driver>];

    fn deref(&self) -> &Self::Target {
        &self.drivers
    }
}

impl DerefMut for TakenDrivers<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.drivers
    }
}

impl Drop for TakenDrivers<'_> {
    fn drop(&mut self) {
        for (inbox, driver) in self.of.inboxes.iter().zip(self.drivers.drain(..)) {
            if thread::panicking() {
                inbox.lose(driver);
            } else {
                inbox.put_back(driver);
            }
        }
    }
}
