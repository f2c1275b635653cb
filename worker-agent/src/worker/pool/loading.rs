//! The loading of members: one after the other, on a thread of its own, so that the batches of others go on.

use std::{
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread,
};

use packhorse_cluster::{ByteCount, ReplicaId};
use packhorse_worker_agent::handoff::{ExecutorChoice, MemberTask, WorkNote, WorkerReport};

use crate::{
    device_turns::DeviceTurns,
    executor::{self, Executor, StartError, Started, WarmUpSizes},
    process_memory,
    residency::Residency,
    status_reporter::StatusReporter,
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
    /// The member's reports.
    pub(super) reporter: StatusReporter,
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
}

/// The thread that loads.
pub(super) struct Loading(Sender<Load>);

impl Loading {
    /// Starts the thread. It notes which model it loads, and passes each outcome to a function, until that returns false.
    pub(super) fn start(
        note: WorkNote,
        residency: Arc<Residency>,
        take: impl Fn(Loaded) -> bool + Send + 'static,
    ) -> Self {
        let (sender, loads) = mpsc::channel::<Load>();
        thread::spawn(move || {
            for load in loads {
                load.reporter.report(WorkerReport::Loading);
                note.begin(&load.task.execution.program.model);
                let loaded = load.run(&residency);
                note.end();
                if !take(loaded) {
                    return;
                }
            }
        });
        Self(sender)
    }

    /// Loads a program after those that wait.
    pub(super) fn load(&self, load: Load) {
        self.0
            .send(load)
            .expect("the thread does not end before this process");
    }
}

impl Load {
    fn run(self, residency: &Residency) -> Loaded {
        let MemberTask {
            replica,
            execution,
            batch_size,
        } = &self.task;
        if let ExecutorChoice::Torch { artifact, .. } = &execution.executor {
            let file = artifact.metadata().map_or(0, |file| file.len());
            // What there is no room for may still fit: the estimate is for programs that are rewritten.
            residency.make_room(file * LOADING_FACTOR);
        }
        let before = Memory::now();
        let turn = DeviceTurns::new(execution.device_lock.as_deref()).start();
        let started = executor::start(execution, *batch_size, WarmUpSizes::All);
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
