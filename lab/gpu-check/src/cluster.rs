//! A gateway and an agent on this host, used like any client does.

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
    DeviceView, ModelRegistration, ModelState, ModelView, PlanPreviewRequest, PlanView,
    PolicyChange,
};
use packhorse_client::{AdminClient, ArtifactFile, Authorities, BaseUrl, InferenceClient};
use packhorse_cluster::{ProfileSource, ProfileTable, RequestsPerSecond, Shape, TensorSpec};
use packhorse_protocol::{ByteRope, Form, RequestMessage, Tensor};
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::{
    host::{Backend, Host},
    models::{Model, floats},
    mps_daemon,
    process::{RunningProgram, now, wait_for},
};

/// The time limit for gateway and agent to start.
const START_LIMIT: Duration = Duration::from_mins(1);
/// The time after which a policy without a new plan is taken to keep the present replicas.
const SAME_PLAN: Duration = Duration::from_secs(15);
/// The time between two requests for the gateway's state.
const POLL: Duration = Duration::from_millis(50);

/// The running programs. Dropping it ends them, first the agent with its workers.
pub(crate) struct Cluster {
    agent: RunningProgram,
    gateway: RunningProgram,
    runtime: Runtime,
    admin: AdminClient,
    inference: InferenceClient,
    endpoints: Endpoints,
    folder: PathBuf,
}

/// The file that the gateway writes once it listens.
#[derive(Clone, Copy, Deserialize)]
struct Endpoints {
    inference: SocketAddr,
    admin: SocketAddr,
    pid: u32,
}

/// The demand with which a model is registered.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) rate_rps: f64,
    pub(crate) slo_ms: f64,
    /// The largest number of rows in a batch; `None` for the model's own limit.
    pub(crate) max_batch_size: Option<u32>,
}

impl Cluster {
    /// Starts gateway and agent with their files in a folder of this name, the agent with an additional environment. A measurement begins
    /// no further batch size after `profile_time`.
    pub(crate) fn start(
        host: &Host,
        name: &str,
        profile_time: Duration,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let folder = host.create_folder(name)?;
        let state = folder.join("gateway");
        let mut gateway = host.program("packhorse-gateway");
        gateway.arg("--state-dir").arg(&state);
        gateway.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        gateway.args([
            "--profile-time-limit-ms",
            &profile_time.as_millis().to_string(),
        ]);
        gateway.args(batch_limit(host, 90));
        let mut gateway = RunningProgram::start("gateway", &mut gateway, &folder)?;
        let endpoints = wait_for("the gateway to listen", START_LIMIT, || {
            gateway.check_running()?;
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
        if mps_daemon::refuses_clients(host) {
            // The agent would notice only that no worker starts.
            agent.args(["--mps", "off"]);
        }
        let agent = RunningProgram::start("agent", &mut agent, &folder)?;

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
            admin: AdminClient::new(url(endpoints.admin)?, &token, &Authorities::Machine)?,
            inference: InferenceClient::new(url(endpoints.inference)?, &Authorities::Machine)?,
            endpoints,
            folder,
        };
        cluster.wait_while_running("the node to join", START_LIMIT, |cluster| {
            let nodes = cluster.block_on(cluster.admin.nodes())?;
            Ok((!nodes.is_empty()).then_some(()))
        })?;
        Ok(cluster)
    }

    fn block_on<T, E: Into<anyhow::Error>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(call).map_err(Into::into)
    }

