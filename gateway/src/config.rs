//! The configuration of a gateway: flags and environment variables, parsed once into [`Settings`].

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    thread::available_parallelism,
    time::Duration,
};

use clap::{
    ArgAction, Command, CommandFactory as _, FromArgMatches as _, Parser,
    builder::BoolishValueParser,
    error::{ContextKind, ContextValue},
    value_parser,
};
use packhorse_cluster::{ByteCount, Discipline, ModelSpec, UnknownDiscipline};
use packhorse_service::{DataHome, LogOptions, SupervisorOptions, SystemUser};
use packhorse_serving::ModelLimits;
use packhorse_tls::{
    Authorities, ClientFiles, Identity, LinkTls, LinkTlsError, LinkTlsOptions, ServerFiles,
};

use crate::{
    api::{
        inference::{Platform, Platforms, PlatformsError, VertexRoutes},
        web_policy::AllowedHost,
    },
    grafana::GrafanaUrl,
    ip_network::IpNetwork,
    store::StoreUrl,
    store_command::StoreCommand,
    telemetry::{Buckets, OtlpEndpoint, SampleRatio, TraceSettings},
};

const EXAMPLES: &str = "\
Examples:
  packhorse-gateway
      Listens on 127.0.0.1:8080 (inference), 127.0.0.1:8001 (the same over gRPC) and 127.0.0.1:8081 (admin), with its state in
      ~/.local/share/packhorse.
  packhorse-gateway --state-dir /var/lib/packhorse --listen 0.0.0.0:8080
      Inference from all machines, admin from this machine only.
  packhorse-gateway --admin-listen 0.0.0.0:8081 --admin-token-file /etc/packhorse/admin-token \\
      --link-secret-file /etc/packhorse/link-secret
      Agents and admins on other machines too.
  packhorse-gateway --listen 0.0.0.0:8443 --tls-cert /etc/packhorse/gateway.pem --tls-key /etc/packhorse/gateway.key
      HTTPS on both listeners. The files are read again when they change, and on SIGHUP.";

/// The requests for which an API key is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum InferenceKeys {
    /// All, where the inference or the gRPC listener is not on loopback.
    Auto,
    /// All.
    Required,
    /// None.
    Off,
}

/// The address of the gRPC listener, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcListen {
    /// There is none.
    Off,
    /// It listens there, or the gateway does not start.
    At(SocketAddr),
    /// It listens there unless somebody else does: nobody asked for it.
    IfFree(SocketAddr),
}

/// The text is neither an address nor `off`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an IP address and a port, such as 127.0.0.1:8001, or off")]
pub struct InvalidGrpcListen;

impl FromStr for GrpcListen {
    type Err = InvalidGrpcListen;

    fn from_str(text: &str) -> Result<Self, InvalidGrpcListen> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| InvalidGrpcListen)
    }
}

impl GrpcListen {
    /// The port, unless another is given: that of Triton.
    const PORT: u16 = 8001;

    /// Returns the address where none is given.
    fn default_beside(listen: SocketAddr) -> Self {
        let port = if listen.port() == 0 { 0 } else { Self::PORT };
        Self::IfFree(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Returns the address, if there is a listener.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) | Self::IfFree(address) => Some(address),
        }
    }

    fn is_loopback(self) -> bool {
        self.address()
            .is_none_or(|address| address.ip().is_loopback())
    }
}

/// The commands that run no gateway.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum OfflineCommand {
    /// Work on databases while no gateway runs
    #[command(subcommand)]
    Store(StoreCommand),
}

/// The Packhorse gateway: answers inference requests and decides which model runs where.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "packhorse-gateway",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are flags of a command line"
)]
pub struct Options {
    /// The command in place of running a gateway.
    #[command(subcommand)]
    pub command: Option<OfflineCommand>,

