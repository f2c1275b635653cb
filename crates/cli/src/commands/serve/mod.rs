//! `packhorse serve`: a gateway and an agent for one machine, with the models of a folder.

mod model_repository;
mod services;

use std::{fs, future::pending, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use packhorse_client::{AdminClient, BaseUrl, InferenceClient};
use packhorse_cluster::NodeState;
use packhorse_terminal::{
    context::{self, Context},
    output,
};
use serde::Deserialize;
use tokio::{
    process::Command,
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};

use self::services::Services;
use crate::commands::fleet::{FleetFolder, Undescribed};

pub(crate) use self::services::ServiceEnded;

/// The time between two looks at a program that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(clap::Args)]
#[command(after_help = "\
When requests can be sent, one line is printed: ready {\"inference\": URL, \"grpc\": ADDRESS, \"admin\": URL}. SIGTERM and Ctrl-C answer the requests in
flight and end everything; a second one ends at once. If gateway or agent ends, so does the other, and this command with its status.
Every other setting of the two is read from the environment: packhorse-gateway --help, packhorse-agent --help.

A model repository has for each model NAME/model.json, which is what `packhorse model register` reads, and NAME/VERSION/model.pt or
model.pt2. Without model.json the program's file tells it, as for `packhorse model register FILE`. What is new or changed there is registered at the start. What is missing there stays registered. What is wrong there is not
registered and a finding; a version that was registered before stays as it was, and the other models are served.

Examples:
  packhorse serve
  packhorse serve models
  packhorse serve --devices cpu --listen 0.0.0.0:8080 --state-dir /var/lib/packhorse")]
pub(crate) struct ServeArgs {
    /// Folder for the gateway's state; the agent's is agent in it [default: packhorse in the user's data folder, ~/.local/share]
    #[arg(long, env = "PACKHORSE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Address of the inference listener; port 0 chooses a free port
    #[arg(
        long,
        env = "PACKHORSE_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    listen: SocketAddr,
    /// Address of the listener for gRPC, or off [default: 127.0.0.1:8001, unless another program listens there; a free port if that of --listen is 0]
    #[arg(long, env = "PACKHORSE_GRPC_LISTEN", value_name = "ADDRESS|off")]
    grpc_listen: Option<String>,
    /// Address of the listener for admins; other addresses than loopback require --admin-token-file
    #[arg(
        long,
        env = "PACKHORSE_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    admin_listen: SocketAddr,
    /// File with the admin token [default: admin-token in the state folder, made at the first start]
    #[arg(long, env = "PACKHORSE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Devices to offer, separated by commas: auto (GPUs, or the CPU if there are none), cpu, cpu:THREADS, nvidia, simulated:KIND:COUNT (with the CSV file of their profiles in `PACKHORSE_PROFILES`)
    #[arg(
        long,
        env = "PACKHORSE_DEVICES",
        value_name = "DEVICES",
        default_value = "auto"
    )]
    devices: String,
    /// Folder with libtorch for the workers [default: that of packhorse setup, else where the system has it]
    #[arg(long, env = "PACKHORSE_LIBTORCH", value_name = "DIR")]
    libtorch: Option<PathBuf>,
    /// Latency objective (SLO) in milliseconds of models without a model.json whose file says none
    #[arg(
        long,
        env = "PACKHORSE_SLO_MS",
        value_name = "MS",
        default_value_t = 100.0
    )]
    slo_ms: f64,
    /// Folder with models to register
    #[arg(long, env = "PACKHORSE_MODEL_REPOSITORY", value_name = "DIR")]
    model_repository: Option<PathBuf>,
    /// Folder with models to register, as --model-repository
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// The file that the gateway writes when it listens.
#[derive(Clone, Copy, Deserialize)]
struct Endpoints {
    inference: SocketAddr,
    /// None if there is no listener for gRPC.
    grpc: Option<SocketAddr>,
    admin: SocketAddr,
    pid: u32,
}

