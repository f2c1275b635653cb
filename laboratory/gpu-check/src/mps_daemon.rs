//! NVIDIA's MPS for processes that this program starts itself: one daemon for the first GPU, ended with its part.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{
    host::{Backend, Host},
    process::{Running, wait_for},
};

const PROGRAM: &str = "nvidia-cuda-mps-control";
const START_LIMIT: Duration = Duration::from_secs(10);

/// Where its program is, or why there is none.
pub(crate) fn find() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    places
        .find(|place| place.is_file())
        .ok_or_else(|| format!("{PROGRAM} is not on the PATH"))
}

/// A running daemon; dropping it ends it.
pub(crate) struct MpsDaemon {
    program: PathBuf,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    process: Running,
}

impl MpsDaemon {
    /// Starts it for the first GPU and sees that CUDA uses it. The inner error says why there is no MPS here.
    pub(crate) fn start(host: &Host) -> anyhow::Result<Result<Self, String>> {
        if host.backend == Backend::Cpu {
            return Ok(Err("the device is no GPU".to_owned()));
        }
        let program = match find() {
            Ok(program) => program,
            Err(reason) => return Ok(Err(reason)),
        };
        let folder = host.folder("mps")?;
        let serving = Self::spawn(program, host.first_device(), &folder)
            .and_then(|daemon| daemon.serves(host).map(|()| daemon));
        Ok(serving.map_err(|e| format!("{e:#}")))
    }

    /// Starts it in a folder for what this environment shows, and waits until it answers.
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
            process: Running::start("mps", &mut command, folder)?,
        };
        wait_for("the MPS daemon to answer", START_LIMIT, || {
            daemon.process.check()?;
            Ok(daemon.tell("get_server_list").ok())
        })?;
        Ok(daemon)
    }

    /// CUDA goes without MPS silently when it cannot reach the daemon, and there are hosts on which no client starts.
    fn serves(&self, host: &Host) -> anyhow::Result<()> {
        let _: serde_json::Value = host
            .probe(&["multiprocessors"], &self.environment)
            .context("a client of MPS does not start")?;
        let servers = self.tell("get_server_list")?;
        // A server may end with its last client; the daemon has written of it.
        let log = fs::read_to_string(self.folder.join("log/control.log")).unwrap_or_default();
        ensure!(
            !servers.trim().is_empty() || log.to_lowercase().contains("client"),
            "CUDA does not use MPS here"
        );
        Ok(())
    }

    /// What makes a process a client with this share of the multiprocessors, in percent.
    pub(crate) fn client(&self, share_pct: Option<u32>) -> Vec<(String, String)> {
        let share = share_pct.map(|share| {
            let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned();
            (name, share.to_string())
        });
        self.environment.iter().cloned().chain(share).collect()
    }

    /// Gives it a command, through the same program: its answer.
    fn tell(&self, command: &str) -> anyhow::Result<String> {
        let mut child = Command::new(&self.program)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("talk to the MPS daemon")?;
        let mut stdin = child.stdin.take().expect("piped");
        // A program that ends without reading says so by its status.
        let _ = writeln!(stdin, "{command}");
        drop(stdin);
        let output = child.wait_with_output().context("talk to the MPS daemon")?;
        ensure!(output.status.success(), "the MPS daemon refuses {command}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for MpsDaemon {
    fn drop(&mut self) {
        // Its servers end with it then; otherwise the process is ended all the same.
        let _ = self.tell("quit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one that the agent is tested with.
    fn fake() -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        root.join("worker-agent/tests/stand-ins/mps-control")
    }

    #[test]
    fn a_daemon_is_of_one_gpu_and_its_clients_are_led_to_it_with_their_share() {
        let folder = tempfile::tempdir().unwrap();
        let device = vec![("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned())];
        let daemon = MpsDaemon::spawn(fake(), device, folder.path()).unwrap();
        let pipe = folder.path().join("pipe");
        assert_eq!(fs::read_to_string(pipe.join("device")).unwrap(), "GPU-1\n");
        let client = daemon.client(Some(25));
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
        assert_eq!(daemon.client(None).len(), client.len() - 1);
        drop(daemon);
        let told = fs::read_to_string(pipe.join("commands")).unwrap();
        assert!(told.trim_end().ends_with("quit"), "{told}");
    }

    #[test]
    fn a_daemon_that_does_not_come_up_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let Err(error) = MpsDaemon::spawn("/bin/false".into(), Vec::new(), folder.path()) else {
            panic!("/bin/false is no daemon");
        };
        assert!(
            error.to_string().starts_with("mps ended: exit status: 1"),
            "{error}"
        );
    }
}
