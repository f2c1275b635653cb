//! A pool of a fixed number of reusable items.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// A fixed number of items. If all of them are in use, the next caller waits until one is returned.
pub(crate) struct Pool<T> {
    free: Mutex<Free<T>>,
    returned: Condvar,
}

struct Free<T> {
    items: Vec<T>,
    /// The number of callers that wait. Waking costs a system call, even where nobody waits.
    waiting: usize,
}

/// An item in use. It returns to its pool when this is dropped.
pub(crate) struct Pooled<T> {
    item: Option<T>,
    pool: Arc<Pool<T>>,
}

impl<T> Pool<T> {
    /// Creates a pool of these items.
    pub(crate) fn new(items: Vec<T>) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(Free { items, waiting: 0 }),
            returned: Condvar::new(),
        })
    }

    /// Waits for a free item and returns the one that was returned last, whose memory is most likely in a cache.
    pub(crate) fn acquire(self: &Arc<Self>) -> Pooled<T> {
        let is_empty = |free: &mut Free<T>| free.items.is_empty();
        let mut free = self.lock();
        if is_empty(&mut free) {
            free.waiting += 1;
            free = self
                .returned
                .wait_while(free, is_empty)
                .expect("no holder panics");
            free.waiting -= 1;
        }
        let item = free.items.pop();
        let pool = Arc::clone(self);
        Pooled { item, pool }
    }

    fn lock(&self) -> MutexGuard<'_, Free<T>> {
        self.free.lock().expect("no holder panics")
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().expect("there until the drop")
    }
}

impl<T> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().expect("there until the drop")
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        let mut free = self.pool.lock();
        free.items.extend(self.item.take());
        let is_awaited = free.waiting > 0;
        drop(free);
        if is_awaited {
            self.pool.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::mpsc, thread};

    use super::*;

    #[test]
    fn an_empty_pool_waits_for_an_item_and_creates_none() {
        let pool = Pool::new(vec![1, 2]);
        let (first, second) = (pool.acquire(), pool.acquire());
        let other = Arc::clone(&pool);
        let (acquired, waiting) = mpsc::channel();
        let thread = thread::spawn(move || acquired.send(*other.acquire()));
        assert!(waiting.try_recv().is_err());
        let returned = *first;
        drop(first);
        assert_eq!(waiting.recv().unwrap(), returned);
        thread.join().unwrap().unwrap();
        drop(second);
        let all: BTreeSet<i32> = pool.lock().items.iter().copied().collect();
        assert_eq!(all, BTreeSet::from([1, 2]));
    }
}
