//! The driver of a model.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The driver that decides for a model. Models with the same home are decided for by the same driver.
#[derive(Debug)]
pub(crate) struct Home {
    /// The home's number, which never changes.
    pub(super) number: u32,
    driver: AtomicUsize,
}

impl Home {
    pub(super) fn new(number: u32, driver: usize) -> Self {
        let driver = AtomicUsize::new(driver);
        Self { number, driver }
    }

    /// Returns the driver's number.
    pub(super) fn driver(&self) -> usize {
        self.driver.load(Relaxed)
    }

    /// Changes the driver. Only [`TakenDrivers::redirect`](super::drivers::TakenDrivers::redirect) does this: under the locks of all inboxes, with which
    /// the number is read again before a message is put into one.
    pub(super) fn set_driver(&self, driver: usize) {
        self.driver.store(driver, Relaxed);
    }
}
