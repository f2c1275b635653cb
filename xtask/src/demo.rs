//! The demo: gateway and agent on this machine's CPU, two real models registered as anybody would, and what they answer.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::{
    http::Connection,
    processes::{Services, stop_remains, wait_for},
    setup,
    workspace::{program, python, root},
};

/// How the demo runs.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where models, store and logs are kept; a second run finds them there.
    #[arg(long, default_value = ".packhorse/demo")]
    state_dir: PathBuf,
    /// The inference listener's port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    http_port: u16,
    /// The admin listener's port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 8081)]
    admin_port: u16,
    /// Forget the models of earlier runs and begin anew.
    #[arg(long)]
    fresh: bool,
}

/// A folder of `examples/`: its model, and the client that shows it.
struct Example {
    folder: &'static str,
    client: &'static str,
}

const EXAMPLES: [Example; 2] = [
    Example {
        folder: "efficientnet-lite0",
        client: "classify.py",
    },
    Example {
        folder: "minilm",
        client: "embed.py",
    },
];

/// Sets up, builds, serves and shows, until Ctrl-C or SIGTERM.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run()?;
    println!("Building");
    let packages = [
        "-p",
        "packhorse-gateway",
        "-p",
        "packhorse-worker-agent",
        "-p",
        "packhorse-cli",
    ];
    let status = Command::new("cargo")
        .current_dir(root())
        .arg("build")
        .args(packages)
        .status()?;
    ensure!(status.success(), "cargo build: {status}");

    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("listen for Ctrl-C")?;
    let demo = Demo {
        state_dir: state_dir(options)?,
        interrupted,
    };
    let lock = demo.lock()?;
    stop_remains(&demo.state_dir);
    let outcome = demo.serve(options);
    lock.unlock().context("unlock the state folder")?;
    if demo.interrupted.load(Ordering::Relaxed) {
        println!("Stopped.");
        return Ok(());
    }
    outcome
}

/// The state folder, made and absolute.
fn state_dir(options: &Options) -> anyhow::Result<PathBuf> {
    let dir = root().join(&options.state_dir);
    if options.fresh && dir.join("gateway").exists() {
        for part in ["gateway", "agent"] {
            let part = dir.join(part);
            fs::remove_dir_all(&part).with_context(|| format!("remove {}", part.display()))?;
        }
    }
    fs::create_dir_all(dir.join("models")).with_context(|| format!("create {}", dir.display()))?;
    dir.canonicalize()
        .with_context(|| format!("find {}", dir.display()))
}

/// What the gateway writes once it listens.
#[derive(Deserialize)]
struct Endpoints {
    inference: SocketAddr,
    admin: SocketAddr,
    pid: u32,
}

struct Demo {
    state_dir: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl Demo {
    /// Held while the demo runs: two of them would share a store.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.state_dir.join("lock");
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        ensure!(
            file.try_lock().is_ok(),
            "another demo runs with {}",
            self.state_dir.display()
        );
        Ok(file)
    }

    fn serve(&self, options: &Options) -> anyhow::Result<()> {
        let artifacts: Vec<PathBuf> = EXAMPLES
            .iter()
            .map(|example| self.export(example))
            .collect::<anyhow::Result<_>>()?;
        let mut services = Services::new(self.state_dir.clone());
        let endpoints = self.start_gateway(options, &mut services)?;
        self.start_agent(&endpoints, &mut services)?;
        let is_ready = || {
            Ok(matches!(
                ask(endpoints.inference, "GET", "/v2/health/ready"),
                Ok((200, _))
            )
            .then_some(()))
        };
        self.wait(
            "the gateway to be ready",
            &mut services,
            Duration::from_mins(1),
            is_ready,
        )?;
        for (example, artifact) in EXAMPLES.iter().zip(&artifacts) {
            self.register(example, artifact, &endpoints)?;
        }
        let all_ready = || {
            Ok(EXAMPLES
                .iter()
                .all(|e| is_model_ready(endpoints.inference, e.folder))
                .then_some(()))
        };
        self.wait(
            "the models to be ready",
            &mut services,
            Duration::from_mins(3),
            all_ready,
        )?;
        for Example { folder, client } in &EXAMPLES {
            println!();
            let script = Path::new("examples").join(folder).join(client);
            self.run(
                Command::new(python())
                    .arg(script)
                    .args(["--url", &endpoints.inference.to_string()]),
            )?;
        }
        self.print_addresses(&endpoints);
        self.wait("", &mut services, Duration::MAX, || Ok(None::<()>))
    }

    /// The model as a TorchScript file, written again when what writes it has changed.
    fn export(&self, example: &Example) -> anyhow::Result<PathBuf> {
        let script = root()
            .join("examples")
            .join(example.folder)
            .join("export.py");
        let model = self
            .state_dir
            .join("models")
            .join(format!("{}.pt", example.folder));
        let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
        if modified(&model).is_ok_and(|time| modified(&script).is_ok_and(|script| script < time)) {
            return Ok(model);
        }
        println!("Exporting {} to TorchScript", example.folder);
        let partial = model.with_extension("partial");
        self.run(
            Command::new(python())
                .arg("-Wignore")
                .arg(&script)
                .arg(&partial),
        )?;
        fs::rename(&partial, &model).with_context(|| format!("write {}", model.display()))?;
        Ok(model)
    }

