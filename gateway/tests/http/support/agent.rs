//! A scripted agent, whose workers speak the real protocol and compute nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_api::agent::{AgentStatus, GpuStatus, LeaseGrant, WantedState};
use packhorse_cluster::{
    ByteCount, DeviceKind, Profile, ProfileProgress, ProfileTable, ReplicaId, ReplicaState,
    ReplicaStatus, WantedProfile, WantedReplica, WorkerKind,
};
use packhorse_wire::{LinkSecret, WorkerIdentity};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    PATIENCE,
    answer::Answer,
    gateway::Gateway,
    profile_row,
    worker::{Compute, Worker},
};

/// A scripted agent.
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) instance: String,
    pub(crate) devices: Value,
    /// The epoch and revision of its wanted state.
    pub(crate) known: (u64, u64),
    pub(crate) workers: BTreeMap<ReplicaId, Arc<Worker>>,
    pub(crate) wanted: WantedState,
    /// True if it starts workers for the wanted replicas.
    pub(crate) starts: bool,
    /// True if it reports a result of the wanted measurements.
    pub(crate) measures: bool,
    /// The computation of the workers that it starts; if none, the test answers their batches.
    pub(crate) computes: Option<Compute>,
    /// The reason with which it reports every replica as failed, in place of starting it.
    pub(crate) fails: Option<String>,
    /// The GPUs that it reports.
    pub(crate) gpus: Vec<GpuStatus>,
    /// Further fields of its lease requests.
    pub(crate) says: Value,
    /// Its token, if it is not the agents' common one.
    pub(crate) token: Option<String>,
}

/// One device of a kind with this memory.
pub(crate) fn devices(kind: &str, memory_mib: u64) -> Value {
    json!([{"name": "sim0", "kind": kind, "memory_bytes": memory_mib << 20, "multiprocessors": 80, "description": "a test"}])
}

/// A profile by which batches of 1, 2, 4 and 8 rows take 2 ms each and 2 ms per row, and need 100 MiB.
pub(crate) fn profile(wanted: &WantedProfile) -> String {
    let row = |batch_size: u32| {
        let latency = Duration::from_millis(2 + 2 * u64::from(batch_size));
        profile_row(batch_size, latency, ByteCount::from_mib(100))
    };
    let rows = [1, 2, 4, 8].map(row).to_vec();
    let mut table = ProfileTable::default();
    let kind: DeviceKind = wanted.device_kind.clone();
    table.insert(
        wanted.program.model.clone(),
        kind,
        Profile::new(rows).unwrap(),
    );
    table.to_csv()
}

