//! A gateway and an agent on this host, asked as any client would.

use std::{
    fs,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use packhorse_api::{
    DeviceView, ModelRegistration, ModelState, ModelView, PlanPreviewRequest, PolicyChange,
};
use packhorse_client::{AdminClient, ArtifactFile, BaseUrl, InferenceClient};
use packhorse_cluster::{ProfileTable, RequestsPerSecond, Shape, TensorSpec};
use packhorse_protocol::{ByteRope, Form, RequestMessage, Tensor};
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::{
    host::{Backend, Host},
    models::{Model, floats},
    process::{Running, now, wait_for},
};

/// Longest for gateway and agent to be there.
const START_LIMIT: Duration = Duration::from_mins(1);
/// A policy that wants something else than is placed has said so by then.
const SAME_PLAN: Duration = Duration::from_secs(15);
/// How often the gateway is asked whether something has happened.
const POLL: Duration = Duration::from_millis(50);

/// Running programs; dropping it ends them, the agent with its workers first.
pub(crate) struct Cluster {
    agent: Running,
    gateway: Running,
    runtime: Runtime,
    admin: AdminClient,
    inference: InferenceClient,
    endpoints: Endpoints,
    folder: PathBuf,
}

/// What the gateway writes once it listens.
#[derive(Clone, Copy, Deserialize)]
struct Endpoints {
    inference: SocketAddr,
    admin: SocketAddr,
    pid: u32,
}

/// What a model is registered for.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) rate_rps: f64,
    pub(crate) slo_ms: f64,
    /// The most rows of a batch; the model's own where there is none.
    pub(crate) max_batch_size: Option<u32>,
}

impl Cluster {
    /// Starts both with their files in a folder of this name, the agent with more in its environment. A measurement begins no further batch
    /// size after `profile_time`.
    pub(crate) fn start(
        host: &Host,
        name: &str,
        profile_time: Duration,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let folder = host.folder(name)?;
        let state = folder.join("gateway");
        let mut gateway = host.program("packhorse-gateway");
        gateway.arg("--state-dir").arg(&state);
        gateway.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        gateway.args([
            "--profile-time-limit-ms",
            &profile_time.as_millis().to_string(),
        ]);
        gateway.args(batch_limit(host, 90));
        let mut gateway = Running::start("gateway", &mut gateway, &folder)?;
        let endpoints = wait_for("the gateway to listen", START_LIMIT, || {
            gateway.check()?;
            let text = fs::read(state.join("endpoints.json")).unwrap_or_default();
            let endpoints = serde_json::from_slice::<Endpoints>(&text).ok();
            Ok(endpoints.filter(|endpoints| endpoints.pid == gateway.pid()))
        })?;

        let mut agent = host.program("packhorse-agent");
        agent.args(["--gateway", &format!("http://{}", endpoints.admin)]);
        agent.arg("--state-dir").arg(folder.join("agent"));
        agent.arg("--token-file").arg(state.join("agent-token"));
        let devices = host.backend.name();
        agent.args([
            "--node",
            "host",
            "--devices",
            devices,
            "--stop-workers-on-exit",
        ]);
        agent.args(batch_limit(host, 60));
        agent.envs(environment.iter().copied());
        if host.mps_takes_no_clients() {
            // Which an agent only finds by its workers: none starts.
            agent.args(["--mps", "off"]);
        }
        let agent = Running::start("agent", &mut agent, &folder)?;

        let token =
            fs::read_to_string(state.join("admin-token")).context("read the admin token")?;
        let url = |address: SocketAddr| format!("http://{address}").parse::<BaseUrl>();
        let mut cluster = Self {
            agent,
            gateway,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start the runtime")?,
            admin: AdminClient::new(url(endpoints.admin)?, &token)?,
            inference: InferenceClient::new(url(endpoints.inference)?),
            endpoints,
            folder,
        };
        cluster.wait("the node to join", START_LIMIT, |cluster| {
            let nodes = cluster.ask(cluster.admin.nodes())?;
            Ok((!nodes.is_empty()).then_some(()))
        })?;
        Ok(cluster)
    }

