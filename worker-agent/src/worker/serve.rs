//! `packhorse-worker serve`: loads a program, then answers batches until SIGTERM.

use std::{
    fs::{self, Permissions},
    io::{self, Read as _},
    iter,
    net::{SocketAddr, TcpListener},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};
use packhorse_cluster::{Capacity, Program, ReplicaId, Verification};
use packhorse_reconcile::AlsoListening;
use packhorse_tls::LinkTls;
use packhorse_wire::{LinkSecret, WorkerIdentity};
use packhorse_worker_agent::handoff::{Execution, Handoff, ServeTask, WorkerReport, exit_code};

use crate::{
    batch_limit::{BatchLimit, BatchLimitSearch, MemoryShortage, input_bytes},
    confinement::Confinement,
    connection::{self, Link, OpenConnections},
    device_turns::DeviceTurns,
    executor::{self, Executor, LOAD_LIMIT, StartError, Started, synthetic},
    pipeline::{DeviceFailed, Pipeline},
    semaphore::Semaphore,
    status_reporter::StatusReporter,
};

/// The most bytes of a secret that is passed.
const LONGEST_SECRET: u64 = 1 << 16;
/// The most connections at the same time, including those in their handshake.
const MAX_CONNECTIONS: usize = 32;
/// The time without a new batch after which a draining worker assumes that its gateways have none in flight.
const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// The time limit for the answers to a hung batch and those behind it.
const FINAL_ANSWERS_LIMIT: Duration = Duration::from_secs(1);

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
    forward_signals(event_sender.clone());
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
    let secret = read_secret(&task).map_err(StartError::transient)?;
    let tls = task.link_tls.as_ref().map(LinkTls::open_server).transpose();
    let tls = tls.map_err(|e| StartError::transient(format!("--link-tls: {e}")))?;
    let tls = tls.map(Arc::new);
    let replicas = replicas(&task);
    let listeners = (0..replicas.len()).map(|index| Listeners::open(&task, handoff, index));
    let listeners: Vec<Listeners> = listeners.collect::<Result<_, _>>()?;
    if confine {
        let also = task.also.iter().map(|also| &also.execution);
        let executions = iter::once(&task.execution).chain(also);
        Confinement::new(handoff, executions)
            .also_reading(folders_of_certificates(&task))
            .enter();
    }

    let pipeline = Arc::new(Pipeline::new(task.execution.pipeline));
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
        limit: Arc::clone(&batch_limit),
        batches: Arc::clone(&batches),
    };
    spawn_search(search, shortages, event_sender.clone());
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
                verification.clone(),
            )
        }
    };
    let connections = Semaphore::new(MAX_CONNECTIONS * replicas.len());
    let open = Arc::new(OpenConnections::default());
    for ((listeners, started), (replica, program)) in
        listeners.into_iter().zip(started).zip(replicas)
    {
        let link = Arc::new(Link {
            identity: WorkerIdentity {
                replica,
                artifact: program.artifact,
                batch_size: task.batch_size,
            },
            secret: secret.clone(),
            tls: tls.clone(),
            program: Arc::new(program.clone()),
            batch_limit: Arc::clone(&batch_limit),
            executor: started.executor,
            pipeline: Arc::clone(&pipeline),
            batches: Arc::clone(&batches),
            open: Arc::clone(&open),
            for_group: task.own_user,
        });
        accept_all(listeners, &link, &connections);
    }
    spawn_watchdog(
        pipeline,
        Duration::from_millis(task.batch_limit_ms),
        event_sender.clone(),
    );
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
fn synthetic_bytes(program: &Program) -> Result<u64, StartError> {
    let inputs = synthetic::input_headers(program, 1);
    let inputs = inputs.map_err(|e| StartError::permanent(e.to_string()))?;
    Ok(input_bytes(&inputs))
}

