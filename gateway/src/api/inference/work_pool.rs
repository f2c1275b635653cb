//! The threads that parse large requests and format large answers, apart from those that serve sockets.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use packhorse_serving::ModelKey;
use tokio::sync::oneshot;

/// The most requests of a model that wait to be parsed; a further one is refused.
pub(super) const WAITING_LIMIT: usize = 256;

/// The niceness of the threads: sockets, driver and links go first.
const NICENESS: i32 = 10;

/// A pool of threads. Models take turns, and one alone never has all threads if there are several. Clones share the pool.
#[derive(Clone, Debug)]
pub(super) struct WorkPool {
    owner: Arc<Owner>,
}

/// The error of a model that has too many requests waiting in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{WAITING_LIMIT} large requests of the model wait to be parsed, which is the limit; retry later"
)]
pub(super) struct PoolFull;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The most threads that one model has at a time.
    threads_per_model: usize,
}

#[derive(Default)]
struct State {
    models: BTreeMap<ModelKey, ModelJobs>,
    /// The model whose job was begun last.
    last: Option<ModelKey>,
    closed: bool,
}

/// The jobs of a model. Answers go first: they are nearer to their end, and release more.
#[derive(Default)]
struct ModelJobs {
    running: usize,
    answers: VecDeque<Job>,
    requests: VecDeque<Job>,
}

impl WorkPool {
    /// Starts a pool of this many threads, at least one.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            threads_per_model: (threads - 1).max(1),
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
    pub(super) async fn parse<T: Send + 'static>(
        &self,
        model: ModelKey,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolFull> {
        let (job, done) = job(work);
        {
            let mut state = self.owner.shared.lock();
            let jobs = state.models.entry(model).or_default();
            if jobs.requests.len() >= WAITING_LIMIT {
                return Err(PoolFull);
            }
            jobs.requests.push_back(job);
        }
        self.owner.shared.changed.notify_one();
        Ok(finished(done.await))
    }

    /// Runs the formatting of an answer. There are never more of these than answered requests.
    pub(super) async fn format<T: Send + 'static>(
        &self,
        model: ModelKey,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (job, done) = job(work);
        let jobs = |state: &mut State| {
            let jobs = state.models.entry(model).or_default();
            jobs.answers.push_back(job);
        };
        jobs(&mut self.owner.shared.lock());
        self.owner.shared.changed.notify_one();
        finished(done.await)
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
    /// Removes the next job, of the first model after the last one that has one and may have another thread.
    fn begin(&mut self, threads_per_model: usize) -> Option<(ModelKey, Job)> {
        let may = |jobs: &ModelJobs| {
            jobs.running < threads_per_model
                && !(jobs.answers.is_empty() && jobs.requests.is_empty())
        };
        let after = |key: &ModelKey| self.last.is_some_and(|last| *key <= last);
        let candidates = self.models.iter().filter(|(_, jobs)| may(jobs));
        let (key, _) = candidates.min_by_key(|(key, _)| (after(key), **key))?;
        let key = *key;
        let jobs = self.models.get_mut(&key)?;
        let job = jobs
            .answers
            .pop_front()
            .or_else(|| jobs.requests.pop_front())?;
        jobs.running += 1;
        self.last = Some(key);
        Some((key, job))
    }

    fn end(&mut self, model: ModelKey) {
        if let Some(jobs) = self.models.get_mut(&model) {
            jobs.running -= 1;
            if jobs.running == 0 && jobs.answers.is_empty() && jobs.requests.is_empty() {
                self.models.remove(&model);
            }
        }
    }
}

fn run(shared: &Shared) {
    // On Linux this is about the calling thread. A system that does not allow it only serves less fairly.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    let mut state = shared.lock();
    loop {
        if let Some((model, job)) = state.begin(shared.threads_per_model) {
            drop(state);
            job();
            state = shared.lock();
            state.end(model);
            // The model may have another thread again.
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

fn finished<T>(done: Result<thread::Result<T>, oneshot::error::RecvError>) -> T {
    match done.expect("the pool runs every job, and outlives its callers") {
        Ok(done) => done,
        Err(panicked) => resume_unwind(panicked),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn models_take_turns_and_none_has_all_threads() {
        let pool = WorkPool::start(2).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let busy: Vec<_> = (0..20)
            .map(|_| {
                let (pool, blocked) = (pool.clone(), Arc::clone(&blocked));
                tokio::spawn(async move {
                    pool.parse(ModelKey(1), move || {
                        let _ = blocked.lock().unwrap().recv_timeout(PATIENCE);
                    })
                    .await
                })
            })
            .collect();
        // While the greedy model's jobs stand still, another one's are run.
        for answer in 0..10 {
            let ran = tokio::time::timeout(PATIENCE, pool.parse(ModelKey(2), move || answer));
            assert_eq!(ran.await.unwrap(), Ok(answer));
            assert_eq!(pool.format(ModelKey(2), move || answer).await, answer);
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
    async fn one_too_many_is_refused_and_what_nobody_waits_for_is_not_run() {
        let pool = WorkPool::start(1).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let (begun, is_running) = oneshot::channel();
        let first = pool.clone();
        let busy = tokio::spawn(async move {
            first
                .parse(ModelKey(1), move || {
                    let _ = begun.send(());
                    let _ = blocked.recv_timeout(PATIENCE);
                })
                .await
        });
        is_running.await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..WAITING_LIMIT {
            let mut job =
                Box::pin(pool.parse(ModelKey(1), || -> () { panic!("nobody waits for it") }));
            assert!(futures_util::poll!(&mut job).is_pending());
            waiting.push(job);
        }
        assert_eq!(pool.parse(ModelKey(1), || ()).await, Err(PoolFull));
        drop(waiting);
        drop(release);
        busy.await.unwrap().unwrap();
        pool.format(ModelKey(1), || ()).await;
    }

    #[tokio::test]
    async fn a_panic_is_the_callers_and_the_thread_goes_on() {
        let pool = WorkPool::start(1).unwrap();
        let other = pool.clone();
        let caller = tokio::spawn(async move { other.parse(ModelKey(1), || panic!("oops")).await });
        assert!(caller.await.unwrap_err().is_panic());
        assert_eq!(pool.parse(ModelKey(1), || 7).await, Ok(7));
    }
}
