//! A counting semaphore for threads, which can also wait until it is idle.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

/// A counting semaphore.
pub(crate) struct Semaphore {
    permits: usize,
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Default)]
struct Count {
    /// The number of permits that are held.
    held: usize,
    /// The number of permits that have been acquired so far.
    acquired: u64,
    /// The number of threads that wait. Waking costs a system call, even where nobody waits.
    waiting: usize,
}

/// A permit of a semaphore, which is released when this is dropped.
pub(crate) struct Permit(Arc<Semaphore>);

impl Semaphore {
    /// Creates a semaphore with a number of permits.
    pub(crate) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            permits,
            count: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Waits for a permit.
    pub(crate) fn acquire(self: &Arc<Self>) -> Permit {
        let exhausted = |count: &mut Count| count.held >= self.permits;
        let mut count = self.lock();
        if exhausted(&mut count) {
            count.waiting += 1;
            count = self
                .changed
                .wait_while(count, exhausted)
                .expect("no holder panics");
            count.waiting -= 1;
        }
        count.held += 1;
        count.acquired += 1;
        Permit(Arc::clone(self))
    }

    /// Returns a permit; `None` if all are held.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let mut count = self.lock();
        if count.held >= self.permits {
            return None;
        }
        count.held += 1;
        count.acquired += 1;
        Some(Permit(Arc::clone(self)))
    }

    /// Waits until no permit is held. Returns false if that takes longer than `limit`.
    pub(crate) fn wait_until_idle(&self, limit: Duration) -> bool {
        let busy = |count: &mut Count| count.held > 0;
        let mut count = self.lock();
        count.waiting += 1;
        let waited = self.changed.wait_timeout_while(count, limit, busy);
        let (mut count, waited) = waited.expect("no holder panics");
        count.waiting -= 1;
        !waited.timed_out()
    }

    /// Returns the number of permits that have been acquired so far.
    pub(crate) fn acquired(&self) -> u64 {
        self.lock().acquired
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().expect("no holder panics")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        count.held -= 1;
        let is_awaited = count.waiting > 0;
        drop(count);
        if is_awaited {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn an_exhausted_semaphore_waits_for_a_released_permit() {
        let semaphore = Semaphore::new(1);
        let permit = semaphore.acquire();
        let (acquired, waiting) = mpsc::channel();
        let other = Arc::clone(&semaphore);
        let thread = thread::spawn(move || {
            let _permit = other.acquire();
            acquired.send(()).unwrap();
        });
        assert!(waiting.recv_timeout(Duration::from_millis(20)).is_err());
        assert!(semaphore.try_acquire().is_none());
        assert!(!semaphore.wait_until_idle(Duration::ZERO));
        drop(permit);
        waiting.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.join().unwrap();
        assert!(semaphore.wait_until_idle(Duration::ZERO));
        assert_eq!(semaphore.acquired(), 2);
    }
}
