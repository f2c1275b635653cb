//! `packhorse-worker serve`: loads a program, then answers batches until SIGTERM.

use std::{
    iter,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};
use packhorse_cluster::{ByteCount, Capacity, Program, ReplicaId, Verification};
use packhorse_reconcile::AlsoListening;
use packhorse_wire::WorkerIdentity;
use packhorse_worker_agent::handoff::{Execution, Handoff, ServeTask, WorkerReport, exit_code};

use crate::{
    acceptor::Acceptor,
    batch_limit::{BatchLimit, BatchLimitSearch, input_bytes},
    confinement::Confinement,
    connection::{Link, OpenConnections},
    device_turns::DeviceTurns,
    executor::{self, Executor, LOAD_LIMIT, StartError, Started, synthetic},
    listeners::Listeners,
    pipeline::{DeviceFailed, Pipeline},
    proofs::{Proofs, folders_of_certificates},
    semaphore::Semaphore,
    status_reporter::StatusReporter,
};

/// The most connections to a replica at the same time, including those in their handshake.
pub(crate) const MAX_CONNECTIONS: usize = 32;
/// The time without a new batch after which a draining worker assumes that its gateways have none in flight.
const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// The time limit for the answers to a hung batch and those behind it.
pub(crate) const FINAL_ANSWERS_LIMIT: Duration = Duration::from_secs(1);

/// An event for the main thread.
enum Event {
    /// The executors of all replicas have started, or have failed to.
    Started(Result<Vec<Started>, StartError>),
    /// Only batches of up to this number of rows fit into memory.
    BatchLimitFound(u32),
    /// The process was told to end.
    Terminate,
    /// A batch exceeded its time limit; with the reason.
    BatchTimedOut(String),
    /// The device failed.
    DeviceFailed(DeviceFailed),
}

/// Runs the worker to its end, and returns the exit code. The caller must exit at once, because threads may still work.
pub(crate) fn serve(handoff: &Handoff, confine: bool) -> u8 {
    let (event_sender, events) = mpsc::channel();
    // Before the first thread: a thread that does not block SIGTERM would end the process on it.
    let signal_sender = event_sender.clone();
    forward_signals(move || {
        let _ = signal_sender.send(Event::Terminate);
    });
    let reporter = StatusReporter::new(handoff);
    handoff.limit_log();
    match run(handoff, confine, &reporter, &event_sender, &events) {
        Ok(code) => code,
        Err(StartError { reason, permanent }) => {
            reporter.report_failure(reason, permanent);
            exit_code::FAILED
        }
    }
}