fn ready_report(
    executor: &dyn Executor,
    listening: &[AlsoListening],
    batch_size: u32,
    in_flight: u32,
    verification: Option<Verification>,
) -> WorkerReport {
    let (first, also) = listening.split_first().expect("a worker has a replica");
    WorkerReport::Ready {
        address: first.address,
        local_path: first.local_path.clone(),
        also: also.to_vec(),
        memory: executor.memory(batch_size),
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

/// The sockets on which the worker listens for one of its replicas.
struct Listeners {
    replica: ReplicaId,
    anywhere: TcpListener,
    address: SocketAddr,
    local: Option<(UnixListener, String)>,
}

impl Listeners {
    /// Listens for the replica of this index.
    fn open(task: &ServeTask, handoff: &Handoff, index: usize) -> Result<Self, StartError> {
        let listen = task.listen;
        let anywhere = TcpListener::bind(listen)
            .map_err(|e| StartError::transient(format!("cannot listen on {listen}: {e}")))?;
        let address = anywhere.local_addr();
        Ok(Self {
            replica: replicas(task)[index].0,
            address: address.map_err(|e| StartError::transient(e.to_string()))?,
            anywhere,
            local: listen_locally(handoff, index, task.own_user),
        })
    }

    fn places(&self) -> AlsoListening {
        AlsoListening {
            replica: self.replica,
            address: self.address,
            local_path: self.local.as_ref().map(|(_, path)| path.clone()),
        }
    }
}

/// Listens on a Unix socket of the hand-over folder, to which only this user connects, or its group, too, and returns its path, too. Without it gateways of this host connect by TCP.
fn listen_locally(
    handoff: &Handoff,
    index: usize,
    for_group: bool,
) -> Option<(UnixListener, String)> {
    let socket = handoff.link_socket(index)?;
    if let Some(folder) = Path::new(&socket).parent() {
        let _ = fs::create_dir(folder);
    }
    // Of a process that ended in the same folder.
    let _ = fs::remove_file(&socket);
    let listen = || {
        let listener = UnixListener::bind(&socket)?;
        if for_group {
            let folder = Path::new(&socket).parent().filter(|_| index > 0);
            for (path, mode) in folder
                .map(|path| (path, 0o710))
                .into_iter()
                .chain([(Path::new(&socket), 0o660)])
            {
                fs::set_permissions(path, Permissions::from_mode(mode))?;
            }
        }
        io::Result::Ok(listener)
    };
    match listen() {
        Ok(listener) => Some((listener, socket)),
        Err(error) => {
            tracing::warn!(%error, "cannot listen on link.sock; gateways connect by TCP");
            None
        }
    }
}

/// Returns the folders of the files of TLS, which are read again when they change, and of what they are links to.
fn folders_of_certificates(task: &ServeTask) -> impl Iterator<Item = PathBuf> {
    let tls = task.link_tls.iter();
    let files = tls.flat_map(|tls| {
        let identity = &tls.files.identity;
        let authorities = tls.files.client_authorities.as_ref();
        [
            Some(&identity.certificate),
            Some(&identity.key),
            authorities,
        ]
    });
    files.flatten().flat_map(|file| {
        let target = fs::canonicalize(file).ok();
        let folder = |path: PathBuf| path.parent().map(Path::to_owned);
        [folder(file.clone()), target.and_then(folder)]
            .into_iter()
            .flatten()
    })
}

fn read_secret(task: &ServeTask) -> Result<LinkSecret, String> {
    let content = match &task.link_secret_file {
        Some(file) => fs::read(file).map_err(|e| format!("link secret file: {e}"))?,
        None if task.own_user => {
            let mut passed = Vec::new();
            io::stdin()
                .take(LONGEST_SECRET)
                .read_to_end(&mut passed)
                .map_err(|e| format!("link secret: {e}"))?;
            if passed.is_empty() {
                return Ok(LinkSecret::none());
            }
            passed
        }
        None => return Ok(LinkSecret::none()),
    };
    let secret = LinkSecret::from_file_content(&content);
    if secret == LinkSecret::none() {
        return Err("link secret file: the file is empty".to_owned());
    }
    Ok(secret)
}

/// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts, and starts a thread that waits for them.
fn forward_signals(events: Sender<Event>) {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals
        .thread_block()
        .expect("a thread can block its signals");
    thread::spawn(move || {
        while signals.wait().is_ok() {
            let _ = events.send(Event::Terminate);
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
        let executor = started
            .as_ref()
            .ok()
            .map(|all| Arc::clone(&all[0].executor));
        let _ = events.send(Event::Started(started));
        let Some(executor) = executor else {
            return;
        };
        if let Err(failure) = pipeline.run(&*executor) {
            let _ = events.send(Event::DeviceFailed(failure));
        }
    });
}

fn spawn_search(
    search: BatchLimitSearch,
    shortages: mpsc::Receiver<MemoryShortage>,
    events: Sender<Event>,
) {
    thread::spawn(move || {
        search.run(shortages, |rows| {
            let _ = events.send(Event::BatchLimitFound(rows));
        });
    });
}

/// Accepts connections from anywhere, and those of this host.
fn accept_all(listeners: Listeners, link: &Arc<Link>, connections: &Arc<Semaphore>) {
    let anywhere = listeners.anywhere;
    let accept = move || anywhere.accept().map(|(stream, _)| stream);
    spawn_accept(accept, connection::serve, link, connections);
    if let Some((listener, _)) = listeners.local {
        let accept = move || listener.accept().map(|(stream, _)| stream);
        spawn_accept(accept, connection::serve_local, link, connections);
    }
}

fn spawn_accept<S: Send + 'static>(
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    serve: fn(S, &Link),
    link: &Arc<Link>,
    connections: &Arc<Semaphore>,
) {
    let (link, connections) = (Arc::clone(link), Arc::clone(connections));
    thread::spawn(move || {
        loop {
            let permit = connections.acquire();
            match accept() {
                Ok(stream) => {
                    let link = Arc::clone(&link);
                    thread::spawn(move || {
                        serve(stream, &link);
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Most likely there are no free file descriptors, and a later attempt succeeds.
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

/// Waits a moment until everything is answered and the gateways have closed their connections, or have sent nothing for a while. Returns
/// false if they have not.
fn wait_until_drained(batches: &Semaphore, connections: &Semaphore) -> bool {
    if !batches.wait_until_idle(DRAIN_QUIET) {
        return false;
    }
    let acquired = batches.acquired();
    connections.wait_until_idle(DRAIN_QUIET)
        || (batches.acquired() == acquired && batches.wait_until_idle(Duration::ZERO))
}
