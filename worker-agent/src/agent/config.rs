//! How an agent is configured: flags and environment variables, parsed once into [`Settings`].

use std::{
    ffi::OsString,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Parser, ValueEnum, value_parser};
use packhorse_cluster::{IdError, NodeName, ProfileError, ProfileTable};
use reqwest::Url;

use super::pipeline::PipelineOptions;
use crate::devices::DeviceChoice;

const EXAMPLES: &str = "\
Examples:
  packhorse-agent
      Offers this machine's GPUs, or its CPU, to the gateway on this machine.
  packhorse-agent --devices simulated:V100-SXM2-16GB:4 --profiles v100.csv
      Offers four simulated GPUs whose workers take as long as the profiles say.
  packhorse-agent --gateway http://10.0.0.1:8081 --token-file /etc/packhorse/agent-token \\
      --listen-address 10.0.0.2 --link-secret-file /etc/packhorse/link-secret
      Works for a gateway on another machine.";

/// The Packhorse agent: runs on this machine what the gateway wants here.
#[derive(Clone, Debug, Parser)]
#[command(name = "packhorse-agent", version, after_help = EXAMPLES)]
pub struct Options {
    /// The gateway's admin address
    #[arg(
        long,
        env = "PACKHORSE_GATEWAY",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    pub gateway: Url,

    /// Folder for model files and workers [default: $XDG_DATA_HOME/packhorse-agent or ~/.local/share/packhorse-agent]
    #[arg(long, env = "PACKHORSE_AGENT_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// File with the agents' bearer token [default: agent-token in the default state folder of a gateway on this machine]
    #[arg(long, env = "PACKHORSE_AGENT_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Name of this node [default: the host's name]
    #[arg(long, env = "PACKHORSE_NODE", value_name = "NAME")]
    pub node: Option<NodeName>,

    /// Devices to offer: auto (GPUs, else the CPU), cpu, nvidia or simulated:KIND:COUNT; several separated by commas
    #[arg(
        long,
        env = "PACKHORSE_DEVICES",
        value_name = "DEVICES",
        default_value = "auto"
    )]
    pub devices: DeviceChoice,

    /// Profiles (CSV) that simulated devices follow
    #[arg(long, env = "PACKHORSE_PROFILES", value_name = "FILE")]
    pub profiles: Option<PathBuf>,

    /// The worker program [default: packhorse-worker beside this program]
    #[arg(long, env = "PACKHORSE_WORKER", value_name = "PATH")]
    pub worker: Option<PathBuf>,

    /// Whether replicas share GPUs through MPS, with a daemon of the agent's for each; without, they take turns, unless a daemon
    /// that the environment names runs already
    #[arg(long, env = "PACKHORSE_MPS", value_enum, default_value_t = MpsMode::Auto)]
    pub mps: MpsMode,

    /// The program that is MPS' control daemon and talks to it
    #[arg(
        long,
        env = "PACKHORSE_MPS_CONTROL",
        value_name = "PATH",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub mps_control: PathBuf,

    /// How workers pipeline.
    #[command(flatten)]
    pub pipeline: PipelineOptions,

    /// Address on which workers listen for the gateway; one that other machines can reach needs --link-secret-file
    #[arg(
        long,
        env = "PACKHORSE_LISTEN_ADDRESS",
        value_name = "IP",
        default_value = "127.0.0.1"
    )]
    pub listen_address: IpAddr,

    /// File with the secret that gateway and workers prove to each other
    #[arg(long, env = "PACKHORSE_LINK_SECRET_FILE", value_name = "FILE")]
    pub link_secret_file: Option<PathBuf>,

    /// Milliseconds in the module after which a batch counts as hung and its worker is started again
    #[arg(long, env = "PACKHORSE_BATCH_LIMIT_MS", value_name = "MS", default_value_t = 10_000,
        value_parser = value_parser!(u64).range(1..=600_000))]
    pub batch_limit_ms: u64,

    /// Stop all workers when the agent is stopped, instead of leaving them for the next one
    #[arg(long, env = "PACKHORSE_STOP_WORKERS_ON_EXIT")]
    pub stop_workers_on_exit: bool,

    /// How the log is written to standard error
    #[arg(long, env = "PACKHORSE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What is logged: a level, or target=level, comma-separated
    #[arg(
        long,
        env = "PACKHORSE_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,

    /// Where data of this user lives by the conventions of the desktop.
    #[arg(long, env = "XDG_DATA_HOME", hide = true)]
    data_home: Option<OsString>,

    /// The user's home folder.
    #[arg(long, env = "HOME", hide = true)]
    home: Option<PathBuf>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Whether replicas share GPUs through MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MpsMode {
    /// Where it is to be had.
    Auto,
    /// The agent starts no daemon.
    Off,
}

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gateway's admin listener.
    pub gateway: Url,
    /// The folder for everything that is kept.
    pub state_dir: PathBuf,
    /// The agents' token.
    pub token_file: PathBuf,
    /// The node's name.
    pub node: NodeName,
    /// The devices to offer.
    pub devices: DeviceChoice,
    /// What simulated devices follow.
    pub profiles: ProfileTable,
    /// The worker program.
    pub worker: PathBuf,
    /// Whether replicas share GPUs through MPS.
    pub mps: MpsMode,
    /// MPS' control program.
    pub mps_control: PathBuf,
    /// How workers pipeline.
    pub pipeline: PipelineOptions,
    /// Where workers listen.
    pub listen_address: IpAddr,
    /// The secret shared with the gateway.
    pub link_secret_file: Option<PathBuf>,
    /// After this long in the module a batch counts as hung.
    pub batch_limit: Duration,
    /// Whether workers end with the agent.
    pub stop_workers_on_exit: bool,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither a folder nor a home is known.
    #[error("--{0}: give a path, for there is neither XDG_DATA_HOME nor HOME to find one")]
    NoHome(&'static str),
    /// Only plain HTTP is built in.
    #[error("--gateway: {0} is no http:// address")]
    NotHttp(Url),
    /// Workers would answer whoever reaches them.
    #[error(
        "--listen-address: {0} can be reached from other machines; give the secret that protects workers with \
         --link-secret-file, or use a loopback address"
    )]
    OpenLink(IpAddr),
    /// The host has no name that a node may have.
    #[error("--node: the host's name will not do ({0}); give another")]
    Node(#[source] IdError),
    /// A file that a flag names cannot be read.
    #[error("--{flag}: {}: {source}", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The file with the profiles holds something else.
    #[error("--profiles: {}: {source}", path.display())]
    Profiles {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: ProfileError,
    },
}

