//! Processes by pidfd: a descriptor that refers to one process and never to a later process with the same id.

use std::{
    ffi::OsStr,
    fmt, fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
};

use packhorse_worker_agent::handoff::{ProcessIdentity, exit_code};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{Interest, unix::AsyncFd};

/// A process: a child of this agent, or of an earlier one.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    fd: AsyncFd<Arc<OwnedFd>>,
    child: Option<Child>,
}

/// Sends signals to a process.
#[derive(Clone, Debug)]
pub(super) struct Signaller(Arc<OwnedFd>);

/// The way in which a process failed. Its `Display` text completes "the process …".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessFailure {
    /// A worker ended because a batch exceeded its time limit.
    BatchTimedOut,
    /// The process ended with this status, which is not 0.
    Status(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl fmt::Display for ProcessFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BatchTimedOut => write!(f, "ran a batch for longer than its limit"),
            Self::Status(code) => write!(f, "ended with status {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

impl Signaller {
    /// Sends SIGTERM, on which a worker finishes its batches and ends.
    pub(super) fn terminate(&self) {
        self.send(Signal::TERM);
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        // The only failure is that the process has already ended, which is the purpose of all signals sent here.
        if let Err(e) = pidfd_send_signal(&self.0, signal) {
            tracing::debug!(error = %e, "no signal sent");
        }
    }
}

fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

impl Process {
    /// Starts a process in its own process group, so that Ctrl-C in the agent's terminal does not reach it.
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let pid = child.id();
        // A child keeps its id until this process has waited for it.
        let fd = open_pidfd(pid)?;
        Self::new(pid, fd, Some(child))
    }

    fn new(pid: u32, fd: OwnedFd, child: Option<Child>) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its successor is unsafe for the sake of types whose descriptor changes; a pidfd's does not"
        )]
        let fd = AsyncFd::with_interest(Arc::new(fd), Interest::READABLE)?;
        Ok(Self { pid, fd, child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn signaller(&self) -> Signaller {
        Signaller(Arc::clone(self.fd.get_ref()))
    }

    /// Kills the process and waits for its end, so that no zombie remains that looks like a running process.
    pub(super) async fn kill(mut self) {
        self.signaller().kill();
        self.wait().await;
    }

    /// Waits until the process has ended. Returns its failure; `None` if it ended with status 0 or its status is unknown.
    pub(super) async fn wait(&mut self) -> Option<ProcessFailure> {
        // A pidfd is readable once its process has ended.
        if let Err(e) = self.fd.readable().await {
            tracing::warn!(pid = self.pid, error = %e, "the end of a process cannot be awaited");
        }
        let status = self.child.as_mut().map(Child::wait)?;
        failure(status.ok()?)
    }
}

/// Returns the failure of a process with this status; `None` if it ended with status 0.
fn failure(status: ExitStatus) -> Option<ProcessFailure> {
    match (status.code(), status.signal()) {
        (Some(0), _) | (None, None) => None,
        (Some(code), _) if code == i32::from(exit_code::BATCH_TIMED_OUT) => {
            Some(ProcessFailure::BatchTimedOut)
        }
        (Some(code), _) => Some(ProcessFailure::Status(code)),
        (None, Some(signal)) => Some(ProcessFailure::Signal(signal)),
    }
}

/// Returns every process that this user may inspect, by ascending id: its id, its descriptor and its NUL-separated command line.
fn list() -> io::Result<impl Iterator<Item = (u32, OwnedFd, Vec<u8>)>> {
    let mut pids: Vec<u32> = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(|pid| {
        // The descriptor is opened before the command line is read: if another process gets the id in between, the read fails or the
        // descriptor reports the end of the first process.
        let fd = open_pidfd(pid).ok()?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some((pid, fd, arguments))
    }))
}

/// Returns the process of this user whose command line `matches` accepts and in whose environment a variable has this value; the process
/// with the lowest id if there are several.
pub(super) fn find_by_environment(
    matches: impl Fn(&[&OsStr]) -> bool,
    variable: &str,
    value: &OsStr,
) -> io::Result<Option<Process>> {
    let wanted = [variable.as_bytes(), b"=", value.as_bytes()].concat();
    for (pid, fd, arguments) in list()? {
        let arguments: Vec<&OsStr> = arguments
            .split(|&byte| byte == 0)
            .map(OsStr::from_bytes)
            .collect();
        let has_variable = || {
            fs::read(format!("/proc/{pid}/environ"))
                .unwrap_or_default()
                .split(|&byte| byte == 0)
                .any(|pair| pair == wanted)
        };
        if matches(&arguments) && has_variable() {
            return Process::new(pid, fd, None).map(Some);
        }
    }
    Ok(None)
}

