//! The threads that parse large requests and format large answers, apart from those that serve sockets.
//!
//! Models take turns at the threads, and so do the tenants of a model. A tenant of a model never has all threads if there are several, nor a model
//! if there are at least four. Where too many requests of a model wait, the last one of the tenant with the most gives way to that of a tenant with
//! fewer: a tenant alone has all places. Source: B. Suter et al., Buffer management schemes for supporting TCP in gigabit routers with
//! per-flow queueing, IEEE JSAC 17(6), 1999, "longest queue drop".

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use packhorse_serving::{ModelKey, TenantKey};
use tokio::sync::oneshot;

/// The most requests of a model that wait to be parsed; for a further one, the last of the tenant with the most is refused.
pub(in crate::api) const WAITING_LIMIT: usize = 256;

/// The number of threads from which on one is kept free of a model, besides that which is kept free of a tenant.
const THREADS_FOR_MODELS: usize = 4;

/// The niceness of the threads: sockets, driver and links go first.
const NICENESS: i32 = 10;

/// A pool of threads. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::api) struct WorkPool {
    owner: Arc<Owner>,
}

/// The error of a request for which there is no place in the pool: too many of its model wait, and no tenant has more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{WAITING_LIMIT} large requests of the model wait to be parsed, which is the limit; retry later"
)]
pub(in crate::api) struct PoolFull;

/// The unit that has a share of the threads: a tenant's requests to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct Party {
    /// The model.
    pub(in crate::api) model: ModelKey,
    /// The tenant.
    pub(in crate::api) tenant: TenantKey,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    limits: ThreadLimits,
}

/// The most threads at a time.
#[derive(Clone, Copy, Debug)]
struct ThreadLimits {
    /// Those of a model.
    model: usize,
    /// Those of a tenant of a model.
    party: usize,
}

#[derive(Default)]
struct State {
    models: BTreeMap<ModelKey, ModelJobs>,
    /// The model whose job was begun last.
    last: Option<ModelKey>,
    closed: bool,
}

/// The jobs of a model.
#[derive(Default)]
struct ModelJobs {
    running: usize,
    /// The requests of all tenants that wait.
    waiting: usize,
    tenants: BTreeMap<TenantKey, TenantJobs>,
    /// The tenant whose job was begun last.
    last: Option<TenantKey>,
}

/// The jobs of a tenant. Answers go first: they are nearer to their end, and release more.
#[derive(Default)]
struct TenantJobs {
    running: usize,
    answers: VecDeque<Job>,
    requests: VecDeque<Job>,
}

impl ThreadLimits {
    /// Returns the limits of a pool of this many threads.
    fn of(threads: usize) -> Self {
        let kept = if threads >= THREADS_FOR_MODELS { 2 } else { 1 };
        let party = threads.saturating_sub(kept).max(1);
        Self {
            model: party + 1,
            party,
        }
    }
}

impl WorkPool {
    /// Starts a pool of this many threads, at least one.
    pub(in crate::api) fn start(threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            limits: ThreadLimits::of(threads),
        });
        // The owner comes first: if a thread cannot be started, it ends the others.
        let owner = Arc::new(Owner {
            shared: Arc::clone(&shared),
        });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("parse".to_owned())
                .spawn(move || run(&shared))?;
        }
        Ok(Self { owner })
    }

    /// Runs the parsing of a request. If the future is dropped before it has begun, it is not begun.
    pub(in crate::api) async fn parse<T: Send + 'static>(
        &self,
        party: Party,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolFull> {
        let (job, done) = job(work);
        let given_way = self.owner.shared.lock().enqueue(party, job)?;
        // Its body and memory are released without the lock.
        drop(given_way);
        self.owner.shared.changed.notify_one();
        // A request that gives way is not run.
        done.await.map(finished).map_err(|_| PoolFull)
    }

    /// Runs the formatting of an answer. There are never more of these than answered requests.
    pub(in crate::api) async fn format<T: Send + 'static>(
        &self,
        party: Party,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (job, done) = job(work);
        let jobs = |state: &mut State| {
            let jobs = state.models.entry(party.model).or_default();
            let jobs = jobs.tenants.entry(party.tenant).or_default();
            jobs.answers.push_back(job);
        };
        jobs(&mut self.owner.shared.lock());
        self.owner.shared.changed.notify_one();
        finished(
            done.await
                .expect("the pool runs every answer's job, and outlives its callers"),
        )
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl State {
    /// Adds a request. Where there is no place for it, the last one of the tenant with the most gives way, and is returned.
    fn enqueue(&mut self, party: Party, job: Job) -> Result<Option<Job>, PoolFull> {
        let jobs = self.models.entry(party.model).or_default();
        let mut given_way = None;
        if jobs.waiting >= WAITING_LIMIT {
            given_way = Some(jobs.give_way(party.tenant).ok_or(PoolFull)?);
        }
        jobs.waiting += 1;
        let tenant = jobs.tenants.entry(party.tenant).or_default();
        tenant.requests.push_back(job);
        Ok(given_way)
    }

    /// Removes the next job, of the first model after the last one that has one and may have another thread.
    fn begin(&mut self, limits: ThreadLimits) -> Option<(Party, Job)> {
        let may = |jobs: &ModelJobs| jobs.running < limits.model && jobs.next(limits).is_some();
        let after = |key: &ModelKey| self.last.is_some_and(|last| *key <= last);
        let candidates = self.models.iter().filter(|(_, jobs)| may(jobs));
        let (model, _) = candidates.min_by_key(|(key, _)| (after(key), **key))?;
        let model = *model;
        let jobs = self.models.get_mut(&model)?;
        let tenant = jobs.next(limits)?;
        let job = jobs.begin(tenant)?;
        self.last = Some(model);
        Some((Party { model, tenant }, job))
    }

    fn end(&mut self, party: Party) {
        if let Some(jobs) = self.models.get_mut(&party.model) {
            jobs.end(party.tenant);
            if jobs.tenants.is_empty() {
                self.models.remove(&party.model);
            }
        }
    }
}

