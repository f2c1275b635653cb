//! The agent's configuration: flags and environment variables, parsed once into [`Settings`].

use std::{
    fs, io,
    net::{IpAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Parser, ValueEnum, value_parser};
use packhorse_cluster::{ByteCount, IdError, NodeName, ProfileError, ProfileTable};
use packhorse_service::{
    DataHome, Libtorch, LibtorchBuild, LogOptions, SupervisorOptions, SystemUser,
};
use packhorse_tls::{
    Authorities, LinkTls, LinkTlsError, LinkTlsOptions, ServerFiles, TlsFileError,
};
use packhorse_worker_agent::devices::DeviceChoice;
use reqwest::Url;

use crate::{
    pipeline_options::{Confined, PipelineOptions},
    worker_user::WorkerUserChoice,
};

const EXAMPLES: &str = "\
Examples:
  packhorse-agent
      Offers this machine's GPUs, or its CPU if it has none, to the gateway on this machine.
  packhorse-agent --devices simulated:V100-SXM2-16GB:4 --profiles v100.csv
      Offers four simulated GPUs whose workers take as long as the profiles say.
  packhorse-agent --devices cpu --device-memory cpu0=4GiB
      Offers the CPU with 4 GiB of memory, below which the weights stay of however many models.
  packhorse-agent --gateway http://10.0.0.1:8081 --token-file /etc/packhorse/agent-token \\
      --listen-address 10.0.0.2 --link-secret-file /etc/packhorse/link-secret
      Works for a gateway on another machine.
  packhorse-agent --gateway https://gateway.example.com:8081 --ca-file /etc/packhorse/ca.pem \\
      --token-file /etc/packhorse/agent-token
      The same over HTTPS, with a gateway whose certificate is of a private authority.";

/// The Packhorse agent: runs the replicas that the gateway places on this machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "packhorse-agent", version, after_help = EXAMPLES)]
pub(super) struct Options {
    /// URL of the gateway's admin listener
    #[arg(
        long,
        env = "PACKHORSE_GATEWAY",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    pub(super) gateway: Url,

    /// File with the certificates of the authorities that sign the gateway's, for an https URL [default: the authorities that this
    /// machine trusts]
    #[arg(long, env = "PACKHORSE_CA_FILE", value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,

    /// Folder for model files and workers [default: $XDG_DATA_HOME/packhorse-agent or ~/.local/share/packhorse-agent]
    #[arg(long, env = "PACKHORSE_AGENT_STATE_DIR", value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,

    /// File with the agents' bearer token [default: agent-token in the default state folder of the gateway]
    #[arg(long, env = "PACKHORSE_AGENT_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// Name of this node [default: the host's name]
    #[arg(long, env = "PACKHORSE_NODE", value_name = "NAME")]
    pub(super) node: Option<NodeName>,

    /// Devices to offer, separated by commas: auto (GPUs, or the CPU if there are none), cpu, cpu:THREADS, nvidia, simulated:KIND:COUNT
    #[arg(
        long,
        env = "PACKHORSE_DEVICES",
        value_name = "DEVICES",
        default_value = "auto"
    )]
    pub(super) devices: DeviceChoice,

    /// CSV file with the profiles that simulated devices follow
    #[arg(long, env = "PACKHORSE_PROFILES", value_name = "FILE")]
    pub(super) profiles: Option<PathBuf>,

    /// The worker program [default: packhorse-worker in the folder of this program, or packhorse-worker-cuda there if libtorch is a
    /// build for GPUs]
    #[arg(long, env = "PACKHORSE_WORKER", value_name = "PATH")]
    pub(super) worker: Option<PathBuf>,

    /// Folder with libtorch for the workers [default: that of packhorse setup, else where the worker was linked or the system has it]
    #[arg(long, env = "PACKHORSE_LIBTORCH", value_name = "DIR")]
    pub(super) libtorch: Option<PathBuf>,

    /// Memory of devices, separated by commas, such as cpu0=4GiB, within which the process that models of a CPU share keeps their weights [default: all that
    /// this process may use]
    #[arg(
        long,
        env = "PACKHORSE_DEVICE_MEMORY",
        value_name = "NAME=SIZE",
        value_delimiter = ',',
        value_parser = parse_device_memory
    )]
    pub(super) device_memory: Vec<(String, ByteCount)>,

    /// Memory, such as 4GiB, for the weights that the process which models of a CPU share keeps ready beside the device's memory; beyond it the models that
    /// were used least recently leave memory, and are loaded from their files when they are asked for [default: no limit: weights lie in files' pages, which
    /// the kernel takes back by itself]
    #[arg(long, env = "PACKHORSE_HOST_MEMORY", value_name = "SIZE")]
    pub(super) host_memory: Option<ByteCount>,

    /// Models of a CPU up to which each has a worker process of its own; where there are more, they share one, which has the weights in memory that are asked
    /// for, and computes one batch at a time [default: 8, or the threads of the CPU if they are more]
    #[arg(long, env = "PACKHORSE_OWN_WORKERS", value_name = "MODELS")]
    pub(super) own_workers: Option<u32>,

    /// Has the models of a GPU share one worker process where its memory does not suffice for the weights of all, as those of a CPU do. No GPU has run this yet
    #[arg(long, env = "PACKHORSE_GPU_POOLS")]
    pub(super) gpu_pools: bool,

    /// Sharing of GPUs through MPS: auto starts a daemon for each GPU; off starts none, so that replicas time-slice a GPU unless the
    /// environment names a running daemon
    #[arg(long, env = "PACKHORSE_MPS", value_enum, default_value_t = MpsMode::Auto)]
    pub(super) mps: MpsMode,

    /// The program of the MPS control daemon
    #[arg(
        long,
        env = "PACKHORSE_MPS_CONTROL",
        value_name = "PATH",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub(super) mps_control: PathBuf,

    #[command(flatten)]
    pub(super) pipeline: PipelineOptions,

    /// IP address of this machine, or a name of it, on which workers listen for the gateway; an address that other machines can reach
    /// requires --link-secret-file
    #[arg(
        long,
        env = "PACKHORSE_LISTEN_ADDRESS",
        value_name = "ADDRESS",
        default_value = "127.0.0.1",
        value_parser = resolve
    )]
    pub(super) listen_address: IpAddr,

    /// File with the secret shared by the gateway and the workers
    #[arg(long, env = "PACKHORSE_LINK_SECRET_FILE", value_name = "FILE")]
    pub(super) link_secret_file: Option<PathBuf>,

    #[command(flatten)]
    pub(super) link_tls: LinkTlsOptions,

    /// Time limit of a batch in the module, in milliseconds; a worker that exceeds it is restarted
    #[arg(long, env = "PACKHORSE_BATCH_LIMIT_MS", value_name = "MS", default_value_t = 10_000,
        value_parser = value_parser!(u64).range(1..=600_000))]
    pub(super) batch_limit_ms: u64,

    /// Confine workers to their own files, and to connections that others make, by the kernel's Landlock: those without a GPU (no GPU has run a
    /// confined worker yet), all, or none, for libraries in unusual places
    #[arg(
        long,
        env = "PACKHORSE_CONFINE_WORKERS",
        value_enum,
        value_name = "WHICH",
        default_value = "cpu"
    )]
    pub(super) confine_workers: Confined,

    /// User of the workers and the MPS daemons. The agent must be root; its own name leaves them as its user [default: packhorse-worker if the agent
    /// is root and this system has it]
    #[arg(long, env = "PACKHORSE_WORKER_USER", value_name = "NAME|UID")]
    pub(super) worker_user: Option<SystemUser>,

    /// Stop all workers when the agent stops, instead of leaving them to the next agent
    #[arg(long, env = "PACKHORSE_STOP_WORKERS_ON_EXIT")]
    pub(super) stop_workers_on_exit: bool,

    #[command(flatten)]
    pub(super) log: LogOptions,

    #[command(flatten)]
    pub(super) data_home: DataHome,

    #[command(flatten)]
    pub(super) supervisor: SupervisorOptions,
}

