//! Workers that the command starts on this machine, without an agent and a gateway, for measurements.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use packhorse_api::{
    ModelRegistration,
    local_worker::{MeasureCommand, MeasureReply, MeasureTask},
};
use packhorse_client::ArtifactFile;
use packhorse_cluster::{ComputeShare, ModelId, ModelVersion, Program};
use packhorse_terminal::files::read_file;
use tempfile::TempDir;

/// The flags for the device and the worker program.
#[derive(clap::Args)]
pub(super) struct WorkerArgs {
    /// Device that runs the models: cpu, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: LocalDevice,
    #[command(flatten)]
    pub(super) program: WorkerProgramArgs,
}

/// The flag for the worker program.
#[derive(clap::Args)]
pub(super) struct WorkerProgramArgs {
    /// Worker program [default: packhorse-worker in the folder of this program]
    #[arg(long, value_name = "FILE", env = "PACKHORSE_WORKER")]
    worker: Option<PathBuf>,
}

impl WorkerProgramArgs {
    /// Returns the path of the worker program.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.worker {
            Some(path) => path.clone(),
            None => env::current_exe()
                .context("cannot find the folder of this program")?
                .with_file_name("packhorse-worker"),
        };
        ensure!(
            path.is_file(),
            "the worker program {} does not exist: name one with --worker",
            path.display()
        );
        Ok(path)
    }
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalDevice {
    Cpu,
    /// A GPU by its CUDA number or UUID.
    Cuda(String),
}

impl FromStr for LocalDevice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda("0".to_owned())),
            Some(("cuda", name)) if !name.is_empty() && name.chars().all(allowed) => {
                Ok(Self::Cuda(name.to_owned()))
            }
            _ => Err(anyhow!("expected cpu, cuda:NUMBER or cuda:UUID")),
        }
    }
}

impl LocalDevice {
    /// Returns the CUDA number or UUID of a GPU.
    fn cuda_device(&self) -> Option<&str> {
        match self {
            Self::Cpu => None,
            Self::Cuda(name) => Some(name),
        }
    }
}

/// A model with the file of its artifact.
#[derive(Clone, Debug)]
pub(super) struct LocalModel {
    pub(super) program: Program,
    pub(super) artifact: PathBuf,
}

impl LocalModel {
    /// Reads a registration and hashes the artifact.
    pub(super) async fn read(spec: &Path, artifact: &Path) -> anyhow::Result<Self> {
        let shown = || spec.display().to_string();
        let model: ModelRegistration =
            serde_json::from_slice(&read_file(spec)?).with_context(shown)?;
        let file = ArtifactFile::hash(artifact, |_| {}).await?;
        let artifact =
            fs::canonicalize(artifact).with_context(|| artifact.display().to_string())?;
        let program = Program {
            model: ModelId {
                name: model.name,
                version: model.version.unwrap_or(ModelVersion::FIRST),
            },
            artifact: file.digest(),
            max_batch_size: model.max_batch_size,
            inputs: model.inputs,
            outputs: model.outputs,
        };
        Ok(Self { program, artifact })
    }
}

/// The parameters of a worker.
#[derive(Clone)]
pub(super) struct LocalWorkerOptions<'a> {
    /// The worker program.
    pub(super) worker: &'a Path,
    /// A profiler that starts the worker, and its arguments; empty to start the worker itself.
    pub(super) profiler: Vec<OsString>,
    pub(super) model: &'a LocalModel,
    pub(super) device: &'a LocalDevice,
    pub(super) batch_size: u32,
    pub(super) share: ComputeShare,
}

/// A worker that runs one command after another. Its process ends when this value is dropped.
pub(super) struct LocalWorker {
    name: String,
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    folder: TempDir,
}

impl LocalWorker {
    /// Starts the worker without waiting until it is ready.
    pub(super) fn start(options: &LocalWorkerOptions<'_>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("packhorse-measure-")
            .tempdir()
            .context("cannot create a folder for the worker")?;
        let task = MeasureTask {
            program: options.model.program.clone(),
            artifact: options.model.artifact.clone(),
            cuda_device: options.device.cuda_device().map(ToOwned::to_owned),
            batch_size: options.batch_size,
            compute_share_pct: options.share,
        };
        let file = folder.path().join("task.json");
        fs::write(&file, serde_json::to_vec_pretty(&task)?)
            .context("cannot write the worker's task")?;
        let log = File::create(folder.path().join("worker.log"))
            .context("cannot write the worker's log")?;
        let mut line = options.profiler.clone();
        line.extend([
            options.worker.into(),
            "measure".into(),
            "--task".into(),
            file.into(),
        ]);
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            // A profiler would format numbers by the locale.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", line[0].to_string_lossy()))?;
        let replies = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(Self {
            name: options.model.program.model.to_string(),
            commands: child.stdin.take(),
            child,
            replies,
            folder,
        })
    }

    /// Waits until the model is loaded and warmed up.
    pub(super) fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        match self.receive()? {
            MeasureReply::Ready => Ok(()),
            other => bail!(
                "the worker of {} sent an unexpected reply: {other:?}",
                self.name
            ),
        }
    }

    /// Sends a command without waiting for the reply.
    pub(super) fn send(&mut self, command: &MeasureCommand) -> anyhow::Result<()> {
        let line = serde_json::to_string(command)?;
        let sent = self.commands.as_mut().map(|pipe| writeln!(pipe, "{line}"));
        match sent {
            Some(Ok(())) => Ok(()),
            // The last reply contains the reason why the worker has ended.
            _ => self
                .receive()
                .and(Err(anyhow!("the worker of {} has ended", self.name))),
        }
    }

    /// Waits for the reply to a command.
    pub(super) fn receive(&mut self) -> anyhow::Result<MeasureReply> {
        let mut line = String::new();
        loop {
            line.clear();
            self.replies
                .read_line(&mut line)
                .context("cannot read the worker's reply")?;
            if line.is_empty() {
                let log = fs::read_to_string(self.folder.path().join("worker.log"));
                let log = log.unwrap_or_default();
                let last = log.lines().rfind(|line| !line.trim().is_empty());
                bail!(
                    "the worker of {} has ended: {}",
                    self.name,
                    last.unwrap_or("its log is empty")
                );
            }
            // A profiler prints lines of its own.
            if line.starts_with('{') {
                break;
            }
        }
        match serde_json::from_str(&line).context("cannot read the worker's reply")? {
            MeasureReply::Failed { reason } => bail!("the worker of {}: {reason}", self.name),
            reply => Ok(reply),
        }
    }

    /// Closes the worker's input and waits until it has ended. A profiler writes its measurements then.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        drop(self.commands.take());
        let status = self.child.wait().context("cannot wait for the worker")?;
        ensure!(
            status.success(),
            "the worker of {} ended with {status}",
            self.name
        );
        Ok(())
    }
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_the_cpu_or_named_by_cuda() {
        for (text, device) in [
            ("cpu", Some(LocalDevice::Cpu)),
            ("cuda", Some(LocalDevice::Cuda("0".to_owned()))),
            ("cuda:1", Some(LocalDevice::Cuda("1".to_owned()))),
            (
                "cuda:MIG-4c-1",
                Some(LocalDevice::Cuda("MIG-4c-1".to_owned())),
            ),
            ("cuda:", None),
            ("cuda:0,1", None),
            ("gpu", None),
        ] {
            assert_eq!(text.parse::<LocalDevice>().ok(), device, "{text}");
        }
    }
}
