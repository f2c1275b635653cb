//! The data plane of a gateway behind an inference listener, without a control plane, and models to serve.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware::map_request,
};
use packhorse_cluster::{
    ArtifactDigest, Datatype, Dim, Discipline, Generation, MinReplicas, ModelId, ModelSpec,
    Padding, Priority, Profile, Program, RateMode, Replica, ReplicaId, ReplicaPhase, ReplicaSpec,
    RequestsPerSecond, TensorSpec,
};
use packhorse_control::{LinkState, ServeChange, Target};
use packhorse_gateway::{
    api::{
        grpc,
        inference::{Inference, InferenceLimits, Platforms, router},
        web_policy::WebPolicy,
    },
    driver::{DataPlane, DataPlaneConfig},
    serve::{ConnectionLimits, Server},
    tasks::Tasks,
    telemetry::LONGEST_WINDOW,
};
use packhorse_wire::{LinkSecret, WorkerIdentity};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use super::{
    answer::Answer,
    client_builder, profile_row, until, within,
    worker::{Worker, double},
};

/// The header by which a test says the address that a request comes from.
pub(crate) const ADDRESS: &str = "x-test-address";

/// The limits of the connections of its listeners.
pub(crate) const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    connections: 100,
    head_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(10),
    write_timeout: Duration::from_secs(10),
    unknown_yield: false,
    always_answered: "/v2/health/",
};

/// Has a request come from the address that its header says.
async fn pretend(mut request: Request) -> Request {
    let address = request.headers().get(ADDRESS);
    let address = address.and_then(|address| address.to_str().ok()?.parse::<SocketAddr>().ok());
    if let Some(address) = address {
        request.extensions_mut().insert(ConnectInfo(address));
    }
    request
}

/// The models and replicas that shall be served.
#[derive(Clone, Default)]
pub(crate) struct Served {
    pub(crate) models: BTreeMap<ModelId, Arc<ModelSpec>>,
    pub(crate) replicas: BTreeMap<ReplicaId, Target>,
    pub(crate) discipline: Discipline,
}

/// The data plane of a gateway behind an inference listener. The test changes `target` and applies it.
pub(crate) struct InferenceGateway {
    pub(crate) data_plane: DataPlane,
    inference: Inference,
    pub(crate) address: SocketAddr,
    pub(crate) target: Served,
    /// The target that was last applied.
    applied: Served,
    pub(crate) links: watch::Receiver<BTreeMap<ReplicaId, LinkState>>,
    pub(crate) client: reqwest::Client,
    pub(crate) server: Server,
}

pub(crate) fn tensor(
    name: &str,
    datatype: Datatype,
    shape: &[i64],
    pad: Option<Padding>,
) -> TensorSpec {
    let shape = shape
        .iter()
        .map(|dim| Dim::try_from(*dim).unwrap())
        .collect();
    TensorSpec {
        pad,
        ..TensorSpec::new(name, datatype, shape)
    }
}

pub(crate) fn model(
    id: &str,
    max_batch_size: u32,
    input: TensorSpec,
    output: TensorSpec,
) -> ModelSpec {
    let spec = ModelSpec {
        program: Program {
            model: id.parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([3; 32]),
            max_batch_size,
            inputs: vec![input],
            outputs: vec![output],
        },
        slo: Duration::from_secs(5),
        rate: RequestsPerSecond::new(10.0).ok(),
        rate_mode: RateMode::default(),
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: None,
        processing: std::sync::Arc::default(),
    };
    spec.validate().unwrap();
    spec
}

/// The model `double`, whose input and output are rows of two floats.
pub(crate) fn double_model() -> ModelSpec {
    let spec = |name| tensor(name, Datatype::Fp32, &[-1, 2], None);
    model("double:1", 8, spec("x"), spec("y"))
}

/// A profile by which batches of up to 8 rows take a millisecond.
fn profile() -> Arc<Profile> {
    let rows = [1, 8].map(|batch_size| profile_row(batch_size, Duration::from_millis(1), None));
    Arc::new(Profile::new(rows.to_vec()).unwrap())
}

pub(crate) fn replica_id(number: u32) -> ReplicaId {
    ReplicaId {
        generation: Generation(1),
        number,
    }
}

impl InferenceGateway {
    pub(crate) async fn start() -> Self {
        Self::start_with(DataPlaneConfig::default(), InferenceLimits::default()).await
    }

    pub(crate) async fn start_with(config: DataPlaneConfig, limits: InferenceLimits) -> Self {
        Self::for_platforms(config, limits, Platforms::default()).await
    }

