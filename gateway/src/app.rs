//! A running gateway: its parts are started in order, and stopped in the opposite order.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use packhorse_placement::UnknownPolicy;
use packhorse_service::StateDirError;
use packhorse_tls::{
    AuthoritiesError, ClientTls, LinkTls, Reloaded, ServerFiles, ServerTls, TlsFileError,
};
use packhorse_wire::LinkSecret;
use tokio::{
    sync::{Semaphore, mpsc::UnboundedReceiver},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    api::{
        admin::{self, Admin, Credentials},
        grpc,
        inference::{self, Inference, InferenceLimits},
        web_policy::WebPolicy,
    },
    config::{GrpcListen, Settings},
    controller::{Controller, ControllerConfig},
    descriptors,
    driver::{DataPlane, DataPlaneConfig, LinkChange},
    events::{EventLog, Findings},
    history,
    keys::Keyring,
    serve::{self, Certificate, ConnectionLimits, Server},
    state_dir::{CheckDatabaseError, GatewayDir, SecretError, read_secret},
    store::{ArtifactFiles, OpenStoreError, Store, StoreError},
    tasks::Tasks,
    telemetry::{TelemetryConfig, TraceExporter, TraceQueue},
    wake_latency::WakeLatency,
};

/// The time for which agents and admins get their last answers; by then all inference requests are answered.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

/// The shortest time between two looks for unused model files.
const SHORTEST_SWEEP: Duration = Duration::from_millis(100);
/// The longest time between two looks for unused model files.
const LONGEST_SWEEP: Duration = Duration::from_mins(10);
/// The time between two checkpoints of the database.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);
/// The paths of the inference listener that are answered even above its limit of connections.
const HEALTH: &str = "/v2/health/";
/// The protocol that the listeners of HTTP speak within TLS.
const ALPN: &[&[u8]] = &[b"http/1.1"];
/// The protocol that the gRPC listener speaks within TLS.
const GRPC_ALPN: &[&[u8]] = &[b"h2"];
/// The path of the admin listener that is answered even above its limit of connections.
const METRICS: &str = "/metrics";

/// A running gateway.
#[derive(Debug)]
pub struct App {
    listeners: Listeners,
    controller: Controller,
    data_plane: DataPlane,
    events: EventLog,
    findings: Findings,
    store: Store,
    keys: Keyring,
    tasks: Tasks,
    endless: Vec<JoinHandle<()>>,
    exporter: Option<TraceExporter>,
    lame_duck: Duration,
    grace: Duration,
    // The last field: the lock on the folder is released when nothing writes there any more.
    _state: GatewayDir,
}