    /// Folder for the database, model files and tokens [default: packhorse in the user's data folder, ~/.local/share]
    #[arg(long, env = "PACKHORSE_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Database: a file of SQLite, or a database of PostgreSQL; a password is better in the variable than on the command line [default: packhorse.db in
    /// the state folder]
    #[arg(
        long,
        env = "PACKHORSE_STORE",
        value_name = "sqlite:PATH|postgres://USER@HOST/DATABASE",
        hide_env_values = true
    )]
    pub store: Option<StoreUrl>,

    /// Address of the inference listener; port 0 chooses a free port
    #[arg(
        long,
        env = "PACKHORSE_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    pub listen: SocketAddr,

    /// Address of the listener for gRPC, which speaks the same protocol; port 0 chooses a free port, and off has none [default: 127.0.0.1:8001; a free
    /// port if that of --listen is 0]
    #[arg(long, env = "PACKHORSE_GRPC_LISTEN", value_name = "ADDRESS|off")]
    pub grpc_listen: Option<GrpcListen>,

    /// Address of the listener for admins and agents; other addresses than loopback require --admin-token-file
    #[arg(
        long,
        env = "PACKHORSE_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    pub admin_listen: SocketAddr,

    /// Threads that serve HTTP [default: one fewer than the machine has cores, at least 1, because the decisions have threads of their own]
    #[arg(
        long,
        env = "PACKHORSE_HTTP_THREADS",
        value_name = "N",
        value_parser = value_parser!(u16).range(1..=1024)
    )]
    pub http_threads: Option<u16>,

    /// Serving engines that decide side by side, each for models that share no device and no family with those of another one [default: a quarter of
    /// the machine's cores, at least 1 and at most 8]
    #[arg(
        long,
        env = "PACKHORSE_ENGINES",
        value_name = "N",
        value_parser = value_parser!(u8).range(1..=64)
    )]
    pub engines: Option<u8>,

    /// File with the certificate of the inference and the gRPC listener, in PEM form, followed by those that lead to its authority; the
    /// listeners then use TLS
    #[arg(
        long,
        env = "PACKHORSE_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert
    #[arg(
        long,
        env = "PACKHORSE_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,

    /// File with the certificate of the admin listener [default: that of --tls-cert]
    #[arg(
        long,
        env = "PACKHORSE_ADMIN_TLS_CERT",
        value_name = "FILE",
        requires = "admin_tls_key"
    )]
    pub admin_tls_cert: Option<PathBuf>,

    /// File with the private key of --admin-tls-cert [default: that of --tls-key]
    #[arg(
        long,
        env = "PACKHORSE_ADMIN_TLS_KEY",
        value_name = "FILE",
        requires = "admin_tls_cert"
    )]
    pub admin_tls_key: Option<PathBuf>,

    /// API keys for inference requests: required, off, or auto (required unless the inference and the gRPC listener are on loopback)
    #[arg(
        long,
        env = "PACKHORSE_INFERENCE_KEYS",
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub inference_keys: InferenceKeys,

    /// Host that clients may name besides localhost and IP addresses to a listener on loopback or without API keys, such as gateway.example.com,
    /// *.example.com or * for all, separated by commas; against web pages whose name leads to this machine
    #[arg(
        long,
        env = "PACKHORSE_ALLOWED_HOST",
        value_name = "HOST",
        value_delimiter = ','
    )]
    pub allowed_host: Vec<AllowedHost>,

    /// Allow clients on this host that run as the gateway's user to pass tensors by POSIX shared memory, as Triton does
    #[arg(long, env = "PACKHORSE_SYSTEM_SHARED_MEMORY")]
    pub system_shared_memory: bool,

    /// Platform whose contract the inference listener speaks, too: kserve-v1, sagemaker=MODEL or vertex=MODEL, where MODEL is NAME or NAME:VERSION,
    /// separated by commas
    #[arg(
        long,
        env = "PACKHORSE_PLATFORM",
        value_name = "PLATFORM",
        value_delimiter = ','
    )]
    pub platform: Vec<Platform>,

    /// Path by which Vertex AI asks whether the container is ready, with --platform vertex=MODEL
    #[arg(
        long,
        env = "AIP_HEALTH_ROUTE",
        value_name = "PATH",
        default_value_t = VertexRoutes::default().health
    )]
    pub vertex_health_route: String,

    /// Path of Vertex AI's requests, with --platform vertex=MODEL
    #[arg(
        long,
        env = "AIP_PREDICT_ROUTE",
        value_name = "PATH",
        default_value_t = VertexRoutes::default().predict
    )]
    pub vertex_predict_route: String,

    /// File with the admin's bearer token [default: admin-token in the state folder, created on the first start]
    #[arg(long, env = "PACKHORSE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// File with the agents' bearer token [default: agent-token in the state folder, created on the first start]
    #[arg(long, env = "PACKHORSE_AGENT_TOKEN_FILE", value_name = "FILE")]
    pub agent_token_file: Option<PathBuf>,

    /// File with the secret that gateway and workers prove to each other; required if workers are on other machines
    #[arg(long, env = "PACKHORSE_LINK_SECRET_FILE", value_name = "FILE")]
    pub link_secret_file: Option<PathBuf>,

    /// Share memory with workers on this host that run as the gateway's or the workers' user, or send their requests by TCP like those of
    /// others
    #[arg(
        long,
        env = "PACKHORSE_SHARED_MEMORY_LINKS",
        value_name = "on|off",
        default_value = "on",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true
    )]
    pub shared_memory_links: bool,

    /// User of the workers on this host, with which memory is shared, too [default: packhorse-worker if this system has it]
    #[arg(long, env = "PACKHORSE_WORKER_USER", value_name = "NAME|UID")]
    pub worker_user: Option<SystemUser>,

    /// The flags of TLS between gateway and workers.
    #[command(flatten)]
    pub link_tls: LinkTlsOptions,

    /// Networks on which workers may listen that are not at the address that their agent talks from, such as 10.1.0.0/16, separated
    /// by commas
    #[arg(
        long,
        env = "PACKHORSE_WORKER_NETWORKS",
        value_name = "NETWORKS",
        value_delimiter = ','
    )]
    pub worker_networks: Vec<IpNetwork>,

    /// Folder from which models may be registered by path; may be given more than once
    #[arg(
        long,
        env = "PACKHORSE_ARTIFACT_ROOT",
        value_name = "DIR",
        value_delimiter = ':'
    )]
    pub artifact_root: Vec<PathBuf>,

    /// Placement policy [default: the one last set over the API, else goodput]
    #[arg(long, env = "PACKHORSE_POLICY", value_name = "NAME")]
    pub policy: Option<String>,

    /// Dispatch discipline [default: the one last set over the API, else deadline]
    #[arg(long, env = "PACKHORSE_DISCIPLINE", value_name = "NAME", value_parser = live_discipline)]
    pub discipline: Option<Discipline>,

    /// Longest time that the discipline fixed-wait holds an open batch, in milliseconds; deadline ignores it
    #[arg(long, env = "PACKHORSE_MAX_BATCH_WAIT_MS", value_name = "MS", default_value_t = 100,
        value_parser = value_parser!(u64).range(0..=60_000))]
    pub max_batch_wait_ms: u64,

    /// Largest number of waiting requests of a model without a queue limit of its own; further ones are refused
    #[arg(long, env = "PACKHORSE_QUEUE_LIMIT", value_name = "COUNT", default_value_t = ModelLimits::DEFAULT_QUEUE_LIMIT as u64,
        value_parser = value_parser!(u64).range(1..=u64::from(ModelSpec::MAX_QUEUE_LIMIT)))]
    pub queue_limit: u64,

    /// Time after which a worker that has not answered a batch is disconnected, in milliseconds; its requests are sent to other
    /// workers or refused. It must be longer than the agents' --batch-limit-ms
    #[arg(long, env = "PACKHORSE_BATCH_LIMIT_MS", value_name = "MS", default_value_t = 15_000,
        value_parser = value_parser!(u64).range(100..=3_600_000))]
    pub batch_limit_ms: u64,

    /// Time without a renewal by its agent after which a node counts as lost, in milliseconds
    #[arg(long, env = "PACKHORSE_LEASE_MS", value_name = "MS", default_value_t = 5000,
        value_parser = value_parser!(u64).range(100..=600_000))]
    pub lease_ms: u64,

    /// Time after which the measurement of a model begins no further batch size, in milliseconds
    #[arg(long, env = "PACKHORSE_PROFILE_TIME_LIMIT_MS", value_name = "MS", default_value_t = 20_000,
        value_parser = value_parser!(u64).range(100..=3_600_000))]
    pub profile_time_limit_ms: u64,

    /// Serve models whose programs begin with the same operators on the same weights with one worker for each device. Then a failure of one
    /// ends the others, too; no GPU has run such a worker yet
    #[arg(
        long,
        env = "PACKHORSE_SHARED_BACKBONES",
        value_name = "on|off",
        default_value = "off",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true
    )]
    pub shared_backbones: bool,

    /// Time limit of a policy for one plan, in milliseconds; afterwards the fallback policy plans
    #[arg(long, env = "PACKHORSE_SOLVE_BUDGET_MS", value_name = "MS", default_value_t = 2000,
        value_parser = value_parser!(u64).range(10..=600_000))]
    pub solve_budget_ms: u64,

    /// Time from when a new node is asked for until its agent joins, in milliseconds; the metric of needed devices looks so far ahead
    #[arg(long, env = "PACKHORSE_NODE_START_MS", value_name = "MS", default_value_t = 60_000,
        value_parser = value_parser!(u64).range(0..=3_600_000))]
    pub node_start_ms: u64,

    /// Largest body of an inference request in bytes, before and after decompression; at most half of --payload-budget-bytes counts
    #[arg(
        long,
        env = "PACKHORSE_BODY_LIMIT_BYTES",
        value_name = "BYTES",
        default_value_t = 256 << 20
    )]
    pub body_limit_bytes: u64,

    /// Memory budget for all inference requests together, from a request's first byte to the last byte of its answer, in bytes; the
    /// requests of one client to one model hold at most half of it
    #[arg(
        long,
        env = "PACKHORSE_PAYLOAD_BUDGET_BYTES",
        value_name = "BYTES",
        default_value_t = 1 << 30
    )]
    pub payload_budget_bytes: u64,

    /// Memory for the answers of models with a cache (`cache` in their registration), in bytes, beside --payload-budget-bytes; 0 keeps none
    #[arg(
        long,
        env = "PACKHORSE_PREDICTION_CACHE_BYTES",
        value_name = "BYTES",
        default_value_t = 64 << 20
    )]
    pub prediction_cache_bytes: u64,

    /// Largest model file, in bytes
    #[arg(
        long,
        env = "PACKHORSE_ARTIFACT_LIMIT_BYTES",
        value_name = "BYTES",
        default_value_t = 4 << 30
    )]
    pub artifact_limit_bytes: u64,

    /// Start an empty cluster where the database of a state folder that was used is missing, damaged or older than the folder; what is in the
    /// folder is moved to replaced-1, replaced-2, … there
    #[arg(long, env = "PACKHORSE_NEW_CLUSTER")]
    pub new_cluster: bool,

    /// Time for which a model file is kept that no model uses, in milliseconds
    #[arg(long, env = "PACKHORSE_ARTIFACT_RETENTION_MS", value_name = "MS", default_value_t = 3_600_000,
        value_parser = value_parser!(u64).range(100..=31_536_000_000))]
    pub artifact_retention_ms: u64,

    /// Largest number of connections of each listener; further ones are answered 503. The limit of file descriptors may lower it
    #[arg(long, env = "PACKHORSE_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 8192,
        value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Time for which a connection is kept between two requests, in milliseconds; longer than balancers keep theirs (60 s), so that
    /// none sends a request while the gateway closes the connection
    #[arg(long, env = "PACKHORSE_KEEP_ALIVE_MS", value_name = "MS", default_value_t = 75_000,
        value_parser = value_parser!(u64).range(100..=3_600_000))]
    pub keep_alive_ms: u64,

    /// Time within which the head of a request must arrive, longest pause within its body, and longest time for which a client may
    /// take nothing of its answer, in milliseconds
    #[arg(long, env = "PACKHORSE_CLIENT_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000,
        value_parser = value_parser!(u64).range(100..=600_000))]
    pub client_timeout_ms: u64,

    /// Time for which a gateway that is stopped still takes requests while /v2/health/ready answers 503, so that balancers turn
    /// away first, in milliseconds
    #[arg(long, env = "PACKHORSE_LAME_DUCK_MS", value_name = "MS", default_value_t = 0,
        value_parser = value_parser!(u64).range(0..=600_000))]
    pub lame_duck_ms: u64,

    /// Time for requests in flight to end when the gateway is stopped, after the lame-duck time, in milliseconds
    #[arg(long, env = "PACKHORSE_SHUTDOWN_GRACE_MS", value_name = "MS", default_value_t = 10_000,
        value_parser = value_parser!(u64).range(0..=600_000))]
    pub shutdown_grace_ms: u64,

    /// Longest time in which idle cores of this host may wake while inference requests come and 100 ms longer, in microseconds; at 0 they do not
    /// sleep. Needs root, or write access to the device of Linux's PM Quality of Service [default: as the system decides]
    #[arg(long, env = "PACKHORSE_WAKE_LATENCY_US", value_name = "US",
        value_parser = value_parser!(u64).range(0..=1_000_000))]
    pub wake_latency_us: Option<u64>,

    /// Ask the gateway that runs with this --listen whether it is alive, and end with status 0 if so: the health check of a container
    #[arg(long)]
    pub check_health: bool,

    /// Address of a Grafana with the boards of deploy/grafana to which the dashboard links [default: no links]
    #[arg(long, env = "PACKHORSE_GRAFANA_URL", value_name = "URL")]
    pub grafana_url: Option<GrafanaUrl>,

    /// Receiver of OpenTelemetry traces over OTLP/HTTP, to whose URL /v1/traces is added [default: no traces]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// File with the certificates of the authorities that sign the receiver's, for an https URL [default: the authorities that this machine trusts]
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_CERTIFICATE",
        value_name = "FILE",
        requires = "otlp_endpoint"
    )]
    pub otlp_ca_file: Option<PathBuf>,

    /// Name of the gateway in its traces
    #[arg(
        long,
        env = "OTEL_SERVICE_NAME",
        value_name = "NAME",
        default_value = "packhorse-gateway"
    )]
    pub otlp_service_name: String,

    /// Part of the requests that are traced although they met their SLO, 0 to 1; a client's traceparent decides about its own
    #[arg(
        long,
        env = "OTEL_TRACES_SAMPLER_ARG",
        value_name = "RATIO",
        default_value = "0.01"
    )]
    pub trace_sample: SampleRatio,

    /// Buckets of the histograms on /metrics
    #[arg(long, env = "PACKHORSE_METRICS_BUCKETS", value_enum, default_value_t = Buckets::Coarse)]
    pub metrics_buckets: Buckets,

    /// The flags of the log.
    #[command(flatten)]
    pub log: LogOptions,

    /// The environment variables of the user's data folder.
    #[command(flatten)]
    pub data_home: DataHome,

    /// The flag of a program that starts the gateway.
    #[command(flatten)]
    pub supervisor: SupervisorOptions,
}