    fn ask<T, E: Into<anyhow::Error>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(call).map_err(Into::into)
    }

    /// Waits while both programs run.
    fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        wait_for(what, limit, || {
            self.gateway.check()?;
            self.agent.check()?;
            let value = ready(self)?;
            if value.is_none() {
                std::thread::sleep(POLL);
            }
            Ok(value)
        })
    }

    /// The node's devices.
    pub(crate) fn devices(&self) -> anyhow::Result<Vec<DeviceView>> {
        let nodes = self.ask(self.admin.nodes())?;
        Ok(nodes.into_iter().flat_map(|node| node.devices).collect())
    }

    /// Uploads and registers a model.
    pub(crate) fn register(&self, model: &Model, demand: Demand) -> anyhow::Result<()> {
        let registered = async {
            let file = ArtifactFile::hash(&model.artifact(), |_| {}).await?;
            self.admin.upload_artifact(&file, |_| {}).await?;
            let given = &model.registration;
            let registration = ModelRegistration {
                artifact: Some(file.digest()),
                rate_rps: RequestsPerSecond::new(demand.rate_rps)?,
                slo_ms: demand.slo_ms,
                max_batch_size: demand.max_batch_size.unwrap_or(given.max_batch_size),
                ..given.clone()
            };
            self.admin.register_model(&registration).await?;
            anyhow::Ok(())
        };
        self.ask(registered)
            .with_context(|| format!("register {}", model.name))
    }

    /// Removes a model.
    pub(crate) fn remove(&self, model: &Model) -> anyhow::Result<()> {
        self.ask(self.admin.remove_model(&model.registration.name, None))
            .with_context(|| format!("remove {}", model.name))
    }

    /// Where a model is.
    pub(crate) fn view(&self, model: &Model) -> anyhow::Result<ModelView> {
        let name = &model.registration.name;
        self.ask(self.admin.model(name, None))
    }

    /// Waits until a model is as wanted; fails when it cannot be served.
    pub(crate) fn wait_for_model(
        &mut self,
        model: &Model,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&ModelView) -> bool,
    ) -> anyhow::Result<ModelView> {
        self.wait(&format!("{} to be {what}", model.name), limit, |cluster| {
            let view = cluster.view(model)?;
            if view.state == ModelState::Failed {
                bail!(
                    "{} cannot be served: {}",
                    model.name,
                    view.reason.unwrap_or_default()
                );
            }
            Ok(is_so(&view).then_some(view))
        })
    }

    /// Asks a model with so many rows: its only output.
    pub(crate) fn infer(&self, model: &Model, rows: u32, input: &[u8]) -> anyhow::Result<Vec<f32>> {
        let tensor = tensor(&model.registration.inputs[0], rows, input)?;
        let request = RequestMessage {
            inputs: vec![tensor],
            output_form: Some(Form::Binary),
            ..RequestMessage::default()
        };
        let name = &model.registration.name;
        let answer = self.ask(self.inference.infer(name, None, &request))?;
        let output = answer
            .outputs
            .first()
            .context("an answer without outputs")?;
        Ok(floats(&output.data().to_bytes()))
    }

    /// Changes the policy.
    pub(crate) fn set_policy(&self, policy: &str) -> anyhow::Result<()> {
        let change = PolicyChange {
            policy: Some(policy.to_owned()),
            ..PolicyChange::default()
        };
        self.ask(self.admin.change_policy(&change)).map(drop)
    }

    /// Changes the policy and waits until its plan serves: every planned replica, and none of an earlier plan.
    pub(crate) fn plan_by(&mut self, policy: &str, limit: Duration) -> anyhow::Result<()> {
        self.set_policy(policy)?;
        let changed = now();
        self.wait(
            &format!("the plan of {policy} to serve"),
            limit,
            |cluster| {
                let Some(plan) = cluster.ask(cluster.admin.plan())? else {
                    return Ok(None);
                };
                if plan.policy != policy {
                    if now() - changed < SAME_PLAN {
                        return Ok(None);
                    }
                    cluster.check_same_plan(policy)?;
                }
                let models = cluster.ask(cluster.admin.models())?;
                let replicas = || models.iter().flat_map(|model| &model.replicas);
                let serves = replicas().count() == plan.replicas.len()
                    && replicas().all(|replica| replica.serving);
                Ok(serves.then_some(()))
            },
        )
    }

    /// Fails unless this policy places what is placed already: then the plan stays, under the name of the policy that made it.
    fn check_same_plan(&self, policy: &str) -> anyhow::Result<()> {
        let preview = self.ask(self.admin.preview_plan(&PlanPreviewRequest::default()))?;
        let same = preview.diff.added.is_empty() && preview.diff.removed.is_empty();
        ensure!(
            preview.plan.policy == policy && same,
            "the gateway does not follow {policy}"
        );
        Ok(())
    }

    /// What was measured of all models.
    pub(crate) fn profiles(&self) -> anyhow::Result<ProfileTable> {
        self.ask(self.admin.profiles(None))
    }

    /// Drives a scenario against the gateway: the report of `packhorse bench`.
    pub(crate) fn bench<T: serde::de::DeserializeOwned>(
        &self,
        host: &Host,
        scenario: &Path,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let mut bench = host.program("packhorse");
        bench.args(["bench", "--json", "--scenario"]).arg(scenario);
        bench.args(["--url", &format!("http://{}", self.endpoints.inference)]);
        bench.args(["--admin-url", &format!("http://{}", self.endpoints.admin)]);
        bench
            .arg("--token-file")
            .arg(self.folder.join("gateway/admin-token"));
        let printed = Running::start("bench", &mut bench, &self.folder)?.finish(limit)?;
        serde_json::from_str(&printed).context("read what packhorse bench printed")
    }

    /// The folder of its files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// So many seconds for a batch on a CPU, where the larger models take longer than any may that is to be of use.
fn batch_limit(host: &Host, seconds: u32) -> Option<String> {
    (host.backend == Backend::Cpu).then(|| format!("--batch-limit-ms={seconds}000"))
}

fn tensor(spec: &TensorSpec, rows: u32, bytes: &[u8]) -> anyhow::Result<Tensor> {
    let mut dims = spec.dims();
    dims[0] = i64::from(rows);
    let mut data = ByteRope::new();
    data.push(Bytes::copy_from_slice(bytes));
    Ok(Tensor::new(
        spec.name.clone(),
        spec.datatype,
        Shape::new(&dims)?,
        data,
    )?)
}
