//! `packhorse-worker serve`: loads a program, then answers batches until SIGTERM.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};
use packhorse_cluster::{ArtifactDigest, Capacity};
use packhorse_wire::{LinkSecret, WorkerIdentity};
use packhorse_worker_agent::handoff::{Handoff, ServeTask, WorkerReport, exit_code};

use super::{
    Reporter,
    connection::{self, Link, OpenConnections},
    fitting::{Fitting, Search, Shortage},
    gate::Gate,
    pipeline::{DeviceFailed, Pipeline},
};
use crate::executor::{self, Sizes, StartError, Started};

/// A program that is not loaded and warm after this long never will be.
pub(super) const LOAD_LIMIT: Duration = Duration::from_mins(5);
/// Connections at the same time, those without a finished handshake included.
const MAX_CONNECTIONS: usize = 32;
/// A draining worker whose gateways are silent for so long has nothing in flight.
const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// How long the answers about a hung batch may take to get out.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the main thread waits for.
enum Event {
    Started(Result<Started, StartError>),
    /// There is memory for batches of so many rows only.
    Fits(u32),
    Terminate,
    BatchTimedOut(String),
    DeviceFailed(String),
}

/// Runs the worker to its end: the code to exit with. The caller exits at once; threads may still be at work.
pub(crate) fn serve(handoff: &Handoff) -> u8 {
    let reporter = Reporter::new(handoff);
    reporter.on_terminate();
    let (events, happened) = mpsc::channel();
    await_signals(events.clone());
    match run(handoff, &reporter, &events, &happened) {
        Ok(code) => code,
        Err(StartError { reason, permanent }) => {
            reporter.failed(reason, permanent);
            exit_code::FAILED
        }
    }
}

fn run(
    handoff: &Handoff,
    reporter: &Reporter<'_>,
    events: &Sender<Event>,
    happened: &mpsc::Receiver<Event>,
) -> Result<u8, StartError> {
    let task: ServeTask = handoff.read_task().map_err(|e| StartError {
        reason: e.to_string(),
        permanent: true,
    })?;
    reporter.report(WorkerReport::Loading);
    let passing = |reason: String| StartError {
        reason,
        permanent: false,
    };
    let secret = read_secret(task.link_secret_file.as_deref()).map_err(passing)?;
    let listener = TcpListener::bind(task.listen)
        .map_err(|e| passing(format!("cannot listen on {}: {e}", task.listen)))?;
    let address = listener.local_addr().map_err(|e| passing(e.to_string()))?;

    let pipeline = Arc::new(Pipeline::new(task.execution.pipeline));
    spawn_compute(&task, Arc::clone(&pipeline), events.clone());
    let Started {
        executor,
        batch_size,
        fill,
    } = match happened.recv_timeout(LOAD_LIMIT) {
        Ok(Event::Started(started)) => started?,
        Ok(Event::Terminate) => return Ok(exit_code::DONE),
        Ok(Event::Fits(_) | Event::BatchTimedOut(_) | Event::DeviceFailed(_))
        | Err(RecvTimeoutError::Disconnected) => {
            unreachable!("nothing runs yet, and this function holds a sender")
        }
        Err(RecvTimeoutError::Timeout) => {
            let seconds = LOAD_LIMIT.as_secs();
            return Err(passing(format!("not loaded and warm after {seconds} s")));
        }
    };

    let (fitting, shortages) = Fitting::new((batch_size < task.batch_size).then_some(batch_size));
    let batches = Gate::new(usize::MAX);
    let search = Search {
        executor: Arc::clone(&executor),
        pipeline: Arc::clone(&pipeline),
        program: task.execution.program.clone(),
        fill,
        fitting: Arc::clone(&fitting),
        batches: Arc::clone(&batches),
    };
    spawn_search(search, shortages, events.clone());
    let ready = {
        let executor = Arc::clone(&executor);
        move |batch_size: u32| WorkerReport::Ready {
            address,
            memory: executor.memory(batch_size),
            capacity: Some(Capacity {
                batch_size,
                in_flight: task.execution.pipeline.in_flight,
                multiprocessors: executor.multiprocessors(),
            }),
        }
    };
    let connections = Gate::new(MAX_CONNECTIONS);
    let link = Arc::new(Link {
        identity: identity(&task),
        secret,
        program: task.execution.program,
        fitting,
        executor,
        pipeline: Arc::clone(&pipeline),
        batches: Arc::clone(&batches),
        open: OpenConnections::default(),
    });
    spawn_accept(listener, Arc::clone(&link), Arc::clone(&connections));
    spawn_watchdog(
        pipeline,
        Duration::from_millis(task.batch_limit_ms),
        events.clone(),
    );
    reporter.report(ready(batch_size));

    let mut draining = false;
    loop {
        let event = if draining {
            if drained(&batches, &connections) {
                return Ok(exit_code::DONE);
            }
            happened.try_recv().ok()
        } else {
            happened.recv().ok()
        };
        match event {
            Some(Event::Terminate) if !draining => {
                draining = true;
                reporter.report(WorkerReport::Draining);
                link.open.drain();
            }
            Some(Event::Fits(rows)) if !draining => reporter.report(ready(rows)),
            Some(Event::BatchTimedOut(reason)) => {
                reporter.failed(reason, false);
                batches.wait_until_empty(LAST_WORDS);
                return Ok(exit_code::BATCH_TIMED_OUT);
            }
            Some(Event::DeviceFailed(reason)) => return Err(passing(reason)),
            _ => {}
        }
    }
}