/// The settings that a gateway starts with.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent settings"
)]
pub struct Settings {
    /// The folder of the database, the model files and the tokens.
    pub state_dir: PathBuf,
    /// The database; `None` if it is in the state folder.
    pub store: Option<StoreUrl>,
    /// The inference listener.
    pub listen: SocketAddr,
    /// The gRPC listener.
    pub grpc_listen: GrpcListen,
    /// The certificate and key of the inference listener; `None` without TLS.
    pub tls: Option<ServerFiles>,
    /// The certificate and key of the admin listener; `None` without TLS.
    pub admin_tls: Option<ServerFiles>,
    /// True if inference requests need an API key.
    pub inference_keys: bool,
    /// The number of serving engines.
    pub engines: usize,
    /// The hosts besides `localhost` and IP addresses that a listener without another protection answers for.
    pub allowed_hosts: Vec<AllowedHost>,
    /// The Grafana to which the dashboard links.
    pub grafana_url: Option<GrafanaUrl>,
    /// True if clients may pass tensors by POSIX shared memory.
    pub system_shared_memory: bool,
    /// The platforms whose contracts the inference listener speaks.
    pub platforms: Platforms,
    /// The admin listener.
    pub admin_listen: SocketAddr,
    /// The file of the admin's token; `None` if it is in the state folder.
    pub admin_token_file: Option<PathBuf>,
    /// The file of the agents' token; `None` if it is in the state folder.
    pub agent_token_file: Option<PathBuf>,
    /// The file of the secret shared with workers.
    pub link_secret_file: Option<PathBuf>,
    /// True if links to workers of this host use shared memory.
    pub shared_memory_links: bool,
    /// The user of the workers on this host, beside the gateway's.
    pub worker_user: Option<SystemUser>,
    /// TLS between the gateway and workers on other machines; `None` without.
    pub link_tls: Option<LinkTls<ClientFiles>>,
    /// The networks on which workers may listen that are not at their agent's address.
    pub worker_networks: Vec<IpNetwork>,
    /// The folders from which models may be registered by path.
    pub artifact_roots: Vec<PathBuf>,
    /// The placement policy's name, if it was given.
    pub policy: Option<String>,
    /// The dispatch discipline, if it was given.
    pub discipline: Option<Discipline>,
    /// The longest time that `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The largest number of waiting requests of a model without a limit of its own.
    pub queue_limit: usize,
    /// The time after which a worker that has not answered a batch is disconnected.
    pub batch_limit: Duration,
    /// The time for which a node counts as present after a renewal by its agent.
    pub lease: Duration,
    /// The time after which a measurement begins no further batch size.
    pub profile_time_limit: Duration,
    /// True if models with the same backbone share workers.
    pub shared_backbones: bool,
    /// The time limit of a policy for one plan.
    pub solve_budget: Duration,
    /// The time that a new node takes to start.
    pub node_start: Duration,
    /// The largest body of an inference request.
    pub body_limit: ByteCount,
    /// The memory budget for all inference requests together.
    pub payload_budget: ByteCount,
    /// The memory for kept answers.
    pub prediction_cache: ByteCount,
    /// The largest model file.
    pub artifact_limit: ByteCount,
    /// True if a state folder whose database is lost becomes that of an empty cluster.
    pub new_cluster: bool,
    /// The time for which a model file is kept that no model uses.
    pub artifact_retention: Duration,
    /// The largest number of connections of each listener.
    pub max_connections: usize,
    /// The time for which a connection is kept between two requests.
    pub keep_alive: Duration,
    /// The time within which the head of a request must arrive, the longest pause within its body, and the longest time for which a
    /// client may take nothing of its answer.
    pub client_timeout: Duration,
    /// The time for which a gateway that is stopped still takes requests while it is not ready.
    pub lame_duck: Duration,
    /// The time for requests in flight to end when the gateway is stopped.
    pub shutdown_grace: Duration,
    /// The longest time in which idle cores of this host may wake while requests come; `None` leaves it to the system.
    pub wake_latency: Option<Duration>,
    /// The buckets of the histograms on `/metrics`.
    pub metrics_buckets: Buckets,
    /// The export of traces, if there is a receiver.
    pub traces: Option<TraceSettings>,
}

