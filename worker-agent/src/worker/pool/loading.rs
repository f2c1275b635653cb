//! The loading of members: one after the other, on a thread of its own, so that the batches of others go on. Those that are loaded again, because requests
//! wait for them, go before those that have never served.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, SyncSender},
    },
    thread,
    time::Duration,
};

use packhorse_cluster::{ByteCount, ReplicaId};
use packhorse_worker_agent::handoff::{ExecutorChoice, MemberTask, WorkNote, WorkerReport};

use crate::{
    clock::now,
    device_turns::DeviceTurns,
    executor::{self, Executor, StartError, Started, Verified, WarmUpSizes},
    process_memory,
    residency::Residency,
    status_reporter::StatusReporter,
    stored_program::FromFile,
};

/// The memory for which room is made before a program is loaded, as a multiple of its file: it lies in memory as it is read, as it is rewritten and as it
/// is served.
const LOADING_FACTOR: u64 = 4;

/// A program to load.
pub(super) struct Load {
    /// The task.
    pub(super) task: MemberTask,
    /// The number of the member's start.
    pub(super) start: u64,
    /// For whom it is loaded.
    pub(super) purpose: Purpose,
}

/// The purpose of a load.
pub(super) enum Purpose {
    /// A member begins, whose reports these are.
    Begin(StatusReporter),
    /// A member that has left memory is asked for, by one who waits for this.
    Again(Arc<dyn Verified>, SyncSender<Result<FromFile, StartError>>),
}

/// The outcome of a load.
pub(super) struct Loaded {
    /// The replica.
    pub(super) replica: ReplicaId,
    /// The number of its start.
    pub(super) start: u64,
    /// The program, or the reason why it cannot be served.
    pub(super) started: Result<Started, StartError>,
    /// The memory that the process needs more than before.
    pub(super) memory: Option<ByteCount>,
    /// The time that loading it took.
    pub(super) took: Duration,
}

/// The thread that loads.
#[derive(Clone)]
pub(super) struct Loading(Arc<Waiting>);

/// The loads that wait.
#[derive(Default)]
struct Waiting {
    loads: Mutex<VecDeque<Load>>,
    added: Condvar,
}

impl Waiting {
    /// Adds a load, before those of members that begin if somebody waits for it.
    fn add(&self, load: Load) {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first_begin = |other: &Load| matches!(other.purpose, Purpose::Begin(_));
        let place = match load.purpose {
            Purpose::Begin(_) => loads.len(),
            Purpose::Again(..) => loads.iter().position(is_first_begin).unwrap_or(loads.len()),
        };
        loads.insert(place, load);
        self.added.notify_one();
    }

    /// Waits for the next load.
    fn next(&self) -> Load {
        let loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = self.added.wait_while(loads, |loads| loads.is_empty());
        let mut loads = loads.unwrap_or_else(PoisonError::into_inner);
        loads.pop_front().expect("waited for")
    }
}

impl Loading {
    /// Starts the thread. It notes which model it loads, and passes the outcome for each member that begins, and that of one which cannot be loaded again, to
    /// a function, until that returns false.
    pub(super) fn start(
        note: WorkNote,
        residency: Arc<Residency>,
        take: impl Fn(Loaded) -> bool + Send + 'static,
    ) -> Self {
        let waiting = Arc::new(Waiting::default());
        let loads = Arc::clone(&waiting);
        thread::spawn(move || {
            loop {
                let load = loads.next();
                if let Purpose::Begin(reporter) = &load.purpose {
                    reporter.report(WorkerReport::Loading);
                }
                note.begin(&load.task.execution.program.model);
                let loaded = load.run(&residency);
                note.end();
                if let Some(loaded) = load.pass_on(loaded)
                    && !take(loaded)
                {
                    return;
                }
            }
        });
        Self(waiting)
    }

    /// Loads a program after those that wait.
    pub(super) fn load(&self, load: Load) {
        self.0.add(load);
    }

    /// Loads the program of a member again, and waits for it.
    ///
    /// # Errors
    /// It cannot be served any more.
    pub(super) fn load_again(
        &self,
        task: &MemberTask,
        start: u64,
        verified: Arc<dyn Verified>,
    ) -> Result<FromFile, StartError> {
        let (sender, loaded) = mpsc::sync_channel(1);
        self.0.add(Load {
            task: task.clone(),
            start,
            purpose: Purpose::Again(verified, sender),
        });
        let loaded = loaded.recv();
        loaded.unwrap_or_else(|_| Err(StartError::transient("the worker ends")))
    }
}

impl Load {
    fn run(&self, residency: &Residency) -> Loaded {
        let MemberTask {
            replica,
            execution,
            batch_size,
        } = &self.task;
        let mut gone = None;
        if let ExecutorChoice::Torch { artifact, .. } = &execution.executor {
            let file = match artifact.metadata() {
                Ok(file) => file.len(),
                Err(error) => {
                    let is_gone = error.kind() == io::ErrorKind::NotFound;
                    gone = is_gone.then(|| StartError::transient("its file is not there any more"));
                    0
                }
            };
            // What there is no room for may still fit: the estimate is for programs that are rewritten.
            residency.make_room(file * LOADING_FACTOR);
        }
        let before = Memory::now();
        let turn = DeviceTurns::new(execution.device_lock.as_deref()).start();
        let begin = now();
        let started = match (gone, &self.purpose) {
            (Some(error), _) => Err(error),
            (None, Purpose::Begin(_)) => executor::start(execution, *batch_size, WarmUpSizes::All),
            (None, Purpose::Again(verified, _)) => verified.load_again(),
        };
        let took = now() - begin;
        drop(turn);
        let memory = match (&execution.executor, &started) {
            (ExecutorChoice::Torch { .. }, Ok(started)) => before.needed_by(&*started.executor),
            (ExecutorChoice::Simulated { .. }, Ok(started)) => {
                started.executor.memory(started.batch_size)
            }
            (_, Err(_)) => None,
        };
        Loaded {
            replica: *replica,
            start: self.start,
            started,
            memory,
            took,
        }
    }

    /// Gives the outcome to the one who waits for it. Returns it if it is the member's.
    fn pass_on(self, loaded: Loaded) -> Option<Loaded> {
        let Purpose::Again(_, sender) = self.purpose else {
            return Some(loaded);
        };
        let took = loaded.took;
        match loaded.started {
            Ok(Started { executor, .. }) => {
                let _ = sender.send(Ok(FromFile { executor, took }));
                None
            }
            Err(error) => {
                let _ = sender.send(Err(error.clone()));
                Some(Loaded {
                    started: Err(error),
                    ..loaded
                })
            }
        }
    }
}

/// The memory of this process before a load.
struct Memory {
    peak: Option<ByteCount>,
    anonymous: Option<ByteCount>,
}

impl Memory {
    fn now() -> Self {
        Self {
            peak: process_memory::peak_resident(),
            anonymous: process_memory::anonymous(),
        }
    }

    /// Returns the memory that the process needs more since then, with the weights of the program that was loaded. What an earlier member has left free
    /// is used again and does not count.
    fn needed_by(&self, executor: &dyn Executor) -> Option<ByteCount> {
        let Some(weights) = executor.weights() else {
            return Some(process_memory::peak_resident()?.saturating_sub(self.peak?));
        };
        let others = process_memory::anonymous()?.saturating_sub(self.anonymous?);
        Some(ByteCount::new(weights.bytes()).saturating_add(others))
    }
}
