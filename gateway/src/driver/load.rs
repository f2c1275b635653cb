//! The load of a model, for handlers that refuse before a request reaches the engine.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_cluster::Time;
use packhorse_serving::TenantKey;

/// The window over which the drain rate of a queue is measured.
const WINDOW: Duration = Duration::from_secs(2);
/// The shortest time for which a queue must have been there before its drain rate is known.
const WINDOW_MIN: Duration = Duration::from_millis(250);
/// The length of a part of the window.
const SLOT: Duration = Duration::from_millis(50);

/// The queue length of a model, and how fast its queue drains. The driver updates it, handlers read it.
#[derive(Debug, Default)]
pub(crate) struct ModelLoad {
    queued: AtomicUsize,
    /// One bit for each tenant, or a few: set if its requests stood behind those of others, or it was alone.
    behind: AtomicU64,
    patience: Mutex<Patience>,
    drain: Mutex<DrainRate>,
}

impl ModelLoad {
    /// Returns the number of waiting requests.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Sets the number of waiting requests.
    pub(super) fn set_queued(&self, now: Time, requests: usize) {
        let before = self.queued.swap(requests, Relaxed);
        if (before == 0) != (requests == 0) {
            lock(&self.drain).set_backlog(now, requests > 0);
        }
    }

    /// Notes if the requests of a tenant stand behind those of others, or it is alone.
    pub(super) fn set_stands_behind(&self, tenant: TenantKey, stands_behind: bool) {
        // The driver alone writes it, and seldom has anything new to write.
        if self.stands_behind(tenant) != stands_behind {
            self.behind.fetch_xor(bit(tenant), Relaxed);
        }
    }

    /// Returns true if the tenant's last request stood behind those of others, or it was alone: the queue as it is holds for it.
    pub(crate) fn stands_behind(&self, tenant: TenantKey) -> bool {
        self.behind.load(Relaxed) & bit(tenant) != 0
    }

    /// Records requests that were answered.
    pub(super) fn record_answered(&self, now: Time, requests: usize) {
        lock(&self.drain).record(now, requests);
    }

    /// Records the time that a request allows for its answer.
    pub(crate) fn record_patience(&self, now: Time, allowed: Duration) {
        lock(&self.patience).record(now, allowed);
    }

    /// Returns the longest time that recent requests allowed for their answer; zero without such requests.
    pub(crate) fn patience(&self, now: Time) -> Duration {
        lock(&self.patience).longest(now)
    }

    /// Returns the time in which the present queue drains, if there has been a queue for long enough to tell.
    pub(crate) fn expected_wait(&self, now: Time) -> Option<Duration> {
        let rate = lock(&self.drain).rate(now)?;
        // A rate of zero is an infinite wait.
        Duration::try_from_secs_f64(self.queued() as f64 / rate)
            .ok()
            .or(Some(Duration::MAX))
    }
}

fn bit(tenant: TenantKey) -> u64 {
    1 << (tenant.0 % u64::from(u64::BITS))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests that were answered within the window, while there was a queue.
#[derive(Debug, Default)]
struct DrainRate {
    /// The time since which there is a queue.
    backlog_since: Option<Time>,
    /// The beginning of a slot, and the requests that were answered in it.
    slots: VecDeque<(Time, usize)>,
}

impl DrainRate {
    fn set_backlog(&mut self, now: Time, is_there: bool) {
        self.slots.clear();
        self.backlog_since = is_there.then_some(now);
    }

    fn record(&mut self, now: Time, requests: usize) {
        if self.backlog_since.is_none() {
            return;
        }
        match self.slots.back_mut() {
            Some((begin, count)) if now.saturating_since(*begin) < SLOT => *count += requests,
            _ => self.slots.push_back((now, requests)),
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Time) {
        while let Some((begin, _)) = self.slots.front()
            && now.saturating_since(*begin) > WINDOW
        {
            self.slots.pop_front();
        }
    }

    /// Returns the requests per second.
    fn rate(&mut self, now: Time) -> Option<f64> {
        let measured = now.saturating_since(self.backlog_since?).min(WINDOW);
        if measured < WINDOW_MIN {
            return None;
        }
        self.forget(now);
        let answered: usize = self.slots.iter().map(|(_, count)| count).sum();
        Some(answered as f64 / measured.as_secs_f64())
    }
}

/// The time after which an allowed time is forgotten, at the latest after twice as long.
const PATIENCE_WINDOW: Duration = Duration::from_secs(10);

/// The longest times that requests allowed in the present and in the previous window.
#[derive(Debug, Default)]
struct Patience {
    begin: Time,
    present: Duration,
    previous: Duration,
}

impl Patience {
    fn turn(&mut self, now: Time) {
        let age = now.saturating_since(self.begin);
        if age >= PATIENCE_WINDOW {
            self.previous = if age < 2 * PATIENCE_WINDOW {
                self.present
            } else {
                Duration::ZERO
            };
            self.present = Duration::ZERO;
            self.begin = now;
        }
    }

    fn record(&mut self, now: Time, allowed: Duration) {
        self.turn(now);
        self.present = self.present.max(allowed);
    }

    fn longest(&mut self, now: Time) -> Duration {
        self.turn(now);
        self.present.max(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_wait_is_the_queue_over_the_rate_at_which_it_drains() {
        let load = ModelLoad::default();
        load.record_answered(at(0.5), 1000);
        assert_eq!(load.expected_wait(at(1.0)), None, "there is no queue");
        load.set_queued(at(1.0), 50);
        assert_eq!(load.expected_wait(at(1.1)), None, "the queue is too young");
        for step in 0..50 {
            load.record_answered(at(1.0 + f64::from(step) * 0.1), 10);
        }
        load.set_queued(at(6.0), 50);
        let wait = load.expected_wait(at(6.0)).unwrap().as_secs_f64();
        assert!((0.45..0.6).contains(&wait), "{wait}");
        load.set_queued(at(6.0), 0);
        load.set_queued(at(6.1), 1);
        assert_eq!(
            load.expected_wait(at(6.2)),
            None,
            "the queue is another one"
        );
    }

    #[test]
    fn a_queue_that_does_not_drain_has_no_end() {
        let load = ModelLoad::default();
        load.set_queued(at(1.0), 1);
        assert_eq!(load.expected_wait(at(2.0)), Some(Duration::MAX));
    }

    #[test]
    fn the_memory_of_the_drain_rate_is_bounded() {
        let load = ModelLoad::default();
        load.set_queued(at(0.0), 1);
        for step in 0..100_000 {
            load.record_answered(at(f64::from(step) * 1e-3), 1);
        }
        let slots = lock(&load.drain).slots.len();
        assert!(slots <= 41, "{slots}");
        let wait = load.expected_wait(at(100.0)).unwrap().as_secs_f64();
        assert!((0.0009..0.0011).contains(&wait), "{wait}");
    }

    #[test]
    fn a_patient_request_is_remembered_for_a_while() {
        let load = ModelLoad::default();
        load.record_patience(at(0.0), Duration::from_secs(30));
        load.record_patience(at(1.0), Duration::from_secs(1));
        assert_eq!(load.patience(at(15.0)), Duration::from_secs(30));
        load.record_patience(at(15.0), Duration::from_secs(1));
        assert_eq!(load.patience(at(26.0)), Duration::from_secs(1));
        assert_eq!(load.patience(at(100.0)), Duration::ZERO);
    }
}