/// The use of MPS on this node's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MpsMode {
    /// Start a daemon for each GPU where MPS is installed
    Auto,
    /// Start no daemon
    Off,
}

/// The checked configuration of an agent.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The URL of the gateway's admin listener.
    pub(super) gateway: Url,
    /// The authorities that the gateway's certificate must be of.
    pub(super) authorities: Authorities,
    /// The agent's state folder.
    pub(super) state_dir: PathBuf,
    /// The file with the agents' bearer token.
    pub(super) token_file: PathBuf,
    /// The node's name.
    pub(super) node: NodeName,
    /// The devices to offer.
    pub(super) devices: DeviceChoice,
    /// The profiles that simulated devices follow.
    pub(super) profiles: ProfileTable,
    /// The worker program.
    pub(super) worker: PathBuf,
    /// The workers' libtorch; `None` if the loader finds it by itself.
    pub(super) libtorch: Option<Libtorch>,
    /// The memory of devices, by their names, where it is less than they have.
    pub(super) device_memory: Vec<(String, ByteCount)>,
    /// The memory for weights that are not on a device; `None` for as much as there is.
    pub(super) host_memory: Option<ByteCount>,
    /// The number of models of a CPU up to which each has a process of its own, if it is given.
    pub(super) own_workers: Option<u32>,
    /// True if models of a GPU may share a worker process.
    pub(super) gpu_pools: bool,
    /// The use of MPS.
    pub(super) mps: MpsMode,
    /// The program of the MPS control daemon.
    pub(super) mps_control: PathBuf,
    /// The workers' pipelines.
    pub(super) pipeline: PipelineOptions,
    /// The address on which workers listen.
    pub(super) listen_address: IpAddr,
    /// The file with the secret shared with the gateway.
    pub(super) link_secret_file: Option<PathBuf>,
    /// TLS of the workers' connections; `None` without.
    pub(super) link_tls: Option<LinkTls<ServerFiles>>,
    /// The time limit of a batch in the module.
    pub(super) batch_limit: Duration,
    /// The workers that are confined to their own files.
    pub(super) confine_workers: Confined,
    /// The user of the workers.
    pub(super) worker_user: WorkerUserChoice,
    /// If true, workers end with the agent.
    pub(super) stop_workers_on_exit: bool,
}

