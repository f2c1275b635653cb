//! `packhorse-worker pool`: runs the replicas of a device in one process, as its agent names them, until SIGTERM.
//!
//! A process costs far more than a small program: libtorch alone takes 185 MiB and a second. A pool worker pays that once. Its *members* are
//! replicas that come and go while it runs: the agent names them in a file, of which the kernel tells each change. Each has a hand-over folder, sockets
//! and a limit of its batches of its own, as it would in a process of its own. They share the pipeline: batches of all members are computed
//! one after the other, in the order in which they come.
//!
//! Not all programs have their weights in memory at a time: [`crate::residency`] carries out what gateways decide, within the limit of the device, and has
//! programs leave memory beyond that of the host, which are loaded again from their files.
//!
//! Programs are loaded one after the other, beside the batches of the others. A member that cannot be loaded has failed, and the others go on.
//! A crash, a batch that does not end, and a failure of the device end the process and all members. Notes say for which model it worked then.

mod changes;
mod loading;
mod member;
mod opening;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread,
};

use packhorse_cluster::ReplicaId;
use packhorse_service::raise_descriptor_limit;
use packhorse_worker_agent::handoff::{Handoff, PoolTask, Work, WorkNote, WorkerReport, exit_code};

use crate::{
    acceptor::Acceptor,
    clock::now,
    confinement::Confinement,
    executor::StartError,
    pipeline::{DeviceFailed, Pipeline},
    proofs::{Proofs, folders_of_certificates},
    residency::{CountedMemory, Residency},
    serve::{FINAL_ANSWERS_LIMIT, forward_signals, spawn_watchdog},
    status_reporter::StatusReporter,
};
use loading::{Loaded, Loading};
use member::{Member, Shared};
use opening::Opening;

/// An event for the main thread.
enum Event {
    /// The agent may want other members.
    MembersChanged,
    /// A member's program was loaded, or cannot be.
    Loaded(Box<Loaded>),
    /// A member that was told to end has answered its batches.
    Drained(ReplicaId),
    /// The process was told to end.
    Terminate,
    /// A batch exceeded its time limit; with the reason.
    BatchTimedOut(String),
    /// The device failed.
    DeviceFailed(DeviceFailed),
}

/// Runs the pool worker to its end, and returns the exit code. The caller must exit at once, because threads may still work.
pub(crate) fn pool(handoff: &Handoff, confine: bool) -> u8 {
    let (event_sender, events) = mpsc::channel();
    // Before the first thread: a thread that does not block SIGTERM would end the process on it.
    let signal_sender = event_sender.clone();
    forward_signals(move || {
        let _ = signal_sender.send(Event::Terminate);
    });
    let reporter = StatusReporter::new(handoff);
    handoff.limit_log();
    // A member has four sockets, and each of its connections has as many descriptors again.
    raise_descriptor_limit();
    let started = Pool::start(handoff, confine, &event_sender);
    match started.and_then(|pool| pool.run(&events, &reporter)) {
        Ok(code) => code,
        Err(StartError { reason, permanent }) => {
            reporter.report_failure(reason, permanent);
            exit_code::FAILED
        }
    }
}

/// A pool worker.
struct Pool {
    handoff: Handoff,
    shared: Shared,
    members: BTreeMap<ReplicaId, Member>,
    events: Sender<Event>,
}

impl Pool {
    /// Starts the threads that load, compute and look for other members.
    fn start(handoff: &Handoff, confine: bool, events: &Sender<Event>) -> Result<Self, StartError> {
        let task: PoolTask = handoff
            .read_task()
            .map_err(|e| StartError::permanent(e.to_string()))?;
        let proofs = Proofs::read(&task.links)?;
        // Before the confinement, in which no socket is opened.
        let opening = Opening::start(task.links.clone());
        if confine {
            Confinement::new(handoff, [])
                .also_reading(folders_of_certificates(&task.links))
                .also_reading(task.reads)
                .also_writing(task.writes)
                .enter();
        }
        let changed = events.clone();
        changes::watch(&handoff.members_path(), move || {
            changed.send(Event::MembersChanged).is_ok()
        })
        .map_err(|e| StartError::transient(format!("the members cannot be watched: {e}")))?;
        let note = |work| {
            WorkNote::create(handoff, work)
                .map_err(|e| StartError::transient(format!("a note cannot be written: {e}")))
        };
        let counted = match task.cuda_device {
            Some(index) => CountedMemory::Cuda(index),
            None if task.simulated => CountedMemory::Planned,
            None => CountedMemory::Process,
        };
        let residency = Residency::new(task.memory_limit, task.warm_limit, counted, {
            let events = events.clone();
            move |failure| {
                let _ = events.send(Event::DeviceFailed(failure));
            }
        });
        let acceptor = Acceptor::start()
            .map_err(|e| StartError::transient(format!("connections cannot be accepted: {e}")))?;
        let to_take = events.clone();
        let to_load = Arc::clone(&residency);
        let loading = Loading::start(note(Work::Loading)?, to_load, move |loaded| {
            to_take.send(Event::Loaded(Box::new(loaded))).is_ok()
        });
        let pipeline = Arc::new(Pipeline::new(task.pipeline, Some(note(Work::Running)?)));
        spawn_compute(Arc::clone(&pipeline), events.clone());
        let timed_out = events.clone();
        spawn_watchdog(Arc::clone(&pipeline), task.batch_limit_ms, move |reason| {
            let _ = timed_out.send(Event::BatchTimedOut(reason));
        });
        Ok(Self {
            handoff: handoff.clone(),
            shared: Shared {
                links: task.links,
                proofs,
                pipeline,
                opening,
                acceptor,
                residency,
                loading,
            },
            members: BTreeMap::new(),
            events: events.clone(),
        })
    }

