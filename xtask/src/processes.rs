//! Programs that run beside this one, and their end.

use std::{
    fs::{self, File},
    ops::Sub,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, SysconfVar, sysconf},
};

use crate::workspace::now;

const POLL: Duration = Duration::from_millis(20);

/// Calls `ready` until it returns a value, at most for `limit`.
pub(crate) fn wait_for<T>(
    limit: Duration,
    mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    let start = now();
    loop {
        if let Some(value) = ready()? {
            return Ok(Some(value));
        }
        if now() - start >= limit {
            return Ok(None);
        }
        sleep(POLL);
    }
}

/// Programs that share a state folder. Dropping it stops them, the last started first, and whatever they left running.
pub(crate) struct Services {
    state_dir: PathBuf,
    running: Vec<Service>,
}

struct Service {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Services {
    /// Creates an empty list. `state_dir` is absolute; it is in the arguments of all programs, by which they are found.
    pub(crate) fn new(state_dir: PathBuf) -> Self {
        Self {
            state_dir,
            running: Vec::new(),
        }
    }

    /// Starts a program in a process group of its own, so that Ctrl-C at the terminal reaches only xtask. It writes to
    /// `NAME.log` in the state folder.
    pub(crate) fn start(&mut self, name: &str, command: &mut Command) -> anyhow::Result<u32> {
        let log = self.state_dir.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = file
            .try_clone()
            .with_context(|| format!("open {} twice", log.display()))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let pid = child.id();
        let name = name.to_owned();
        self.running.push(Service { name, child, log });
        Ok(pid)
    }

    /// Returns the first program that has ended by itself: its name, its status, and the end of its log.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<String>> {
        for Service { name, child, log } in &mut self.running {
            if let Some(status) = child
                .try_wait()
                .with_context(|| format!("look after {name}"))?
            {
                return Ok(Some(format!("{name} ended: {status}\n{}", tail(log))));
            }
        }
        Ok(None)
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for service in self.running.iter_mut().rev() {
            if service.stop(Duration::from_secs(12)).is_none() {
                // The killing below does not wait for it.
                let _ = service.child.kill();
                let _ = service.child.wait();
            }
        }
        stop_remains(&self.state_dir);
    }
}

impl Service {
    /// Sends SIGTERM and waits. Returns `None` if the program has not ended within the limit.
    fn stop(&mut self, limit: Duration) -> Option<ExitStatus> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).ok()?);
        let _ = kill(pid, Signal::SIGTERM);
        wait_for(limit, || Ok(self.child.try_wait()?))
            .ok()
            .flatten()
    }
}

/// Ends all programs of Packhorse that still run with this state folder: by SIGTERM, then by SIGKILL.
pub(crate) fn stop_remains(state_dir: &Path) {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for pid in remains(state_dir) {
            let _ = kill(pid, signal);
        }
        let _ = wait_for(Duration::from_secs(2), || {
            Ok(remains(state_dir).is_empty().then_some(()))
        });
    }
}

fn remains(state_dir: &Path) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| belongs_to(*pid, state_dir))
        .map(Pid::from_raw)
        .collect()
}

/// Returns the ids of the programs of Packhorse with this state folder.
pub(crate) fn packhorse_pids(state_dir: &Path) -> Vec<i32> {
    remains(state_dir).into_iter().map(Pid::as_raw).collect()
}

/// Returns the CPU seconds of the programs of Packhorse with this state folder, including their threads.
pub(crate) fn cpu_seconds(state_dir: &Path) -> anyhow::Result<f64> {
    Ok(usage(&packhorse_pids(state_dir))?.cpu_s)
}

/// The resources that processes have used, with all their threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// CPU time in seconds.
    pub(crate) cpu_s: f64,
    /// Page faults that needed no disk.
    pub(crate) minor_faults: u64,
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            cpu_s: self.cpu_s - earlier.cpu_s,
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }
}

/// Returns the resources that these processes have used.
pub(crate) fn usage(pids: &[i32]) -> anyhow::Result<Usage> {
    let ticks_per_second =
        sysconf(SysconfVar::CLK_TCK)?.context("the system has no clock ticks")?;
    let mut all = Usage::default();
    for pid in pids {
        let stat =
            fs::read_to_string(format!("/proc/{pid}/stat")).context("read a process' times")?;
        let (ticks, faults) = ticks_and_faults(&stat).context("read a process' times")?;
        all.cpu_s += ticks as f64 / ticks_per_second as f64;
        all.minor_faults += faults;
    }
    Ok(all)
}

/// Returns the clock ticks and the minor faults of a line of `/proc/PID/stat`.
fn ticks_and_faults(stat: &str) -> Option<(u64, u64)> {
    // The program's name, in parentheses, may hold anything; after it, faults are field 8 and times 12 and 13 of the rest.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 1)?.parse::<u64>().ok();
    Some((field(12)? + field(13)?, field(8)?))
}

fn belongs_to(pid: i32, state_dir: &Path) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else {
        return false;
    };
    // " (deleted)" is appended if the program was built again meanwhile.
    let name = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let ours = ["packhorse-gateway", "packhorse-agent", "packhorse-worker"]
        .iter()
        .any(|ours| name.starts_with(ours));
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = arguments
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy);
    ours && arguments.any(|argument| Path::new(argument.as_ref()).starts_with(state_dir))
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines
        .get(lines.len().saturating_sub(15)..)
        .unwrap_or_default();
    format!("{}\n({})", last.join("\n"), log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_faults_are_found_after_any_name() {
        let stat = "77 (a) b) S 1 77 77 0 -1 4194560 5123 12 3 0 250 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(ticks_and_faults(stat), Some((300, 5123)));
        assert_eq!(ticks_and_faults("77 (a) S 1 2"), None);
    }
}
