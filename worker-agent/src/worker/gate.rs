//! Counts what is inside, and keeps it below a limit.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

/// A gate that lets at most so many in.
pub(super) struct Gate {
    limit: usize,
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Default)]
struct Count {
    inside: usize,
    entered: u64,
}

/// Leave to be inside; gone when it is dropped.
pub(super) struct Pass(Arc<Gate>);

impl Gate {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            count: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Waits until there is room.
    pub(super) fn enter(self: &Arc<Self>) -> Pass {
        let full = |count: &mut Count| count.inside >= self.limit;
        let mut count = self
            .changed
            .wait_while(self.lock(), full)
            .expect("no holder panics");
        count.inside += 1;
        count.entered += 1;
        Pass(Arc::clone(self))
    }

    /// Waits until nobody is inside; false if that takes longer than `limit`.
    pub(super) fn wait_until_empty(&self, limit: Duration) -> bool {
        let occupied = |count: &mut Count| count.inside > 0;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), limit, occupied);
        !waited.expect("no holder panics").1.timed_out()
    }

    /// How many have entered so far.
    pub(super) fn entered(&self) -> u64 {
        self.lock().entered
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().expect("no holder panics")
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_full_gate_opens_when_somebody_leaves() {
        let gate = Gate::new(1);
        let inside = gate.enter();
        let (entered, waiting) = mpsc::channel();
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            let _pass = other.enter();
            entered.send(()).unwrap();
        });
        assert!(waiting.recv_timeout(Duration::from_millis(20)).is_err());
        assert!(!gate.wait_until_empty(Duration::ZERO));
        drop(inside);
        waiting.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.join().unwrap();
        assert!(gate.wait_until_empty(Duration::ZERO));
        assert_eq!(gate.entered(), 2);
    }
}
