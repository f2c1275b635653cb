//! A gateway and agents on this machine, for the demo, the benchmarks and clusters of simulated devices.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::{
    http::{Connection, message},
    processes::{Services, wait_for},
    workspace::{program, root},
};

/// A request to end: Ctrl-C, SIGTERM, or a closed terminal.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. It must be called only once.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&raised);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .context("listen for Ctrl-C")?;
        Ok(Self(raised))
    }

    /// Returns true if the request has come.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs a command at the repository's root to its end. Fails if the command does, and at an interrupt.
    pub(crate) fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        let name = command.get_program().display().to_string();
        let mut child = command
            .current_dir(root())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let ended = wait_for(Duration::MAX, || {
            if self.is_raised() {
                child.kill()?;
            }
            Ok(child.try_wait()?)
        })?;
        let status = ended.context("there is no limit")?;
        ensure!(!self.is_raised(), "interrupted");
        ensure!(status.success(), "{name}: {status}");
        Ok(())
    }
}

/// The file that the gateway writes when it listens.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Endpoints {
    /// The address of the inference listener.
    pub(crate) inference: SocketAddr,
    /// The address of the gRPC listener.
    pub(crate) grpc: Option<SocketAddr>,
    /// The address of the admin listener.
    pub(crate) admin: SocketAddr,
    /// The process id of the gateway.
    pub(crate) pid: u32,
}

/// An entry of the repository index.
#[derive(Deserialize)]
pub(crate) struct IndexEntry {
    name: String,
    state: String,
}

/// An agent to start.
pub(crate) struct AgentFlags {
    node: String,
    flags: Vec<String>,
}

impl AgentFlags {
    /// Returns an agent that offers these devices, and whose workers end with it.
    pub(crate) fn new(node: &str, devices: &str) -> Self {
        let flags = [
            "--node",
            node,
            "--devices",
            devices,
            "--stop-workers-on-exit",
        ];
        Self {
            node: node.to_owned(),
            flags: flags.map(str::to_owned).to_vec(),
        }
    }

    /// Adds a flag.
    pub(crate) fn with(mut self, flag: &str, value: &str) -> Self {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
        self
    }
}

/// Running programs; dropping it ends them.
pub(crate) struct LocalCluster {
    /// The addresses of the gateway.
    pub(crate) endpoints: Endpoints,
    state_dir: PathBuf,
    services: Services,
    interrupt: Interrupt,
}

impl LocalCluster {
    /// Starts the gateway, then the agents, and waits until the gateway is ready. `state_dir` is absolute.
    pub(crate) fn start(
        state_dir: &Path,
        ports: [u16; 2],
        agents: &[AgentFlags],
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        Self::start_with(&[], state_dir, ports, agents, interrupt)
    }