/// The reason why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configured policy does not exist.
    #[error("--policy is invalid")]
    Policy(#[source] UnknownPolicy),
    /// The state folder cannot be used.
    #[error("cannot use the state folder")]
    State(#[from] StateDirError),
    /// The database in the state folder is not the one that belongs there, or is damaged.
    #[error("cannot use the database")]
    Database(#[from] CheckDatabaseError),
    /// A secret cannot be read or created.
    #[error("cannot use a secret")]
    Secret(#[from] SecretError),
    /// The database cannot be opened.
    #[error("cannot open the store")]
    OpenStore(#[from] OpenStoreError),
    /// The database cannot be read.
    #[error("cannot read the store")]
    ReadStore(#[from] StoreError),
    /// The folder of model files cannot be used.
    #[error("cannot use the folder of model files")]
    Artifacts(#[source] io::Error),
    /// The cores' wake latency cannot be limited.
    #[error("cannot limit the wake latency of this host's cores (--wake-latency-us)")]
    WakeLatency(#[source] io::Error),
    /// The data plane's threads cannot be started.
    #[error("cannot start the data plane")]
    DataPlane(#[source] io::Error),
    /// A file of TLS cannot be used.
    #[error("--{flag}")]
    Tls {
        /// The flag that names the file, or its beginning.
        flag: &'static str,
        /// The cause.
        #[source]
        source: TlsFileError,
    },
    /// The signal that has the certificates read again cannot be received.
    #[error("cannot receive SIGHUP")]
    Signal(#[source] io::Error),
    /// The exporter of traces cannot be started.
    #[error("cannot export traces (--otlp-endpoint, --otlp-ca-file)")]
    Traces(#[source] AuthoritiesError),
    /// A listener cannot be bound.
    #[error("cannot listen on {address} (--{flag})")]
    Listen {
        /// The flag that sets the address.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl App {
    /// Starts all parts. When this returns, all listeners answer, and `endpoints.json` contains their addresses.
    ///
    /// # Errors
    /// A configured object does not exist or cannot be used.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let policy = settings.policy.as_deref().map(packhorse_placement::policy);
        let policy = policy.transpose().map_err(StartError::Policy)?;
        let state = GatewayDir::open(&settings.state_dir, settings.store.clone())?;
        let (admin_token, agent_token) = tokens(&settings, &state)?;
        let link_secret = link_secret(&settings)?;
        let tls = ListenersTls::open(&settings)?;
        let link_tls = link_tls(&settings)?;
        let wake_latency = settings.wake_latency.map(WakeLatency::open);
        let wake_latency = wake_latency.transpose().map_err(StartError::WakeLatency)?;
        let tasks = Tasks::default();
        state.check_database(settings.new_cluster).await?;
        let store = Store::open_at(state.store()).await?;
        let node_tokens = store.node_tokens().await?;
        let keys = Keyring::open(store.clone(), &tasks).await?;
        let credentials = Credentials::new(
            &admin_token,
            &agent_token,
            node_tokens,
            keys.clone(),
            store.ended_sessions().await?,
            link_secret.clone(),
        );
        let artifacts = open_artifacts(&settings, &state, &store).await?;
        let sweep = sweep(artifacts.clone(), settings.artifact_retention);
        let mut endless = vec![
            tasks.spawn("sweeper of model files", sweep),
            tasks.spawn("checkpointer", checkpoint(store.clone())),
        ];
        let (data_plane, links, exporter) =
            start_data_plane(&settings, &state, link_secret, link_tls, &keys, &tasks)?;
        let mut config = controller_config(&settings);
        config.policy = policy;
        let events = EventLog::open(store.clone(), &tasks).await?;
        events.report_goodput(data_plane.clone(), &tasks);
        let findings = Findings::new(events.clone());
        let controller = Controller::start(
            config,
            store.clone(),
            data_plane.clone(),
            links,
            events.clone(),
            findings.clone(),
            &tasks,
        )
        .await?;
        // The control plane has begun its epoch. From here on, a database that does not know it is not this one.
        state.write_identity(&store.identity().await?)?;

        let planes = (&data_plane, &events);
        let (history, sampler) = history::start(state.history(), planes, &tasks).await;
        endless.push(sampler);
        let inference = start_inference(&settings, &data_plane, &keys, wake_latency)?;
        let (http, document) = inference::router(&inference).split_for_parts();
        let grpc = grpc::router(inference.clone());
        let admin = admin::router(
            Admin {
                credentials,
                keys: keys.clone(),
                controller: controller.clone(),
                data_plane: data_plane.clone(),
                inference,
                events: events.clone(),
                findings: findings.clone(),
                history,
                artifacts,
                store: store.clone(),
                traces: Arc::new(Semaphore::new(admin::MAX_TRACES)),
                body_timeout: settings.client_timeout,
                worker_networks: settings.worker_networks.clone().into(),
                web: web_policy(&settings, settings.admin_listen.ip().is_loopback()),
                uses_tls: tls.admin.is_some(),
                token_files: state.token_files().into(),
                grafana_url: settings.grafana_url.clone(),
            },
            document,
        );
        data_plane.telemetry().set_certificates(tls.certificates());
        endless.extend(tls.watch(&tasks)?);
        let routes = Routes { http, grpc, admin };
        let listeners = listen(&settings, routes, tls, &tasks).await?;
        state.write_endpoints(
            listeners.inference.address(),
            listeners.grpc_address(),
            listeners.admin.address(),
        )?;
        Ok(Self {
            listeners,
            controller,
            data_plane,
            events,
            findings,
            store,
            keys,
            tasks,
            endless,
            exporter,
            lame_duck: settings.lame_duck,
            grace: settings.shutdown_grace,
            _state: state,
        })
    }

    /// Returns the address of the inference API.
    pub fn inference_address(&self) -> SocketAddr {
        self.listeners.inference.address()
    }

    /// Returns the address of the inference API over gRPC, if it is served.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.listeners.grpc_address()
    }

    /// Returns the address of the admin API, which agents use, too.
    pub fn admin_address(&self) -> SocketAddr {
        self.listeners.admin.address()
    }

    /// Returns the events of the cluster.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns the findings.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Waits until one of the tasks that live as long as the gateway has ended, which they do on their own only by a panic: a gateway without
    /// it serves nothing, or does a part of its work never again. Returns its name.
    pub async fn failed(&self) -> &'static str {
        self.tasks.failed().await
    }

    /// Looks after the hold on a database that gateways could share, and waits until another gateway has it: this one can change nothing any more.
    /// Returns which.
    pub async fn superseded(&self) -> String {
        self.store.superseded().await
    }

    /// Is no longer ready, but serves for the lame-duck time; then takes no new requests, answers the present ones within the grace
    /// period, and ends. Workers keep running and wait for the next gateway.
    pub async fn shutdown(self) {
        self.tasks.begin_to_stop();
        self.data_plane.begin_lame_duck();
        if !self.lame_duck.is_zero() {
            tracing::info!(lame_duck = ?self.lame_duck, "stopping: no longer ready, but still serving");
            sleep(self.lame_duck).await;
        }
        tracing::info!("stopping: answering the requests in flight");
        let deadline = Instant::now() + self.grace;
        let Listeners {
            inference,
            grpc,
            admin,
        } = self.listeners;
        let grpc_drained = async {
            match &grpc {
                Some(grpc) => grpc.drain(deadline).await,
                None => true,
            }
        };
        tokio::join!(inference.drain(deadline), grpc_drained);
        // The grace period is over, or nothing is in flight: what is left is refused, and these answers leave.
        self.data_plane.shutdown(Duration::ZERO).await;
        inference.shutdown(Instant::now()).await;
        if let Some(grpc) = grpc {
            grpc.shutdown(Instant::now()).await;
        }
        if let Some(exporter) = self.exporter {
            exporter.shutdown().await;
        }
        self.controller.shutdown().await;
        self.events.close().await;
        admin.shutdown(Instant::now() + ADMIN_GRACE).await;
        if let Err(e) = self.keys.write_uses().await {
            tracing::warn!(error = %e, "the times of the keys' last use are not stored");
        }
        for task in &self.endless {
            task.abort();
        }
        self.store.close().await;
        tracing::info!("stopped");
    }
}

/// Opens the folder of model files, and sets those aside that the database does not know.
async fn open_artifacts(
    settings: &Settings,
    state: &GatewayDir,
    store: &Store,
) -> Result<ArtifactFiles, StartError> {
    let roots = settings.artifact_roots.clone();
    let files = ArtifactFiles::open(
        state.artifacts(),
        roots,
        settings.artifact_limit,
        store.clone(),
    );
    let files = files.await.map_err(StartError::Artifacts)?;
    files.set_orphans_aside().await?;
    Ok(files)
}

/// Starts what answers inference requests.
fn start_inference(
    settings: &Settings,
    data_plane: &DataPlane,
    keys: &Keyring,
    wake_latency: Option<WakeLatency>,
) -> Result<Inference, StartError> {
    let limits = InferenceLimits {
        body_bytes: settings.body_limit.as_u64(),
        body_timeout: settings.client_timeout,
    };
    let is_open = settings.listen.ip().is_loopback() || !settings.inference_keys;
    Inference::new(
        data_plane.clone(),
        limits,
        settings.inference_keys.then(|| keys.clone()),
        web_policy(settings, is_open),
        settings.system_shared_memory,
        settings.platforms.clone(),
        wake_latency,
    )
    .map_err(StartError::DataPlane)
}

/// Returns the policy of a listener. One that only its place protects answers for the hosts alone that the operator knows.
fn web_policy(settings: &Settings, is_open: bool) -> WebPolicy {
    if is_open {
        WebPolicy::for_hosts(&settings.allowed_hosts)
    } else {
        WebPolicy::default()
    }
}

/// Starts the data plane, and the exporter of its traces if there is a receiver.
fn start_data_plane(
    settings: &Settings,
    state: &GatewayDir,
    link_secret: LinkSecret,
    link_tls: Option<Arc<Reloaded<ClientTls>>>,
    keys: &Keyring,
    tasks: &Tasks,
) -> Result<
    (
        DataPlane,
        UnboundedReceiver<LinkChange>,
        Option<TraceExporter>,
    ),
    StartError,
> {
    let queue = settings.traces.as_ref().map(TraceQueue::new);
    let config = DataPlaneConfig {
        telemetry: TelemetryConfig {
            tracer: queue.as_ref().map(TraceQueue::tracer),
            buckets: settings.metrics_buckets,
            keys: settings.inference_keys.then(|| keys.clone()),
        },
        files: state.artifacts(),
        ..data_plane_config(settings, link_secret, link_tls)
    };
    let (data_plane, links) = DataPlane::spawn(config).map_err(StartError::DataPlane)?;
    let ended = data_plane.clone();
    tasks.spawn("data plane", async move { ended.ended().await });
    let telemetry = data_plane.telemetry();
    let exporter = queue.map(|queue| TraceExporter::start(queue, telemetry.clone(), tasks));
    let exporter = exporter.transpose().map_err(StartError::Traces)?;
    Ok((data_plane, links, exporter))
}

fn data_plane_config(
    settings: &Settings,
    link_secret: LinkSecret,
    link_tls: Option<Arc<Reloaded<ClientTls>>>,
) -> DataPlaneConfig {
    DataPlaneConfig {
        link_secret,
        link_tls,
        drivers: settings.engines,
        shared_memory_links: settings.shared_memory_links,
        worker_user: settings.worker_user.as_ref().map(|user| user.uid),
        queue_limit: settings.queue_limit,
        max_batch_wait: settings.max_batch_wait,
        batch_time: settings.batch_limit,
        memory_budget_bytes: settings.payload_budget.as_u64(),
        prediction_cache_bytes: settings.prediction_cache.as_u64(),
        ..DataPlaneConfig::default()
    }
}

fn controller_config(settings: &Settings) -> ControllerConfig {
    ControllerConfig {
        lease: settings.lease,
        profile_time_limit: settings.profile_time_limit,
        shared_backbones: settings.shared_backbones,
        solve_budget: settings.solve_budget,
        node_start: settings.node_start,
        max_batch_wait: settings.max_batch_wait,
        policy: None,
        discipline: settings.discipline,
    }
}

fn connection_limits(
    settings: &Settings,
    connections: usize,
    unknown_yield: bool,
    always_answered: &'static str,
) -> ConnectionLimits {
    ConnectionLimits {
        connections,
        head_timeout: settings.client_timeout,
        idle_timeout: settings.keep_alive,
        write_timeout: settings.client_timeout,
        unknown_yield,
        always_answered,
    }
}

/// The TLS of the listeners.
struct ListenersTls {
    inference: Option<Arc<Reloaded<ServerTls>>>,
    grpc: Option<Arc<Reloaded<ServerTls>>>,
    admin: Option<Arc<Reloaded<ServerTls>>>,
}

impl ListenersTls {
    /// Reads the certificates. If both listeners have the same files, they share what is made of them.
    fn open(settings: &Settings) -> Result<Self, StartError> {
        let open = |flag, files: &Option<ServerFiles>, alpn| -> Result<_, StartError> {
            let opened = files.clone().map(|files| ServerTls::open(files, alpn));
            let opened = opened.transpose();
            let opened = opened.map_err(|source| StartError::Tls { flag, source })?;
            Ok(opened.map(Arc::new))
        };
        let inference = open("tls-cert", &settings.tls, ALPN)?;
        let grpc_address = settings.grpc_listen.address();
        let grpc_files = settings.tls.clone().filter(|_| grpc_address.is_some());
        let grpc = open("tls-cert", &grpc_files, GRPC_ALPN)?;
        let admin = if settings.admin_tls == settings.tls {
            inference.clone()
        } else {
            open("admin-tls-cert", &settings.admin_tls, ALPN)?
        };
        let of_http = [
            (settings.listen, &inference, "--tls-cert"),
            (settings.admin_listen, &admin, "--admin-tls-cert"),
        ];
        let of_grpc = grpc_address.map(|address| (address, &grpc, "--tls-cert"));
        for (address, tls, flag) in of_http.into_iter().chain(of_grpc) {
            if tls.is_none() && !address.ip().is_loopback() {
                tracing::warn!(%address, "a listener that other machines can reach takes tokens, keys and requests in clear text; give it a certificate with {flag}");
            }
        }
        Ok(Self {
            inference,
            grpc,
            admin,
        })
    }

    /// Returns the certificates of the listeners that have one.
    fn certificates(&self) -> Vec<Certificate> {
        let listeners = [
            ("inference", &self.inference),
            ("grpc", &self.grpc),
            ("admin", &self.admin),
        ];
        let certificate = |(listener, tls): (_, &Option<_>)| {
            let tls = Arc::clone(tls.as_ref()?);
            Some(Certificate { listener, tls })
        };
        listeners.into_iter().filter_map(certificate).collect()
    }

    /// Watches the certificates, if there are any.
    fn watch(&self, tasks: &Tasks) -> Result<Option<JoinHandle<()>>, StartError> {
        let certificates = self.certificates();
        let is_used = !certificates.is_empty();
        let watch = is_used
            .then(|| serve::watch(certificates, tasks))
            .transpose();
        watch.map_err(StartError::Signal)
    }
}

/// Reads the files of TLS to workers.
fn link_tls(settings: &Settings) -> Result<Option<Arc<Reloaded<ClientTls>>>, StartError> {
    let opened = settings.link_tls.as_ref().map(LinkTls::open_client);
    let flag = "link-tls";
    let opened = opened.transpose();
    let opened = opened.map_err(|source| StartError::Tls { flag, source })?;
    Ok(opened.map(Arc::new))
}

/// The routes of the listeners.
struct Routes {
    http: Router,
    grpc: Router,
    admin: Router,
}

/// The listeners.
#[derive(Debug)]
struct Listeners {
    inference: Server,
    /// The one for gRPC, if there is one.
    grpc: Option<Server>,
    admin: Server,
}

impl Listeners {
    fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(Server::address)
    }
}

/// Starts the listeners.
async fn listen(
    settings: &Settings,
    routes: Routes,
    tls: ListenersTls,
    tasks: &Tasks,
) -> Result<Listeners, StartError> {
    let shares = descriptors::raise_and_divide(settings.max_connections);
    let bind = async |flag, address, routes, limits, tls, name| {
        let bound = Server::bind(address, routes, limits, tls, (tasks, name)).await;
        bound.map_err(|source| StartError::Listen {
            flag,
            address,
            source,
        })
    };
    let limits = connection_limits(settings, shares.inference, false, HEALTH);
    let (address, tls_of, name) = (settings.listen, tls.inference, "inference listener");
    let inference = bind("listen", address, routes.http, limits, tls_of, name).await?;
    let limits = connection_limits(settings, shares.grpc, false, HEALTH);
    let grpc = listen_for_grpc(settings.grpc_listen, routes.grpc, limits, tls.grpc, tasks).await?;
    let limits = connection_limits(settings, shares.admin, true, METRICS);
    let (address, name) = (settings.admin_listen, "admin listener");
    let admin = bind(
        "admin-listen",
        address,
        routes.admin,
        limits,
        tls.admin,
        name,
    )
    .await?;
    let listeners = Listeners {
        inference,
        grpc,
        admin,
    };
    tracing::info!(
        inference = %listeners.inference.address(), grpc = listeners.grpc_address().map(tracing::field::display),
        admin = %listeners.admin.address(), "the gateway is up"
    );
    Ok(listeners)
}

/// Starts the gRPC listener, if there shall be one. One that nobody asked for keeps no gateway from starting.
async fn listen_for_grpc(
    listen: GrpcListen,
    routes: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Reloaded<ServerTls>>>,
    tasks: &Tasks,
) -> Result<Option<Server>, StartError> {
    let Some(address) = listen.address() else {
        return Ok(None);
    };
    let task = (tasks, "gRPC listener");
    match Server::bind_multiplexed(address, routes, limits, tls, task).await {
        Ok(server) => Ok(Some(server)),
        Err(e)
            if matches!(listen, GrpcListen::IfFree(_)) && e.kind() == io::ErrorKind::AddrInUse =>
        {
            tracing::warn!(%address, "there is no gRPC listener, because another program listens there: choose its address with --grpc-listen, or switch it off");
            Ok(None)
        }
        Err(source) => Err(StartError::Listen {
            flag: "grpc-listen",
            address,
            source,
        }),
    }
}

/// Deletes the model files that no model uses, again and again.
async fn sweep(artifacts: ArtifactFiles, retention: Duration) {
    let mut ticks = interval((retention / 4).clamp(SHORTEST_SWEEP, LONGEST_SWEEP));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(e) = artifacts.delete_unused(retention).await {
            tracing::warn!(error = %e, "unused model files are not deleted");
        }
    }
}

/// Brings what is in the write-ahead log into the database file, again and again: a log that is lost takes no more along than the last seconds.
async fn checkpoint(store: Store) {
    let mut ticks = interval(CHECKPOINT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(e) = store.checkpoint().await {
            tracing::warn!(error = %e, "the write-ahead log is not brought into the database file");
        }
    }
}

/// Returns the secret of the links to workers.
fn link_secret(settings: &Settings) -> Result<LinkSecret, SecretError> {
    Ok(match &settings.link_secret_file {
        Some(file) => LinkSecret::from_file_content(read_secret(file)?.as_bytes()),
        None => LinkSecret::none(),
    })
}

/// Returns the admin's token and the agents' common one.
fn tokens(settings: &Settings, state: &GatewayDir) -> Result<(String, String), SecretError> {
    let secret = |file: &Option<std::path::PathBuf>, name| match file {
        Some(file) => read_secret(file),
        None => state.own_secret(name),
    };
    let admin = secret(&settings.admin_token_file, GatewayDir::ADMIN_TOKEN)?;
    let agent = secret(&settings.agent_token_file, GatewayDir::AGENT_TOKEN)?;
    Ok((admin, agent))
}

#[cfg(test)]
impl App {
    /// Returns the control plane.
    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::Options;

    /// Starts a gateway with everything that has a task of its own.
    async fn started(folder: &std::path::Path) -> App {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let folder = folder.display();
        let flags = [
            "packhorse-gateway".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            "--admin-listen=127.0.0.1:0".to_owned(),
            "--otlp-endpoint=http://127.0.0.1:9".to_owned(),
            format!("--tls-cert={folder}/cert.pem"),
            format!("--tls-key={folder}/key.pem"),
            format!("--state-dir={folder}"),
        ];
        let settings = Options::try_parse_from(flags).unwrap().settings();
        App::start(settings.unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_panic_of_a_plane_is_told_so_that_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let app = started(folder.path()).await;
        app.controller.panic().await;
        assert_eq!(app.failed().await, "control plane");

        let folder = tempfile::tempdir().unwrap();
        let app = started(folder.path()).await;
        app.data_plane.panic();
        assert_eq!(app.failed().await, "data plane");
    }

    #[tokio::test]
    async fn a_panic_of_any_long_lived_task_is_told_so_that_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let names = started(folder.path()).await.tasks.names();
        assert_eq!(
            names,
            [
                "admin listener",
                "certificate watch",
                "checkpointer",
                "control plane",
                "data plane",
                "event writer",
                "gRPC listener",
                "goodput ticker",
                "history sampler",
                "inference listener",
                "key use writer",
                "store writer",
                "sweeper of model files",
                "trace exporter",
            ]
        );
        for name in names {
            let folder = tempfile::tempdir().unwrap();
            let app = started(folder.path()).await;
            app.tasks.plant_panic(name);
            assert_eq!(app.failed().await, name);
        }
    }
}
