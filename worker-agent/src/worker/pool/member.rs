//! A member of a pool worker, from its task to its end.

use std::{sync::Arc, thread, time::Duration};

use packhorse_cluster::Program;
use packhorse_wire::WorkerIdentity;
use packhorse_worker_agent::handoff::{Handoff, LinkSettings, MemberTask, WorkerReport};

use super::{
    loading::{Load, Loaded, Loading, Purpose},
    opening::Opening,
};
use crate::{
    acceptor::Acceptor,
    batch_limit::{BatchLimit, BatchLimitSearch},
    connection::{Link, OpenConnections},
    executor::{StartError, Started},
    listeners::Listening,
    pipeline::Pipeline,
    proofs::Proofs,
    residency::Residency,
    semaphore::Semaphore,
    serve::{MAX_CONNECTIONS, ready_report, synthetic_bytes, wait_until_drained},
    status_reporter::StatusReporter,
    stored_program::{FromFile, StoredProgram},
};

/// The parts that the members of a pool worker share.
pub(super) struct Shared {
    /// The ways by which gateways reach them.
    pub(super) links: LinkSettings,
    /// The proofs of the members and of gateways.
    pub(super) proofs: Proofs,
    /// The pipeline, which computes their batches.
    pub(super) pipeline: Arc<Pipeline>,
    /// The thread that opens their sockets.
    pub(super) opening: Opening,
    /// The thread that accepts their connections.
    pub(super) acceptor: Arc<Acceptor>,
    /// The memory that they share.
    pub(super) residency: Arc<Residency>,
    /// The thread that loads their programs.
    pub(super) loading: Loading,
}

/// A member.
pub(super) struct Member {
    handoff: Handoff,
    reporter: StatusReporter,
    /// The number of its start, which tells it from an earlier member of the same replica.
    start: u64,
    state: State,
}

enum State {
    /// Its program is loaded, or waits for that.
    Loading(Box<MemberTask>),
    /// It takes batches.
    Serving(Serving),
    /// It answers the batches that it has, or has ended.
    Ending,
    /// It cannot be served, and has said why.
    Failed,
}

/// The parts of a member that takes batches.
struct Serving {
    batches: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    open: Arc<OpenConnections>,
    /// Gateways connect until this is dropped.
    _listening: Listening,
}

impl Member {
    /// Begins a member: its program will be loaded, unless its task cannot be read.
    pub(super) fn begin(handoff: Handoff, start: u64, loading: &Loading) -> Self {
        let reporter = StatusReporter::of(&handoff);
        let state = match handoff.read_task::<MemberTask>() {
            Ok(task) => {
                reporter.report(WorkerReport::Waiting);
                loading.load(Load {
                    task: task.clone(),
                    start,
                    purpose: Purpose::Begin(reporter.clone()),
                });
                State::Loading(Box::new(task))
            }
            Err(error) => {
                reporter.report_failure(error.to_string(), true);
                State::Failed
            }
        };
        Self {
            handoff,
            reporter,
            start,
            state,
        }
    }

    /// Returns the number of the member's start.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Takes the outcome of the load of its program, and serves it; or that of one which cannot be loaded again, and ends. An outcome that nobody waits for
    /// any more is dropped.
    pub(super) fn loaded(&mut self, loaded: Loaded, shared: &Shared) {
        let task = match &self.state {
            State::Loading(task) if loaded.start == self.start => task.clone(),
            State::Serving(_) if loaded.start == self.start => return self.fail(loaded.started),
            _ => return,
        };
        self.state = match self.serve(&task, loaded, shared) {
            Ok(serving) => State::Serving(serving),
            Err(StartError { reason, permanent }) => {
                self.reporter.report_failure(reason, permanent);
                State::Failed
            }
        };
    }

    /// Ends because its program could not be loaded again.
    fn fail(&mut self, started: Result<Started, StartError>) {
        let Err(StartError { reason, permanent }) = started else {
            return;
        };
        if let State::Serving(serving) = &self.state {
            serving.open.drain();
        }
        self.state = State::Failed;
        self.reporter.report_failure(reason, permanent);
    }

