//! A stand-in for a gateway, and how the tests of `packhorse` and `packhorse-lab` run these commands against it.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use wiremock::{
    Mock, MockBuilder, MockServer, ResponseTemplate,
    matchers::{header, method, path, query_param},
};

/// The admin token that it takes.
pub const TOKEN: &str = "4f7a0c";

/// A gateway whose answers each test sets up, and a folder of its own for each test.
pub struct Gateway {
    /// Answers what tests ask it to; 404 to all else.
    pub server: MockServer,
    folder: TempDir,
    program: PathBuf,
}

/// The result of a run of the command.
#[derive(Debug)]
pub struct Ran {
    /// The exit status.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Ran {
    /// Returns the standard output of a successful run, parsed as JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Returns the standard output of a successful run.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }

    /// Returns the standard error of a failed run.
    pub fn error(&self) -> &str {
        assert_eq!((self.code, self.stdout.as_str()), (1, ""), "{self:?}");
        &self.stderr
    }
}

impl Gateway {
    /// Starts a gateway for the tests of this program.
    pub async fn start(program: &str) -> Self {
        let gateway = Self {
            program: program.into(),
            server: MockServer::start().await,
            folder: TempDir::new().unwrap(),
        };
        gateway.file("admin-token", format!("{TOKEN}\n"));
        let nothing = json!({"consequences": []});
        gateway.answers_dry_runs(2, 200, &nothing).await;
        gateway
    }

    /// Answers all dry runs like this, in place of the answer that a change takes nothing from models.
    pub async fn dry_runs(&self, status: u16, body: &Value) {
        self.answers_dry_runs(1, status, body).await;
    }

    async fn answers_dry_runs(&self, priority: u8, status: u16, body: &Value) {
        Mock::given(query_param("dry_run", "true"))
            .and(header("authorization", format!("Bearer {TOKEN}")))
            .respond_with(ResponseTemplate::new(status).set_body_json(body))
            .with_priority(priority)
            .mount(&self.server)
            .await;
    }

    /// Writes a file into the test's folder.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A path in the test's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Answers an admin route, asked with the token, with this JSON.
    pub async fn answers(&self, verb: &str, route: &str, status: u16, body: Value) {
        admin(verb, route)
            .respond_with(ResponseTemplate::new(status).set_body_json(body))
            .mount(&self.server)
            .await;
    }

    /// Runs the command with this gateway as both listeners.
    pub fn run(&self, args: &[&str]) -> Ran {
        let token_file = self.path("admin-token");
        let url = self.server.uri();
        let global = [
            "--url",
            &url,
            "--admin-url",
            &url,
            "--token-file",
            token_file.to_str().unwrap(),
        ];
        self.run_bare(&[args, &global].concat())
    }

    /// Runs the command with these arguments only and no environment but a home.
    pub fn run_bare(&self, args: &[&str]) -> Ran {
        self.run_program(&self.program, args)
    }

    /// Puts the command into the test's folder, as if that were a source checkout.
    pub fn install(&self) -> PathBuf {
        let built = &self.program;
        let folder = self.path("target/debug");
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(built.file_name().unwrap());
        fs::hard_link(built, &program)
            .or_else(|_| fs::copy(built, &program).map(drop))
            .unwrap();
        program
    }

    /// Runs a copy of the command like [`Gateway::run_bare`].
    pub fn run_program(&self, program: &Path, args: &[&str]) -> Ran {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("HOME", self.folder.path())
            .current_dir(self.folder.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        Ran {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A request to an admin route, with the token.
pub fn admin(verb: &str, route: &str) -> MockBuilder {
    Mock::given(method(verb))
        .and(path(route))
        .and(header("authorization", format!("Bearer {TOKEN}")))
}

/// A model as the gateway describes it.
pub fn model(name: &str, state: &str, reason: Option<&str>) -> Value {
    json!({
        "name": name, "version": 1, "state": state, "reason": reason,
        "artifact": format!("sha256:{}", "ab".repeat(32)), "artifact_bytes": 1000, "max_batch_size": 16,
        "slo_ms": 200.0, "rate_rps": 50.0, "rate": "max", "priority": 5, "min_replicas": 1, "queue_limit": null, "max_cold_wait_ms": null, "cache": false, "family": null, "accuracy": null,
        "measured": null, "predicted": null, "share_pct": 100, "split": null, "rollback_split": null, "sticky": "none",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        "profiled_on": [], "estimated_on": [], "measuring_failed_on": [], "profiling": [], "replicas": [],
    })
}

/// A model with a replica on a device.
pub fn placed_model(name: &str, id: &str, device: &str) -> Value {
    let mut model = model(name, "ready", None);
    model["replicas"] = json!([{
        "id": id, "device": device, "device_kind": "cpu-x", "batch_size": 8, "compute_share_pct": 50.0, "state": "ready",
        "memory_bytes": null, "capacity": null,
        "serving": true, "restarts": 0, "pid": 4711, "worker": "own", "reason": null, "verification": null, "weights": null,
    }]);
    model
}

/// A node with devices of the same kind, on the first of them this replica.
pub fn node(name: &str, devices: u32, replica: &str) -> Value {
    let device = |i: u32| {
        json!({
            "id": format!("{name}/cpu{i}"), "kind": "cpu-x", "description": "X", "memory_bytes": 1_u64 << 30,
            "multiprocessors": 2, "gpu": null, "replicas": if i == 0 { json!([replica]) } else { json!([]) },
        })
    };
    json!({
        "name": name, "state": "ready", "agent_version": "0.1.0", "last_seen_ms": 200,
        "devices": (0..devices).map(device).collect::<Vec<_>>(),
    })
}

/// The options of a policy as the gateway describes them.
pub fn policy_options() -> Value {
    json!({
        "compute_metric": "mean", "objective": "goodput", "prefer_small_batch": true, "nexus_published": false,
        "compute_shares": "never", "effort": 1, "batch_step": "own", "latency_model": "profile", "herd_greedy": false,
    })
}
