//! A limit on the time in which idle cores of this host wake, while requests come.
//!
//! An idle core sleeps, and takes longer to wake the deeper it sleeps. On a virtual machine that halts its idle cores at once, a small request
//! alone spends more than half of its time waiting for cores. Linux keeps a limit for all cores as long as a process asks for one and has
//! `/dev/cpu_dma_latency` open ("PM Quality of Service"). Cores that must wake at once need power, and so the limit ends soon after the requests.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;

/// Linux's file for limits of all processes.
const FILE: &str = "/dev/cpu_dma_latency";
/// The value that asks for no limit, in microseconds: Linux's `PM_QOS_CPU_LATENCY_DEFAULT_VALUE`.
const NO_LIMIT_US: i32 = 2_000_000_000;
/// The time for which the limit holds after a request, at least; at most, it holds twice as long. A change of the limit wakes all idle cores,
/// which must not happen for every request.
const HOLD: Duration = Duration::from_millis(100);

/// The limit. Clones share it.
#[derive(Clone, Debug)]
pub struct WakeLatency {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit_us: i32,
    file: File,
    /// True if a request has come since the last look.
    requested: AtomicBool,
    /// True while the limit holds.
    holds: Mutex<bool>,
}

impl WakeLatency {
    /// Prepares the limit, which holds from the first request on. At zero, cores do not sleep.
    ///
    /// # Errors
    /// This process may not write to Linux's file, or there is none.
    pub fn open(limit: Duration) -> io::Result<Self> {
        Self::open_at(Path::new(FILE), limit)
            .map_err(|e| io::Error::new(e.kind(), format!("{FILE}: {e}")))
    }

    fn open_at(path: &Path, limit: Duration) -> io::Result<Self> {
        let shared = Shared {
            limit_us: i32::try_from(limit.as_micros()).unwrap_or(NO_LIMIT_US),
            file: OpenOptions::new().write(true).open(path)?,
            requested: AtomicBool::new(false),
            holds: Mutex::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// A request has come. Must be called in the runtime.
    pub(crate) fn request(&self) {
        if self.shared.request() {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                while !shared.end_without_requests() {
                    sleep(HOLD).await;
                }
            });
        }
    }
}

impl Shared {
    /// Lets the limit hold for a request. Returns true if it did not before.
    fn request(&self) -> bool {
        if self.requested.load(Ordering::Relaxed) {
            return false;
        }
        self.requested.store(true, Ordering::Relaxed);
        let mut holds = self.lock();
        let begins = !*holds;
        if begins {
            *holds = true;
            self.ask_for(self.limit_us);
        }
        begins
    }

    /// Ends the limit unless a request has come since the last call. Returns true if it has ended.
    fn end_without_requests(&self) -> bool {
        let mut holds = self.lock();
        let ends = !self.requested.swap(false, Ordering::Relaxed);
        if ends {
            *holds = false;
            self.ask_for(NO_LIMIT_US);
        }
        ends
    }

    fn ask_for(&self, limit_us: i32) {
        if let Err(error) = (&self.file).write_all(&limit_us.to_ne_bytes()) {
            tracing::warn!(%error, limit_us, "the limit of the cores' wake latency cannot be changed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the limits that were asked for, in microseconds.
    fn asked_for(path: &Path) -> Vec<i32> {
        let bytes = fs::read(path).unwrap();
        let values = bytes.chunks_exact(4);
        values
            .map(|value| i32::from_ne_bytes(value.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn the_limit_holds_while_requests_come_and_ends_after_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let latency = WakeLatency::open_at(file.path(), Duration::from_micros(7)).unwrap();
        let limit = &latency.shared;
        assert!(asked_for(file.path()).is_empty());
        assert!(limit.request(), "the first request begins it");
        for _ in 0..3 {
            assert!(!limit.request());
            assert!(!limit.end_without_requests());
        }
        // The last request came before the last look, and none since.
        assert_eq!(asked_for(file.path()), [7]);
        assert!(limit.end_without_requests());
        assert_eq!(asked_for(file.path()), [7, 2_000_000_000]);
        assert!(limit.request(), "it can begin again");
        assert_eq!(asked_for(file.path()), [7, 2_000_000_000, 7]);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let missing = Path::new("/nowhere/cpu_dma_latency");
        let error = WakeLatency::open_at(missing, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