/// A process with a hand-over folder on its command line, which may be the folder's worker.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The process id.
    pub(super) pid: u32,
    /// The user that the process runs as.
    pub(super) user: Option<u32>,
    /// The process's identity across the reuse of ids.
    pub(super) identity: Option<ProcessIdentity>,
    /// The program that the process executes.
    pub(super) executable: Option<PathBuf>,
    fd: Option<OwnedFd>,
}

impl Candidate {
    fn read(pid: u32, fd: OwnedFd) -> Self {
        let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        Self {
            pid,
            user: user_of(pid),
            identity: ProcessIdentity::from_pid(pid),
            executable: fs::read_link(of("exe")).ok().map(|path| replaced(&path)),
            fd: Some(fd),
        }
    }

    /// A candidate with these properties and without a process.
    #[cfg(test)]
    pub(super) fn of(
        pid: u32,
        user: Option<u32>,
        identity: Option<ProcessIdentity>,
        executable: Option<PathBuf>,
    ) -> Self {
        Self {
            pid,
            user,
            identity,
            executable,
            fd: None,
        }
    }

    /// Returns the process.
    pub(super) fn open(self) -> io::Result<Process> {
        let fd = self.fd.ok_or(io::ErrorKind::NotFound)?;
        Process::new(self.pid, fd, None)
    }
}

/// Returns the user that a process runs as. The owner of its files in `/proc` says less: that is root where the process hides its memory.
pub(super) fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the path of a program without the mark of the kernel that the file has been replaced since.
fn replaced(executable: &Path) -> PathBuf {
    let bytes = executable.as_os_str().as_bytes();
    let path = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    PathBuf::from(OsStr::from_bytes(path))
}

/// Returns the processes with a hand-over folder (`--dir DIR`) that `is_ours` accepts. They are found by their command line instead of by
/// a stored id, because an agent may die before it can store one.
pub(super) fn find_candidates(
    is_ours: impl Fn(&Path) -> bool,
) -> io::Result<Vec<(PathBuf, Candidate)>> {
    let candidate = |(pid, fd, arguments): (u32, OwnedFd, Vec<u8>)| {
        let dir = handoff_dir(&arguments).filter(|dir| is_ours(dir))?;
        Some((dir, Candidate::read(pid, fd)))
    };
    Ok(list()?.filter_map(candidate).collect())
}

/// Returns the argument after `--dir` in a NUL-separated command line.
fn handoff_dir(arguments: &[u8]) -> Option<PathBuf> {
    let mut arguments = arguments.split(|&byte| byte == 0);
    arguments.find(|argument| *argument == b"--dir")?;
    arguments
        .next()
        .map(|dir| PathBuf::from(OsStr::from_bytes(dir)))
}

#[cfg(test)]
mod tests {
    use std::{process::Stdio, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_process_is_signalled_and_its_end_noticed() {
        let mut process = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        process.signaller().terminate();
        let cause = process.wait().await;
        assert_eq!(cause, Some(ProcessFailure::Signal(15)));
        process.signaller().kill();
        let mut process = Process::spawn(Command::new("sh").args(["-c", "exit 11"])).unwrap();
        let cause = process.wait().await;
        assert_eq!(cause, Some(ProcessFailure::BatchTimedOut));
        assert_eq!(
            Process::spawn(&mut Command::new("true"))
                .unwrap()
                .wait()
                .await,
            None
        );
    }

    #[tokio::test]
    async fn workers_are_found_by_their_handover_folder() {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line", "--dir"]).arg(dir.path());
        let mut child = Process::spawn(shell.stdin(Stdio::piped())).unwrap();
        // The parent continues before its child's arguments can be read.
        let mut found = Vec::new();
        for _ in 0..1000 {
            found = find_candidates(|folder| folder == dir.path()).unwrap();
            if !found.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(found.len(), 1);
        let (_, candidate) = found.remove(0);
        assert_eq!(candidate.pid, child.pid());
        assert_eq!(candidate.user, Some(rustix::process::getuid().as_raw()));
        assert_eq!(candidate.identity, ProcessIdentity::from_pid(child.pid()));
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(candidate.executable, Some(shell));
        let mut process = candidate.open().unwrap();
        process.signaller().kill();
        assert_eq!(process.wait().await, None, "only a parent gets the status");
        child.wait().await;
        let left = find_candidates(|folder| folder == dir.path()).unwrap();
        assert!(left.is_empty());
    }
}