/// The requests to end: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes, unless `nohup` or the like has it ignored.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl ServeArgs {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut signals = EndSignals::listen()?;
        if let (Some(folder), Some(repository)) = (&self.folder, &self.model_repository)
            && folder != repository
        {
            bail!(
                "{} and --model-repository (or PACKHORSE_MODEL_REPOSITORY) {} are two model repositories: name one",
                folder.display(),
                repository.display()
            );
        }
        let models = match self
            .folder
            .clone()
            .or_else(|| self.model_repository.clone())
        {
            // Read first, so that a wrong path does not cost a start, and beside this thread, which heeds the signals.
            Some(folder) => {
                let read = spawn_blocking(move || model_repository::read(&folder));
                tokio::select! {
                    models = read => Some(models??),
                    () = signals.next() => return Ok(()),
                }
            }
            None => None,
        };
        let mut services = Services::new()?;
        let outcome = tokio::select! {
            outcome = self.serve(context, models, &mut services) => outcome,
            () = signals.next() => Ok(()),
        };
        tokio::select! {
            () = services.stop() => return outcome,
            () = signals.next() => {}
        }
        services.kill().await;
        outcome
    }

    /// Starts everything and waits until a program ends by itself, which is an error.
    async fn serve(
        &self,
        context: &Context,
        models: Option<FleetFolder>,
        services: &mut Services,
    ) -> anyhow::Result<()> {
        let state_dir = match &self.state_dir {
            Some(folder) => folder.clone(),
            None => context::default_state_dir().context("name a folder with --state-dir")?,
        };
        let mut gateway = Command::new(services::program("packhorse-gateway")?);
        gateway
            .arg("--state-dir")
            .arg(&state_dir)
            .args(["--listen", &self.listen.to_string()])
            .args(["--admin-listen", &self.admin_listen.to_string()]);
        if let Some(address) = &self.grpc_listen {
            gateway.args(["--grpc-listen", address]);
        }
        if let Some(file) = &self.admin_token_file {
            gateway.arg("--admin-token-file").arg(file);
        }
        let pid = services.start_gateway(gateway)?;
        let endpoints_file = state_dir.join("endpoints.json");
        let endpoints = services
            .unless_one_ends(async {
                loop {
                    // The file of an earlier gateway names another process.
                    let text = fs::read(&endpoints_file).unwrap_or_default();
                    match serde_json::from_slice::<Endpoints>(&text) {
                        Ok(endpoints) if endpoints.pid == pid => return Ok(endpoints),
                        _ => sleep(POLL_INTERVAL).await,
                    }
                }
            })
            .await?;
        let inference_tls = is_set("PACKHORSE_TLS_CERT");
        let admin_tls = inference_tls || is_set("PACKHORSE_ADMIN_TLS_CERT");
        let inference_url = url(endpoints.inference, inference_tls);
        let admin_url = url(endpoints.admin, admin_tls);

        let mut agent = Command::new(services::program("packhorse-agent")?);
        agent
            .arg("--stop-workers-on-exit")
            .args(["--gateway", &admin_url])
            .args(["--devices", &self.devices])
            .arg("--state-dir")
            .arg(state_dir.join("agent"));
        // One that is given by the environment is for both.
        if std::env::var_os("PACKHORSE_AGENT_TOKEN_FILE").is_none() {
            agent.arg("--token-file").arg(state_dir.join("agent-token"));
        }
        if let Some(folder) = &self.libtorch {
            agent.arg("--libtorch").arg(folder);
        }
        services.start_agent(agent)?;

        let token_file = self.admin_token_file.clone();
        let token_file = token_file.unwrap_or_else(|| state_dir.join("admin-token"));
        let token = fs::read_to_string(&token_file)
            .with_context(|| format!("cannot read {}", token_file.display()))?;
        let undescribed = Undescribed {
            slo_ms: self.slo_ms,
            libtorch: self.libtorch.clone(),
        };
        let authorities = context.authorities();
        let admin = AdminClient::new(admin_url.parse::<BaseUrl>()?, &token, &authorities)?;
        let inference = InferenceClient::new(inference_url.parse::<BaseUrl>()?, &authorities)?;
        services
            .unless_one_ends(async {
                while !has_ready_node(&admin).await? {
                    sleep(POLL_INTERVAL).await;
                }
                if let Some(models) = models {
                    model_repository::register(models, &admin, &undescribed).await?;
                }
                while !inference.ready().await? {
                    sleep(POLL_INTERVAL).await;
                }
                Ok(())
            })
            .await?;
        let mut urls = serde_json::json!({"inference": inference_url, "admin": admin_url});
        if let Some(address) = endpoints.grpc {
            // Clients of gRPC name a host and a port, and TLS by an option.
            urls["grpc"] = reachable(address).to_string().into();
        }
        if let Err(error) = output::print_line(format_args!("ready {urls}")) {
            output::note(format_args!("ready {urls}; it cannot be written: {error}"));
        }
        Err(services.ended().await.into())
    }
}

async fn has_ready_node(admin: &AdminClient) -> anyhow::Result<bool> {
    let nodes = admin.nodes().await?;
    Ok(nodes.iter().any(|node| node.state == NodeState::Ready))
}

/// Returns the URL of a listener on this machine.
fn url(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(address))
}

/// Returns the address at which this machine reaches a listener. One on all addresses is reached on loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// Returns true if the gateway, which inherits the environment, has this setting.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

impl EndSignals {
    /// Listens from now on.
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: if ignores_hang_up() {
                None
            } else {
                Some(signal(SignalKind::hangup())?)
            },
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = async {
                match &mut self.hang_up {
                    Some(signal) => {
                        signal.recv().await;
                    }
                    None => pending().await,
                }
            } => {}
        }
    }
}

/// Returns true if the process was started with SIGHUP ignored.
fn ignores_hang_up() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, that of the lowest bit.
    ignored.is_some_and(|mask| mask & 1 == 1)
}
