//! The MPS control daemon of one GPU: its folders, its process, and its commands.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io, iter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use packhorse_service::create_private_dir;
use packhorse_worker_agent::handoff::shorten_log;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    environment::inherited,
    log_tail::last_line,
    process::{self, Process},
    worker_user::WorkerUser,
};

/// The time limit of a command. `terminate_client` waits for the client's work on the GPU.
const COMMAND_LIMIT: Duration = Duration::from_secs(2);
/// The most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;

const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";

/// A client of a control daemon.
#[derive(Clone, Debug)]
pub(super) struct Control {
    program: PathBuf,
    device: String,
    pipe: PathBuf,
    log: PathBuf,
    user: WorkerUser,
}

/// A command that a daemon did not execute.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("{program} cannot be run: {source}")]
    Run {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("the MPS daemon refuses {command}: {answer}")]
    Refused {
        command: &'static str,
        answer: String,
    },
    #[error("the MPS daemon does not answer {0} within {COMMAND_LIMIT:?}")]
    Silent(&'static str),
}

/// An MPS server. It exists while there are clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) pid: u32,
    /// True if a client caused a fatal fault. The server accepts no new clients until all of its clients have ended.
    pub(super) failed: bool,
}

impl Control {
    /// Creates the daemon's folders under `root`, for the workers' user only. The daemon runs as that user, because an MPS server has clients of
    /// its own user.
    pub(super) fn new(
        program: &Path,
        device: &str,
        root: &Path,
        user: &WorkerUser,
    ) -> io::Result<Self> {
        let folder = root.join(folder_name(device));
        let (pipe, log) = (folder.join("pipe"), folder.join("log"));
        create_private_dir(&log)?;
        user.let_pass(root)?;
        user.let_pass(&folder)?;
        user.let_create(&log)?;
        let control = Self {
            program: program.to_owned(),
            device: device.to_owned(),
            pipe,
            log,
            user: user.clone(),
        };
        control.create_pipe()?;
        Ok(control)
    }

    fn create_pipe(&self) -> io::Result<()> {
        create_private_dir(&self.pipe)?;
        self.user.give(&self.pipe)
    }

