//! One device's MPS control daemon: its folders, its process, and the commands it takes.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io, iter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{folder_name, private_folder};
use crate::agent::{
    log::last_line,
    process::{self, Process},
};

/// How long a command may take. `terminate_client` waits for the client's work on the GPU.
const COMMAND_LIMIT: Duration = Duration::from_secs(2);
/// The most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;

const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";

/// Access to a control daemon.
#[derive(Clone, Debug)]
pub(super) struct Control {
    program: PathBuf,
    device: String,
    pipe: PathBuf,
    log: PathBuf,
}

/// Why a daemon did not do as it was told.
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

/// A server: there is one while there are clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) pid: u32,
    /// A client brought it down; it takes no others until all have ended.
    pub(super) failed: bool,
}

impl Control {
    /// With folders under `root` that only this user may enter.
    pub(super) fn new(program: &Path, device: &str, root: &Path) -> io::Result<Self> {
        let folder = root.join(folder_name(device));
        let (pipe, log) = (folder.join("pipe"), folder.join("log"));
        private_folder(&pipe)?;
        private_folder(&log)?;
        Ok(Self {
            program: program.to_owned(),
            device: device.to_owned(),
            pipe,
            log,
        })
    }

    /// What leads a process to this daemon.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            (PIPE_DIRECTORY, self.pipe.clone().into()),
            (LOG_DIRECTORY, self.log.clone().into()),
        ]
    }

    fn run_error(&self, source: io::Error) -> ControlError {
        // The name only: the text travels to the gateway.
        let name = self.program.file_name().unwrap_or_default();
        ControlError::Run {
            program: name.to_string_lossy().into_owned(),
            source,
        }
    }

    /// Starts the daemon in the foreground, for this device alone.
    pub(super) fn spawn(&self) -> Result<Process, ControlError> {
        let output = File::create(self.output()).map_err(|e| self.run_error(e))?;
        let output_too = output.try_clone().map_err(|e| self.run_error(e))?;
        let mut command = Command::new(&self.program);
        command
            .arg("-f")
            .envs(self.environment())
            .env("CUDA_VISIBLE_DEVICES", &self.device)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(output_too);
        Process::spawn(&mut command).map_err(|e| self.run_error(e))
    }

    fn output(&self) -> PathBuf {
        self.log.join("output.log")
    }

    /// The last that the daemon printed.
    pub(super) fn last_words(&self) -> Option<String> {
        last_line(&self.output())
    }

    /// The daemon that an earlier agent started here, if it still runs.
    pub(super) fn find(&self) -> io::Result<Option<Process>> {
        let name = self.program.file_name();
        let is_daemon = |arguments: &[&OsStr]| {
            // The program itself, or an interpreter with it.
            let mut first = arguments.iter().take(2);
            first.any(|argument| Path::new(argument).file_name() == name)
                && arguments.contains(&OsStr::new("-f"))
        };
        process::with_environment(is_daemon, PIPE_DIRECTORY, self.pipe.as_os_str())
    }

    /// The servers there are. An answer means that the daemon is up.
    pub(super) async fn servers(&self) -> Result<Vec<Server>, ControlError> {
        let mut servers = Vec::new();
        for pid in numbers(&self.tell("get_server_list", &[]).await?) {
            let status = self.tell("get_server_status", &[pid]).await?;
            servers.push(Server {
                pid,
                failed: status.to_uppercase().contains("FAULT"),
            });
        }
        Ok(servers)
    }

    /// The clients of all servers.
    pub(super) async fn client_count(&self) -> Result<usize, ControlError> {
        let mut count = 0;
        for server in numbers(&self.tell("get_server_list", &[]).await?) {
            count += numbers(&self.tell("get_client_list", &[server]).await?).len();
        }
        Ok(count)
    }

    /// Detaches a client once its work on the GPU is done.
    pub(super) async fn terminate_client(&self, pid: u32) -> Result<(), ControlError> {
        for server in numbers(&self.tell("get_server_list", &[]).await?) {
            self.tell("terminate_client", &[server, pid]).await?;
        }
        Ok(())
    }

    /// Ends server and daemon.
    pub(super) async fn quit(&self) -> Result<(), ControlError> {
        self.tell("quit", &[]).await.map(drop)
    }

    /// Gives the daemon a command, through the same program: its answer.
    async fn tell(&self, command: &'static str, arguments: &[u32]) -> Result<String, ControlError> {
        let words = arguments.iter().map(ToString::to_string);
        let words: Vec<String> = iter::once(command.to_owned()).chain(words).collect();
        let line = words.join(" ") + "\n";
        let told = timeout(COMMAND_LIMIT, self.run(&line)).await;
        let (success, answer) = told
            .map_err(|_| ControlError::Silent(command))?
            .map_err(|e| self.run_error(e))?;
        if success {
            return Ok(answer);
        }
        let answer = answer.lines().next().unwrap_or("without a word").to_owned();
        Err(ControlError::Refused { command, answer })
    }

    async fn run(&self, line: &str) -> io::Result<(bool, String)> {
        let mut child = tokio::process::Command::new(&self.program)
            .envs(self.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().expect("piped");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        // A program that ends without reading has said why.
        let _ = stdin.write_all(line.as_bytes()).await;
        drop(stdin);
        let (mut answer, complaint) =
            tokio::join!(read(stdout.expect("piped")), read(stderr.expect("piped")));
        let success = child.wait().await?.success();
        answer.push_str(&complaint);
        Ok((success, answer))
    }
}

async fn read(stream: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    // What could be read is all there is.
    let _ = stream.take(MAX_ANSWER).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The lines that are process numbers.
fn numbers(answer: &str) -> Vec<u32> {
    answer
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}