/// A refused configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    /// There is no default for a path, because the environment names neither a data folder nor a home.
    #[error("--{0}: give a path, because neither XDG_DATA_HOME nor HOME is set")]
    NoHome(&'static str),
    /// The URL has another scheme than HTTP and HTTPS.
    #[error("--gateway: {0} is not an http:// or https:// URL")]
    NotHttp(Url),
    /// The workers would answer anyone who can reach them.
    #[error(
        "--listen-address: {0} can be reached from other machines; give the secret that protects workers with \
         --link-secret-file, or use a loopback address"
    )]
    OpenLink(IpAddr),
    /// The folder that shall have libtorch has none.
    #[error("--libtorch: {} has no lib/libtorch_cpu.so", .0.display())]
    NoLibtorch(PathBuf),
    /// The flags of TLS between gateway and workers do not go together.
    #[error(transparent)]
    LinkTls(#[from] LinkTlsError),
    /// A file of TLS between gateway and workers cannot be used.
    #[error("--link-tls: {0}")]
    LinkTlsFile(#[from] TlsFileError),
    /// The host's name cannot be the name of a node.
    #[error("--node: the host's name is not a valid node name ({0}); give another name")]
    Node(#[source] IdError),
    /// A file cannot be read.
    #[error("--{flag}: {}: {source}", path.display())]
    File {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file with the profiles is malformed.
    #[error("--profiles: {}: {source}", path.display())]
    Profiles {
        /// The file.
        path: PathBuf,
        /// The position and the reason.
        #[source]
        source: ProfileError,
    },
}

impl Options {
    /// Checks combinations of flags, reads the files that they name, and converts the values.
    ///
    /// # Errors
    /// If flags contradict each other, or a file cannot be read.
    pub(super) fn settings(self) -> Result<Settings, ConfigError> {
        if !matches!(self.gateway.scheme(), "http" | "https") {
            return Err(ConfigError::NotHttp(self.gateway));
        }
        if !self.listen_address.is_loopback() && self.link_secret_file.is_none() {
            return Err(ConfigError::OpenLink(self.listen_address));
        }
        let data_home = self.data_home.path();
        let default = |flag, path: &str| -> Result<PathBuf, ConfigError> {
            let base = data_home.as_ref().ok_or(ConfigError::NoHome(flag))?;
            Ok(base.join(path))
        };
        let state_dir = match self.state_dir {
            Some(path) => path,
            None => default("state-dir", "packhorse-agent")?,
        };
        let token_file = match self.token_file {
            Some(path) => path,
            None => default("token-file", "packhorse/agent-token")?,
        };
        check_readable("token-file", &token_file)?;
        let link_secret_file = self
            .link_secret_file
            .map(|path| check_readable("link-secret-file", &path))
            .transpose()?;
        let libtorch = match self.libtorch {
            Some(path) => Some(Libtorch::find(&path).ok_or(ConfigError::NoLibtorch(path))?),
            None => data_home.as_deref().and_then(Libtorch::installed),
        };
        let link_tls = self.link_tls.of_workers()?;
        if let Some(tls) = &link_tls {
            // Reported now instead of by a worker later.
            tls.open_server()?;
        }
        let worker = match self.worker {
            Some(path) => path,
            None => default_worker(libtorch.as_ref())?,
        };
        Ok(Settings {
            authorities: Authorities::from_flag(self.ca_file.as_deref()),
            state_dir,
            token_file,
            node: self.node.map_or_else(host_name, Ok)?,
            devices: self.devices,
            profiles: self
                .profiles
                .as_deref()
                .map_or(Ok(ProfileTable::default()), read_profiles)?,
            worker: check_readable("worker", &worker)?,
            libtorch,
            device_memory: self.device_memory,
            host_memory: self.host_memory,
            own_workers: self.own_workers,
            gpu_pools: self.gpu_pools,
            mps: self.mps,
            mps_control: self.mps_control,
            pipeline: self.pipeline,
            listen_address: self.listen_address,
            link_secret_file,
            link_tls,
            batch_limit: Duration::from_millis(self.batch_limit_ms),
            confine_workers: self.confine_workers,
            worker_user: WorkerUserChoice::new(self.worker_user),
            stop_workers_on_exit: self.stop_workers_on_exit,
            gateway: self.gateway,
        })
    }
}

/// Returns the absolute path of a file that can be opened. The check reports a missing file now instead of in a worker later.
fn check_readable(flag: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    let error = |source| ConfigError::File {
        flag,
        path: path.to_owned(),
        source,
    };
    fs::File::open(path).map_err(error)?;
    fs::canonicalize(path).map_err(error)
}

/// Returns the worker in the folder of this program. A release has two, because a worker loads what it is linked with: the one for GPUs
/// works only with libtorch's build for them.
fn default_worker(libtorch: Option<&Libtorch>) -> Result<PathBuf, ConfigError> {
    let for_gpus = beside_this_program("packhorse-worker-cuda")?;
    let has_gpus = libtorch.is_some_and(|libtorch| libtorch.build() == LibtorchBuild::Cuda);
    if has_gpus && for_gpus.is_file() {
        return Ok(for_gpus);
    }
    beside_this_program("packhorse-worker")
}

fn beside_this_program(name: &str) -> Result<PathBuf, ConfigError> {
    let this = std::env::current_exe().map_err(|source| ConfigError::File {
        flag: "worker",
        path: PathBuf::from(name),
        source,
    })?;
    Ok(this.with_file_name(name))
}

fn host_name() -> Result<NodeName, ConfigError> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().parse().map_err(ConfigError::Node)
}

fn read_profiles(path: &Path) -> Result<ProfileTable, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::File {
        flag: "profiles",
        path: path.to_owned(),
        source,
    })?;
    ProfileTable::from_csv(&text).map_err(|source| ConfigError::Profiles {
        path: path.to_owned(),
        source,
    })
}

