//! The worker processes of the node: they are started, watched, signalled and adopted here.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use packhorse_cluster::{
    ByteCount, ComputeShare, ModelId, ProfileTable, Program, ReplicaId, WantedReplica, WorkerKind,
};
use packhorse_reconcile::{Event, Task, TaskId};
use packhorse_worker_agent::{
    devices::{Backend, Device},
    handoff::{
        AlsoServed, Execution, ExecutorChoice, Handoff, HandoffError, LinkSettings, MemberTask,
        Members, PoolTask, ProcessIdentity, ProfileTask, ReusedTask, ServeTask, WorkerStatus,
        worker_environment,
    },
};
use tokio::sync::mpsc;

use crate::{
    artifact_cache::ArtifactCache,
    config::Settings,
    environment::{inherited, library_path},
    mps::{MAX_CLIENTS, Mps, MpsDevice},
    pipeline_options::Switch,
    pools::{Member, Pools},
    process::{self, Candidate, Process, Signaller},
    reused_workers::ReusedWorkers,
    state_folder::StateFolder,
    status_watch::{StatusWatch, current_status},
    worker_user::pass_secret,
    worker_watch::{WorkerWatch, watch_shared},
};

/// The worker processes of this node.
#[derive(Debug)]
pub(super) struct Workers {
    settings: Settings,
    folder: StateFolder,
    devices: Vec<Device>,
    mps: Mps,
    running: BTreeMap<TaskId, RunningWorker>,
    pools: Pools,
    reused: ReusedWorkers,
    events: mpsc::Sender<Event>,
}

/// A running worker process.
#[derive(Debug)]
struct RunningWorker {
    pid: u32,
    /// The device; none for an inspection.
    device: Option<String>,
    signaller: Signaller,
    /// The other tasks of the process.
    process: ProcessOf,
}

/// The tasks of a worker process.
#[derive(Debug)]
enum ProcessOf {
    /// The task alone.
    Own,
    /// The members of a pool worker, of which this one has this model.
    Members(ModelId),
    /// One task after the other, in a reused worker of this name.
    Successive(String),
}