    /// Starts a gateway that speaks the contracts of platforms.
    pub(crate) async fn for_platforms(
        config: DataPlaneConfig,
        limits: InferenceLimits,
        platforms: Platforms,
    ) -> Self {
        // More than most machines have by default.
        let config = DataPlaneConfig {
            drivers: 3,
            ..config
        };
        let (data_plane, mut changes) = DataPlane::spawn(config).unwrap();
        let (states, links) = watch::channel(BTreeMap::new());
        tokio::spawn(async move {
            while let Some((replica, state)) = changes.recv().await {
                states.send_modify(|links| match state {
                    Some(state) => {
                        links.insert(replica, state);
                    }
                    None => {
                        links.remove(&replica);
                    }
                });
            }
        });
        let web = WebPolicy::default();
        let inference =
            Inference::new(data_plane.clone(), limits, None, web, true, platforms, None).unwrap();
        let routes: Router = router(&inference).into();
        let routes = routes.layer(map_request(pretend));
        let server = Server::bind(
            "127.0.0.1:0".parse().unwrap(),
            routes,
            CONNECTIONS,
            None,
            (&Tasks::default(), "listener"),
        )
        .await
        .unwrap();
        // A client that keeps connections would hide which of them the gateway closes.
        let client = client_builder().pool_max_idle_per_host(0).build().unwrap();
        Self {
            data_plane,
            inference,
            address: server.address(),
            target: Served::default(),
            applied: Served::default(),
            links,
            client,
            server,
        }
    }

    /// Starts its gRPC listener.
    pub(crate) async fn listen_for_grpc(&self) -> Server {
        self.listen_for_grpc_within(CONNECTIONS).await
    }

    /// Starts its gRPC listener with these limits.
    pub(crate) async fn listen_for_grpc_within(&self, limits: ConnectionLimits) -> Server {
        let tasks = Tasks::default();
        let listener = Server::bind_multiplexed(
            "127.0.0.1:0".parse().unwrap(),
            grpc::router(self.inference.clone()),
            limits,
            None,
            (&tasks, "gRPC listener"),
        );
        listener.await.unwrap()
    }

    /// Starts a gateway with the model `double` on one connected worker.
    pub(crate) async fn with_double() -> (Self, Arc<Worker>) {
        let mut gateway = Self::start().await;
        gateway.add_model(double_model());
        let worker = gateway.add_worker("double:1", 0).await;
        (gateway, worker)
    }

    /// Starts a gateway with the model `double` on one connected worker that answers every batch.
    pub(crate) async fn with_computing_double() -> Self {
        let (gateway, worker) = Self::with_double().await;
        worker.answer_all(double);
        gateway
    }

    pub(crate) fn add_model(&mut self, spec: ModelSpec) {
        self.target
            .models
            .insert(spec.program.model.clone(), Arc::new(spec));
        self.apply();
    }

    /// Has the data plane serve the target, and be open.
    pub(crate) fn apply(&mut self) {
        let (before, now) = (&self.applied, &self.target);
        let mut changes = Vec::new();
        for id in before
            .replicas
            .keys()
            .filter(|id| !now.replicas.contains_key(id))
        {
            changes.push(ServeChange::RemoveReplica(*id));
        }
        for id in before
            .models
            .keys()
            .filter(|id| !now.models.contains_key(id))
        {
            changes.push(ServeChange::RemoveModel(id.clone()));
        }
        for (id, spec) in &now.models {
            if before.models.get(id) != Some(spec) {
                changes.push(ServeChange::Model(Arc::clone(spec)));
            }
        }
        for (id, target) in &now.replicas {
            if before.replicas.get(id) != Some(target) {
                changes.push(ServeChange::Replica(Box::new(target.clone())));
            }
        }
        if before.discipline != now.discipline {
            changes.push(ServeChange::Discipline(now.discipline));
        }
        changes.push(ServeChange::Open);
        self.data_plane.serve(changes);
        self.applied = self.target.clone();
    }

    /// Waits until the data plane has taken what was applied.
    pub(crate) async fn settled(&self) {
        // The driver handles its messages in order.
        self.data_plane.work().await;
    }

    /// Returns a replica of the target.
    pub(crate) fn replica(&mut self, number: u32) -> &mut Target {
        self.target.replicas.get_mut(&replica_id(number)).unwrap()
    }

    /// Has a replica drain.
    pub(crate) fn drain(&mut self, number: u32) {
        self.replica(number).replica.phase = ReplicaPhase::Draining;
        self.apply();
    }

    /// Starts a worker of a model, and waits until it takes batches.
    pub(crate) async fn add_worker(&mut self, model: &str, number: u32) -> Arc<Worker> {
        self.add_worker_on("n/gpu0", model, number).await
    }