fn identity(task: &ServeTask) -> WorkerIdentity {
    let artifact: ArtifactDigest = task.execution.program.artifact;
    WorkerIdentity {
        replica: task.replica,
        artifact,
        batch_size: task.batch_size,
    }
}

fn read_secret(file: Option<&Path>) -> Result<LinkSecret, String> {
    let Some(file) = file else {
        return Ok(LinkSecret::none());
    };
    let content = fs::read(file).map_err(|e| format!("link secret file: {e}"))?;
    let secret = LinkSecret::from_file_content(&content);
    if secret == LinkSecret::none() {
        return Err("link secret file: it is empty".to_owned());
    }
    Ok(secret)
}

/// Blocks SIGTERM and SIGINT in this thread, and so in all that it starts; one thread waits for them.
fn await_signals(events: Sender<Event>) {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals
        .thread_block()
        .expect("blocking signals of one's own cannot fail");
    thread::spawn(move || {
        while signals.wait().is_ok() {
            let _ = events.send(Event::Terminate);
        }
    });
}

/// The thread that computes. It also loads the program: libtorch keeps threads and settings per thread.
fn spawn_compute(task: &ServeTask, pipeline: Arc<Pipeline>, events: Sender<Event>) {
    let (execution, batch_size) = (task.execution.clone(), task.batch_size);
    thread::spawn(move || {
        let started = executor::start(&execution, batch_size, Sizes::Every);
        let executor = started.as_ref().ok().map(|s| Arc::clone(&s.executor));
        let _ = events.send(Event::Started(started));
        let Some(executor) = executor else {
            return;
        };
        if let Err(DeviceFailed(reason)) = pipeline.run(&*executor, &execution.program) {
            let _ = events.send(Event::DeviceFailed(format!("the device failed: {reason}")));
        }
    });
}

fn spawn_search(search: Search, shortages: mpsc::Receiver<Shortage>, events: Sender<Event>) {
    thread::spawn(move || {
        search.run(shortages, |rows| {
            let _ = events.send(Event::Fits(rows));
        });
    });
}

fn spawn_accept(listener: TcpListener, link: Arc<Link>, connections: Arc<Gate>) {
    thread::spawn(move || {
        loop {
            let pass = connections.enter();
            match listener.accept() {
                Ok((stream, _)) => {
                    let link = Arc::clone(&link);
                    thread::spawn(move || {
                        connection::serve(&stream, &link);
                        drop(pass);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely, which only time can mend.
                    tracing::error!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    });
}

fn spawn_watchdog(pipeline: Arc<Pipeline>, limit: Duration, events: Sender<Event>) {
    thread::spawn(move || {
        let reason = pipeline.watch(limit);
        let _ = events.send(Event::BatchTimedOut(reason));
    });
}

/// Whether everything is answered and the gateways have hung up, or at least fallen silent. Waits a moment for it.
fn drained(batches: &Gate, connections: &Gate) -> bool {
    if !batches.wait_until_empty(DRAIN_QUIET) {
        return false;
    }
    let entered = batches.entered();
    connections.wait_until_empty(DRAIN_QUIET)
        || (batches.entered() == entered && batches.wait_until_empty(Duration::ZERO))
}