    fn start_gateway(
        &self,
        options: &Options,
        services: &mut Services,
    ) -> anyhow::Result<Endpoints> {
        let dir = self.state_dir.join("gateway");
        let pid = services.start(
            "gateway",
            Command::new(program("packhorse-gateway")?)
                .arg("--state-dir")
                .arg(&dir)
                .args(["--listen", &format!("127.0.0.1:{}", options.http_port)])
                .args([
                    "--admin-listen",
                    &format!("127.0.0.1:{}", options.admin_port),
                ]),
        )?;
        // A file of an earlier run may be there: its process is another.
        let listening = || {
            let text = fs::read(dir.join("endpoints.json")).unwrap_or_default();
            Ok(serde_json::from_slice::<Endpoints>(&text)
                .ok()
                .filter(|endpoints| endpoints.pid == pid))
        };
        self.wait(
            "the gateway to listen",
            services,
            Duration::from_secs(30),
            listening,
        )
    }

    fn start_agent(&self, endpoints: &Endpoints, services: &mut Services) -> anyhow::Result<()> {
        let agent = services.start(
            "agent",
            Command::new(program("packhorse-agent")?)
                .args(["--gateway", &format!("http://{}", endpoints.admin)])
                .arg("--state-dir")
                .arg(self.state_dir.join("agent"))
                .arg("--token-file")
                .arg(self.state_dir.join("gateway/agent-token"))
                .args([
                    "--node",
                    "demo",
                    "--devices",
                    "cpu",
                    "--stop-workers-on-exit",
                ]),
        );
        agent.map(|_pid| ())
    }

    /// Registers a model with the command that anybody would use, unless an earlier run has.
    fn register(
        &self,
        example: &Example,
        artifact: &Path,
        endpoints: &Endpoints,
    ) -> anyhow::Result<()> {
        let known = index(endpoints.inference)?
            .iter()
            .any(|entry| entry.name == example.folder);
        if known {
            return Ok(());
        }
        let registration = Path::new("examples")
            .join(example.folder)
            .join("model.json");
        self.run(
            Command::new(program("packhorse")?)
                .args(["--url", &format!("http://{}", endpoints.inference)])
                .args([
                    "--admin-url",
                    &format!("http://{}", endpoints.admin),
                    "--token-file",
                ])
                .arg(self.state_dir.join("gateway/admin-token"))
                .args(["model", "register"])
                .arg(registration)
                .arg("--artifact")
                .arg(artifact)
                .arg("--wait"),
        )
    }

    /// Waits while all services run. Fails when one ends, at an interrupt, and after the limit.
    fn wait<T>(
        &self,
        what: &str,
        services: &mut Services,
        limit: Duration,
        mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let outcome = wait_for(limit, || {
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            match services.ended()? {
                Some(end) => bail!(end),
                None => ready(),
            }
        })?;
        outcome.with_context(|| {
            format!(
                "gave up after {} s waiting for {what}; logs in {}",
                limit.as_secs(),
                self.state_dir.display()
            )
        })
    }

    /// Runs a command at the repository's root to its end, or until an interrupt.
    fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        let name = command.get_program().display().to_string();
        let mut child = command
            .current_dir(root())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let ended = wait_for(Duration::MAX, || {
            if self.interrupted.load(Ordering::Relaxed) {
                child.kill()?;
            }
            Ok(child.try_wait()?)
        })?;
        let status = ended.context("there is no limit")?;
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        ensure!(status.success(), "{name}: {status}");
        Ok(())
    }

    fn print_addresses(&self, endpoints: &Endpoints) {
        let Endpoints {
            inference, admin, ..
        } = endpoints;
        println!("\nServing until Ctrl-C:");
        println!("  inference    http://{inference}/v2");
        println!(
            "  admin        http://{admin}/v1  (token in {}/gateway/admin-token)",
            self.state_dir.display()
        );
        println!("  API docs     http://{admin}/docs");
        println!("  metrics      http://{admin}/metrics");
        println!("  logs         {}/*.log", self.state_dir.display());
    }
}

/// An entry of the repository index.
#[derive(Deserialize)]
struct IndexEntry {
    name: String,
    state: String,
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

fn is_model_ready(inference: SocketAddr, name: &str) -> bool {
    index(inference).is_ok_and(|entries| {
        entries
            .iter()
            .any(|entry| entry.name == name && entry.state == "READY")
    })
}

fn ask(address: SocketAddr, method: &str, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut connection = Connection::open(address, Duration::from_secs(5))
        .with_context(|| format!("connect to {address}"))?;
    let response = connection
        .request(method, path, b"")
        .with_context(|| format!("{method} {path}"))?;
    Ok((response.status, response.body))
}
