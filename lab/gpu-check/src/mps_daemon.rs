//! NVIDIA's MPS for processes that this program starts itself: one daemon for the first GPU, which ends with its part.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{
    host::{Backend, Host},
    part::NO_GPU,
    process::{RunningProgram, wait_for},
};

const PROGRAM: &str = "nvidia-cuda-mps-control";
const START_LIMIT: Duration = Duration::from_secs(10);

/// Returns the path of the daemon's program, or the reason why there is none.
pub(crate) fn find_program() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    candidates
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| format!("{PROGRAM} is not on the PATH"))
}

/// Returns true if the host has MPS, but CUDA does not start through it or ignores it. Tested once.
pub(crate) fn refuses_clients(host: &Host) -> bool {
    static REFUSES: OnceLock<bool> = OnceLock::new();
    let refuses = || find_program().is_ok() && !matches!(MpsDaemon::start(host), Ok(Ok(_)));
    *REFUSES.get_or_init(|| host.backend == Backend::Nvidia && refuses())
}

/// A running daemon, which ends when it is dropped.
pub(crate) struct MpsDaemon {
    program: PathBuf,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    process: RunningProgram,
}

impl MpsDaemon {
    /// Starts a daemon for the first GPU and checks that CUDA uses it. The inner error is the reason why there is no MPS.
    pub(crate) fn start(host: &Host) -> anyhow::Result<Result<Self, String>> {
        if host.backend == Backend::Cpu {
            return Ok(Err(NO_GPU.to_owned()));
        }
        let program = match find_program() {
            Ok(program) => program,
            Err(reason) => return Ok(Err(reason)),
        };
        let folder = host.create_folder("mps")?;
        let daemon = Self::spawn(program, host.first_device(), &folder)
            .and_then(|daemon| daemon.check_client(host).map(|()| daemon));
        Ok(daemon.map_err(|e| format!("{e:#}")))
    }

    /// Starts a daemon with its files in a folder, for the devices that the environment shows, and waits until it answers.
    fn spawn(
        program: PathBuf,
        mut environment: Vec<(String, String)>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let folders = [
            ("CUDA_MPS_PIPE_DIRECTORY", "pipe"),
            ("CUDA_MPS_LOG_DIRECTORY", "log"),
        ];
        for (name, part) in folders {
            let part = folder.join(part);
            fs::create_dir(&part).with_context(|| format!("make {}", part.display()))?;
            environment.push((name.to_owned(), part.display().to_string()));
        }
        let mut command = Command::new(&program);
        command.arg("-f").envs(environment.iter().cloned());
        let mut daemon = Self {
            program,
            environment,
            folder: folder.to_owned(),
            process: RunningProgram::start("mps", &mut command, folder)?,
        };
        wait_for("the MPS daemon to answer", START_LIMIT, || {
            daemon.process.check_running()?;
            Ok(daemon.send_command("get_server_list").ok())
        })?;
        Ok(daemon)
    }

    /// Checks that a client starts and uses MPS: CUDA silently runs without MPS if it cannot reach the daemon, and on some hosts no
    /// client starts.
    fn check_client(&self, host: &Host) -> anyhow::Result<()> {
        let _: serde_json::Value = host
            .run_probe(&["multiprocessors"], &self.environment)
            .context("a client of MPS does not start")?;
        let servers = self.send_command("get_server_list")?;
        // The server may have ended with its last client; then the daemon's log mentions the client.
        let log = fs::read_to_string(self.folder.join("log/control.log")).unwrap_or_default();
        ensure!(
            !servers.trim().is_empty() || log.to_lowercase().contains("client"),
            "CUDA does not use MPS on this host"
        );
        Ok(())
    }

    /// Returns the environment of a client with a share of the multiprocessors, in percent; `None` for no limit.
    pub(crate) fn client_environment(&self, share_pct: Option<u32>) -> Vec<(String, String)> {
        let share = share_pct.map(|share| {
            let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned();
            (name, share.to_string())
        });
        self.environment.iter().cloned().chain(share).collect()
    }

    /// Sends a command to the daemon through the same program, and returns the answer.
    fn send_command(&self, command: &str) -> anyhow::Result<String> {
        let mut child = Command::new(&self.program)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("talk to the MPS daemon")?;
        let mut stdin = child.stdin.take().expect("piped");
        // A program that ends without reading fails with its exit status below.
        let _ = writeln!(stdin, "{command}");
        drop(stdin);
        let output = child.wait_with_output().context("talk to the MPS daemon")?;
        ensure!(output.status.success(), "the MPS daemon refuses {command}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for MpsDaemon {
    fn drop(&mut self) {
        // This also ends the daemon's servers. If it fails, dropping the process ends the daemon.
        let _ = self.send_command("quit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the stand-in that the agent's tests use.
    fn fake() -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        root.join("worker-agent/tests/stand-ins/mps-control")
    }

    #[test]
    fn clients_reach_the_daemon_of_their_gpu_with_their_share() {
        let folder = tempfile::tempdir().unwrap();
        let device = vec![("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned())];
        let daemon = MpsDaemon::spawn(fake(), device, folder.path()).unwrap();
        let pipe = folder.path().join("pipe");
        assert_eq!(fs::read_to_string(pipe.join("device")).unwrap(), "GPU-1\n");
        let client = daemon.client_environment(Some(25));
        for (name, value) in [
            ("CUDA_VISIBLE_DEVICES", "GPU-1"),
            ("CUDA_MPS_PIPE_DIRECTORY", pipe.to_str().unwrap()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
        ] {
            assert!(
                client.contains(&(name.to_owned(), value.to_owned())),
                "{client:?}"
            );
        }
        assert_eq!(daemon.client_environment(None).len(), client.len() - 1);
        drop(daemon);
        let commands = fs::read_to_string(pipe.join("commands")).unwrap();
        assert!(commands.trim_end().ends_with("quit"), "{commands}");
    }

    #[test]
    fn the_error_of_a_daemon_that_does_not_start_has_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let Err(error) = MpsDaemon::spawn("/bin/false".into(), Vec::new(), folder.path()) else {
            panic!("/bin/false is not a daemon");
        };
        assert!(
            error.to_string().starts_with("mps ended: exit status: 1"),
            "{error}"
        );
    }
}