/// The reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No state folder is given, and the user's home is unknown.
    #[error("--state-dir: give a folder, because neither XDG_DATA_HOME nor HOME is set")]
    NoStateDir,
    /// The admin listener is open to other machines without a token file.
    #[error(
        "--admin-listen: {0} can be reached from other machines; give the token to protect it with --admin-token-file, or use \
         a loopback address"
    )]
    OpenAdmin(SocketAddr),
    /// The flags of TLS between gateway and workers do not go together.
    #[error(transparent)]
    LinkTls(#[from] LinkTlsError),
    /// The platforms contradict each other.
    #[error(transparent)]
    Platforms(#[from] PlatformsError),
}

/// Prints what is wrong with the command line, and ends the process. An address of a database may have a password, which is not printed.
fn exit_without_password(error: &clap::Error) -> ! {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    let is_database = ["--store ", "--from ", "--to "]
        .iter()
        .any(|flag| argument.starts_with(flag));
    let value = text(ContextKind::InvalidValue).filter(|value| is_database && value.contains("//"));
    let Some(value) = value else { error.exit() };
    let shown = error.to_string().replace(value, "the value");
    eprint!("{shown}");
    eprintln!("In a password, percent-encode the characters / ? # @ : and %.");
    std::process::exit(error.exit_code())
}

impl Options {
    /// Reads the command line and the environment, and ends the process with a message if they are wrong. A variable of OpenTelemetry that is empty
    /// counts as absent, as its specification wants.
    pub fn read() -> Self {
        let matches = without_empty_variables(Self::command()).try_get_matches();
        let matches = matches.unwrap_or_else(|error| exit_without_password(&error));
        Self::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
    }

    /// Returns the number of threads that serve HTTP.
    pub fn http_threads(&self) -> usize {
        let cores = available_parallelism().map_or(1, usize::from);
        let given = self.http_threads.map(usize::from);
        given.unwrap_or((cores - 1).max(1))
    }

    fn engines(&self) -> usize {
        let cores = available_parallelism().map_or(1, usize::from);
        let given = self.engines.map(usize::from);
        given.unwrap_or((cores / 4).clamp(1, 8))
    }

    /// Converts the flags into settings, and checks them together.
    ///
    /// # Errors
    /// If flags contradict each other.
    pub fn settings(self) -> Result<Settings, ConfigError> {
        if !self.admin_listen.ip().is_loopback() && self.admin_token_file.is_none() {
            return Err(ConfigError::OpenAdmin(self.admin_listen));
        }
        let engines = self.engines();
        let grpc_listen = self.grpc_listen;
        let grpc_listen = grpc_listen.unwrap_or_else(|| GrpcListen::default_beside(self.listen));
        let default_state_dir = || self.data_home.path().map(|path| path.join("packhorse"));
        let state_dir = self
            .state_dir
            .or_else(default_state_dir)
            .ok_or(ConfigError::NoStateDir)?;
        let tls = server_files(self.tls_cert, self.tls_key);
        let admin_tls = server_files(self.admin_tls_cert, self.admin_tls_key);
        Ok(Settings {
            state_dir,
            store: self.store,
            listen: self.listen,
            grpc_listen,
            admin_tls: admin_tls.or_else(|| tls.clone()),
            tls,
            link_tls: self.link_tls.of_gateway()?,
            inference_keys: match self.inference_keys {
                InferenceKeys::Auto => {
                    !self.listen.ip().is_loopback() || !grpc_listen.is_loopback()
                }
                InferenceKeys::Required => true,
                InferenceKeys::Off => false,
            },
            allowed_hosts: self.allowed_host,
            grafana_url: self.grafana_url,
            system_shared_memory: self.system_shared_memory,
            platforms: Platforms::new(
                &self.platform,
                &VertexRoutes {
                    health: self.vertex_health_route,
                    predict: self.vertex_predict_route,
                },
            )?,
            admin_listen: self.admin_listen,
            admin_token_file: self.admin_token_file,
            agent_token_file: self.agent_token_file,
            link_secret_file: self.link_secret_file,
            engines,
            shared_memory_links: self.shared_memory_links,
            worker_user: self.worker_user.or_else(SystemUser::of_workers),
            worker_networks: self.worker_networks,
            artifact_roots: self.artifact_root,
            policy: self.policy,
            discipline: self.discipline,
            max_batch_wait: Duration::from_millis(self.max_batch_wait_ms),
            queue_limit: usize::try_from(self.queue_limit).unwrap_or(usize::MAX),
            batch_limit: Duration::from_millis(self.batch_limit_ms),
            lease: Duration::from_millis(self.lease_ms),
            profile_time_limit: Duration::from_millis(self.profile_time_limit_ms),
            shared_backbones: self.shared_backbones,
            solve_budget: Duration::from_millis(self.solve_budget_ms),
            node_start: Duration::from_millis(self.node_start_ms),
            body_limit: ByteCount::new(self.body_limit_bytes),
            payload_budget: ByteCount::new(self.payload_budget_bytes),
            prediction_cache: ByteCount::new(self.prediction_cache_bytes),
            artifact_limit: ByteCount::new(self.artifact_limit_bytes),
            new_cluster: self.new_cluster,
            artifact_retention: Duration::from_millis(self.artifact_retention_ms),
            max_connections: usize::try_from(self.max_connections).unwrap_or(usize::MAX),
            keep_alive: Duration::from_millis(self.keep_alive_ms),
            client_timeout: Duration::from_millis(self.client_timeout_ms),
            lame_duck: Duration::from_millis(self.lame_duck_ms),
            shutdown_grace: Duration::from_millis(self.shutdown_grace_ms),
            wake_latency: self.wake_latency_us.map(Duration::from_micros),
            metrics_buckets: self.metrics_buckets,
            traces: self.otlp_endpoint.map(|endpoint| TraceSettings {
                endpoint,
                authorities: Authorities::from_flag(self.otlp_ca_file.as_deref()),
                service_name: self.otlp_service_name,
                ratio: self.trace_sample,
            }),
        })
    }
}

/// Removes the variables of OpenTelemetry that are empty from a command.
fn without_empty_variables(command: Command) -> Command {
    command.mut_args(|argument| {
        let name = argument.get_env().and_then(OsStr::to_str);
        if name.is_some_and(|name| name.starts_with("OTEL_") && is_empty(name)) {
            argument.env(None::<&'static str>)
        } else {
            argument
        }
    })
}

fn is_empty(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value.is_empty())
}

/// Reads a discipline that the gateway has.
fn live_discipline(text: &str) -> Result<Discipline, String> {
    let discipline: Discipline = text.parse().map_err(|e: UnknownDiscipline| e.to_string())?;
    discipline.live().map_err(|e| e.to_string())
}

fn server_files(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Option<ServerFiles> {
    let identity = Identity {
        certificate: certificate?,
        key: key?,
    };
    Some(ServerFiles {
        identity,
        client_authorities: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, ConfigError> {
        let flags = ["packhorse-gateway"].iter().chain(flags);
        Options::try_parse_from(flags).unwrap().settings()
    }

    #[test]
    fn the_threads_of_http_leave_a_core_to_the_decisions() {
        let threads = |flags: &[&str]| {
            let flags = ["packhorse-gateway"].iter().chain(flags);
            Options::try_parse_from(flags).map(|options| options.http_threads())
        };
        assert_eq!(threads(&["--http-threads", "3"]).ok(), Some(3));
        let cores = available_parallelism().map_or(1, usize::from);
        let chosen = threads(&[]).unwrap();
        assert!(chosen >= 1 && chosen < cores.max(2), "{chosen} of {cores}");
        assert!(threads(&["--http-threads", "0"]).is_err());
    }

    #[test]
    fn an_admin_address_for_other_machines_needs_a_chosen_token() {
        let open = ["--state-dir", "/s", "--admin-listen", "0.0.0.0:8081"];
        assert!(matches!(settings(&open), Err(ConfigError::OpenAdmin(_))));
        let guarded = [&open[..], &["--admin-token-file", "/t"]].concat();
        assert!(settings(&guarded).is_ok());
        assert!(settings(&["--state-dir", "/s", "--admin-listen", "[::1]:0"]).is_ok());
        // The inference listener has no token: its clients are public.
        assert!(settings(&["--state-dir", "/s", "--listen", "0.0.0.0:8080"]).is_ok());
    }

    #[test]
    fn the_grpc_listener_is_there_unless_it_is_switched_off_and_stays_away_from_tests() {
        let listen = |flags: &[&str]| {
            let flags = [&["--state-dir", "/s"], flags].concat();
            let settings = settings(&flags).unwrap();
            (settings.grpc_listen, settings.inference_keys)
        };
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(listen(&[]), (GrpcListen::IfFree(local(8001)), false));
        let free = ["--listen", "127.0.0.1:0"];
        assert_eq!(listen(&free), (GrpcListen::IfFree(local(0)), false));
        let chosen = ["--grpc-listen", "127.0.0.1:9000"];
        assert_eq!(listen(&chosen), (GrpcListen::At(local(9000)), false));
        assert_eq!(listen(&["--grpc-listen", "off"]), (GrpcListen::Off, false));
        // Keys are for both listeners or for neither.
        assert!(listen(&["--grpc-listen", "0.0.0.0:8001"]).1);
        for wrong in ["8001", "localhost:8001", "on", ""] {
            let flags = ["packhorse-gateway", "--grpc-listen", wrong];
            assert!(Options::try_parse_from(flags).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_state_folder_follows_the_conventions_of_the_desktop() {
        let dir = |flags: &[&str]| settings(flags).unwrap().state_dir;
        let home = ["--data-home", "", "--home", "/h"];
        assert_eq!(dir(&home), PathBuf::from("/h/.local/share/packhorse"));
        assert_eq!(
            dir(&["--data-home", "/d", "--home", "/h"]),
            PathBuf::from("/d/packhorse")
        );
        assert_eq!(
            dir(&["--data-home", "/d", "--state-dir", "/s"]),
            PathBuf::from("/s")
        );
    }

    #[test]
    fn the_admin_listener_has_the_certificate_of_the_other_unless_it_has_its_own() {
        let certificate = |files: &Option<ServerFiles>| {
            let files = files.clone().expect("TLS is on");
            files.identity.certificate.display().to_string()
        };
        let both = ["--state-dir", "/s", "--tls-cert", "/c", "--tls-key", "/k"];
        let read = settings(&both).unwrap();
        assert_eq!(
            (certificate(&read.tls), read.tls),
            ("/c".to_owned(), read.admin_tls)
        );
        let own = ["--admin-tls-cert", "/ac", "--admin-tls-key", "/ak"];
        let read = settings(&[&both[..], &own].concat()).unwrap();
        assert_eq!(certificate(&read.tls), "/c");
        assert_eq!(certificate(&read.admin_tls), "/ac");
        let read = settings(&[&["--state-dir", "/s"][..], &own].concat()).unwrap();
        assert!(read.tls.is_none() && read.admin_tls.is_some());
        for alone in [["--tls-cert", "/c"], ["--admin-tls-key", "/k"]] {
            let flags = ["packhorse-gateway"].iter().chain(&alone);
            assert!(Options::try_parse_from(flags).is_err(), "{alone:?}");
        }
    }

    #[test]
    fn roots_and_limits_are_read() {
        let settings = settings(&[
            "--state-dir",
            "/s",
            "--artifact-root",
            "/a:/b",
            "--artifact-root",
            "/c",
            "--lease-ms",
            "700",
        ])
        .unwrap();
        assert_eq!(
            settings.artifact_roots,
            ["/a", "/b", "/c"].map(PathBuf::from)
        );
        assert_eq!(settings.lease, Duration::from_millis(700));
        for bad in [
            ["--lease-ms", "0"],
            ["--discipline", "lucky"],
            ["--discipline", "clockwork"],
            ["--log-format", "xml"],
        ] {
            assert!(
                Options::try_parse_from(["packhorse-gateway"].iter().chain(&bad)).is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn the_page_of_limits_has_the_flags_and_their_defaults() {
        let command = Options::command();
        let page = include_str!("../../docs/limits.md");
        let mut found = 0;
        for row in page.lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, _, flags, default, ..] = cells[..] else {
                panic!("{row}");
            };
            let Some(flag) = flags
                .strip_prefix("`--")
                .and_then(|rest| rest.split('`').next())
            else {
                continue;
            };
            let mut arguments = command.get_arguments();
            let argument = arguments.find(|argument| argument.get_long() == Some(flag));
            let argument = argument.unwrap_or_else(|| panic!("there is no flag --{flag}"));
            assert_eq!(argument.get_default_values(), [default], "--{flag}");
            found += 1;
        }
        assert!(found >= 12, "{found} flags");
    }
}