    /// Starts a worker of a model on a device, and waits until it takes batches.
    pub(crate) async fn add_worker_on(
        &mut self,
        device: &str,
        model: &str,
        number: u32,
    ) -> Arc<Worker> {
        let worker = Worker::start(self.identity(model, number), LinkSecret::none()).await;
        self.add_replica_on(device, model, number, worker.address);
        self.wait_for_link(number, |state| *state == LinkState::Serving)
            .await;
        Arc::new(worker)
    }

    pub(crate) fn identity(&self, model: &str, number: u32) -> WorkerIdentity {
        let artifact = self.target.models[&model.parse().unwrap()].program.artifact;
        WorkerIdentity {
            replica: replica_id(number),
            artifact,
            batch_size: 8,
        }
    }

    pub(crate) fn add_replica(&mut self, model: &str, number: u32, address: SocketAddr) {
        self.add_replica_on("n/gpu0", model, number, address);
    }

    fn add_replica_on(&mut self, device: &str, model: &str, number: u32, address: SocketAddr) {
        let program = &self.target.models[&model.parse().unwrap()].program;
        let program = Arc::new(program.clone());
        let id = replica_id(number);
        let target = Target {
            replica: Replica {
                id,
                spec: ReplicaSpec::new(program, device.parse().unwrap(), 8),
                phase: ReplicaPhase::Planned,
                worker: None,
            },
            address,
            local_path: None,
            capacity: None,
            profile: profile(),
        };
        self.target.replicas.insert(id, target);
        self.apply();
    }

    pub(crate) async fn wait_for_link(
        &self,
        number: u32,
        holds: impl Fn(&LinkState) -> bool,
    ) -> LinkState {
        let mut links = self.links.clone();
        let found = links.wait_for(|links| links.get(&replica_id(number)).is_some_and(&holds));
        within("a state of the link", found).await.unwrap()[&replica_id(number)].clone()
    }

    /// Waits until this number of requests is in the queue of the model `double`.
    pub(crate) async fn wait_for_queued(&self, requests: usize) {
        let line = format!(
            "nv_inference_pending_request_count{{model=\"double\",version=\"1\"}} {requests}\n"
        );
        until("the queue's length", || self.metrics().contains(&line)).await;
    }

    /// Waits until the data plane has a model.
    pub(crate) async fn wait_for_model(&self, id: &str) {
        let id: ModelId = id.parse().unwrap();
        let is_there = || {
            let models = self.data_plane.goodput(LONGEST_WINDOW);
            let mut models = models.iter();
            models.any(|model| (&model.name, model.version) == (&id.name, id.version))
        };
        until("the model", is_there).await;
    }

    pub(crate) fn metrics(&self) -> String {
        self.data_plane.telemetry().metrics_text()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::read(self.client.get(self.url(path)).send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        Answer::read(
            self.client
                .post(self.url(path))
                .body(body)
                .send()
                .await
                .unwrap(),
        )
        .await
    }

    /// Sends a request to the model `double` whose values are all `x`, and waits for the answer.
    pub(crate) async fn double(&self, rows: usize, x: f64) -> Answer {
        self.post(
            "/v2/models/double/infer",
            double_request(rows, x).to_string(),
        )
        .await
    }

    /// Begins a request to the model `double` whose values are all `x`.
    pub(crate) fn begin_double(&self, rows: usize, x: f64) -> tokio::task::JoinHandle<Answer> {
        self.begin("/v2/models/double/infer", &double_request(rows, x))
    }

    /// Begins a request.
    pub(crate) fn begin(&self, path: &str, request: &Value) -> tokio::task::JoinHandle<Answer> {
        let request = self.client.post(self.url(path)).body(request.to_string());
        tokio::spawn(async move { Answer::read(request.send().await.unwrap()).await })
    }

    /// Sends bytes on a new connection, and returns the answer until the gateway closes the connection.
    pub(crate) async fn send_raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is still an answer.
        let _ = within("the end of the connection", stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

pub(crate) fn double_request(rows: usize, x: f64) -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": vec![x; 2 * rows]}]})
}

/// The head of a request to the model `double` on a connection that is closed after it, with these further header lines.
pub(crate) fn double_head(headers: &str) -> String {
    format!(
        "POST /v2/models/double/infer HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{headers}\r\n"
    )
}

/// The numbers of an output in JSON.
pub(crate) fn numbers(answer: &Answer) -> Vec<f64> {
    let json = answer.json();
    json["outputs"][0]["data"]
        .as_array()
        .unwrap_or_else(|| panic!("{json}"))
        .iter()
        .map(|n| n.as_f64().unwrap())
        .collect()
}
