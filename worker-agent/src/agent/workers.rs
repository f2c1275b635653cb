//! The hands on worker processes: start, watch, signal, adopt.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::SocketAddr,
    process::{Command, Stdio},
};

use packhorse_cluster::{ByteCount, ComputeShare, ProfileTable};
use packhorse_reconcile::{Event, Task, TaskId};
use tokio::sync::mpsc;

use super::{
    Settings,
    cache::Cache,
    folders::Folders,
    mps::{MAX_CLIENTS, Mps},
    pipeline::Switch,
    process::{self, Process, Signaller},
    watching::{Watch, current_status},
};
use crate::{
    devices::{Backend, Device},
    handoff::{
        Execution, ExecutorChoice, Handoff, HandoffError, ProfileTask, ServeTask, WorkerStatus,
        worker_environment,
    },
};

/// The worker processes of this node.
#[derive(Debug)]
pub(super) struct Workers {
    settings: Settings,
    folders: Folders,
    devices: Vec<Device>,
    mps: Mps,
    running: BTreeMap<TaskId, Running>,
    events: mpsc::Sender<Event>,
}

/// A process of a task.
#[derive(Debug)]
struct Running {
    pid: u32,
    device: String,
    signaller: Signaller,
}

/// Why a worker could not be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("this node has no device {0:?}")]
    NoDevice(String),
    #[error("the device has {MAX_CLIENTS} workers already, which is the most that MPS allows")]
    TooManyClients,
    #[error("the hand-over folder cannot be written: {0}")]
    Folder(#[source] io::Error),
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    #[error("the worker program cannot be started: {0}")]
    Spawn(#[source] io::Error),
}

impl Workers {
    pub(super) fn new(
        settings: Settings,
        folders: Folders,
        devices: Vec<Device>,
        mps: Mps,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            settings,
            folders,
            devices,
            mps,
            running: BTreeMap::new(),
            events,
        }
    }

    /// Starts the worker of a task.
    pub(super) fn start(&mut self, task: &Task, cache: &Cache) -> Event {
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

    fn try_start(&mut self, task: &Task, cache: &Cache) -> Result<u32, StartError> {
        let device = self
            .devices
            .iter()
            .find(|device| device.name == task.device())
            .ok_or_else(|| StartError::NoDevice(task.device().to_owned()))?;
        let mps = self.mps.device(&device.name).cloned();
        let neighbours = self.running.values();
        let neighbours = neighbours.filter(|running| running.device == device.name);
        if mps.is_some() && neighbours.count() >= MAX_CLIENTS {
            return Err(StartError::TooManyClients);
        }
        let handoff = self.folders.prepare(task).map_err(StartError::Folder)?;
        let share = self.compute_share(task);
        let execution = self.execution(task, device, cache);
        let threads = execution.threads;
        let verb = match task {
            Task::Serve(replica) => {
                handoff.write_task(&ServeTask {
                    replica: replica.id,
                    execution,
                    batch_size: replica.batch_size,
                    listen: SocketAddr::new(self.settings.listen_address, 0),
                    link_secret_file: self.settings.link_secret_file.clone(),
                    batch_limit_ms: u64::try_from(self.settings.batch_limit.as_millis())
                        .unwrap_or(u64::MAX),
                })?;
                "serve"
            }
            Task::Measure(profile) => {
                handoff.write_task(&ProfileTask {
                    execution,
                    device_kind: profile.device_kind.clone(),
                    time_limit_ms: profile.time_limit_ms,
                })?;
                "profile"
            }
        };
        let log = File::create(handoff.log_path()).map_err(StartError::Folder)?;
        let log_too = log.try_clone().map_err(StartError::Folder)?;
        let mut command = Command::new(&self.settings.worker);
        command
            .args([verb, "--dir"])
            .arg(handoff.dir())
            .envs(worker_environment(threads))
            .env("TMPDIR", handoff.temporary_dir())
            .envs(device_environment(device, share))
            .envs(mps.iter().flat_map(|mps| mps.environment(memory(task))))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);
        let process = Process::spawn(&mut command).map_err(StartError::Spawn)?;
        let pid = process.pid();
        self.watch(task, process, handoff, None);
        Ok(pid)
    }

    fn execution(&self, task: &Task, device: &Device, cache: &Cache) -> Execution {
        let program = task.program().clone();
        let artifact = cache.path(program.artifact);
        let executor = match device.backend {
            Backend::Cpu => ExecutorChoice::Torch {
                artifact,
                cuda_device: None,
            },
            // The worker's environment shows it this GPU only.
            Backend::Cuda => ExecutorChoice::Torch {
                artifact,
                cuda_device: Some(0),
            },
            Backend::Simulated => {
                let mut table = ProfileTable::default();
                if let Some(profile) = self.settings.profiles.get(&program.model, &device.kind) {
                    table.insert(program.model.clone(), device.kind.clone(), profile.clone());
                }
                ExecutorChoice::Simulated {
                    device_kind: device.kind.clone(),
                    profile_csv: table.to_csv(),
                }
            }
        };
        Execution {
            program,
            executor,
            threads: threads(device, self.compute_share(task)),
            pipeline: self.settings.pipeline.of(device.backend),
        }
    }

    fn compute_share(&self, task: &Task) -> Option<ComputeShare> {
        match task {
            Task::Serve(replica) if self.settings.pipeline.compute_shares == Switch::On => {
                replica.compute_share_pct
            }
            Task::Serve(_) | Task::Measure(_) => None,
        }
    }

    /// Tells of the process until it has ended, and of its status whenever it is no longer this.
    fn watch(
        &mut self,
        task: &Task,
        process: Process,
        handoff: Handoff,
        status: Option<WorkerStatus>,
    ) {
        let running = Running {
            pid: process.pid(),
            device: task.device().to_owned(),
            signaller: process.signaller(),
        };
        self.running.insert(task.id(), running);
        let device = self.devices.iter().find(|d| d.name == task.device());
        let watch = Watch {
            id: task.id(),
            mps: self.mps.device(task.device()).cloned(),
            share: self.compute_share(task),
            multiprocessors: device.and_then(|device| device.multiprocessors),
            handoff,
            last: status,
            events: self.events.clone(),
        };
        tokio::spawn(watch.run(process));
    }

    pub(super) fn terminate(&self, id: &TaskId) {
        self.running[id].signaller.terminate();
    }

    /// Kills a worker. One that shares its GPU through MPS is detached from the server first.
    pub(super) fn kill(&self, id: &TaskId) {
        let running = &self.running[id];
        let (pid, signaller) = (running.pid, running.signaller.clone());
        match self.mps.device(&running.device).cloned() {
            None => signaller.kill(),
            Some(mps) => {
                tokio::spawn(async move {
                    mps.detach(pid).await;
                    signaller.kill();
                });
            }
        }
    }

    /// Ends what the workers used, when they all have ended.
    pub(super) async fn quit_mps(&mut self) {
        assert!(self.running.is_empty(), "MPS goes after its clients");
        std::mem::take(&mut self.mps).quit().await;
    }

    /// Removes what is left of a task without a process.
    pub(super) fn forget(&mut self, id: &TaskId) {
        self.running.remove(id);
        self.folders.remove(&self.folders.of(id));
    }

    /// Takes over the workers of an earlier agent and removes the folders that have none any more.
    pub(super) fn adopt(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        for (dir, process) in process::workers(|dir| self.folders.contains(dir))? {
            let task = self.folders.task(&dir);
            let Some(task) = task.filter(|task| !self.running.contains_key(&task.id())) else {
                tracing::warn!(pid = process.pid(), "worker without a task killed");
                process.signaller().kill();
                continue;
            };
            tracing::info!(task = %label(&task), pid = process.pid(), "worker adopted");
            let pid = process.pid();
            let handoff = Handoff::at(dir);
            let status = current_status(&handoff, pid);
            events.push(Event::Found(task.clone(), pid));
            if let Some(status) = &status {
                events.push(Event::Reported(task.id(), status.phase.clone()));
            }
            self.watch(&task, process, handoff, status);
        }
        for dir in self.folders.all()? {
            let running = self
                .folders
                .task(&dir)
                .is_some_and(|task| self.running.contains_key(&task.id()));
            if !running {
                self.folders.remove(&dir);
            }
        }
        Ok(events)
    }
}

fn label(task: &Task) -> String {
    match task {
        Task::Serve(replica) => format!("{} of {}", replica.id, replica.program.model),
        Task::Measure(profile) => format!("measurement of {}", profile.program.model),
    }
}

/// A share of a CPU is a share of its threads, at least one; the other devices need one to feed them.
fn threads(device: &Device, share: Option<ComputeShare>) -> u32 {
    if device.backend != Backend::Cpu {
        return 1;
    }
    let all = device.multiprocessors.unwrap_or(1);
    let share = share.unwrap_or(ComputeShare::WHOLE).get();
    ((f64::from(all) * share / 100.0).floor() as u32).max(1)
}

/// What the plan sets aside for a task. A measurement is to find that out.
fn memory(task: &Task) -> Option<ByteCount> {
    match task {
        Task::Serve(replica) => replica.memory_bytes,
        Task::Measure(_) => None,
    }
}

/// What confines a worker to its GPU and its share of it.
fn device_environment(device: &Device, share: Option<ComputeShare>) -> Vec<(&'static str, String)> {
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