fn run(
    handoff: &Handoff,
    confine: bool,
    reporter: &StatusReporter,
    event_sender: &Sender<Event>,
    events: &mpsc::Receiver<Event>,
) -> Result<u8, StartError> {
    let task: ServeTask = handoff
        .read_task()
        .map_err(|e| StartError::permanent(e.to_string()))?;
    reporter.report(WorkerReport::Loading);
    let proofs = Proofs::read(&task.links)?;
    let replicas = replicas(&task);
    let listeners = replicas.iter().enumerate().map(|(index, (replica, _))| {
        Listeners::open(*replica, &task.links, handoff.link_socket(index))
    });
    let listeners: Vec<Listeners> = listeners.collect::<Result<_, _>>()?;
    if confine {
        let also = task.also.iter().map(|also| &also.execution);
        let executions = iter::once(&task.execution).chain(also);
        Confinement::new(handoff, executions)
            .also_reading(folders_of_certificates(&task.links))
            .enter();
    }

    let pipeline = Arc::new(Pipeline::new(task.execution.pipeline, None));
    spawn_compute(&task, Arc::clone(&pipeline), event_sender.clone());
    // One program of several is no finding about the others. It is found to fail when it is measured, which is done alone.
    let started = wait_for_start(events).map_err(|error| StartError {
        permanent: error.permanent && task.also.is_empty(),
        ..error
    });
    let Some(started) = started? else {
        return Ok(exit_code::DONE);
    };

    let first = started.first().expect("a worker has a replica");
    let (executor, batch_size) = (Arc::clone(&first.executor), first.batch_size);
    let (batch_limit, shortages) = BatchLimit::new(
        (batch_size < task.batch_size).then_some(batch_size),
        synthetic_bytes(&task.execution.program)?,
    );
    let batches = Semaphore::new(usize::MAX);
    let search = BatchLimitSearch {
        executor: Arc::clone(&executor),
        pipeline: Arc::clone(&pipeline),
        program: Arc::new(task.execution.program.clone()),
        fill: first.fill,
        limit: Arc::downgrade(&batch_limit),
        batches: Arc::clone(&batches),
    };
    let found = event_sender.clone();
    search.run_when_needed(&batch_limit, shortages, move |rows| {
        let _ = found.send(Event::BatchLimitFound(rows));
    });
    let ready = {
        let in_flight = task.execution.pipeline.in_flight;
        let listening: Vec<AlsoListening> = listeners.iter().map(Listeners::places).collect();
        let verification = verification(&started);
        move |batch_size| {
            ready_report(
                &*executor,
                &listening,
                batch_size,
                in_flight,
                executor.memory(batch_size),
                verification.clone(),
            )
        }
    };
    let connections = Semaphore::new(MAX_CONNECTIONS * replicas.len());
    let acceptor = Acceptor::start().map_err(|e| StartError::transient(e.to_string()))?;
    let open = Arc::new(OpenConnections::default());
    let mut listening_on = Vec::new();
    for ((listeners, started), (replica, program)) in
        listeners.into_iter().zip(started).zip(replicas)
    {
        let link = Arc::new(Link {
            identity: WorkerIdentity {
                replica,
                artifact: program.artifact,
                batch_size: task.batch_size,
            },
            proofs: proofs.clone(),
            program: Arc::new(program.clone()),
            batch_limit: Arc::clone(&batch_limit),
            executor: started.executor,
            pipeline: Arc::clone(&pipeline),
            batches: Arc::clone(&batches),
            open: Arc::clone(&open),
            weights: None,
            for_group: task.links.own_user,
        });
        let accepts = listeners.accept(&acceptor, &link, &connections);
        listening_on.push(accepts.map_err(|e| StartError::transient(e.to_string()))?);
    }
    let watch_sender = event_sender.clone();
    spawn_watchdog(pipeline, task.batch_limit_ms, move |reason| {
        let _ = watch_sender.send(Event::BatchTimedOut(reason));
    });
    reporter.report(ready(batch_size));
    Serving {
        batches,
        connections,
        open,
    }
    .until_end(events, reporter, ready)
}

/// The batches and connections of a worker that serves.
struct Serving {
    batches: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    open: Arc<OpenConnections>,
}

impl Serving {
    /// Handles events until the process shall end, and returns its exit code.
    fn until_end(
        &self,
        events: &mpsc::Receiver<Event>,
        reporter: &StatusReporter,
        ready: impl Fn(u32) -> WorkerReport,
    ) -> Result<u8, StartError> {
        let mut draining = false;
        loop {
            let event = if draining {
                if wait_until_drained(&self.batches, &self.connections) {
                    return Ok(exit_code::DONE);
                }
                events.try_recv().ok()
            } else {
                events.recv().ok()
            };
            match event {
                Some(Event::Terminate) if !draining => {
                    draining = true;
                    reporter.report(WorkerReport::Draining);
                    self.open.drain();
                }
                Some(Event::BatchLimitFound(rows)) if !draining => reporter.report(ready(rows)),
                Some(Event::BatchTimedOut(reason)) => {
                    reporter.report_failure(reason, false);
                    self.batches.wait_until_idle(FINAL_ANSWERS_LIMIT);
                    return Ok(exit_code::BATCH_TIMED_OUT);
                }
                Some(Event::DeviceFailed(failure)) => {
                    return Err(StartError::transient(failure.to_string()));
                }
                _ => {}
            }
        }
    }
}

/// Waits until the executors have started; `None` if the process shall end before.
fn wait_for_start(events: &mpsc::Receiver<Event>) -> Result<Option<Vec<Started>>, StartError> {
    match events.recv_timeout(LOAD_LIMIT) {
        Ok(Event::Started(started)) => started.map(Some),
        Ok(Event::Terminate) => Ok(None),
        Ok(Event::BatchLimitFound(_) | Event::BatchTimedOut(_) | Event::DeviceFailed(_))
        | Err(RecvTimeoutError::Disconnected) => {
            unreachable!("nothing runs yet, and the caller holds a sender")
        }
        Err(RecvTimeoutError::Timeout) => Err(StartError::transient(format!(
            "the program was not loaded and warm after {} s",
            LOAD_LIMIT.as_secs()
        ))),
    }
}