impl Agent {
    /// An agent with one device of the kind `T4` and 1 GiB.
    pub(crate) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            instance: format!("first of {node}"),
            devices: devices("T4", 1024),
            known: (0, 0),
            workers: BTreeMap::new(),
            wanted: WantedState::default(),
            starts: true,
            measures: true,
            computes: None,
            fails: None,
            gpus: Vec::new(),
            says: json!({}),
            token: None,
        }
    }

    /// Registers models, and returns an agent that is wanted to measure them and does not.
    pub(crate) async fn asked_to_measure(gateway: &Gateway, models: &[&str]) -> Self {
        let mut agent = Self {
            measures: false,
            ..Self::new("n")
        };
        for model in models {
            gateway.register(model).await;
        }
        agent.turn(gateway).await;
        agent.pull(gateway, 1000).await;
        agent
    }

    pub(crate) async fn send(
        &self,
        gateway: &Gateway,
        method: Method,
        what: &str,
        body: String,
    ) -> Answer {
        let path = format!("/v1/agents/{}/{what}", self.node);
        let common = || gateway.token("agent-token");
        let token = self.token.clone().unwrap_or_else(common);
        let address = gateway.app.admin_address();
        gateway
            .send(address, method, &path, Some(&token), body.into_bytes())
            .await
    }

    pub(crate) async fn try_lease(&self, gateway: &Gateway) -> Answer {
        let mut body =
            json!({"instance": self.instance, "agent_version": "0.1.0", "devices": self.devices});
        for (field, value) in self.says.as_object().unwrap() {
            body[field] = value.clone();
        }
        self.send(gateway, Method::PUT, "lease", body.to_string())
            .await
    }

    pub(crate) async fn lease(&self, gateway: &Gateway) -> LeaseGrant {
        serde_json::from_value(self.try_lease(gateway).await.ok(200)).unwrap()
    }

    pub(crate) async fn try_report(
        &self,
        gateway: &Gateway,
        replicas: Vec<ReplicaStatus>,
        profiles: Vec<ProfileProgress>,
    ) -> Answer {
        let status = AgentStatus {
            instance: self.instance.clone(),
            epoch: self.known.0,
            revision: self.known.1,
            replicas,
            profiles,
            inspections: None,
            gpus: self.gpus.clone(),
        };
        let body = serde_json::to_string(&status).unwrap();
        self.send(gateway, Method::PUT, "status", body).await
    }

    /// Reports its workers as ready and the wanted measurements as finished.
    pub(crate) async fn report(&self, gateway: &Gateway) {
        let replicas = self.workers.iter().map(|(id, worker)| ReplicaStatus {
            address: Some(worker.address),
            local_path: None,
            pid: Some(1),
            ..status(*id, ReplicaState::Ready, None)
        });
        let mut replicas: Vec<ReplicaStatus> = replicas.collect();
        if let Some(reason) = &self.fails {
            let wanted = self.wanted.replicas.iter();
            replicas
                .extend(wanted.map(|wanted| status(wanted.id, ReplicaState::Failed, Some(reason))));
        }
        let profiles = self.wanted.profiles.iter().filter(|_| self.measures);
        let profiles = profiles
            .map(|wanted| ProfileProgress {
                done: 4,
                total: 4,
                csv: Some(profile(wanted)),
                ..progress(wanted)
            })
            .collect();
        let answer = self.try_report(gateway, replicas, profiles).await;
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    pub(crate) async fn try_wanted(&self, gateway: &Gateway, wait_ms: u64) -> Answer {
        let (epoch, revision) = self.known;
        let what = format!("wanted?epoch={epoch}&revision={revision}&wait_ms={wait_ms}");
        self.send(gateway, Method::GET, &what, String::new()).await
    }

    /// Fetches the wanted state.
    pub(crate) async fn pull(&mut self, gateway: &Gateway, wait_ms: u64) {
        let answer = self.try_wanted(gateway, wait_ms).await;
        self.wanted = serde_json::from_value(answer.ok(200)).unwrap();
        self.known = (self.wanted.epoch, self.wanted.revision);
    }

    /// Starts and stops workers so that the wanted ones run.
    pub(crate) async fn reconcile(&mut self) {
        let wanted: BTreeMap<ReplicaId, &WantedReplica> =
            self.wanted.replicas.iter().map(|w| (w.id, w)).collect();
        self.workers.retain(|id, _| wanted.contains_key(id));
        for (id, wanted) in wanted {
            if self.starts && self.fails.is_none() && !self.workers.contains_key(&id) {
                let identity = WorkerIdentity {
                    replica: id,
                    artifact: wanted.program.artifact,
                    batch_size: wanted.batch_size,
                };
                let worker = Worker::start(identity, LinkSecret::none()).await;
                let worker = Arc::new(worker);
                if let Some(compute) = self.computes {
                    worker.answer_all(compute);
                }
                self.workers.insert(id, worker);
            }
        }
    }

    /// One turn of its loop.
    pub(crate) async fn turn(&mut self, gateway: &Gateway) {
        self.lease(gateway).await;
        self.report(gateway).await;
        self.pull(gateway, 20).await;
        self.reconcile().await;
        self.report(gateway).await;
    }

    /// Runs its loop until a condition of a model's view holds.
    pub(crate) async fn work_until(
        &mut self,
        gateway: &Gateway,
        model: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let end = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < end {
            self.turn(gateway).await;
            last = gateway.get(&format!("/v1/models/{model}")).await.ok(200);
            if holds(&last) {
                return last;
            }
        }
        panic!("the agent worked in vain: {last}");
    }

    /// Runs its loop until a model serves.
    pub(crate) async fn work_until_ready(&mut self, gateway: &Gateway, model: &str) -> Value {
        self.work_until(gateway, model, |view| {
            view["state"] == "ready" && view["reason"].is_null()
        })
        .await
    }
}

pub(crate) fn status(id: ReplicaId, state: ReplicaState, reason: Option<&str>) -> ReplicaStatus {
    ReplicaStatus {
        id,
        state,
        address: None,
        local_path: None,
        pid: None,
        restarts: 0,
        reason: reason.map(ToOwned::to_owned),
        memory_bytes: None,
        capacity: None,
        verification: None,
        worker: WorkerKind::Own,
    }
}

pub(crate) fn progress(wanted: &WantedProfile) -> ProfileProgress {
    ProfileProgress {
        model: wanted.program.model.clone(),
        device_kind: wanted.device_kind.clone(),
        done: 0,
        total: 0,
        csv: None,
        kernels: None,
        operators: None,
        error: None,
    }
}
