//! The gateway and the agent as children of this process, which also becomes the parent of what they leave behind: a worker outlives its
//! agent, and nothing outlives `packhorse serve`.
//!
//! Each child holds the end of a pipe whose other end is here. If this process is killed, the pipes close, and the children end as
//! after SIGTERM.

use std::{
    fs,
    future::pending,
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::{
    process::{Child, ChildStdin, Command},
    signal::unix::{SignalKind, signal},
    time::timeout,
};

/// The time that processes left behind by a dead agent have to end.
const ORPHAN_LIMIT: Duration = Duration::from_secs(20);

/// The running programs.
#[derive(Default)]
pub(super) struct Services {
    gateway: Option<Service>,
    agent: Option<Service>,
}

struct Service {
    name: &'static str,
    child: Child,
    // Held apart from the child, which would close it when its end is awaited.
    _lifeline: Option<ChildStdin>,
}

/// A program that ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("{name} has ended: {status}")]
pub(crate) struct ServiceEnded {
    name: &'static str,
    status: ExitStatus,
}

impl ServiceEnded {
    /// Returns the status for the end of this process: that of the program, or 128 + N if signal N ended it, as shells have it.
    pub(crate) fn code(&self) -> u8 {
        let code = self.status.code();
        let code = code.or_else(|| self.status.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl Services {
    /// Makes this process the parent of all processes that its descendants leave behind.
    pub(super) fn new() -> anyhow::Result<Self> {
        prctl::set_child_subreaper(true).context("cannot become the parent of orphans")?;
        Ok(Self::default())
    }

    /// Starts the gateway and returns its process id.
    pub(super) fn start_gateway(&mut self, command: Command) -> anyhow::Result<u32> {
        let service = Service::start("packhorse-gateway", command)?;
        let pid = service.child.id().context("it has not been waited for")?;
        self.gateway = Some(service);
        Ok(pid)
    }

    /// Starts the agent.
    pub(super) fn start_agent(&mut self, command: Command) -> anyhow::Result<()> {
        self.agent = Some(Service::start("packhorse-agent", command)?);
        Ok(())
    }

    /// Waits until one of the programs has ended.
    pub(super) async fn ended(&mut self) -> ServiceEnded {
        tokio::select! {
            ended = end_of(&mut self.gateway) => ended,
            ended = end_of(&mut self.agent) => ended,
        }
    }

    /// Awaits `work`, which fails if one of the programs ends meanwhile.
    pub(super) async fn unless_one_ends<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            ended = self.ended() => Err(ended.into()),
            outcome = work => outcome,
        }
    }

    /// Ends the gateway, which answers its requests first, then the agent with its workers, then whatever an agent has left behind.
    pub(super) async fn stop(&mut self) {
        for service in [&mut self.gateway, &mut self.agent].into_iter().flatten() {
            service.signal(Signal::SIGTERM);
            service.wait().await;
        }
        if timeout(ORPHAN_LIMIT, end_orphans(Signal::SIGTERM))
            .await
            .is_err()
        {
            end_orphans(Signal::SIGKILL).await;
        }
    }

    /// Ends everything at once.
    pub(super) async fn kill(&mut self) {
        for service in [&mut self.gateway, &mut self.agent].into_iter().flatten() {
            service.signal(Signal::SIGKILL);
            service.wait().await;
        }
        end_orphans(Signal::SIGKILL).await;
    }
}

impl Service {
    fn start(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let mut child = command
            .arg("--until-stdin-closes")
            .stdin(Stdio::piped())
            // Standard output is this command's; logs go to standard error.
            .stdout(Stdio::null())
            // Ctrl-C in the terminal reaches this process only, which ends the programs in order.
            .process_group(0)
            .spawn()
            .with_context(|| {
                format!("cannot start {}", command.as_std().get_program().display())
            })?;
        let lifeline = child.stdin.take();
        Ok(Self {
            name,
            child,
            _lifeline: lifeline,
        })
    }

    fn signal(&self, signal: Signal) {
        // There is no id once the end has been awaited, and until then it belongs to the child.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    async fn wait(&mut self) -> ExitStatus {
        // It fails only if somebody else has taken the status.
        self.child.wait().await.unwrap_or_default()
    }
}

async fn end_of(service: &mut Option<Service>) -> ServiceEnded {
    match service {
        Some(service) => ServiceEnded {
            name: service.name,
            status: service.wait().await,
        },
        None => pending().await,
    }
}

/// Returns a program in the folder of this one.
pub(super) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find the folder of this program")?;
    let program = this.with_file_name(name);
    anyhow::ensure!(
        program.is_file(),
        "there is no {}: install all programs of a release in one folder",
        program.display()
    );
    Ok(program)
}

/// Sends the signal to every child of this process and waits until there is none. A child that ends may leave children of its own.
async fn end_orphans(with: Signal) {
    let Ok(mut child_ended) = signal(SignalKind::child()) else {
        return;
    };
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return,
            Ok(WaitStatus::StillAlive) => {
                for pid in children().unwrap_or_default() {
                    let _ = kill(pid, with);
                }
                child_ended.recv().await;
            }
            // One has been waited for, or the wait was interrupted.
            _ => {}
        }
    }
}

/// Returns the children of this process.
fn children() -> io::Result<Vec<Pid>> {
    let this = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // PID (NAME) STATE PARENT …; a name may contain spaces and parentheses.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        if after_name.split_whitespace().nth(1) == Some(&this) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}
