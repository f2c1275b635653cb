//! The loading of members: one after the other, on a thread of its own, so that the batches of others go on.

use std::{
    sync::mpsc::{self, Sender},
    thread,
};

use packhorse_cluster::{ByteCount, ReplicaId};
use packhorse_worker_agent::handoff::{ExecutorChoice, MemberTask, WorkNote, WorkerReport};

use crate::{
    device_turns::DeviceTurns,
    executor::{self, StartError, Started, WarmUpSizes},
    process_memory,
    status_reporter::StatusReporter,
};

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
    pub(super) fn start(note: WorkNote, take: impl Fn(Loaded) -> bool + Send + 'static) -> Self {
        let (sender, loads) = mpsc::channel::<Load>();
        thread::spawn(move || {
            for load in loads {
                load.reporter.report(WorkerReport::Loading);
                note.begin(&load.task.execution.program.model);
                let loaded = load.run();
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
    fn run(self) -> Loaded {
        let MemberTask {
            replica,
            execution,
            batch_size,
        } = &self.task;
        let before = process_memory::peak_resident();
        let turn = DeviceTurns::new(execution.device_lock.as_deref()).start();
        let started = executor::start(execution, *batch_size, WarmUpSizes::All);
        drop(turn);
        let memory = match (&execution.executor, &started) {
            (ExecutorChoice::Torch { .. }, Ok(_)) => grown_since(before),
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

/// Returns the memory that this process needs more than before. What an earlier member has left free is used again and does not count.
fn grown_since(before: Option<ByteCount>) -> Option<ByteCount> {
    Some(process_memory::peak_resident()?.saturating_sub(before?))
}
