//! A stand-in for the gateway with the agent API only, and agents as processes.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use packhorse_api::agent::{AgentStatus, LeaseGrant, LeaseRequest, ProtocolRange, WantedState};
use packhorse_cluster::{
    ArtifactDigest, ClusterId, Datatype, Dim, ProfileTable, Program, ReplicaState, ReplicaStatus,
    TensorSpec, WantedProfile, WantedReplica,
};
use packhorse_wire::{ClusterKey, LinkSecret};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

/// A time limit far above what any step takes, even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: &str = "an-agents-token";
pub(crate) const ARTIFACT: &[u8] = b"simulated devices do not look into their artifact";

/// The state of the stand-in gateway.
#[derive(Clone, Default)]
pub(crate) struct FakeState {
    pub(crate) epoch: u64,
    pub(crate) wanted: WantedState,
    pub(crate) artifacts: BTreeMap<String, Vec<u8>>,
    pub(crate) leases: Vec<LeaseRequest>,
    pub(crate) status: Option<AgentStatus>,
    /// The number of long polls answered so far.
    pub(crate) polls: u64,
    /// If true, long polls are answered at once.
    pub(crate) hasty: bool,
    /// The cluster; none for a gateway that has no identity yet.
    pub(crate) cluster: Option<ClusterId>,
    /// True if the gateway proves that it may take over a node of another cluster.
    pub(crate) proves: bool,
    pub(crate) protocol: ProtocolRange,
}

/// A gateway with one node.
pub(crate) struct FakeGateway {
    pub(crate) address: SocketAddr,
    pub(crate) state: watch::Sender<FakeState>,
    server: JoinHandle<()>,
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeGateway {
    pub(crate) async fn start() -> Self {
        let mut state = FakeState {
            epoch: 1,
            ..FakeState::default()
        };
        state
            .artifacts
            .insert(digest().to_string(), ARTIFACT.to_vec());
        Self::start_at("127.0.0.1:0".parse().unwrap(), state).await
    }

    /// Starts a gateway with the state of another, for instance of the one that was at this address before.
    pub(crate) async fn start_at(address: SocketAddr, state: FakeState) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(state);
        let shared = state.clone();
        let server = tokio::spawn(async move {
            // Connections end with the server, like those of a killed process.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, shared.clone()));
            }
        });
        Self {
            address,
            state,
            server,
        }
    }

    /// Sets the wanted state.
    pub(crate) fn want(&self, replicas: Vec<WantedReplica>, profiles: Vec<WantedProfile>) {
        self.want_all(replicas, profiles, Vec::new());
    }

    /// Sets the wanted state to inspections.
    pub(crate) fn want_inspections(&self, inspections: Vec<Program>) {
        self.want_all(Vec::new(), Vec::new(), inspections);
    }

    fn want_all(
        &self,
        replicas: Vec<WantedReplica>,
        profiles: Vec<WantedProfile>,
        inspections: Vec<Program>,
    ) {
        self.state.send_modify(|state| {
            state.wanted = WantedState {
                epoch: state.epoch,
                revision: state.wanted.revision + 1,
                replicas,
                profiles,
                inspections,
            };
        });
    }

    /// Waits until `look` returns something for the state.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&FakeState) -> Option<T>) -> T {
        let mut state = self.state.subscribe();
        let waited = timeout(LIMIT, async {
            loop {
                if let Some(found) = look(&state.borrow_and_update()) {
                    return found;
                }
                state.changed().await.unwrap();
            }
        });
        waited.await.unwrap_or_else(|_| {
            panic!(
                "{what} within {LIMIT:?}; the last status: {:#?}",
                self.state.borrow().status
            )
        })
    }

    /// Waits until the node's only replica is in this state.
    pub(crate) async fn until_state(&self, state: ReplicaState) -> ReplicaStatus {
        let only = |gateway: &FakeState| match gateway.status.as_ref()?.replicas.as_slice() {
            [replica] if replica.state == state => Some(replica.clone()),
            _ => None,
        };
        self.until(&format!("one replica {state:?}"), only).await
    }

    pub(crate) async fn until_empty(&self) {
        self.until("no replica", |state| {
            state.status.as_ref()?.replicas.is_empty().then_some(())
        })
        .await;
    }
}

async fn serve(stream: TcpStream, state: watch::Sender<FakeState>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            (stream.read_until(b'\n', &mut head).await.ok()? > 0).then_some(())?;
        }
        let head = String::from_utf8(head).unwrap();
        let mut words = head.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        let length = field("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let (status, body) = if field("authorization") == Some(format!("Bearer {TOKEN}")) {
            answer(&method, &target, &body, &state).await
        } else {
            (401, br#"{"error":"who are you?"}"#.to_vec())
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(&body).await.ok()?;
    }
}

