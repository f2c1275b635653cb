//! The times at which something is to be looked at again.

use std::collections::BTreeSet;

use packhorse_cluster::Time;

/// The times at which models or devices are to be looked at. Each stands here at most once, at the time that it has itself.
#[derive(Clone, Debug)]
pub(crate) struct Wakes<K>(BTreeSet<(Time, K)>);

impl<K> Default for Wakes<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Copy + Ord> Wakes<K> {
    /// Sets the time at which to look at this one, which has `own` until now; `None` if only an event can change anything.
    pub(crate) fn set(&mut self, key: K, own: &mut Option<Time>, wake: Option<Time>) {
        let before = std::mem::replace(own, wake);
        if before != wake {
            before.map(|before| self.0.remove(&(before, key)));
            wake.map(|wake| self.0.insert((wake, key)));
        }
    }

    /// Returns the first time.
    pub(crate) fn first(&self) -> Option<Time> {
        self.0.first().map(|first| first.0)
    }

    /// Returns the first one whose time has come.
    pub(crate) fn due(&self, now: Time) -> Option<K> {
        let first = self.0.first().filter(|first| first.0 <= now);
        first.map(|first| first.1)
    }

    /// Takes the times of some out.
    pub(crate) fn split_off(&mut self, mut is_taken: impl FnMut(K) -> bool) -> Self {
        Self(self.0.extract_if(.., |(_, key)| is_taken(*key)).collect())
    }

    /// Takes over the times of others.
    pub(crate) fn absorb(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }
}