impl Options {
    /// Checks what single flags cannot say, reads what they name, and gives everything its type.
    ///
    /// # Errors
    /// If flags do not go together, or name what is not there.
    pub fn settings(self) -> Result<Settings, ConfigError> {
        if self.gateway.scheme() != "http" {
            return Err(ConfigError::NotHttp(self.gateway));
        }
        if !self.listen_address.is_loopback() && self.link_secret_file.is_none() {
            return Err(ConfigError::OpenLink(self.listen_address));
        }
        let data_home = self
            .data_home
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(self.home?.join(".local/share")));
        let default = |flag, path: &str| {
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
        readable("token-file", &token_file)?;
        let link_secret_file = self
            .link_secret_file
            .map(|path| readable("link-secret-file", &path))
            .transpose()?;
        let worker = match self.worker {
            Some(path) => path,
            None => beside_this_program("packhorse-worker")?,
        };
        Ok(Settings {
            state_dir,
            token_file,
            node: self.node.map_or_else(host_name, Ok)?,
            devices: self.devices,
            profiles: self
                .profiles
                .as_deref()
                .map_or(Ok(ProfileTable::default()), read_profiles)?,
            worker: readable("worker", &worker)?,
            mps: self.mps,
            mps_control: self.mps_control,
            pipeline: self.pipeline,
            listen_address: self.listen_address,
            link_secret_file,
            batch_limit: Duration::from_millis(self.batch_limit_ms),
            stop_workers_on_exit: self.stop_workers_on_exit,
            gateway: self.gateway,
        })
    }
}

/// The absolute path of a file that can be opened: found missing now rather than by a worker later.
fn readable(flag: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    let error = |source| ConfigError::File {
        flag,
        path: path.to_owned(),
        source,
    };
    fs::File::open(path).map_err(error)?;
    fs::canonicalize(path).map_err(error)
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
        let error = settings(&["--gateway", "https://host"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--gateway: https://host/ is no http:// address"
        );
    }
}