    /// Handles events until the process shall end, and returns its exit code.
    fn run(
        mut self,
        events: &mpsc::Receiver<Event>,
        reporter: &StatusReporter,
    ) -> Result<u8, StartError> {
        let mut draining = false;
        // By its status an agent recognises the process.
        reporter.report(WorkerReport::Waiting);
        self.take_members()?;
        loop {
            if draining && self.members.is_empty() {
                return Ok(exit_code::DONE);
            }
            match events.recv().expect("this struct has a sender") {
                Event::MembersChanged if !draining => self.take_members()?,
                Event::MembersChanged => {}
                Event::Loaded(loaded) => {
                    if let Some(member) = self.members.get_mut(&loaded.replica) {
                        member.loaded(*loaded, &self.shared);
                    }
                }
                Event::Drained(replica) => {
                    if let Some(member) = self.members.remove(&replica) {
                        self.shared.residency.leave(replica);
                        member.end();
                    }
                    if !draining {
                        self.take_members()?;
                    }
                }
                Event::Terminate => {
                    draining = true;
                    reporter.report(WorkerReport::Draining);
                    let all: Vec<ReplicaId> = self.members.keys().copied().collect();
                    for replica in all {
                        self.drain(replica);
                    }
                }
                Event::BatchTimedOut(reason) => {
                    reporter.report_failure(reason, false);
                    self.await_final_answers();
                    return Ok(exit_code::BATCH_TIMED_OUT);
                }
                Event::DeviceFailed(failure) => {
                    return Err(StartError::transient(failure.to_string()));
                }
            }
        }
    }

    /// Begins the members that the agent has named since, and tells those to end that it does not name any more.
    fn take_members(&mut self) -> Result<(), StartError> {
        let wanted = self.handoff.read_members();
        let wanted = wanted.map_err(|e| StartError::transient(e.to_string()))?;
        let unwanted = self.members.iter().filter(|(replica, member)| {
            wanted
                .get(replica)
                .is_none_or(|start| *start != member.start())
        });
        let unwanted: Vec<ReplicaId> = unwanted.map(|(replica, _)| *replica).collect();
        for replica in unwanted {
            self.drain(replica);
        }
        // One that is named again while it still drains begins once it has ended.
        let new = wanted
            .into_iter()
            .filter(|(replica, _)| !self.members.contains_key(replica));
        let mut new: Vec<(u64, ReplicaId)> = new.map(|(replica, start)| (start, replica)).collect();
        new.sort_unstable();
        for (start, replica) in new {
            let member = Member::begin(self.handoff.member(replica), start, &self.shared.loading);
            self.members.insert(replica, member);
        }
        Ok(())
    }

    /// Waits until the batches are answered that have been, as far as that is possible in a moment.
    fn await_final_answers(&self) {
        let end = now() + FINAL_ANSWERS_LIMIT;
        for member in self.members.values() {
            member.wait_until_answered(end.saturating_duration_since(now()));
        }
    }

    /// Tells a member to end once its batches are answered.
    fn drain(&mut self, replica: ReplicaId) {
        let Some(member) = self.members.get_mut(&replica) else {
            return;
        };
        let events = self.events.clone();
        member.drain(move || {
            let _ = events.send(Event::Drained(replica));
        });
    }
}

fn spawn_compute(pipeline: Arc<Pipeline>, events: Sender<Event>) {
    thread::spawn(move || {
        if let Err(failure) = pipeline.run() {
            let _ = events.send(Event::DeviceFailed(failure));
        }
    });
}