impl ModelJobs {
    /// Returns the first tenant after the last one that has a job and may have another thread.
    fn next(&self, limits: ThreadLimits) -> Option<TenantKey> {
        let may = |jobs: &TenantJobs| jobs.running < limits.party && jobs.has_waiting();
        let after = |key: &TenantKey| self.last.is_some_and(|last| *key <= last);
        let candidates = self.tenants.iter().filter(|(_, jobs)| may(jobs));
        let (tenant, _) = candidates.min_by_key(|(key, _)| (after(key), **key))?;
        Some(*tenant)
    }

    /// Removes the next job of a tenant.
    fn begin(&mut self, tenant: TenantKey) -> Option<Job> {
        let jobs = self.tenants.get_mut(&tenant)?;
        let job = jobs.answers.pop_front().or_else(|| {
            let request = jobs.requests.pop_front()?;
            self.waiting -= 1;
            Some(request)
        })?;
        jobs.running += 1;
        self.running += 1;
        self.last = Some(tenant);
        Some(job)
    }

    fn end(&mut self, tenant: TenantKey) {
        self.running -= 1;
        if let Some(jobs) = self.tenants.get_mut(&tenant) {
            jobs.running -= 1;
            if jobs.running == 0 && !jobs.has_waiting() {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// Removes the last request of the tenant with the most, if this one will not have as many.
    fn give_way(&mut self, tenant: TenantKey) -> Option<Job> {
        let own = self.tenants.get(&tenant);
        let own = own.map_or(0, |jobs| jobs.requests.len());
        let tenants = self.tenants.iter_mut();
        let most = tenants.max_by_key(|(key, jobs)| (jobs.requests.len(), Reverse(**key)));
        let (_, jobs) = most.filter(|(_, jobs)| jobs.requests.len() > own + 1)?;
        self.waiting -= 1;
        jobs.requests.pop_back()
    }
}

impl TenantJobs {
    fn has_waiting(&self) -> bool {
        !self.answers.is_empty() || !self.requests.is_empty()
    }
}

fn run(shared: &Shared) {
    // On Linux this is about the calling thread. A system that does not allow it only serves less fairly.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    let mut state = shared.lock();
    loop {
        if let Some((party, job)) = state.begin(shared.limits) {
            drop(state);
            job();
            state = shared.lock();
            state.end(party);
            // The tenant and the model may have another thread again.
            shared.changed.notify_one();
        } else if state.closed {
            return;
        } else {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn job<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (Job, oneshot::Receiver<thread::Result<T>>) {
    let (report, done) = oneshot::channel();
    let job = move || {
        if !report.is_closed() {
            // A panic is the caller's.
            let _ = report.send(catch_unwind(AssertUnwindSafe(work)));
        }
    };
    (Box::new(job), done)
}

fn finished<T>(done: thread::Result<T>) -> T {
    done.unwrap_or_else(|panicked| resume_unwind(panicked))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    impl WorkPool {
        fn running(&self) -> usize {
            let state = self.owner.shared.lock();
            state.models.values().map(|jobs| jobs.running).sum()
        }
    }

    fn party(model: u32, tenant: u64) -> Party {
        Party {
            model: ModelKey(model),
            tenant: TenantKey(tenant),
        }
    }

    #[tokio::test]
    async fn models_take_turns_and_none_has_all_threads() {
        // A pool of two threads leaves one to another tenant or model, one of four leaves one to another model even beside two greedy tenants.
        none_has_all_threads(2, &[party(1, 1)], party(2, 1)).await;
        none_has_all_threads(4, &[party(1, 1), party(1, 2)], party(2, 1)).await;
    }

    #[tokio::test]
    async fn tenants_of_a_model_take_turns_and_none_has_all_threads() {
        for threads in [2, 3, 4, 8] {
            none_has_all_threads(threads, &[party(1, 1)], party(1, 2)).await;
        }
    }

    /// Has a job of a party take a thread until the sender is dropped.
    async fn block(
        pool: &WorkPool,
        party: Party,
    ) -> (
        mpsc::Sender<()>,
        tokio::task::JoinHandle<Result<(), PoolFull>>,
    ) {
        let (release, blocked) = mpsc::channel::<()>();
        let (begun, is_running) = oneshot::channel();
        let pool = pool.clone();
        let busy = tokio::spawn(async move {
            pool.parse(party, move || {
                let _ = begun.send(());
                let _ = blocked.recv_timeout(PATIENCE);
            })
            .await
        });
        is_running.await.unwrap();
        (release, busy)
    }

    /// Has greedy parties begin jobs that stand still: those of a quiet one are run meanwhile.
    async fn none_has_all_threads(threads: usize, greedy: &[Party], quiet: Party) {
        let pool = WorkPool::start(threads).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let busy = (0..20).flat_map(|_| greedy.to_vec());
        let busy: Vec<_> = busy
            .map(|party| {
                let (pool, blocked) = (pool.clone(), Arc::clone(&blocked));
                tokio::spawn(async move {
                    pool.parse(party, move || {
                        let _ = blocked.lock().unwrap().recv_timeout(PATIENCE);
                    })
                    .await
                })
            })
            .collect();
        // All that may run does.
        let running = ThreadLimits::of(threads);
        let running = running.model.min(running.party * greedy.len());
        let begun = async {
            while pool.running() < running {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.unwrap();
        for answer in 0..10 {
            let ran = tokio::time::timeout(PATIENCE, pool.parse(quiet, move || answer));
            assert_eq!(ran.await.unwrap(), Ok(answer));
            assert_eq!(pool.format(quiet, move || answer).await, answer);
        }
        drop(release);
        for job in busy {
            job.await.unwrap().unwrap();
        }
        // The last thread books its job out after it has reported.
        let empty = async {
            while !pool.owner.shared.lock().models.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, empty).await.unwrap();
    }

    #[tokio::test]
    async fn a_tenant_with_fewer_waiting_requests_gets_a_place_of_the_one_with_the_most() {
        let pool = WorkPool::start(1).unwrap();
        let (release, busy) = block(&pool, party(1, 1)).await;
        let mut greedy = Vec::new();
        for number in 0..WAITING_LIMIT {
            let mut job = Box::pin(pool.parse(party(1, 1), move || number));
            assert!(futures_util::poll!(&mut job).is_pending());
            greedy.push(job);
        }
        let mut modest = Box::pin(pool.parse(party(1, 2), || 7));
        assert!(futures_util::poll!(&mut modest).is_pending());
        let last = greedy.pop().unwrap();
        assert_eq!(last.await, Err(PoolFull), "the last one has given way");
        assert_eq!(pool.parse(party(1, 1), || 0).await, Err(PoolFull));
        drop(release);
        // The modest tenant's turn is the next one.
        assert_eq!(modest.await, Ok(7));
        for (number, job) in greedy.into_iter().enumerate() {
            assert_eq!(job.await, Ok(number));
        }
        busy.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_too_many_is_refused_and_what_nobody_waits_for_is_not_run() {
        let pool = WorkPool::start(1).unwrap();
        let (release, busy) = block(&pool, party(1, 1)).await;
        let mut waiting = Vec::new();
        for _ in 0..WAITING_LIMIT {
            let mut job =
                Box::pin(pool.parse(party(1, 1), || -> () { panic!("nobody waits for it") }));
            assert!(futures_util::poll!(&mut job).is_pending());
            waiting.push(job);
        }
        assert_eq!(pool.parse(party(1, 1), || ()).await, Err(PoolFull));
        drop(waiting);
        drop(release);
        busy.await.unwrap().unwrap();
        pool.format(party(1, 1), || ()).await;
    }

    #[tokio::test]
    async fn a_panic_is_the_callers_and_the_thread_goes_on() {
        let pool = WorkPool::start(1).unwrap();
        let other = pool.clone();
        let caller = tokio::spawn(async move { other.parse(party(1, 1), || panic!("oops")).await });
        assert!(caller.await.unwrap_err().is_panic());
        assert_eq!(pool.parse(party(1, 1), || 7).await, Ok(7));
    }
}