/// Reads NAME=SIZE.
fn parse_device_memory(text: &str) -> Result<(String, ByteCount), String> {
    let parts = text.split_once('=');
    let (name, size) = parts.ok_or("expected NAME=SIZE, such as cpu0=4GiB")?;
    let size = size.parse::<ByteCount>().map_err(|e| e.to_string())?;
    Ok((name.to_owned(), size))
}

/// Returns an IP address, or the first one that a name has now.
fn resolve(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = (text, 0).to_socket_addrs();
    let found =
        found.map_err(|e| format!("it is no IP address, and no name that can be resolved: {e}"))?;
    let first = found.map(|address| address.ip()).next();
    first.ok_or_else(|| "the name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, ConfigError> {
        let usual = [
            "packhorse-agent",
            "--worker",
            "/bin/true",
            "--data-home",
            "/d",
            "--home",
            "/h",
        ];
        let flags = usual.iter().chain(flags);
        Options::try_parse_from(flags).unwrap().settings()
    }

    #[test]
    fn a_worker_link_for_other_machines_needs_a_secret() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        let path = secret.path().to_str().unwrap();
        let open = [
            "--token-file",
            path,
            "--state-dir",
            "/s",
            "--listen-address",
            "0.0.0.0",
        ];
        assert!(matches!(settings(&open), Err(ConfigError::OpenLink(_))));
        let guarded = [&open[..], &["--link-secret-file", path]].concat();
        assert!(settings(&guarded).is_ok());
        let local = ["--token-file", path, "--listen-address", "::1"];
        assert_eq!(
            settings(&local).unwrap().state_dir,
            PathBuf::from("/d/packhorse-agent")
        );
    }

    #[test]
    fn a_missing_file_is_named_with_its_flag() {
        let error = settings(&[]).unwrap_err().to_string();
        assert!(
            error.starts_with("--token-file: /d/packhorse/agent-token: "),
            "{error}"
        );
        let error = settings(&["--token-file", "/dev/null", "--profiles", "/nowhere"]).unwrap_err();
        assert!(
            error.to_string().starts_with("--profiles: /nowhere: "),
            "{error}"
        );
        let error = settings(&["--gateway", "ftp://host"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--gateway: ftp://host/ is not an http:// or https:// URL"
        );
    }

    #[test]
    fn a_name_of_the_machine_is_resolved() {
        assert_eq!(resolve("10.0.0.7"), Ok("10.0.0.7".parse().unwrap()));
        assert!(resolve("localhost").unwrap().is_loopback());
        assert!(resolve("no name").is_err());
    }
}