    /// Removes what a daemon of another user has left.
    pub(super) fn empty_pipe(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.pipe)?;
        self.create_pipe()
    }

    /// Returns the environment variables that make a process use this daemon.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            (PIPE_DIRECTORY, self.pipe.clone().into()),
            (LOG_DIRECTORY, self.log.clone().into()),
        ]
    }

    fn run_error(&self, source: io::Error) -> ControlError {
        // Without the path, because the text is sent to the gateway.
        let name = self.program.file_name().unwrap_or_default();
        ControlError::Run {
            program: name.to_string_lossy().into_owned(),
            source,
        }
    }

    /// Starts the daemon in the foreground, for this GPU only.
    pub(super) fn spawn(&self) -> Result<Process, ControlError> {
        let output = self.create_output().map_err(|e| self.run_error(e))?;
        let output_too = output.try_clone().map_err(|e| self.run_error(e))?;
        let mut command = Command::new(&self.program);
        command
            .arg("-f")
            .env_clear()
            .envs(inherited())
            .envs(self.environment())
            .env("CUDA_VISIBLE_DEVICES", &self.device)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(output_too);
        self.user.run(&mut command);
        Process::spawn(&mut command).map_err(|e| self.run_error(e))
    }

    pub(super) fn output(&self) -> PathBuf {
        self.log.join("output.log")
    }

    /// Creates the empty file of the daemon's output, to which the daemon can only append. Whatever a model has put in its place is
    /// removed, and not followed.
    fn create_output(&self) -> io::Result<File> {
        match fs::remove_file(self.output()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(self.output())
    }

    /// Shortens the daemon's output if it is long: the daemon writes several lines for each command, and each client.
    pub(super) fn shorten_output(&self) {
        if let Err(error) = shorten_log(&self.output()) {
            tracing::debug!(%error, "the output of the MPS daemon is not shortened");
        }
    }

    /// Returns the last line that the daemon printed.
    pub(super) fn last_line(&self) -> Option<String> {
        last_line(&self.output())
    }

    /// Returns the daemon that an earlier agent started in these folders, if it still runs.
    pub(super) fn find(&self) -> io::Result<Option<Process>> {
        let name = self.program.file_name();
        let is_daemon = |arguments: &[&OsStr]| {
            // The first argument is the program, or an interpreter with the program as second argument.
            let mut first = arguments.iter().take(2);
            first.any(|argument| Path::new(argument).file_name() == name)
                && arguments.contains(&OsStr::new("-f"))
        };
        process::find_by_environment(is_daemon, PIPE_DIRECTORY, self.pipe.as_os_str())
    }

    /// Returns true if a daemon runs as the user of its clients.
    pub(super) fn has_right_user(&self, daemon: &Process) -> bool {
        let own = || rustix::process::getuid().as_raw();
        process::user_of(daemon.pid()) == Some(self.user.uid().unwrap_or_else(own))
    }

    /// Returns the servers. A success means that the daemon runs.
    pub(super) async fn servers(&self) -> Result<Vec<Server>, ControlError> {
        let mut servers = Vec::new();
        for pid in parse_pids(&self.send("get_server_list", &[]).await?) {
            let status = self.send("get_server_status", &[pid]).await?;
            servers.push(Server {
                pid,
                failed: status.to_uppercase().contains("FAULT"),
            });
        }
        Ok(servers)
    }

    /// Returns the number of clients of all servers.
    pub(super) async fn client_count(&self) -> Result<usize, ControlError> {
        let mut count = 0;
        for server in parse_pids(&self.send("get_server_list", &[]).await?) {
            count += parse_pids(&self.send("get_client_list", &[server]).await?).len();
        }
        Ok(count)
    }

    /// Detaches a client when its work on the GPU is done.
    pub(super) async fn terminate_client(&self, pid: u32) -> Result<(), ControlError> {
        for server in parse_pids(&self.send("get_server_list", &[]).await?) {
            self.send("terminate_client", &[server, pid]).await?;
        }
        Ok(())
    }

    /// Ends server and daemon.
    pub(super) async fn quit(&self) -> Result<(), ControlError> {
        self.send("quit", &[]).await.map(drop)
    }

    /// Sends the daemon a command, through the daemon's program, and returns the answer.
    async fn send(&self, command: &'static str, arguments: &[u32]) -> Result<String, ControlError> {
        let words = arguments.iter().map(ToString::to_string);
        let words: Vec<String> = iter::once(command.to_owned()).chain(words).collect();
        let line = words.join(" ") + "\n";
        let outcome = timeout(COMMAND_LIMIT, self.run(&line)).await;
        let (success, answer) = outcome
            .map_err(|_| ControlError::Silent(command))?
            .map_err(|e| self.run_error(e))?;
        if success {
            return Ok(answer);
        }
        let answer = answer
            .lines()
            .next()
            .unwrap_or("no reason given")
            .to_owned();
        Err(ControlError::Refused { command, answer })
    }

    /// Runs the program with a line of input. Returns true if it succeeded, and its output.
    async fn run(&self, line: &str) -> io::Result<(bool, String)> {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(inherited());
        self.user.run(&mut command);
        let mut child = tokio::process::Command::from(command)
            .envs(self.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().expect("piped");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        // If the program ends without reading, its output contains the reason.
        let _ = stdin.write_all(line.as_bytes()).await;
        drop(stdin);
        let (mut answer, errors) = tokio::join!(
            read_output(stdout.expect("piped")),
            read_output(stderr.expect("piped"))
        );
        let success = child.wait().await?.success();
        answer.push_str(&errors);
        Ok((success, answer))
    }
}

async fn read_output(stream: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    // After a read error, the output that was read so far is used.
    let _ = stream.take(MAX_ANSWER).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the name of a device's folder: short, because the paths of the daemon's sockets are limited.
fn folder_name(device: &str) -> String {
    hex::encode(&Sha256::digest(device)[..4])
}

/// Returns the lines that are process ids.
fn parse_pids(answer: &str) -> Vec<u32> {
    answer
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}
