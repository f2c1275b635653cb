//! Programs that this program runs, each with a time limit.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The time between two checks of a condition.
const POLL: Duration = Duration::from_millis(10);
/// The time limit for a program to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Returns the time, for limits and measurements.
#[expect(clippy::disallowed_methods, reason = "a tool that waits and measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Calls `ready` until it returns a value. An error after `limit`.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = now();
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if now() - start >= limit {
            bail!("gave up after {} s waiting for {what}", limit.as_secs());
        }
        sleep(POLL);
    }
}

/// A started program. Dropping it ends the program by SIGTERM, then by SIGKILL.
pub(crate) struct RunningProgram {
    name: String,
    child: Child,
    output: PathBuf,
    log: PathBuf,
}

impl RunningProgram {
    /// Starts a program that writes to `NAME.out` and `NAME.log` in `folder`.
    pub(crate) fn start(name: &str, command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        Self::spawn(name, command.stdin(Stdio::null()), folder)
    }

    /// Starts a program like [`Self::start`], with an empty standard input that stays open until [`Self::end_input`].
    pub(crate) fn start_with_input(
        name: &str,
        command: &mut Command,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        Self::spawn(name, command.stdin(Stdio::piped()), folder)
    }

    fn spawn(name: &str, command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        let output = folder.join(format!("{name}.out"));
        let log = folder.join(format!("{name}.log"));
        let create =
            |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
        let child = command
            .stdout(create(&output)?)
            .stderr(create(&log)?)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            output,
            log,
        })
    }

    /// Waits until the program has written a line to its log.
    pub(crate) fn wait_for_line(&mut self, line: &str, limit: Duration) -> anyhow::Result<()> {
        wait_for(&format!("{} to write {line:?}", self.name), limit, || {
            self.check_running()?;
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            Ok(log.lines().any(|written| written == line).then_some(()))
        })
    }

    /// Closes the program's standard input.
    pub(crate) fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status; `None` while the program runs.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("wait for {}", self.name))
    }

    /// Fails if the program has ended.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}: {}", self.name, self.last_log_line()),
        }
    }

    /// Waits until the program has ended successfully, and returns its standard output.
    pub(crate) fn finish(mut self, limit: Duration) -> anyhow::Result<String> {
        let name = self.name.clone();
        let status = wait_for(&format!("{name} to end"), limit, || self.exit_status())?;
        if !status.success() {
            bail!("{name}: {status}: {}", self.last_log_line());
        }
        fs::read_to_string(&self.output).with_context(|| format!("read what {name} printed"))
    }

    /// Returns the last line of the program's log.
    pub(crate) fn last_log_line(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
        lines.next().unwrap_or("no log").trim().to_owned()
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let child = &mut self.child;
        let ended = wait_for("the program to end", STOP_LIMIT, || Ok(child.try_wait()?));
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> RunningProgram {
        RunningProgram::start("shell", Command::new("sh").args(["-c", script]), folder).unwrap()
    }

    #[test]
    fn a_program_returns_its_output_and_fails_with_its_last_log_line() {
        let folder = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(30);
        let printed = shell("echo yes", folder.path()).finish(limit).unwrap();
        assert_eq!(printed, "yes\n");
        let error = shell("echo no >&2; echo >&2; exit 3", folder.path()).finish(limit);
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "shell: exit status: 3: no");
    }

    #[test]
    fn a_program_may_wait_until_its_input_ends() {
        let folder = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(30);
        let mut script = Command::new("sh");
        script.args(["-c", "echo ready >&2; cat; echo went on"]);
        let mut running =
            RunningProgram::start_with_input("shell", &mut script, folder.path()).unwrap();
        running.wait_for_line("ready", limit).unwrap();
        assert!(running.exit_status().unwrap().is_none());
        running.end_input();
        assert_eq!(running.finish(limit).unwrap(), "went on\n");
        let mut gone = shell("echo over >&2", folder.path());
        let error = gone.wait_for_line("ready", limit).unwrap_err().to_string();
        assert_eq!(error, "shell ended: exit status: 0: over");
    }

    #[test]
    fn a_program_is_ended_at_its_time_limit() {
        let folder = tempfile::tempdir().unwrap();
        let running = shell("sleep 600", folder.path());
        let pid = Pid::from_raw(running.pid().cast_signed());
        assert!(running.finish(Duration::from_millis(50)).is_err());
        assert_eq!(kill(pid, None), Err(nix::Error::ESRCH));
    }
}
