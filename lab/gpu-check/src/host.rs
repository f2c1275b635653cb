//! The checked host: its programs, its Python, its devices, and the time limit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
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
    process::{RunningProgram, now},
    report::Target,
};

/// The devices that models run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The GPUs that the NVIDIA driver reports.
    Nvidia,
    /// The CPU, as a test of the check itself.
    Cpu,
}

impl Backend {
    /// Returns the name for the agent's `--devices`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Cpu => "cpu",
        }
    }
}

/// The versions of PyTorch and its libraries, and the GPUs that it finds.
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

/// The checked host.
pub(crate) struct Host {
    pub(crate) backend: Backend,
    /// The devices, at least one.
    pub(crate) devices: Vec<Device>,
    /// True for small models and short runs, whose speeds have no target.
    pub(crate) quick: bool,
    pub(crate) torch: Torch,
    /// The file of the report. Other result files are named after it.
    pub(crate) report: PathBuf,
    programs: PathBuf,
    python: PathBuf,
    work: PathBuf,
    deadline: Instant,
}

/// The options from which the host is set up.
pub(crate) struct HostOptions {
    pub(crate) backend: Backend,
    pub(crate) quick: bool,
    pub(crate) report: PathBuf,
    pub(crate) programs: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) time: Duration,
}

/// The environment variable that keeps NVIDIA's libraries from rounding FP32 to the 10 bits of TF32, for comparisons: in deep networks
/// the rounding adds up to some hundredths.
pub(crate) const FP32_ONLY: (&str, &str) = ("NVIDIA_TF32_OVERRIDE", "0");
const PROBE: &str = include_str!("../python/probe.py");
const PROGRAMS: [&str; 4] = [
    "packhorse-lab",
    "packhorse-gateway",
    "packhorse-agent",
    "packhorse-worker",
];
/// The time limit of a probe: importing PyTorch alone can take half a minute on a cold disk.
pub(crate) const PROBE_LIMIT: Duration = Duration::from_mins(3);

impl HostOptions {
    /// Finds the host's programs, devices and PyTorch. The inner error is the reason why there is no usable device.
    ///
    /// # Errors
    /// If a program or PyTorch is missing.
    pub(crate) fn find_host(self) -> anyhow::Result<Result<Host, String>> {
        for program in PROGRAMS {
            let path = self.programs.join(program);
            if !path.is_file() {
                bail!(
                    "{} does not exist: build it, or give its folder with --programs",
                    path.display()
                );
            }
        }
        fs::write(self.work.join("probe.py"), PROBE).context("write to the work folder")?;
        let choice: DeviceChoice = self.backend.name().parse().expect("a known choice");
        let devices = match choice.discover(&ProfileTable::default()) {
            Ok(devices) if devices.is_empty() => {
                return Ok(Err("the NVIDIA driver reports no GPU".to_owned()));
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
        };
        host.torch = host
            .run_probe(&["facts"], &[])
            .context("run PyTorch (give another Python with --python)")?;
        if host.backend == Backend::Nvidia && host.torch.gpus == 0 {
            return Ok(Err(format!(
                "PyTorch {} does not find the GPU that the NVIDIA driver reports",
                host.torch.version
            )));
        }
        Ok(Ok(host))
    }
}

impl Host {
    /// Returns the command of a program of Packhorse.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// Returns the command that runs a script with this host's Python.
    pub(crate) fn script(&self, script: &Path) -> Command {
        let mut python = Command::new(&self.python);
        python
            .arg("-Wignore")
            .arg(script)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }

    /// Runs `python/probe.py` and returns its result.
    pub(crate) fn run_probe<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> anyhow::Result<T> {
        let mut probe = self.script(&self.work.join("probe.py"));
        probe.args(arguments).envs(environment.iter().cloned());
        let printed =
            RunningProgram::start("probe", &mut probe, &self.work)?.finish(PROBE_LIMIT)?;
        serde_json::from_str(&printed)
            .with_context(|| format!("read what probe.py printed: {printed}"))
    }

    /// Creates an empty folder for a part's files.
    pub(crate) fn create_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.work.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the folder of the models, which later runs with the same work folder use again.
    pub(crate) fn models_folder(&self) -> PathBuf {
        let kind = if self.quick { "tiny" } else { "models" };
        self.work.join(format!("{kind}-{}", self.torch_device()))
    }

    /// Returns the name of the device in PyTorch.
    pub(crate) fn torch_device(&self) -> &'static str {
        match self.backend {
            Backend::Nvidia => "cuda",
            Backend::Cpu => "cpu",
        }
    }

    /// Returns the environment in which a program sees only the first device.
    pub(crate) fn first_device(&self) -> Vec<(String, String)> {
        match self.backend {
            Backend::Nvidia => vec![(
                "CUDA_VISIBLE_DEVICES".to_owned(),
                self.devices[0].name.clone(),
            )],
            Backend::Cpu => Vec::new(),
        }
    }

    /// Returns the number of threads that a batch may use: one on a GPU, which launches the kernels.
    pub(crate) fn threads(&self) -> u32 {
        match self.backend {
            Backend::Nvidia => 1,
            Backend::Cpu => self.devices[0].multiprocessors.unwrap_or(1),
        }
    }

    /// Returns the pipeline settings that an agent gives its workers.
    pub(crate) fn pipeline(&self) -> PipelineSettings {
        let is_gpu = self.backend == Backend::Nvidia;
        PipelineSettings {
            streams: is_gpu,
            graphs: is_gpu,
            ..PipelineSettings::default()
        }
    }

    /// Returns the environment of a worker on the first device that this program starts itself.
    pub(crate) fn worker_environment(&self) -> Vec<(String, String)> {
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        let mut environment: Vec<_> = worker_environment(self.threads())
            .into_iter()
            .map(named)
            .collect();
        environment.extend(self.first_device());
        environment
    }

    /// Returns the target of a speed, which exists only on GPUs with models of full size.
    pub(crate) fn speed_target(&self, target: Target) -> Option<Target> {
        (self.backend == Backend::Nvidia && !self.quick).then_some(target)
    }

    /// Returns the time until the time limit of the whole check.
    pub(crate) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(now())
    }

    /// Returns true if the time limit of the whole check is over.
    pub(crate) fn is_out_of_time(&self) -> bool {
        now() >= self.deadline
    }
}
