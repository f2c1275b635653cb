//! The turns of a device's workers. A measurement is wrong if a replica starts beside it, which loads its model and runs all batch sizes. The
//! first replica of a model is often started while the model is measured: from an estimate, on the only device. Therefore replicas that start
//! hold the lock of the device together, and a measurement holds it alone, for one batch size at a time.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::clock::now;

/// The longest that a start waits for a measurement. One batch size takes about a second.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The turns of one worker, which goes on without one when it has waited too long.
#[derive(Debug)]
pub(crate) struct DeviceTurns {
    /// The device's lock; `None` if no other worker uses the device.
    lock: Option<PathBuf>,
    waited: Duration,
}

/// A worker's turn, which ends when it is dropped.
pub(crate) struct Turn(
    #[expect(dead_code, reason = "the lock is released when the file is closed")] Option<File>,
);

#[derive(Clone, Copy)]
enum Mode {
    Shared,
    Exclusive,
}

impl DeviceTurns {
    /// The longest that a measurement waits for starts, all batch sizes together.
    pub(crate) const MEASUREMENT_LIMIT: Duration = Duration::from_mins(2);

    /// Creates the turns of a worker on the device with this lock.
    pub(crate) fn new(lock: Option<&Path>) -> Self {
        Self {
            lock: lock.map(Path::to_owned),
            waited: Duration::ZERO,
        }
    }

    /// Waits until no measurement runs.
    pub(crate) fn start(&mut self) -> Turn {
        self.wait(Mode::Shared, START_LIMIT)
    }

    /// Waits until no replica starts.
    pub(crate) fn measure(&mut self) -> Turn {
        self.wait(Mode::Exclusive, Self::MEASUREMENT_LIMIT)
    }

    /// Returns the time that this worker has waited so far.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    fn wait(&mut self, mode: Mode, limit: Duration) -> Turn {
        let Some(path) = self.lock.clone() else {
            return Turn(None);
        };
        let since = now();
        let (sender, locked) = mpsc::sync_channel(0);
        // If it takes too long, nobody receives the file, and the lock is released at once.
        thread::spawn(move || {
            let file = File::options().create(true).append(true).open(&path);
            let file = file.and_then(|file| {
                match mode {
                    Mode::Shared => file.lock_shared(),
                    Mode::Exclusive => file.lock(),
                }?;
                Ok(file)
            });
            let _ = sender.send(file);
        });
        let file = match locked.recv_timeout(limit.saturating_sub(self.waited)) {
            Ok(Ok(file)) => Some(file),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the lock of the device cannot be used");
                None
            }
            Err(_) => {
                tracing::info!("other workers of the device take too long");
                None
            }
        };
        self.waited += now() - since;
        Turn(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_share_a_device_and_a_measurement_has_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = || File::options().append(true).open(&path).unwrap();
        let turns = || DeviceTurns::new(Some(&path));

        let start = turns().start();
        let other_start = turns().start();
        assert!(file().try_lock().is_err());
        drop(start);
        assert!(file().try_lock().is_err());
        drop(other_start);

        let measurement = turns().measure();
        assert!(file().try_lock_shared().is_err());
        drop(measurement);
        assert!(file().try_lock().is_ok());
    }

    #[test]
    fn a_worker_waits_for_its_turn_but_not_forever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let start = DeviceTurns::new(Some(&path)).start();
        let mut measurement = DeviceTurns::new(Some(&path));
        let limit = Duration::from_millis(20);
        let too_early = measurement.wait(Mode::Exclusive, limit);
        assert!(measurement.waited() >= limit);
        drop(too_early);
        // What has been waited counts.
        drop(measurement.wait(Mode::Exclusive, limit));
        drop(start);
        measurement.waited = Duration::ZERO;
        let turn = measurement.measure();
        let file = File::options().append(true).open(&path).unwrap();
        assert!(file.try_lock_shared().is_err());
        drop(turn);
    }

    #[test]
    fn a_worker_that_is_alone_does_not_wait() {
        let mut turns = DeviceTurns::new(None);
        drop((turns.start(), turns.measure()));
        assert_eq!(turns.waited(), Duration::ZERO);
    }
}
