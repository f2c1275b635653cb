//! A fixed number of things that are used again and again.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// So many things and never more: who takes one when all are taken waits for one to come back.
pub(crate) struct Pool<T> {
    free: Mutex<Vec<T>>,
    returned: Condvar,
}

/// One of a pool's things, which goes back when this is dropped.
pub(crate) struct Taken<T> {
    thing: Option<T>,
    pool: Arc<Pool<T>>,
}

impl<T> Pool<T> {
    /// Of these things.
    pub(super) fn new(things: Vec<T>) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(things),
            returned: Condvar::new(),
        })
    }

    /// Takes one, the one that came back last: its memory is the warmest.
    pub(super) fn take(self: &Arc<Self>) -> Taken<T> {
        let empty = |free: &mut Vec<T>| free.is_empty();
        let mut free = self
            .returned
            .wait_while(self.lock(), empty)
            .expect("no holder panics");
        let thing = free.pop();
        let pool = Arc::clone(self);
        Taken { thing, pool }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.free.lock().expect("no holder panics")
    }
}

impl<T> Deref for Taken<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect("there until the drop")
    }
}

impl<T> DerefMut for Taken<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.thing.as_mut().expect("there until the drop")
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        self.pool.lock().extend(self.thing.take());
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::mpsc, thread};

    use super::*;

    #[test]
    fn an_empty_pool_waits_for_what_comes_back_and_makes_nothing_new() {
        let pool = Pool::new(vec![1, 2]);
        let (first, second) = (pool.take(), pool.take());
        let other = Arc::clone(&pool);
        let (took, waiting) = mpsc::channel();
        let thread = thread::spawn(move || took.send(*other.take()));
        assert!(waiting.try_recv().is_err());
        let came_back = *first;
        drop(first);
        assert_eq!(waiting.recv().unwrap(), came_back);
        thread.join().unwrap().unwrap();
        drop(second);
        let all: BTreeSet<i32> = pool.lock().iter().copied().collect();
        assert_eq!(all, BTreeSet::from([1, 2]));
    }
}