async fn answer(
    method: &str,
    target: &str,
    body: &[u8],
    state: &watch::Sender<FakeState>,
) -> (u16, Vec<u8>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match (method, path) {
        ("PUT", "/v1/agents/here/lease") => {
            let lease: LeaseRequest = serde_json::from_slice(body).unwrap();
            let grant = grant(&state.borrow(), &lease);
            state.send_modify(|state| state.leases.push(lease));
            (200, serde_json::to_vec(&grant).unwrap())
        }
        ("PUT", "/v1/agents/here/status") => {
            let status: AgentStatus = serde_json::from_slice(body).unwrap();
            let known = state
                .borrow()
                .leases
                .last()
                .is_some_and(|l| l.instance == status.instance);
            if !known {
                return (409, br#"{"error":"no lease"}"#.to_vec());
            }
            state.send_modify(|state| state.status = Some(status));
            (204, Vec::new())
        }
        ("GET", "/v1/agents/here/wanted") => {
            let number = |name: &str| -> u64 {
                let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                pairs
                    .find(|(key, _)| *key == name)
                    .unwrap()
                    .1
                    .parse()
                    .unwrap()
            };
            let known = (number("epoch"), number("revision"));
            let wait = Duration::from_millis(number("wait_ms"));
            let mut changes = state.subscribe();
            let newer = changes.wait_for(|state| {
                state.hasty || (state.wanted.epoch, state.wanted.revision) > known
            });
            let _ = timeout(wait, newer).await;
            state.send_modify(|state| state.polls += 1);
            (200, serde_json::to_vec(&state.borrow().wanted).unwrap())
        }
        ("GET", path) => {
            let digest = path.strip_prefix("/v1/artifacts/").unwrap_or_default();
            match state.borrow().artifacts.get(digest) {
                Some(bytes) => (200, bytes.clone()),
                None => (404, br#"{"error":"no such artifact"}"#.to_vec()),
            }
        }
        _ => (404, br#"{"error":"no such route"}"#.to_vec()),
    }
}

/// Returns the grant of a gateway, with the proof for an agent of another cluster if the gateway makes it.
fn grant(state: &FakeState, lease: &LeaseRequest) -> LeaseGrant {
    let cluster_id = state.cluster.clone();
    let nonce = lease.nonce.as_deref().unwrap_or_default();
    let proof = cluster_id.as_ref().filter(|_| state.proves).map(|cluster| {
        let key = ClusterKey::new(&LinkSecret::none(), TOKEN);
        hex::encode(key.prove(nonce, cluster))
    });
    LeaseGrant {
        epoch: state.epoch,
        lease_ms: 600,
        protocol: state.protocol,
        cluster_id,
        proof,
    }
}

/// Returns the digest of the only artifact.
pub(crate) fn digest() -> ArtifactDigest {
    ArtifactDigest::from_sha256(Sha256::digest(ARTIFACT).into())
}

pub(crate) fn program() -> Program {
    let tensor = |name: &str| TensorSpec::new(name, Datatype::Fp32, vec![Dim::Any, Dim::Fixed(4)]);
    Program {
        model: "m:1".parse().unwrap(),
        artifact: digest(),
        max_batch_size: 4,
        inputs: vec![tensor("x")],
        outputs: vec![tensor("y")],
    }
}

pub(crate) fn replica(id: &str) -> WantedReplica {
    WantedReplica {
        id: id.parse().unwrap(),
        program: program(),
        device: "sim0".to_owned(),
        batch_size: 4,
        compute_share_pct: None,
        memory_bytes: None,
        attempt: 0,
        worker: None,
        pooled: false,
    }
}

pub(crate) fn profile() -> WantedProfile {
    WantedProfile {
        program: program(),
        device: "sim0".to_owned(),
        device_kind: "T4".parse().unwrap(),
        time_limit_ms: 2000,
        inspect: false,
    }
}

/// The folder of an agent. When it is dropped, its workers and daemons are killed.
pub(crate) struct Home {
    dir: TempDir,
}

impl Drop for Home {
    fn drop(&mut self) {
        for pid in self.workers() {
            signal(pid, "KILL");
        }
        for daemon in self.mps_daemons() {
            signal(daemon.pid, "KILL");
        }
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
        let profiles = "m,T4,1,,2,3,100,,,50\nm,T4,2,,3,4,150,,,70\nm,T4,4,,4,6,200,,,90\n";
        let csv = format!("{}\n{profiles}", ProfileTable::CSV_HEADER);
        fs::write(dir.path().join("profiles.csv"), csv).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates an executable shell script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts an agent of node `here` with two simulated devices.
    pub(crate) fn agent(&self, gateway: SocketAddr, flags: &[&str]) -> Agent {
        let mut command = self.agent_command(gateway);
        command.args(["--devices", "simulated:T4:2"]).args(flags);
        Agent(command.spawn().unwrap())
    }

    /// Returns the command of an agent without its devices.
    pub(crate) fn agent_command(&self, gateway: SocketAddr) -> Command {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("agent.log"))
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_packhorse-agent"));
        command
            .args(["--gateway", &format!("http://{gateway}"), "--node", "here"])
            .args(["--batch-limit-ms", "1000"])
            .args([Path::new("--profiles"), &self.path("profiles.csv")])
            .args([Path::new("--token-file"), &self.path("token")])
            .args([Path::new("--state-dir"), &self.path("state")])
            .stderr(log);
        command
    }

    /// Returns the MPS daemons that an agent has started in this folder, alive or not.
    pub(crate) fn mps_daemons(&self) -> Vec<MpsDaemon> {
        let folders = fs::read_dir(self.path("state/mps")).into_iter().flatten();
        let daemon = |folder: PathBuf| {
            let read = |name| fs::read_to_string(folder.join("pipe").join(name)).ok();
            Some(MpsDaemon {
                pid: read("daemon")?.trim().parse().ok()?,
                device: read("device")?.trim().to_owned(),
            })
        };
        folders
            .filter_map(|folder| daemon(folder.ok()?.path()))
            .collect()
    }

    /// Returns the processes with a hand-over folder in this folder.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let here = self.dir.path().to_str().unwrap();
        let running = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let (_, dir) = arguments.split_once("\0--dir\0")?;
            dir.starts_with(here).then_some(pid)
        });
        running.collect()
    }
}

/// A stand-in for an MPS daemon, by its own files.
pub(crate) struct MpsDaemon {
    pub(crate) pid: u32,
    pub(crate) device: String,
}

/// An agent's process, killed when it is dropped.
pub(crate) struct Agent(pub(crate) Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Agent {
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(mut self) -> std::process::ExitStatus {
        signal(self.0.id(), "TERM");
        self.0.wait().unwrap()
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    kill.unwrap();
}
