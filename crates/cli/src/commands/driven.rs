//! Workers that the command starts and drives by itself, without a gateway and an agent: for measurements by hand on this machine.

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
use tempfile::TempDir;

use crate::context::read_file;

/// Where programs are run, and by what.
#[derive(clap::Args)]
pub(super) struct WorkerArgs {
    /// What the models run on: cpu, or a GPU as cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: DriveDevice,
    /// The worker program [default: packhorse-worker beside this program]
    #[arg(long, value_name = "FILE", env = "PACKHORSE_WORKER")]
    worker: Option<PathBuf>,
}

impl WorkerArgs {
    /// The worker program.
    pub(super) fn program(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.worker {
            Some(path) => path.clone(),
            None => env::current_exe()
                .context("where this program is")?
                .with_file_name("packhorse-worker"),
        };
        ensure!(
            path.is_file(),
            "there is no worker program {}: name it with --worker",
            path.display()
        );
        Ok(path)
    }
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriveDevice {
    Cpu,
    /// By the number or UUID that CUDA knows it by.
    Cuda(String),
}

impl FromStr for DriveDevice {
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

impl DriveDevice {
    pub(super) fn cuda(&self) -> Option<&str> {
        match self {
            Self::Cpu => None,
            Self::Cuda(name) => Some(name),
        }
    }
}

/// A model with the file of its program.
#[derive(Clone, Debug)]
pub(super) struct DrivenModel {
    pub(super) program: Program,
    artifact: PathBuf,
}

impl DrivenModel {
    /// Reads a model as it is registered.
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

/// How a worker is started.
#[derive(Clone)]
pub(super) struct Start<'a> {
    /// The worker program.
    pub(super) worker: &'a Path,
    /// A program to start it with, and that program's arguments.
    pub(super) under: Vec<OsString>,
    pub(super) model: &'a DrivenModel,
    pub(super) device: &'a DriveDevice,
    pub(super) batch_size: u32,
    pub(super) share: ComputeShare,
}

/// A worker that does as it is told. It ends with this.
pub(super) struct Driven {
    name: String,
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Driven {
    /// Starts the worker; it is ready when it says so.
    pub(super) fn start(start: &Start<'_>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("packhorse-drive-")
            .tempdir()
            .context("a folder for the worker")?;
        let task = MeasureTask {
            program: start.model.program.clone(),
            artifact: start.model.artifact.clone(),
            cuda_device: start.device.cuda().map(ToOwned::to_owned),
            batch_size: start.batch_size,
            compute_share_pct: start.share,
        };
        let file = folder.path().join("task.json");
        fs::write(&file, serde_json::to_vec_pretty(&task)?).context("the worker's task")?;
        let log = File::create(folder.path().join("worker.log")).context("the worker's log")?;
        let mut line = start.under.clone();
        line.extend([
            start.worker.into(),
            "drive".into(),
            "--task".into(),
            file.into(),
        ]);
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            // What runs it may print numbers in the manner of a country.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", line[0].to_string_lossy()))?;
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self {
            name: start.model.program.model.to_string(),
            commands: child.stdin.take(),
            child,
            replies,
            folder,
        })
    }

    /// Waits until it is loaded and warm.
    pub(super) fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        match self.reply()? {
            MeasureReply::Ready => Ok(()),
            other => bail!("the worker of {} says {other:?}", self.name),
        }
    }

    /// Says what to do, without waiting until it is done.
    pub(super) fn tell(&mut self, command: &MeasureCommand) -> anyhow::Result<()> {
        let line = serde_json::to_string(command)?;
        let told = self.commands.as_mut().map(|pipe| writeln!(pipe, "{line}"));
        match told {
            Some(Ok(())) => Ok(()),
            // Why it has ended stands in its last reply.
            _ => self
                .reply()
                .and(Err(anyhow!("the worker of {} has ended", self.name))),
        }
    }

    /// Waits for the answer to what it was told.
    pub(super) fn reply(&mut self) -> anyhow::Result<MeasureReply> {
        let mut line = String::new();
        loop {
            line.clear();
            self.replies
                .read_line(&mut line)
                .context("the worker's reply")?;
            if line.is_empty() {
                let log = fs::read_to_string(self.folder.path().join("worker.log"));
                let log = log.unwrap_or_default();
                let last = log.lines().rfind(|line| !line.trim().is_empty());
                bail!(
                    "the worker of {} has ended: {}",
                    self.name,
                    last.unwrap_or("it does not say why")
                );
            }
            // What runs the worker may also say something.
            if line.starts_with('{') {
                break;
            }
        }
        match serde_json::from_str(&line).context("the worker's reply")? {
            MeasureReply::Failed { reason } => bail!("the worker of {}: {reason}", self.name),
            reply => Ok(reply),
        }
    }

    /// Lets it end, and waits for that: a profiler around it writes when it has.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        drop(self.commands.take());
        let status = self.child.wait().context("wait for the worker")?;
        ensure!(
            status.success(),
            "the worker of {} ended with {status}",
            self.name
        );
        Ok(())
    }
}

impl Drop for Driven {
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
    fn devices_are_the_cpu_and_what_cuda_names() {
        for (text, device) in [
            ("cpu", Some(DriveDevice::Cpu)),
            ("cuda", Some(DriveDevice::Cuda("0".to_owned()))),
            ("cuda:1", Some(DriveDevice::Cuda("1".to_owned()))),
            (
                "cuda:MIG-4c-1",
                Some(DriveDevice::Cuda("MIG-4c-1".to_owned())),
            ),
            ("cuda:", None),
            ("cuda:0,1", None),
            ("gpu", None),
        ] {
            assert_eq!(text.parse::<DriveDevice>().ok(), device, "{text}");
        }
    }
}
