//! The host that is checked: its programs, its Python, its devices, and how much time there is.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use packhorse_cluster::ProfileTable;
use packhorse_worker_agent::{
    devices::{Device, DeviceChoice},
    handoff::{PipelineSettings, worker_environment},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    mps_daemon::{self, MpsDaemon},
    process::{Running, now},
    report::Target,
};

/// What models run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The GPUs that the NVIDIA driver knows.
    Nvidia,
    /// The CPU: shows that the check itself works.
    Cpu,
}

impl Backend {
    /// As the agent's `--devices` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Cpu => "cpu",
        }
    }
}

/// What PyTorch says of itself and of the host.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Torch {
    #[serde(rename = "torch")]
    pub(crate) version: String,
    pub(crate) torchvision: Option<String>,
    pub(crate) transformers: Option<String>,
    pub(crate) cuda: Option<String>,
    pub(crate) cudnn: Option<u64>,
    pub(crate) gpus: u32,
}

/// The host.
pub(crate) struct Host {
    pub(crate) backend: Backend,
    /// At least one.
    pub(crate) devices: Vec<Device>,
    /// Small models and short runs, whose speed is not judged.
    pub(crate) quick: bool,
    pub(crate) torch: Torch,
    /// Where the report goes; what belongs beside it is named after it.
    pub(crate) report: PathBuf,
    programs: PathBuf,
    python: PathBuf,
    work: PathBuf,
    deadline: Instant,
    mps_takes_no_clients: OnceLock<bool>,
}

/// How the host is found.
pub(crate) struct Search {
    pub(crate) backend: Backend,
    pub(crate) quick: bool,
    pub(crate) report: PathBuf,
    pub(crate) programs: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) time: Duration,
}

/// Keeps NVIDIA's libraries from rounding FP32 to the 10 bits of TF32, for comparisons: in deep networks that adds up to some hundredths.
pub(crate) const FP32_ONLY: (&str, &str) = ("NVIDIA_TF32_OVERRIDE", "0");
const PROBE: &str = include_str!("../python/probe.py");
const PROGRAMS: [&str; 4] = [
    "packhorse",
    "packhorse-gateway",
    "packhorse-agent",
    "packhorse-worker",
];
/// How long a look at the host may take: importing PyTorch alone can take half a minute on a cold disk.
pub(crate) const PROBE_LIMIT: Duration = Duration::from_mins(3);

impl Search {
    /// Looks at the host.
    ///
    /// # Errors
    /// If a program or PyTorch is missing. No devices are no error: `Err` inside says why there are none.
    pub(crate) fn run(self) -> anyhow::Result<Result<Host, String>> {
        for program in PROGRAMS {
            let path = self.programs.join(program);
            if !path.is_file() {
                bail!(
                    "{} is not there: build it, or name its folder with --programs",
                    path.display()
                );
            }
        }
        fs::write(self.work.join("probe.py"), PROBE).context("write to the work folder")?;
        let choice: DeviceChoice = self.backend.name().parse().expect("a known choice");
        let devices = match choice.discover(&ProfileTable::default()) {
            Ok(devices) if devices.is_empty() => {
                return Ok(Err("the driver knows no GPU".to_owned()));
            }
            Ok(devices) => devices,
            Err(e) => return Ok(Err(e.to_string())),
        };
        let mut host = Host {
            backend: self.backend,
            devices,
            quick: self.quick,
            torch: Torch {
                version: String::new(),
                torchvision: None,
                transformers: None,
                cuda: None,
                cudnn: None,
                gpus: 0,
            },
            report: self.report,
            programs: self.programs,
            python: self.python,
            work: self.work,
            deadline: now() + self.time,
            mps_takes_no_clients: OnceLock::new(),
        };
        host.torch = host
            .probe(&["facts"], &[])
            .context("ask PyTorch (another Python is named with --python)")?;
        if host.backend == Backend::Nvidia && host.torch.gpus == 0 {
            return Ok(Err(format!(
                "PyTorch {} does not find the GPU that the driver knows",
                host.torch.version
            )));
        }
        Ok(Ok(host))
    }
}

impl Host {
    /// A program of Packhorse.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// A script of ours with this host's Python.
    pub(crate) fn script(&self, script: &Path) -> Command {
        let mut python = Command::new(&self.python);
        python
            .arg("-Wignore")
            .arg(script)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }

    /// Asks PyTorch; see `python/probe.py`.
    pub(crate) fn probe<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> anyhow::Result<T> {
        let mut probe = self.script(&self.work.join("probe.py"));
        probe.args(arguments).envs(environment.iter().cloned());
        let printed = Running::start("probe", &mut probe, &self.work)?.finish(PROBE_LIMIT)?;
        serde_json::from_str(&printed)
            .with_context(|| format!("read what probe.py printed: {printed}"))
    }

    /// A folder of this name for a part's files, new and empty.
    pub(crate) fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.work.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }

    /// Where models are kept, also from one run to the next if the work folder is.
    pub(crate) fn models_folder(&self) -> PathBuf {
        let kind = if self.quick { "tiny" } else { "models" };
        self.work.join(format!("{kind}-{}", self.torch_device()))
    }

    /// As PyTorch names it.
    pub(crate) fn torch_device(&self) -> &'static str {
        match self.backend {
            Backend::Nvidia => "cuda",
            Backend::Cpu => "cpu",
        }
    }

    /// What shows a program the first device alone.
    pub(crate) fn first_device(&self) -> Vec<(String, String)> {
        match self.backend {
            Backend::Nvidia => vec![(
                "CUDA_VISIBLE_DEVICES".to_owned(),
                self.devices[0].name.clone(),
            )],
            Backend::Cpu => Vec::new(),
        }
    }

    /// Threads that a batch may use: a GPU needs one that feeds it.
    pub(crate) fn threads(&self) -> u32 {
        match self.backend {
            Backend::Nvidia => 1,
            Backend::Cpu => self.devices[0].multiprocessors.unwrap_or(1),
        }
    }

    /// How an agent has its workers' batches follow each other.
    pub(crate) fn pipeline(&self) -> PipelineSettings {
        PipelineSettings {
            streams: self.backend == Backend::Nvidia,
            ..PipelineSettings::default()
        }
    }

    /// What a worker of our own on the first device is started with.
    pub(crate) fn worker_environment(&self) -> Vec<(String, String)> {
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        let mut environment: Vec<_> = worker_environment(self.threads())
            .into_iter()
            .map(named)
            .collect();
        environment.extend(self.first_device());
        environment
    }

    /// A target for a speed, where speeds are judged: on GPUs, with models of full size.
    pub(crate) fn judged(&self, target: Target) -> Option<Target> {
        (self.backend == Backend::Nvidia && !self.quick).then_some(target)
    }

    /// Whether there is MPS, and CUDA does not start or go through it.
    pub(crate) fn mps_takes_no_clients(&self) -> bool {
        let look = || mps_daemon::find().is_ok() && !matches!(MpsDaemon::start(self), Ok(Ok(_)));
        *self
            .mps_takes_no_clients
            .get_or_init(|| self.backend == Backend::Nvidia && look())
    }

    /// Whether the time for everything is over.
    pub(crate) fn is_out_of_time(&self) -> bool {
        now() >= self.deadline
    }
}
