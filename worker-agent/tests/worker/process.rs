//! A worker process with its hand-over folder.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "torch")]
use std::{
    io::{self, Write as _},
    os::unix::{fs::chown, process::CommandExt as _},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use packhorse_cluster::{Dim, Program, TensorSpec};
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Handoff, LinkSettings, Optimize, PipelineSettings, ProfileTask,
    ServeTask, WorkerReport, worker_environment,
};
use serde::Serialize;
use tempfile::TempDir;

/// A time limit far above what any step takes.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

pub(crate) struct Worker {
    dir: TempDir,
    child: Child,
}

impl Worker {
    pub(crate) fn serve(task: &ServeTask) -> Self {
        Self::serve_with(task, &[])
    }

    /// Starts the worker with additional environment variables.
    pub(crate) fn serve_with(task: &ServeTask, environment: &[(&str, String)]) -> Self {
        Self::spawn("serve", task, environment)
    }

    pub(crate) fn profile(task: &ProfileTask) -> Self {
        Self::profile_with(task, &[])
    }

    /// Starts the worker with additional environment variables.
    pub(crate) fn profile_with(task: &ProfileTask, environment: &[(&str, String)]) -> Self {
        Self::spawn("profile", task, environment)
    }

    #[cfg(feature = "torch")]
    pub(crate) fn operators(execution: &Execution) -> Self {
        Self::spawn("operators", execution, &[])
    }

    /// Starts a worker that makes the measurements in the folders that are written to the pipe, as an agent does.
    #[cfg(feature = "torch")]
    pub(crate) fn profile_reused(
        task: &packhorse_worker_agent::handoff::ReusedTask,
    ) -> (Self, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let flags = ["--reused", "--confine", "--hide-memory"];
        let prepare = |command: &mut Command, _: &Path| {
            command.stdin(reader);
        };
        let worker = Self::spawn_prepared("profile", &flags, task, &[], prepare);
        (worker, writer)
    }

    /// Starts a pool worker with these flags.
    #[cfg(feature = "torch")]
    pub(crate) fn pool(task: &packhorse_worker_agent::handoff::PoolTask, flags: &[&str]) -> Self {
        Self::pool_with(task, flags, &[])
    }

    /// Starts a pool worker with these flags and additional environment variables.
    #[cfg(feature = "torch")]
    pub(crate) fn pool_with(
        task: &packhorse_worker_agent::handoff::PoolTask,
        flags: &[&str],
        environment: &[(&str, String)],
    ) -> Self {
        Self::spawn_with("pool", flags, task, environment)
    }

    /// Starts the worker as an agent does, confined to its own files.
    #[cfg(feature = "torch")]
    pub(crate) fn serve_confined(task: &ServeTask) -> Self {
        Self::spawn_with("serve", &["--confine"], task, &[])
    }

    /// Starts the worker as an agent does whose workers have a user of their own, with the link secret on standard input. Its folder is the user's.
    #[cfg(feature = "torch")]
    pub(crate) fn serve_as(user: u32, task: &ServeTask, secret: &[u8]) -> Self {
        let (secret_end, mut agents_end) = io::pipe().unwrap();
        agents_end.write_all(secret).unwrap();
        drop(agents_end);
        let prepare = |command: &mut Command, dir: &Path| {
            for path in [dir, &dir.join("tmp"), &dir.join("task.json")] {
                chown(path, Some(user), Some(user)).unwrap();
            }
            command.uid(user).gid(user).stdin(secret_end);
        };
        Self::spawn_prepared("serve", &["--hide-memory"], task, &[], prepare)
    }

    fn spawn(command: &str, task: &impl Serialize, environment: &[(&str, String)]) -> Self {
        Self::spawn_with(command, &[], task, environment)
    }

    fn spawn_with(
        command: &str,
        flags: &[&str],
        task: &impl Serialize,
        environment: &[(&str, String)],
    ) -> Self {
        Self::spawn_prepared(command, flags, task, environment, |_, _| {})
    }

    fn spawn_prepared(
        command: &str,
        flags: &[&str],
        task: &impl Serialize,
        environment: &[(&str, String)],
        prepare: impl FnOnce(&mut Command, &Path),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        handoff.write_task(task).unwrap();
        fs::create_dir(handoff.temporary_dir()).unwrap();
        let log = fs::File::create(handoff.log_path()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_packhorse-worker"));
        process
            .arg(command)
            .arg("--dir")
            .arg(dir.path())
            .args(flags)
            .envs(worker_environment(1))
            .env("TMPDIR", handoff.temporary_dir())
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        prepare(&mut process, dir.path());
        let child = process.spawn().unwrap();
        Self { dir, child }
    }

    pub(crate) fn handoff(&self) -> Handoff {
        Handoff::new(self.dir.path())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a report for which `pick` returns something.
    pub(crate) fn wait_for<T>(&self, pick: impl Fn(WorkerReport) -> Option<T>) -> T {
        let phase = || {
            let status = self.handoff().read_status().unwrap()?;
            assert_eq!(status.process.pid, self.pid());
            Some(status.phase)
        };
        let log = || fs::read_to_string(self.handoff().log_path()).unwrap();
        wait_for_some(|| pick(phase()?)).unwrap_or_else(|| panic!("{:?}\n{}", phase(), log()))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.wait_for(|phase| match phase {
            WorkerReport::Ready { address, .. } => Some(address),
            WorkerReport::Failed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    }

    /// Waits for a failure. Returns the reason, and true if it is permanent.
    pub(crate) fn failure(&self) -> (String, bool) {
        self.wait_for(|phase| match phase {
            WorkerReport::Failed { reason, permanent } => Some((reason, permanent)),
            WorkerReport::Ready { .. } | WorkerReport::Measured { .. } => panic!("it did not fail"),
            _ => None,
        })
    }

    /// Returns the number of minor page faults so far (field 10 of `/proc/PID/stat`).
    #[cfg(feature = "torch")]
    pub(crate) fn page_faults(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields
            .split_ascii_whitespace()
            .nth(7)
            .unwrap()
            .parse()
            .unwrap()
    }

    pub(crate) fn terminate(&self) {
        let pid = Pid::from_raw(self.pid().cast_signed());
        kill(pid, Signal::SIGTERM).unwrap();
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let exited = || self.child.try_wait().unwrap();
        wait_for_some(exited).map(|status: ExitStatus| status.code().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_for_some<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = attempt() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn tensor(name: &str, datatype: &str, shape: &[i64]) -> TensorSpec {
    TensorSpec::new(
        name,
        datatype.parse().unwrap(),
        shape
            .iter()
            .map(|dim| Dim::try_from(*dim).unwrap())
            .collect(),
    )
}

pub(crate) fn program(
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
) -> Program {
    Program {
        model: "m:1".parse().unwrap(),
        artifact: format!("sha256:{}", "ab".repeat(32)).parse().unwrap(),
        max_batch_size,
        inputs,
        outputs,
    }
}

pub(crate) fn execution(program: Program, executor: ExecutorChoice) -> Execution {
    Execution {
        program,
        executor,
        device_lock: None,
        threads: 1,
        pipeline: PipelineSettings::default(),
        optimize: Optimize::default(),
        parks: false,
    }
}

pub(crate) fn serve_task(execution: Execution) -> ServeTask {
    ServeTask {
        replica: "5-1".parse().unwrap(),
        batch_size: execution.program.rows_limit(),
        execution,
        also: Vec::new(),
        links: LinkSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            own_user: false,
            secret_file: None,
            tls: None,
        },
        batch_limit_ms: 60_000,
    }
}

/// Creates a file in the folder.
pub(crate) fn file(dir: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    path
}