/// Returns the bytes of one row of the inputs with which the batch size was found.
pub(crate) fn synthetic_bytes(program: &Program) -> Result<u64, StartError> {
    let inputs = synthetic::input_headers(program, 1);
    let inputs = inputs.map_err(|e| StartError::permanent(e.to_string()))?;
    Ok(input_bytes(&inputs))
}

/// Returns the report of a worker that listens for its replicas.
pub(crate) fn ready_report(
    executor: &dyn Executor,
    listening: &[AlsoListening],
    batch_size: u32,
    in_flight: u32,
    memory: Option<ByteCount>,
    verification: Option<Verification>,
) -> WorkerReport {
    let (first, also) = listening.split_first().expect("a worker has a replica");
    WorkerReport::Ready {
        address: first.address,
        local_path: first.local_path.clone(),
        also: also.to_vec(),
        memory,
        capacity: Some(Capacity {
            batch_size,
            in_flight,
            multiprocessors: executor.multiprocessors(),
        }),
        verification,
    }
}

/// Returns the comparisons of all replicas as one.
fn verification(started: &[Started]) -> Option<Verification> {
    let all = started
        .iter()
        .filter_map(|started| started.verification.clone());
    all.reduce(|mut all, one| {
        all.compared = all.compared.saturating_add(one.compared);
        all.not_compared = all.not_compared.or(one.not_compared);
        all.dropped.extend(one.dropped);
        all.dropped.truncate(Verification::MAX_DROPPED);
        all
    })
}

/// Returns the replicas of a worker with their programs, the first of which is that of the task itself.
fn replicas(task: &ServeTask) -> Vec<(ReplicaId, &Program)> {
    let also = task.also.iter();
    let also = also.map(|also| (also.replica, &also.execution.program));
    iter::once((task.replica, &task.execution.program))
        .chain(also)
        .collect()
}

/// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts, and starts a thread that waits for them and calls a function for
/// each.
pub(crate) fn forward_signals(told_to_end: impl Fn() + Send + 'static) {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals
        .thread_block()
        .expect("a thread can block its signals");
    thread::spawn(move || {
        while signals.wait().is_ok() {
            told_to_end();
        }
    });
}

/// Starts the thread that computes. It also loads the programs, because libtorch keeps threads and settings per thread.
fn spawn_compute(task: &ServeTask, pipeline: Arc<Pipeline>, events: Sender<Event>) {
    let task = task.clone();
    thread::spawn(move || {
        let also = task.also.iter().map(|also| &also.execution);
        let executions: Vec<&Execution> = iter::once(&task.execution).chain(also).collect();
        let turn = DeviceTurns::new(task.execution.device_lock.as_deref()).start();
        let started = executor::start_together(&executions, task.batch_size);
        drop(turn);
        let has_started = started.is_ok();
        let _ = events.send(Event::Started(started));
        if !has_started {
            return;
        }
        if let Err(failure) = pipeline.run() {
            let _ = events.send(Event::DeviceFailed(failure));
        }
    });
}

/// Starts a thread that calls a function with the reason when a batch exceeds this time.
pub(crate) fn spawn_watchdog(
    pipeline: Arc<Pipeline>,
    limit_ms: u64,
    timed_out: impl FnOnce(String) + Send + 'static,
) {
    thread::spawn(move || timed_out(pipeline.watch(Duration::from_millis(limit_ms))));
}

/// Waits a moment until everything is answered and the gateways have closed their connections, or have sent nothing for a while. Returns
/// false if they have not.
pub(crate) fn wait_until_drained(batches: &Semaphore, connections: &Semaphore) -> bool {
    if !batches.wait_until_idle(DRAIN_QUIET) {
        return false;
    }
    let acquired = batches.acquired();
    connections.wait_until_idle(DRAIN_QUIET)
        || (batches.acquired() == acquired && batches.wait_until_idle(Duration::ZERO))
}