/// A failure to start a worker.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("this node has no device {0:?}")]
    NoDevice(String),
    #[error("the device already has {MAX_CLIENTS} workers, the most that MPS allows")]
    TooManyClients,
    #[error("the hand-over folder cannot be written: {0}")]
    Folder(#[source] io::Error),
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    #[error("the link secret cannot be passed to the worker: {0}")]
    Secret(#[source] io::Error),
    #[error("the worker program cannot be started: {0}")]
    Spawn(#[source] io::Error),
    #[error("the worker does not take its task")]
    TakesNoTask,
}

impl Workers {
    /// Creates the node's set of workers, which is empty until [`Workers::start`] or [`Workers::adopt`].
    pub(super) fn new(
        settings: Settings,
        folder: StateFolder,
        devices: Vec<Device>,
        mps: Mps,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            pools: Pools::new(folder.worker_user().clone(), folder.blame_file()),
            settings,
            folder,
            devices,
            mps,
            running: BTreeMap::new(),
            reused: ReusedWorkers::default(),
            events,
        }
    }

    /// Starts the worker of a task.
    pub(super) fn start(&mut self, task: &Task, cache: &ArtifactCache) -> Event {
        match self.try_start(task, cache) {
            Ok(pid) => {
                tracing::info!(task = %label(task), pid, "worker started");
                Event::Started(task.id(), pid)
            }
            Err(e) => {
                tracing::warn!(task = %label(task), error = %e, "worker not started");
                Event::StartFailed(task.id(), e.to_string())
            }
        }
    }

    fn try_start(&mut self, task: &Task, cache: &ArtifactCache) -> Result<u32, StartError> {
        let device = self.device(task);
        if let Some(missing) = task.device().filter(|_| device.is_none()) {
            return Err(StartError::NoDevice(missing.to_owned()));
        }
        let mps = self.mps_of(task.device());
        let neighbours = self.running.values();
        let neighbours = neighbours.filter(|running| running.device.as_deref() == task.device());
        if mps.is_some() && neighbours.count() >= MAX_CLIENTS {
            return Err(StartError::TooManyClients);
        }
        if let Some((device, replica)) = self.pooled(task) {
            let (device, replica) = (device.clone(), replica.clone());
            return self.begin_member(&device, &replica, task, cache);
        }
        let handoff = self.folder.prepare(task).map_err(StartError::Folder)?;
        let share = self.compute_share(task);
        let execution = self.execution(task.program(), share, device, cache);
        let threads = execution.threads;
        let subcommand = match task {
            Task::Serve(replicas) => {
                let first = replicas.first();
                let also = replicas.also().iter().map(|replica| AlsoServed {
                    replica: replica.id,
                    execution: self.execution(&replica.program, share, device, cache),
                });
                handoff.write_task(&ServeTask {
                    replica: first.id,
                    execution,
                    also: also.collect(),
                    batch_size: first.batch_size,
                    links: self.links(),
                    batch_limit_ms: self.batch_limit_ms(),
                })?;
                "serve"
            }
            Task::Measure(profile) => {
                handoff.write_task(&ProfileTask {
                    execution,
                    device_kind: profile.device_kind.clone(),
                    time_limit_ms: profile.time_limit_ms,
                    inspect: profile.inspect,
                })?;
                "profile"
            }
            Task::Inspect(_) => {
                handoff.write_task(&execution)?;
                "operators"
            }
        };
        if self.is_reused(task, device) {
            let device = device.cloned();
            return self.give(subcommand, device.as_ref(), task, handoff);
        }
        let stdin = self.secret(subcommand)?;
        let mut command = self.command(subcommand, &handoff, device, threads, stdin)?;
        command.envs(device_environment(device, share)).envs(
            mps.iter()
                .flat_map(|mps| mps.environment(planned_memory(task))),
        );
        let process = Process::spawn(&mut command).map_err(StartError::Spawn)?;
        let pid = process.pid();
        self.watch(task, process, handoff, None);
        Ok(pid)
    }

    /// Returns true if a reused worker does the task: an inspection, or a measurement on a CPU. On a GPU a process is slower once kernels
    /// were recorded in it, and a simulated device measures nothing.
    fn is_reused(&self, task: &Task, device: Option<&Device>) -> bool {
        let is_on_cpu = device.is_none_or(|device| device.backend == Backend::Cpu);
        task.has_result() && is_on_cpu && self.reused.admits(&task.id())
    }

    /// Gives a task, whose hand-over folder is prepared, to a reused worker, which is started if there is none that takes it.
    fn give(
        &mut self,
        subcommand: &str,
        device: Option<&Device>,
        task: &Task,
        handoff: Handoff,
    ) -> Result<u32, StartError> {
        let user = self.folder.worker_user();
        user.let_read(&handoff.task_path())
            .map_err(StartError::Folder)?;
        let name = device.map_or(subcommand, |device| &device.name).to_owned();
        let mut given = self.reused.give(&name, &task.id(), handoff.dir());
        if given.is_none() {
            self.start_reused(subcommand, &name, device)?;
            given = self.reused.give(&name, &task.id(), handoff.dir());
        }
        let given = given.ok_or(StartError::TakesNoTask)?;
        let running = RunningWorker {
            pid: given.pid(),
            device: device.map(|device| device.name.clone()),
            signaller: given.signaller(),
            process: ProcessOf::Successive(name),
        };
        let pid = running.pid;
        self.running.insert(task.id(), running);
        let status = self.status_watch(task, handoff, None);
        tokio::spawn(watch_shared(status, pid, given.ended()));
        Ok(pid)
    }

    /// Starts a reused worker.
    fn start_reused(
        &mut self,
        subcommand: &str,
        name: &str,
        device: Option<&Device>,
    ) -> Result<(), StartError> {
        let folder = &self.folder;
        let handoff = folder.prepare_reused(name).map_err(StartError::Folder)?;
        let locks = device.map(|device| folder.device_lock(&device.name));
        let locks = locks.as_deref().and_then(Path::parent);
        handoff.write_task(&ReusedTask {
            reads: vec![folder.artifacts()],
            writes: { folder.handoffs_of_results() }
                .chain(locks.map(Path::to_owned))
                .collect(),
        })?;
        let threads = device.map_or(1, |device| threads(device, None));
        let (reader, pipe) = io::pipe().map_err(StartError::Spawn)?;
        let mut command = self.command(subcommand, &handoff, device, threads, reader.into())?;
        command
            .arg("--reused")
            .envs(device_environment(device, None));
        let process = Process::spawn(&mut command).map_err(StartError::Spawn)?;
        tracing::info!(name, pid = process.pid(), "reused worker started");
        self.reused
            .add(name.to_owned(), process, pipe, handoff.log_path());
        Ok(())
    }

    /// Returns the device and the replica of a task that a pool worker does; `None` if it gets a process of its own: what the gateway does not want in a pool
    /// and is among the first replicas of a device, those of GPUs that may share none, those that share a backbone, and models that have ended a pool
    /// worker before.
    fn pooled<'a>(&'a self, task: &'a Task) -> Option<(&'a Device, &'a WantedReplica)> {
        let Task::Serve(replicas) = task else {
            return None;
        };
        let replica = replicas.first();
        let device = self.device(task)?;
        let is_alone = replicas.also().is_empty();
        let may_share = device.backend != Backend::Cuda || self.settings.gpu_pools;
        if !is_alone || !may_share || !self.pools.admits(&replica.program.model) {
            return None;
        }
        if replica.pooled {
            return Some((device, replica));
        }
        let others = self.running.iter().filter(|(id, running)| {
            **id != task.id()
                && matches!(id, TaskId::Replica(_))
                && running.pool_device().is_none()
                && running.device.as_ref() == Some(&device.name)
        });
        let own_workers = device.own_workers(self.settings.own_workers) as usize;
        (others.count() >= own_workers).then_some((device, replica))
    }

    /// Begins a member of the device's pool worker, which is started if there is none.
    fn begin_member(
        &mut self,
        device: &Device,
        replica: &WantedReplica,
        task: &Task,
        cache: &ArtifactCache,
    ) -> Result<u32, StartError> {
        if !self.pools.is_running(&device.name) {
            self.start_pool(device)?;
        }
        let folder = &self.folder;
        let pool = self.pools.handoff(&device.name);
        let handoff = folder.prepare_member(pool, replica.id, task);
        let handoff = handoff.map_err(StartError::Folder)?;
        handoff.write_task(&MemberTask {
            replica: replica.id,
            execution: Execution {
                parks: replica.pooled,
                ..self.execution(&replica.program, None, Some(device), cache)
            },
            batch_size: replica.batch_size,
        })?;
        let user = folder.worker_user();
        user.let_read(&handoff.task_path())
            .map_err(StartError::Folder)?;
        let member = self.pools.begin(&device.name, replica.id)?;
        let pid = member.pid();
        self.watch_member(task, replica, member, handoff, None);
        Ok(pid)
    }

    /// Starts the pool worker of a device.
    fn start_pool(&mut self, device: &Device) -> Result<(), StartError> {
        let handoff = self.folder.prepare_pool(&device.name);
        let handoff = handoff.map_err(StartError::Folder)?;
        let lock = self.folder.device_lock(&device.name);
        let is_simulated = device.backend == Backend::Simulated;
        handoff.write_task(&PoolTask {
            links: self.links(),
            pipeline: self.settings.pipeline.for_backend(device.backend),
            batch_limit_ms: self.batch_limit_ms(),
            memory_limit: Some(device.memory),
            cuda_device: (device.backend == Backend::Cuda).then_some(0),
            simulated: is_simulated,
            warm_limit: self.settings.host_memory,
            reads: vec![self.folder.artifacts()],
            writes: { lock.parent().map(Path::to_owned).into_iter() }
                .chain(is_simulated.then(|| self.folder.simulated_device(&device.name)))
                .collect(),
        })?;
        let stdin = self.secret("pool")?;
        let threads = threads(device, None);
        let mut command = self.command("pool", &handoff, Some(device), threads, stdin)?;
        command.envs(device_environment(Some(device), None));
        let process = Process::spawn(&mut command).map_err(StartError::Spawn)?;
        tracing::info!(device.name, pid = process.pid(), "pool worker started");
        let members = Members::new();
        self.pools
            .add(device.name.clone(), handoff, process, members);
        Ok(())
    }

    /// Returns how gateways reach workers.
    fn links(&self) -> LinkSettings {
        let own_user = self.folder.worker_user().uid().is_some();
        let secret_file = self.settings.link_secret_file.as_ref();
        LinkSettings {
            listen: SocketAddr::new(self.settings.listen_address, 0),
            own_user,
            secret_file: secret_file.filter(|_| !own_user).cloned(),
            tls: self.settings.link_tls.clone(),
        }
    }

    fn batch_limit_ms(&self) -> u64 {
        u64::try_from(self.settings.batch_limit.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the standard input of a worker: nothing, or the secret of its links where it cannot read the file.
    fn secret(&self, subcommand: &str) -> Result<Stdio, StartError> {
        let serves = matches!(subcommand, "serve" | "pool");
        let reads_file = self.folder.worker_user().uid().is_none();
        let secret = self.settings.link_secret_file.as_ref();
        match secret.filter(|_| serves && !reads_file) {
            Some(secret) => pass_secret(secret).map_err(StartError::Secret),
            None => Ok(Stdio::null()),
        }
    }

    /// Returns the command that starts a worker, without the environment of its device. Its task is written.
    fn command(
        &self,
        subcommand: &str,
        handoff: &Handoff,
        device: Option<&Device>,
        threads: u32,
        stdin: Stdio,
    ) -> Result<Command, StartError> {
        let user = self.folder.worker_user();
        let own_user = user.uid().is_some();
        user.let_read(&handoff.task_path())
            .map_err(StartError::Folder)?;
        // The worker shortens its log while it appends to it.
        let log = File::options()
            .create_new(true)
            .append(true)
            .open(handoff.log_path())
            .map_err(StartError::Folder)?;
        user.let_write(&handoff.log_path())
            .map_err(StartError::Folder)?;
        let error_log = log.try_clone().map_err(StartError::Folder)?;
        let has_gpu = device.is_some_and(|device| device.backend == Backend::Cuda);
        let is_confined = self.settings.confine_workers.includes(has_gpu);
        let mut command = Command::new(&self.settings.worker);
        command
            .args([subcommand, "--dir"])
            .arg(handoff.dir())
            .args(is_confined.then_some("--confine"))
            // How CUDA and MPS look at a process that hides its memory is not known.
            .args((own_user && !has_gpu).then_some("--hide-memory"))
            .env_clear()
            .envs(inherited())
            .envs(worker_environment(threads))
            .env("TMPDIR", handoff.temporary_dir())
            .envs(library_path(self.settings.libtorch.as_ref()))
            .stdin(stdin)
            .stdout(log)
            .stderr(error_log);
        if own_user {
            // The agent's home and folder are not the worker's.
            command
                .env("HOME", handoff.temporary_dir())
                .current_dir(handoff.dir());
            user.run(&mut command);
        }
        Ok(command)
    }

    /// Returns the device of a task; `None` if it has none, or the node has not.
    fn device(&self, task: &Task) -> Option<&Device> {
        let name = task.device()?;
        self.devices.iter().find(|device| device.name == name)
    }

    fn mps_of(&self, device: Option<&str>) -> Option<MpsDevice> {
        self.mps.device(device?).cloned()
    }

    fn execution(
        &self,
        program: &Program,
        compute_share: Option<ComputeShare>,
        device: Option<&Device>,
        cache: &ArtifactCache,
    ) -> Execution {
        let program = program.clone();
        let artifact = cache.path(program.artifact);
        let backend = device.map_or(Backend::Cpu, |device| device.backend);
        let executor = match (backend, device) {
            // The worker's environment contains this GPU only.
            (Backend::Cuda, _) => ExecutorChoice::Torch {
                artifact,
                cuda_device: Some(0),
            },
            (Backend::Simulated, Some(device)) => {
                let mut table = ProfileTable::default();
                if let Some(profile) = self.settings.profiles.get(&program.model, &device.kind) {
                    table.insert(program.model.clone(), device.kind.clone(), profile.clone());
                }
                ExecutorChoice::Simulated {
                    device_kind: device.kind.clone(),
                    profile_csv: table.to_csv(),
                    compute_share,
                    folder: self.folder.simulated_device(&device.name),
                }
            }
            _ => ExecutorChoice::Torch {
                artifact,
                cuda_device: None,
            },
        };
        Execution {
            program,
            executor,
            device_lock: device
                .filter(|device| device.backend != Backend::Simulated)
                .map(|device| self.folder.device_lock(&device.name)),
            threads: device.map_or(1, |device| threads(device, compute_share)),
            pipeline: self.settings.pipeline.for_backend(backend),
            optimize: self.settings.pipeline.optimize,
            parks: false,
        }
    }

    fn compute_share(&self, task: &Task) -> Option<ComputeShare> {
        match task {
            Task::Serve(replicas) if self.settings.pipeline.compute_shares == Switch::On => {
                replicas.first().compute_share_pct
            }
            Task::Serve(_) | Task::Measure(_) | Task::Inspect(_) => None,
        }
    }

    /// Watches the process until it has ended. `status` is the status that has already been passed on.
    fn watch(
        &mut self,
        task: &Task,
        process: Process,
        handoff: Handoff,
        status: Option<WorkerStatus>,
    ) {
        let running = RunningWorker {
            pid: process.pid(),
            device: task.device().map(str::to_owned),
            signaller: process.signaller(),
            process: ProcessOf::Own,
        };
        self.running.insert(task.id(), running);
        let device = self.device(task);
        let watch = WorkerWatch {
            status: self.status_watch(task, handoff, status),
            mps: self.mps_of(task.device()),
            share: self.compute_share(task),
            multiprocessors: device.and_then(|device| device.multiprocessors),
        };
        tokio::spawn(watch.run(process));
    }

    /// Watches a member of a pool worker, like [`Self::watch`].
    fn watch_member(
        &mut self,
        task: &Task,
        replica: &WantedReplica,
        member: Member,
        handoff: Handoff,
        status: Option<WorkerStatus>,
    ) {
        let model = &replica.program.model;
        let running = RunningWorker {
            pid: member.pid(),
            device: Some(replica.device.clone()),
            signaller: member.signaller(),
            process: ProcessOf::Members(model.clone()),
        };
        self.running.insert(task.id(), running);
        let status = self.status_watch(task, handoff, status);
        let (model, pid) = (model.clone(), member.pid());
        tokio::spawn(async move {
            let mut member = member;
            watch_shared(status, pid, member.ended(&model)).await;
        });
    }

    fn status_watch(
        &self,
        task: &Task,
        handoff: Handoff,
        status: Option<WorkerStatus>,
    ) -> StatusWatch {
        StatusWatch {
            id: task.id(),
            handoff,
            last_status: status,
            events: self.events.clone(),
            obstacle: None,
            seen: None,
        }
    }

    /// Returns the kind of a replica's worker.
    pub(super) fn kind(&self, replica: ReplicaId) -> WorkerKind {
        let running = self.running.get(&TaskId::Replica(replica));
        match running.and_then(RunningWorker::pool_device) {
            Some(_) => WorkerKind::Pool,
            None => WorkerKind::Own,
        }
    }

    /// Tells a worker to finish its batches and end.
    pub(super) fn terminate(&mut self, id: &TaskId) {
        let running = &self.running[id];
        if let (Some(device), TaskId::Replica(replica)) = (running.pool_device(), id) {
            return self.pools.end(device, *replica);
        }
        if let ProcessOf::Successive(name) = &running.process {
            self.reused.close(name);
        }
        running.signaller.terminate();
    }

    /// Kills a worker, that of a pool with all its members. An MPS client is detached from the server first.
    pub(super) fn kill(&self, id: &TaskId) {
        let running = &self.running[id];
        match (&running.device, &running.process) {
            (Some(device), ProcessOf::Members(model)) => return self.pools.kill(device, model),
            (_, ProcessOf::Successive(name)) => self.reused.close(name),
            _ => {}
        }
        let (pid, signaller) = (running.pid, running.signaller.clone());
        match self.mps_of(running.device.as_deref()) {
            None => signaller.kill(),
            Some(mps) => {
                tokio::spawn(async move {
                    mps.detach(pid).await;
                    signaller.kill();
                });
            }
        }
    }

    /// Ends the MPS daemons. All workers must have ended.
    pub(super) async fn quit_mps(&mut self) {
        assert!(
            self.running.is_empty(),
            "MPS daemons end after their clients"
        );
        std::mem::take(&mut self.mps).quit().await;
    }

    /// Removes the hand-over folder of a task without a process.
    pub(super) fn forget(&mut self, id: &TaskId) {
        let running = self.running.remove(id);
        let device = running.as_ref().and_then(RunningWorker::pool_device);
        if let (Some(device), TaskId::Replica(replica)) = (device, id) {
            let member = self.folder.pool(device).member(*replica);
            self.folder.remove(member.dir());
            if let Some(pool) = self.pools.forget(device, *replica) {
                self.folder.remove(pool.dir());
            }
        }
        self.reused.forget(id);
        self.folder.remove(&self.folder.handoff_dir(id));
    }

    /// Returns the process if it is the worker of the hand-over folder. One that is not is left alone, whatever it is.
    fn worker_of(&self, handoff: &Handoff, candidate: Candidate) -> Option<Process> {
        let reporter = handoff.read_status().ok().flatten();
        let reporter = reporter.map(|status| status.process);
        let own = rustix::process::getuid().as_raw();
        let users = [Some(own), StateFolder::read_user(handoff.dir())];
        if !is_worker(&candidate, &users, reporter, &self.settings.worker) {
            tracing::warn!(
                pid = candidate.pid,
                folder = %handoff.dir().display(),
                "a process has a hand-over folder on its command line and is not its worker; it is left alone"
            );
            return None;
        }
        match candidate.open() {
            Ok(process) => Some(process),
            Err(e) => {
                tracing::warn!(error = %e, "a worker cannot be watched");
                None
            }
        }
    }

    /// Adopts the workers of an earlier agent, and removes hand-over folders without a worker.
    pub(super) fn adopt(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        for (dir, candidate) in process::find_candidates(|dir| self.folder.contains(dir))? {
            let handoff = Handoff::new(&dir);
            let Some(process) = self.worker_of(&handoff, candidate) else {
                continue;
            };
            if let Some(device) = self.folder.device_of_pool(&dir) {
                self.adopt_pool(&device, &handoff, process, &mut events);
                continue;
            }
            let task = self.folder.read_task(&dir);
            let Some(task) = task.filter(|task| !self.running.contains_key(&task.id())) else {
                tracing::warn!(pid = process.pid(), "worker without a task killed");
                process.signaller().kill();
                continue;
            };
            tracing::info!(task = %label(&task), pid = process.pid(), "worker adopted");
            let pid = process.pid();
            let status = current_status(&handoff, pid);
            events.push(Event::Found(task.clone(), pid));
            if let Some(status) = &status {
                events.push(Event::Reported(task.id(), status.phase.clone()));
            }
            self.watch(&task, process, handoff, status);
        }
        for dir in self.folder.handoff_dirs()? {
            let running = self
                .folder
                .read_task(&dir)
                .is_some_and(|task| self.running.contains_key(&task.id()));
            let pool = self.folder.device_of_pool(&dir);
            if !running && !pool.is_some_and(|device| self.pools.is_running(&device)) {
                self.folder.remove(&dir);
            }
        }
        Ok(events)
    }

    /// Adopts a pool worker of an earlier agent with those of its members that have not ended.
    fn adopt_pool(
        &mut self,
        device: &str,
        handoff: &Handoff,
        process: Process,
        events: &mut Vec<Event>,
    ) {
        let pid = process.pid();
        let members = handoff.read_members().unwrap_or_else(|error| {
            tracing::warn!(pid, %error, "a pool worker without members");
            Members::new()
        });
        tracing::info!(device, pid, members = members.len(), "pool worker adopted");
        self.pools
            .add(device.to_owned(), handoff.clone(), process, members);
        let members: Vec<(ReplicaId, Member)> = self.pools.members(device).collect();
        for (replica, member) in members {
            let handoff = handoff.member(replica);
            let status = current_status(&handoff, pid);
            let has_ended = status
                .as_ref()
                .is_some_and(|status| status.phase.is_final());
            let task = self.folder.read_task(handoff.dir());
            let task = task.filter(|task| !has_ended && !self.running.contains_key(&task.id()));
            let Some(task @ Task::Serve(replicas)) = &task else {
                self.pools.end(device, replica);
                continue;
            };
            events.push(Event::Found(task.clone(), pid));
            if let Some(status) = &status {
                events.push(Event::Reported(task.id(), status.phase.clone()));
            }
            self.watch_member(task, replicas.first(), member, handoff, status);
        }
    }
}

impl RunningWorker {
    /// Returns the device of the pool worker; `None` if the task has a process of its own.
    fn pool_device(&self) -> Option<&str> {
        let is_member = matches!(self.process, ProcessOf::Members(_));
        self.device.as_deref().filter(|_| is_member)
    }
}

/// Returns true if a process is the worker of a hand-over folder. A command line says nothing: every process of every user can have
/// the folder's name in it. A worker is a process of this user or of
/// the one as which it was started, and either the one that has written the folder's status, or, as long as
/// none that still runs has, one that executes the worker program.
fn is_worker(
    candidate: &Candidate,
    users: &[Option<u32>],
    reporter: Option<ProcessIdentity>,
    program: &Path,
) -> bool {
    if candidate.user.is_none() || !users.contains(&candidate.user) {
        return false;
    }
    match reporter.filter(ProcessIdentity::is_alive) {
        Some(reporter) => candidate.identity == Some(reporter),
        None => candidate.executable.as_deref() == Some(program),
    }
}

/// Returns the name of a task in the log.
fn label(task: &Task) -> String {
    match task {
        Task::Serve(replicas) => {
            let models = replicas
                .iter()
                .map(|replica| replica.program.model.to_string());
            format!(
                "{} of {}",
                replicas.id(),
                models.collect::<Vec<_>>().join(", ")
            )
        }
        Task::Measure(profile) => format!("measurement of {}", profile.program.model),
        Task::Inspect(program) => format!("inspection of {}", program.model),
    }
}

/// Returns the number of CPU threads of a worker: on a CPU the share of its threads, at least one; on another device one.
fn threads(device: &Device, share: Option<ComputeShare>) -> u32 {
    if device.backend != Backend::Cpu {
        return 1;
    }
    let all = device.multiprocessors.unwrap_or(1);
    let share = share.unwrap_or(ComputeShare::WHOLE).get();
    ((f64::from(all) * share / 100.0).floor() as u32).max(1)
}

/// Returns the memory that the plan reserves for a task; `None` for a measurement, which determines it, and an inspection.
fn planned_memory(task: &Task) -> Option<ByteCount> {
    match task {
        Task::Serve(replicas) => replicas.memory(),
        Task::Measure(_) | Task::Inspect(_) => None,
    }
}

/// Returns the environment variables that confine a worker to its GPU and its compute share. An inspection has no GPU.
fn device_environment(
    device: Option<&Device>,
    share: Option<ComputeShare>,
) -> Vec<(&'static str, String)> {
    let Some(device) = device else {
        return vec![("CUDA_VISIBLE_DEVICES", String::new())];
    };
    if device.backend != Backend::Cuda {
        return Vec::new();
    }
    let mut environment = vec![("CUDA_VISIBLE_DEVICES", device.name.clone())];
    if let Some(share) = share {
        environment.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share.to_string()));
    }
    environment
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::ByteCount;

    use super::*;

    #[test]
    fn a_process_is_a_worker_by_its_user_and_its_status_or_program_and_not_by_its_arguments() {
        const PROGRAM: &str = "/opt/packhorse-worker";
        let running = ProcessIdentity::current();
        let ended = ProcessIdentity {
            start_ticks: running.start_ticks + 1,
            ..running
        };
        let candidate = |user, identity, program: &str| {
            Candidate::of(
                running.pid,
                Some(user),
                Some(identity),
                Some(program.into()),
            )
        };
        let is_worker = |candidate: &Candidate, reporter| {
            super::is_worker(
                candidate,
                &[Some(7), Some(9), None],
                reporter,
                Path::new(PROGRAM),
            )
        };
        let worker = candidate(7, running, PROGRAM);
        assert!(is_worker(&worker, Some(running)));
        assert!(is_worker(&worker, None), "it has not written a status yet");
        assert!(
            is_worker(&worker, Some(ended)),
            "the folder has the status of the worker before it"
        );
        assert!(
            is_worker(
                &candidate(7, running, "/opt/before/packhorse-worker"),
                Some(running)
            ),
            "the program was updated under the worker"
        );

        let other = candidate(7, ended, PROGRAM);
        assert!(!is_worker(&other, Some(running)), "the real worker runs");
        assert!(is_worker(&candidate(9, running, PROGRAM), Some(running)));
        assert!(!is_worker(&candidate(8, running, PROGRAM), Some(running)));
        assert!(!is_worker(&candidate(7, running, "/usr/bin/less"), None));
        assert!(!is_worker(
            &candidate(7, running, "/usr/bin/less"),
            Some(ended)
        ));
    }

    #[test]
    fn a_share_of_a_cpu_is_a_share_of_its_threads_but_at_least_one() {
        let cpu = |threads| Device {
            name: "cpu0".to_owned(),
            kind: "cpu".parse().unwrap(),
            memory: ByteCount::new(1),
            multiprocessors: threads,
            description: String::new(),
            backend: Backend::Cpu,
        };
        let share = |pct| Some(ComputeShare::new(pct).unwrap());
        assert_eq!(threads(&cpu(Some(8)), None), 8);
        assert_eq!(threads(&cpu(Some(8)), share(50.0)), 4);
        assert_eq!(threads(&cpu(Some(8)), share(1.0)), 1);
        assert_eq!(threads(&cpu(None), share(100.0)), 1);
    }
}