    /// Does the same, with more flags of the gateway.
    pub(crate) fn start_with(
        gateway_flags: &[&str],
        state_dir: &Path,
        ports: [u16; 2],
        agents: &[AgentFlags],
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut services = Services::new(state_dir.to_owned());
        let gateway_dir = state_dir.join("gateway");
        let [http, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
        let mut gateway = Command::new(program("packhorse-gateway")?);
        gateway.arg("--state-dir").arg(&gateway_dir).args([
            "--listen",
            &http,
            "--admin-listen",
            &admin,
        ]);
        gateway.args(gateway_flags);
        let pid = services.start("gateway", &mut gateway)?;
        // A file of an earlier run may exist; it names another process.
        let listening = || {
            let text = fs::read(gateway_dir.join("endpoints.json")).unwrap_or_default();
            Ok(serde_json::from_slice::<Endpoints>(&text)
                .ok()
                .filter(|endpoints| endpoints.pid == pid))
        };
        let limit = Duration::from_secs(30);
        let endpoints = wait(
            &mut services,
            interrupt,
            "the gateway to listen",
            limit,
            listening,
        )?;

        for AgentFlags { node, flags } in agents {
            let mut agent = Command::new(program("packhorse-agent")?);
            agent.args(["--gateway", &format!("http://{}", endpoints.admin)]);
            agent.arg("--state-dir").arg(state_dir.join(node));
            agent
                .arg("--token-file")
                .arg(gateway_dir.join("agent-token"));
            agent.args(flags);
            services.start(node, &mut agent)?;
        }

        let mut cluster = Self {
            endpoints,
            state_dir: state_dir.to_owned(),
            services,
            interrupt: interrupt.clone(),
        };
        cluster.wait("the gateway to be ready", Duration::from_mins(1), || {
            Ok(matches!(
                ask(endpoints.inference, "GET", "/v2/health/ready"),
                Ok((200, _))
            )
            .then_some(()))
        })?;
        Ok(cluster)
    }

    /// Registers a model by the command `packhorse model register`, unless an earlier run has. What the command prints goes to `output`.
    pub(crate) fn register(
        &mut self,
        name: &str,
        registration: &Path,
        artifact: &Path,
        output: Stdio,
    ) -> anyhow::Result<()> {
        if !index(self.endpoints.inference)?
            .iter()
            .any(|entry| entry.name == name)
        {
            let mut register = self.command()?;
            register
                .args(["model", "register"])
                .arg(registration)
                .arg("--artifact")
                .arg(artifact)
                .arg("--yes")
                .stdout(output);
            self.interrupt.run(&mut register)?;
        }
        Ok(())
    }

    /// Returns the command `packhorse` with the addresses and the token of this cluster.
    pub(crate) fn command(&self) -> anyhow::Result<Command> {
        let Endpoints {
            inference, admin, ..
        } = self.endpoints;
        let mut command = Command::new(program("packhorse")?);
        command
            .args(["--url", &format!("http://{inference}")])
            .args(["--admin-url", &format!("http://{admin}")])
            .arg("--token-file")
            .arg(self.state_dir.join("gateway/admin-token"));
        Ok(command)
    }

    /// Waits until a model is ready.
    pub(crate) fn wait_until_ready(&mut self, name: &str) -> anyhow::Result<()> {
        let inference = self.endpoints.inference;
        self.wait(
            &format!("{name} to be ready"),
            Duration::from_mins(3),
            || {
                let ready = |entry: &IndexEntry| entry.name == name && entry.state == "READY";
                Ok(index(inference)?.iter().any(ready).then_some(()))
            },
        )
    }

    /// Waits until an interrupt, or until a program has ended by itself.
    pub(crate) fn run_until_interrupted(&mut self) -> anyhow::Result<()> {
        self.wait("an interrupt", Duration::MAX, || Ok(None))
    }

    fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        ready: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        wait(&mut self.services, &self.interrupt, what, limit, ready)
    }
}

/// Waits while all services run. Fails if one of them ends, at an interrupt, and after the limit.
fn wait<T>(
    services: &mut Services,
    interrupt: &Interrupt,
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let outcome = wait_for(limit, || {
        ensure!(!interrupt.is_raised(), "interrupted");
        match services.ended()? {
            Some(end) => bail!(end),
            None => ready(),
        }
    })?;
    outcome.with_context(|| format!("gave up after {} s waiting for {what}", limit.as_secs()))
}

fn index(inference: SocketAddr) -> anyhow::Result<Vec<IndexEntry>> {
    let (status, body) = ask(inference, "POST", "/v2/repository/index")?;
    ensure!(
        status == 200,
        "the repository index answered {status}: {}",
        String::from_utf8_lossy(&body)
    );
    serde_json::from_slice(&body).context("read the repository index")
}

fn ask(address: SocketAddr, method: &str, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let limit = Duration::from_secs(5);
    let mut connection =
        Connection::open(address, limit).with_context(|| format!("connect to {address}"))?;
    let response = connection
        .exchange(&message(method, path, "", b""))
        .with_context(|| format!("{method} {path}"))?;
    Ok((response.status, response.body))
}

/// Prints where the cluster is reached.
pub(crate) fn print_addresses(endpoints: &Endpoints, state_dir: &Path) {
    let Endpoints {
        inference, admin, ..
    } = endpoints;
    let state_dir = state_dir.display();
    println!("\nServing until Ctrl-C:");
    println!("  dashboard   http://{admin}/ (token: {state_dir}/gateway/admin-token)");
    println!("  inference   http://{inference}/v2");
    println!("  admin       http://{admin}/v1");
    println!("  API docs    http://{admin}/docs");
    println!("  metrics     http://{admin}/metrics");
    println!("  logs        {state_dir}/*.log");
    println!("\nIn another terminal, to use target/debug/packhorse:");
    println!("  export PACKHORSE_TOKEN_FILE={state_dir}/gateway/admin-token");
    println!("  export PACKHORSE_URL=http://{inference} PACKHORSE_ADMIN_URL=http://{admin}");
    println!("  target/debug/packhorse status");
}