    fn serve(
        &self,
        task: &MemberTask,
        loaded: Loaded,
        shared: &Shared,
    ) -> Result<Serving, StartError> {
        let mut started = loaded.started?;
        let stored = self.store(task, &mut started, loaded.took, shared);
        let program: &Program = &task.execution.program;
        let listeners = shared
            .opening
            .open(task.replica, self.handoff.link_socket(0))?;
        let (batch_limit, shortages) = BatchLimit::new(
            (started.batch_size < task.batch_size).then_some(started.batch_size),
            synthetic_bytes(program)?,
        );
        let batches = Semaphore::new(usize::MAX);
        let connections = Semaphore::new(MAX_CONNECTIONS);
        let open = Arc::new(OpenConnections::default());
        let program = Arc::new(program.clone());
        let search = BatchLimitSearch {
            executor: Arc::clone(&started.executor),
            pipeline: Arc::clone(&shared.pipeline),
            program: Arc::clone(&program),
            fill: started.fill,
            limit: Arc::downgrade(&batch_limit),
            batches: Arc::clone(&batches),
        };
        let places = [listeners.places()];
        let in_flight = task.execution.pipeline.in_flight;
        let executor = Arc::downgrade(&started.executor);
        let ready = move |batch_size| {
            let executor = executor.upgrade()?;
            let verification = started.verification.clone();
            Some(ready_report(
                &*executor,
                &places,
                batch_size,
                in_flight,
                loaded.memory,
                verification,
            ))
        };
        let weights = stored.map(|stored| {
            let told = Arc::downgrade(&open);
            let changed = move || told.upgrade().is_some_and(|open| open.report_weights());
            let residency = &shared.residency;
            residency.enter(task.replica, stored, task.batch_size, changed)
        });
        if let Some(weights) = &weights {
            open.set_weights(weights);
        }
        let link = Arc::new(Link {
            identity: WorkerIdentity {
                replica: task.replica,
                artifact: program.artifact,
                batch_size: task.batch_size,
            },
            proofs: shared.proofs.clone(),
            program,
            batch_limit,
            executor: started.executor,
            pipeline: Arc::clone(&shared.pipeline),
            batches: Arc::clone(&batches),
            open: Arc::clone(&open),
            weights,
            for_group: shared.links.own_user,
        });
        let listening = listeners.accept(&shared.acceptor, &link, &connections);
        let listening = listening.map_err(|e| StartError::transient(e.to_string()))?;
        if let Some(report) = ready(started.batch_size) {
            self.reporter.report(report);
        }
        let (reporter, drains) = (self.reporter.clone(), Arc::clone(&open));
        search.run_when_needed(&link.batch_limit, shortages, move |rows| {
            if let Some(report) = ready(rows).filter(|_| !drains.is_draining()) {
                reporter.report(report);
            }
        });
        Ok(Serving {
            batches,
            connections,
            open,
            _listening: listening,
        })
    }

    /// Has a program that was loaded, and may leave memory, be one that is loaded again from then on. Returns it, or `None` if it stays.
    fn store(
        &self,
        task: &MemberTask,
        started: &mut Started,
        took: Duration,
        shared: &Shared,
    ) -> Option<Arc<StoredProgram>> {
        if !task.execution.parks {
            return None;
        }
        let (task, start) = (task.clone(), self.start);
        let loading = shared.loading.clone();
        let verified = started.verified.take();
        let load_again = Box::new(move || match &verified {
            Some(verified) => loading.load_again(&task, start, Arc::clone(verified)),
            None => Err(StartError::permanent("it never leaves memory")),
        });
        let executor = Arc::clone(&started.executor);
        let stored = StoredProgram::new(FromFile { executor, took }, load_again);
        let stored = Arc::new(stored);
        started.executor = Arc::<StoredProgram>::clone(&stored);
        Some(stored)
    }

    /// Tells the member to answer the batches that it has and to end. Calls a function once it has, perhaps at once.
    pub(super) fn drain(&mut self, ended: impl FnOnce() + Send + 'static) {
        match std::mem::replace(&mut self.state, State::Ending) {
            State::Ending => {}
            State::Loading(_) | State::Failed => ended(),
            State::Serving(serving) => {
                self.reporter.report(WorkerReport::Draining);
                serving.open.drain();
                thread::spawn(move || {
                    while !wait_until_drained(&serving.batches, &serving.connections) {}
                    drop(serving);
                    ended();
                });
            }
        }
    }

    /// Waits until its batches are answered, but not longer than this.
    pub(super) fn wait_until_answered(&self, limit: Duration) {
        if let State::Serving(serving) = &self.state {
            serving.batches.wait_until_idle(limit);
        }
    }

    /// Says that the member has ended.
    pub(super) fn end(self) {
        self.reporter.report(WorkerReport::Ended);
    }
}
