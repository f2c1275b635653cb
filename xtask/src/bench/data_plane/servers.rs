//! The servers that are measured: the yardsticks and ours.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;

use crate::{
    local::{AgentFlags, Interrupt, LocalCluster},
    processes::packhorse_pids,
    workspace::root,
};

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// A server of the Open Inference Protocol, or what `packhorse-lab bench` takes for one.
pub(super) trait Server {
    /// The name in reports.
    fn name(&self) -> &str;

    /// The address of the listener that is measured.
    fn address(&self) -> SocketAddr;

    /// The protocol of that listener.
    fn protocol(&self) -> Protocol {
        Protocol::Http
    }

    /// The ids of its processes.
    fn pids(&self) -> Vec<i32>;

    /// Prepares the machine for the server. What is returned is dropped when it has been measured.
    fn prepare(&self) -> anyhow::Result<Option<File>> {
        Ok(None)
    }
}

/// A program of `lab/ceilings` on cores that do not sleep while it is measured.
pub(super) struct AwakeCores<'a>(pub(super) &'a Ceiling);

impl Server for AwakeCores<'_> {
    fn name(&self) -> &'static str {
        "two hops, cores that do not sleep"
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn pids(&self) -> Vec<i32> {
        self.0.pids()
    }

    fn prepare(&self) -> anyhow::Result<Option<File>> {
        let path = "/dev/cpu_dma_latency";
        let mut file = OpenOptions::new()
            .write(true)
            .open(path)
            .with_context(|| format!("open {path}"))?;
        // The longest time for which cores may take to wake, in microseconds, as long as the file is open.
        file.write_all(&0_i32.to_ne_bytes())
            .with_context(|| format!("write {path}"))?;
        Ok(Some(file))
    }
}

/// A program of `lab/ceilings`, with its worker if it has one. Dropping it ends both.
pub(super) struct Ceiling {
    name: &'static str,
    address: SocketAddr,
    protocol: Protocol,
    children: Vec<Child>,
}

impl Ceiling {
    /// Starts an HTTP server without a worker.
    pub(super) fn sink(name: &'static str, flags: &[&str]) -> anyhow::Result<Self> {
        let (child, address) = start("sink", flags)?;
        Ok(Self {
            name,
            address,
            protocol: Protocol::Http,
            children: vec![child],
        })
    }

    /// Starts an HTTP server that passes bodies to a worker.
    pub(super) fn two_hop(
        name: &'static str,
        flags: &[&str],
        worker_flags: &[&str],
    ) -> anyhow::Result<Self> {
        Self::with_worker(name, Protocol::Http, flags, worker_flags)
    }

    /// Starts a server of gRPC that passes inputs to a worker.
    pub(super) fn grpc_two_hop(name: &'static str, worker_flags: &[&str]) -> anyhow::Result<Self> {
        Self::with_worker(name, Protocol::Grpc, &[], worker_flags)
    }

    fn with_worker(
        name: &'static str,
        protocol: Protocol,
        flags: &[&str],
        worker_flags: &[&str],
    ) -> anyhow::Result<Self> {
        let (worker, worker_address) = start("worker", &[flags, worker_flags].concat())?;
        let mut ceiling = Self {
            name,
            address: worker_address,
            protocol,
            children: vec![worker],
        };
        let worker = worker_address.to_string();
        let front = match protocol {
            Protocol::Http => "front",
            Protocol::Grpc => "grpc-front",
        };
        let (front, address) = start(front, &[&["--worker", &worker], flags].concat())?;
        ceiling.children.push(front);
        ceiling.address = address;
        Ok(ceiling)
    }
}

impl Server for Ceiling {
    fn name(&self) -> &str {
        self.name
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn pids(&self) -> Vec<i32> {
        let pids = self.children.iter().map(|child| i32::try_from(child.id()));
        pids.flatten().collect()
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        for child in &mut self.children {
            // They keep no state.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the program of the yardsticks, which is built as any program is.
pub(super) fn ceilings() -> PathBuf {
    root().join("target/release/packhorse-ceilings")
}

/// Starts a program that prints its address.
fn start(subcommand: &str, flags: &[&str]) -> anyhow::Result<(Child, SocketAddr)> {
    let mut command = Command::new(ceilings());
    command.arg(subcommand).args(flags).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("start packhorse-ceilings {subcommand}"))?;
    let mut line = String::new();
    let output = child.stdout.as_mut().context("it is piped")?;
    let read = BufReader::new(output).read_line(&mut line);
    let address = read.context("read an address").and_then(|_| {
        let text = line.trim();
        text.parse()
            .with_context(|| format!("{text:?} is no address"))
    });
    match address {
        Ok(address) => Ok((child, address)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.context(format!("packhorse-ceilings {subcommand}")))
        }
    }
}

/// A gateway, an agent and a worker.
pub(super) struct Ours {
    name: &'static str,
    state_dir: PathBuf,
    cluster: LocalCluster,
}

impl Ours {
    /// Starts them and registers the model.
    pub(super) fn start(
        name: &'static str,
        gateway_flags: &[&str],
        state_dir: &Path,
        registration: &str,
        model: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(state_dir)
            .with_context(|| format!("create {}", state_dir.display()))?;
        // One thread computes, as in the worker of the yardsticks: gateway and clients need the other cores.
        let agents = [AgentFlags::new("local", "cpu:1")];
        let mut cluster =
            LocalCluster::start_with(gateway_flags, state_dir, [0, 0], &agents, interrupt)?;
        cluster.register("sum", Path::new(registration), model, Stdio::null())?;
        cluster.wait_until_ready("sum")?;
        Ok(Self {
            name,
            state_dir: state_dir.to_owned(),
            cluster,
        })
    }
}

impl Server for Ours {
    fn name(&self) -> &str {
        self.name
    }

    fn address(&self) -> SocketAddr {
        self.cluster.endpoints.inference
    }

    fn pids(&self) -> Vec<i32> {
        packhorse_pids(&self.state_dir)
    }
}

/// The gRPC listener of a gateway of ours.
pub(super) struct OverGrpc<'a> {
    ours: &'a Ours,
    name: &'static str,
    address: SocketAddr,
}

impl<'a> OverGrpc<'a> {
    pub(super) fn of(ours: &'a Ours, name: &'static str) -> anyhow::Result<Self> {
        let address = ours.cluster.endpoints.grpc;
        Ok(Self {
            ours,
            name,
            address: address.context("the gateway has no gRPC listener")?,
        })
    }
}

impl Server for OverGrpc<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn protocol(&self) -> Protocol {
        Protocol::Grpc
    }

    fn pids(&self) -> Vec<i32> {
        self.ours.pids()
    }
}