    /// Waits until `ready` has a value. An error if one of the programs ends.
    pub(crate) fn wait_while_running<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        wait_for(what, limit, || {
            self.gateway.check_running()?;
            self.agent.check_running()?;
            let value = ready(self)?;
            if value.is_none() {
                std::thread::sleep(POLL);
            }
            Ok(value)
        })
    }

    /// Returns the node's devices.
    pub(crate) fn devices(&self) -> anyhow::Result<Vec<DeviceView>> {
        let nodes = self.block_on(self.admin.nodes())?;
        Ok(nodes.into_iter().flat_map(|node| node.devices).collect())
    }

    /// Uploads and registers a model.
    pub(crate) fn register_model(&self, model: &Model, demand: Demand) -> anyhow::Result<()> {
        let registered = async {
            let file = ArtifactFile::hash(&model.artifact(), |_| {}).await?;
            self.admin.upload_artifact(&file, |_| {}).await?;
            let given = &model.registration;
            let registration = ModelRegistration {
                artifact: Some(file.digest()),
                rate_rps: Some(RequestsPerSecond::new(demand.rate_rps)?),
                slo_ms: demand.slo_ms,
                max_batch_size: demand.max_batch_size.unwrap_or(given.max_batch_size),
                ..given.clone()
            };
            self.admin.register_model(&registration).await?;
            anyhow::Ok(())
        };
        self.block_on(registered)
            .with_context(|| format!("register {}", model.name))
    }

    /// Removes a model.
    pub(crate) fn remove_model(&self, model: &Model) -> anyhow::Result<()> {
        let removed = self.admin.remove_model(&model.registration.name, None);
        let removed = self.block_on(removed);
        removed
            .map(drop)
            .with_context(|| format!("remove {}", model.name))
    }

    /// Returns a model's state and replicas.
    pub(crate) fn model_view(&self, model: &Model) -> anyhow::Result<ModelView> {
        let name = &model.registration.name;
        self.block_on(self.admin.model(name, None))
    }

    /// Waits until a model is in a state, described by `what`. An error if the model cannot be served.
    pub(crate) fn wait_for_model(
        &mut self,
        model: &Model,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&ModelView) -> bool,
    ) -> anyhow::Result<ModelView> {
        self.wait_while_running(&format!("{} to be {what}", model.name), limit, |cluster| {
            let view = cluster.model_view(model)?;
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

    /// Sends a request with a number of rows, and returns the model's only output.
    pub(crate) fn infer(&self, model: &Model, rows: u32, input: &[u8]) -> anyhow::Result<Vec<f32>> {
        let tensor = tensor(&model.registration.inputs[0], rows, input)?;
        let request = RequestMessage {
            inputs: vec![tensor],
            output_form: Some(Form::Binary),
            ..RequestMessage::default()
        };
        let name = &model.registration.name;
        let response = self.block_on(self.inference.infer(name, None, &request))?;
        let output = response
            .outputs
            .first()
            .context("the response has no output")?;
        Ok(floats(&output.data().to_bytes()))
    }

    /// Changes the policy.
    pub(crate) fn set_policy(&self, policy: &str) -> anyhow::Result<()> {
        let change = PolicyChange {
            policy: Some(policy.to_owned()),
            ..PolicyChange::default()
        };
        self.block_on(self.admin.change_policy(&change)).map(drop)
    }

    /// Changes the policy and waits until all replicas of its plan serve, and no others.
    pub(crate) fn roll_out_policy(&mut self, policy: &str, limit: Duration) -> anyhow::Result<()> {
        self.set_policy(policy)?;
        let changed = now();
        self.wait_while_running(
            &format!("the plan of {policy} to serve"),
            limit,
            |cluster| {
                let Some(plan) = cluster.block_on(cluster.admin.plan())? else {
                    return Ok(None);
                };
                if plan.policy != policy {
                    if now() - changed < SAME_PLAN {
                        return Ok(None);
                    }
                    cluster.check_same_plan(policy)?;
                }
                Ok(cluster.serves(&plan)?.then_some(()))
            },
        )
    }

    /// Waits until models are measured and all replicas of the plan serve, and no others.
    pub(crate) fn wait_until_measured(
        &mut self,
        models: &[&Model],
        limit: Duration,
    ) -> anyhow::Result<()> {
        self.wait_while_running("all models to be measured and to serve", limit, |cluster| {
            let profiles = cluster.profiles()?;
            let is_measured = |model: &&Model| {
                let mut profiles = profiles.iter();
                profiles.any(|(id, _, profile)| {
                    id.name.as_str() == model.name && profile.source() == ProfileSource::Measured
                })
            };
            let Some(plan) = cluster.block_on(cluster.admin.plan())? else {
                return Ok(None);
            };
            let is_done = models.iter().all(is_measured) && cluster.serves(&plan)?;
            Ok(is_done.then_some(()))
        })
    }

    /// Returns true if all replicas of a plan serve, and no others.
    fn serves(&self, plan: &PlanView) -> anyhow::Result<bool> {
        let models = self.block_on(self.admin.models())?;
        let replicas = || models.iter().flat_map(|model| &model.replicas);
        let is_complete = replicas().count() == plan.replicas.len();
        Ok(is_complete && replicas().all(|replica| replica.serving))
    }

    /// Fails unless a policy would place the present replicas. In this case the plan keeps the name of the policy that made it.
    fn check_same_plan(&self, policy: &str) -> anyhow::Result<()> {
        let preview = self.block_on(self.admin.preview_plan(&PlanPreviewRequest::default()))?;
        let same = preview.diff.added.is_empty() && preview.diff.removed.is_empty();
        ensure!(
            preview.plan.policy == policy && same,
            "the gateway does not plan with {policy}"
        );
        Ok(())
    }

    /// Returns the measured profiles of all models.
    pub(crate) fn profiles(&self) -> anyhow::Result<ProfileTable> {
        self.block_on(self.admin.profiles(None))
    }

    /// Runs a scenario against the gateway, and returns the report of `packhorse-lab bench`.
    pub(crate) fn bench<T: serde::de::DeserializeOwned>(
        &self,
        host: &Host,
        scenario: &Path,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let mut bench = host.program("packhorse-lab");
        bench.args(["bench", "--json", "--scenario"]).arg(scenario);
        bench.args(["--url", &format!("http://{}", self.endpoints.inference)]);
        bench.args(["--admin-url", &format!("http://{}", self.endpoints.admin)]);
        bench
            .arg("--token-file")
            .arg(self.folder.join("gateway/admin-token"));
        let printed = RunningProgram::start("bench", &mut bench, &self.folder)?.finish(limit)?;
        serde_json::from_str(&printed).context("read what packhorse-lab bench printed")
    }

    /// Returns the folder of the programs' files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Returns the option that raises the limit of a batch's time on a CPU, where the larger models need longer than the default.
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
