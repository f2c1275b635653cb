//! The client of the admin API, with one method per route.

use std::{io, time::Duration};

use packhorse_api::{
    ArtifactView, BatchTimeView, Changed, CreatedKey, GoodputView, ImportedProfiles, KeyChange,
    KeyRequest, KeyRotation, KeyView, ModelChange, ModelRegistration, ModelView, NodeTokenView,
    NodeView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanSummary, PlanView, PolicyChange,
    PolicyView, Promotion, RemovedModel, RemovedNode, RepositoryProblems, SessionCode,
};
use packhorse_cluster::{
    DeviceKind, Generation, ModelName, ModelVersion, NodeName, ProfileError, ProfileTable,
};
use packhorse_kernels::{KernelTable, KernelTableError};
use packhorse_tls::{Authorities, AuthoritiesError};
use reqwest::{
    Method, RequestBuilder, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

use crate::{BaseUrl, CallError, Cause, call::Caller};

/// A client of the admin listener. Cheap to clone.
///
/// ```
/// use packhorse_client::{AdminClient, Authorities};
/// # use serde_json::json;
/// # use wiremock::{Mock, MockServer, ResponseTemplate, matchers::{header, path}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gateway = MockServer::start().await;
/// # let goodput = json!({"window_s": 60.0, "models": [{
/// #     "name": "minilm", "version": 1, "offered_rps": 12.0, "throughput_rps": 11.5, "goodput_rps": 11.0, "refused_rps": 0.5, "late_rps": 0.5,
/// #     "p50_ms": 20.0, "p95_ms": 30.5, "p99_ms": 31.0, "mean_batch": 2.5,
/// # }], "total": {"offered_rps": 12.0, "throughput_rps": 11.5, "goodput_rps": 11.0, "refused_rps": 0.5, "late_rps": 0.5}});
/// # Mock::given(path("/v1/goodput"))
/// #     .and(header("authorization", "Bearer 4f7a0c"))
/// #     .respond_with(ResponseTemplate::new(200).set_body_json(goodput))
/// #     .mount(&gateway)
/// #     .await;
/// # let url = gateway.uri();
/// # let token = "4f7a0c\n";
/// // let url = "http://127.0.0.1:8081";
/// // let token = std::fs::read_to_string("/var/lib/packhorse/admin-token")?;
/// let client = AdminClient::new(url.parse()?, &token, &Authorities::Machine)?;
/// let goodput = client.goodput(60).await?;
/// for model in &goodput.models {
///     println!("{}: {} requests/s in time", model.name, model.goodput_rps);
/// }
/// assert_eq!(goodput.models[0].goodput_rps, 11.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AdminClient {
    pub(crate) caller: Caller,
}

/// The error of a text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is one line of printable ASCII characters without spaces")]
pub struct TokenError;

/// The reason why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The text is not a token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The client does not know whom to trust.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
}

/// The reason why profiles cannot be read from the gateway.
#[derive(Debug, thiserror::Error)]
pub enum ProfilesError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The gateway's CSV is not a table of profiles.
    #[error("the gateway's profiles cannot be parsed")]
    Csv(#[source] ProfileError),
}

/// The reason why recorded kernels cannot be read from the gateway.
#[derive(Debug, thiserror::Error)]
pub enum KernelsError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The gateway's CSV is not a table of kernels.
    #[error("the gateway's kernels cannot be parsed")]
    Csv(#[source] KernelTableError),
}

/// The reason why a backup was not written.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The file cannot be written.
    #[error("the backup cannot be written")]
    Write(#[source] io::Error),
}

/// Returns the header that sends this token or key.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue, TokenError> {
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(TokenError);
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError)?;
    header.set_sensitive(true);
    Ok(header)
}

impl AdminClient {
    /// Creates a client that sends this admin token, if the listener has a certificate of these authorities or an `http` address. Spaces
    /// and line ends around the token are removed.
    ///
    /// # Errors
    /// If the text is not a token, or the authorities cannot be read.
    pub fn new(base: BaseUrl, token: &str, authorities: &Authorities) -> Result<Self, ClientError> {
        Ok(Self {
            caller: Caller::new(base, authorities, Some(bearer(token)?))?,
        })
    }

    /// Registers a version of a model. The gateway has stored it durably when this returns.
    pub async fn register_model(
        &self,
        registration: &ModelRegistration,
    ) -> Result<Changed<ModelView>, CallError> {
        let request = self.registration_request(registration);
        self.caller.fetch(request).await
    }

    /// Registers a version of a model as one of many: without its consequences, for which two plans would be made. It may take the place of one of the
    /// same name and version, which stays as it is if the gateway refuses the new one.
    pub async fn register_one_of_many(
        &self,
        registration: &ModelRegistration,
        replace: bool,
    ) -> Result<ModelView, CallError> {
        let request = self.registration_request(registration);
        let request = request.query(&[("consequences", false), ("replace", replace)]);
        self.caller.fetch(request).await
    }

    /// Says what is wrong with the folder of models, in place of what was wrong with it before.
    pub async fn put_repository_problems(
        &self,
        problems: &RepositoryProblems,
    ) -> Result<(), CallError> {
        let path = ["v1", "repository", "problems"];
        let request = self.caller.request(Method::PUT, path).json(problems);
        self.caller.send(request).await.map(drop)
    }

    /// Returns all versions of all models.
    pub async fn models(&self) -> Result<Vec<ModelView>, CallError> {
        self.get(["v1", "models"]).await
    }

    /// Returns a version of a model, by default the newest.
    pub async fn model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelView, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version))
            .await
    }

    /// Changes SLO, rate, queue limit or split of a version, by default of the newest.
    pub async fn change_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        change: &ModelChange,
    ) -> Result<Changed<ModelView>, CallError> {
        let request = self.model_request(Method::PATCH, name, version);
        self.caller.fetch(request.json(change)).await
    }

    /// Changes a version of a model as [`Self::change_model`] does, as one of many changes: without its consequences, for which two plans would be made.
    pub async fn change_one_of_many(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        change: &ModelChange,
    ) -> Result<ModelView, CallError> {
        let request = self.model_request(Method::PATCH, name, version);
        let request = request.query(&[("consequences", false)]);
        self.caller.fetch(request.json(change)).await
    }

    /// Removes a version, by default all versions, as one of many changes: without its consequences, for which two plans would be made.
    pub async fn remove_one_of_many(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<RemovedModel, CallError> {
        let request = self.model_request(Method::DELETE, name, version);
        self.caller
            .fetch(request.query(&[("consequences", false)]))
            .await
    }

    /// Gives all requests that name no version to one.
    pub async fn promote(
        &self,
        name: &ModelName,
        version: ModelVersion,
    ) -> Result<Changed<ModelView>, CallError> {
        let request = self.promotion_request(name, version);
        self.caller.fetch(request).await
    }

    /// Returns to the split before the last change.
    pub async fn roll_back(&self, name: &ModelName) -> Result<Changed<ModelView>, CallError> {
        self.caller.fetch(self.rollback_request(name)).await
    }

    /// Removes a version, by default all versions.
    pub async fn remove_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Changed<RemovedModel>, CallError> {
        let request = self.model_request(Method::DELETE, name, version);
        self.caller.fetch(request).await
    }

    /// Returns all stored model files.
    pub async fn artifacts(&self) -> Result<Vec<ArtifactView>, CallError> {
        self.get(["v1", "artifacts"]).await
    }

    /// Returns what the gateway plans with now as the TOML of a scenario.
    pub async fn plan_scenario(&self) -> Result<String, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "plan", "scenario"]);
        self.fetch_text(request).await
    }

    /// Returns the profiles of one model, by default of all.
    pub async fn profiles(&self, model: Option<&ModelName>) -> Result<ProfileTable, ProfilesError> {
        let request = self
            .caller
            .request(Method::GET, ["v1", "profiles"])
            .query(&model.map(|name| [("model", name)]));
        let csv = self.fetch_text(request).await?;
        ProfileTable::from_csv(&csv).map_err(ProfilesError::Csv)
    }

    /// Returns the times of the batches of a model in all its versions, in its profiles and as the gateway observed them.
    pub async fn learned_times(&self, model: &ModelName) -> Result<Vec<BatchTimeView>, CallError> {
        let request = self
            .caller
            .request(Method::GET, ["v1", "profiles", "learned"])
            .query(&[("model", model)]);
        self.caller.fetch(request).await
    }

    /// Returns the recorded kernels of all versions of a model.
    pub async fn kernels(&self, model: &ModelName) -> Result<KernelTable, KernelsError> {
        let request = self
            .caller
            .request(Method::GET, ["v1", "profiles", "kernels"])
            .query(&[("model", model)]);
        let csv = self.fetch_text(request).await?;
        KernelTable::from_csv(&csv).map_err(KernelsError::Csv)
    }

    /// Adds profiles. They replace those of the same model and kind of device, but estimates replace no measured ones.
    pub async fn import_profiles(
        &self,
        profiles: &ProfileTable,
    ) -> Result<ImportedProfiles, CallError> {
        let request = self.caller.request(Method::PUT, ["v1", "profiles"]);
        let request = request.header(CONTENT_TYPE, "text/csv");
        self.caller.fetch(request.body(profiles.to_csv())).await
    }

    /// Returns the pairs that were measured on a kind of device, as CSV; empty if there are none.
    pub async fn pairs(&self, kind: &DeviceKind) -> Result<String, CallError> {
        let request = self.pairs_request(Method::GET, kind);
        self.fetch_text(request).await
    }

    /// Replaces the measured pairs of a kind of device by those of a CSV.
    pub async fn import_pairs(&self, kind: &DeviceKind, csv: String) -> Result<(), CallError> {
        let request = self.pairs_request(Method::PUT, kind);
        let request = request.header(CONTENT_TYPE, "text/csv").body(csv);
        self.caller.send(request).await.map(drop)
    }

    fn pairs_request(&self, method: Method, kind: &DeviceKind) -> RequestBuilder {
        self.caller
            .request(method, ["v1", "profiles", "pairs"])
            .query(&[("device_kind", kind)])
    }

    /// Returns all nodes with their devices.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, CallError> {
        self.get(["v1", "nodes"]).await
    }

    /// Excludes a node from new replicas. Its present replicas stay.
    pub async fn cordon(&self, node: &NodeName) -> Result<Changed<NodeView>, CallError> {
        let request = self.node_request(node, "cordon");
        self.caller.fetch(request).await
    }

    /// Allows new replicas on a node again.
    pub async fn uncordon(&self, node: &NodeName) -> Result<Changed<NodeView>, CallError> {
        let request = self.node_request(node, "uncordon");
        self.caller.fetch(request).await
    }

    /// Moves the replicas of a node to other nodes, and ends those that have no other place when `deadline`, which counts whole seconds, is over.
    pub async fn drain(
        &self,
        node: &NodeName,
        deadline: Option<Duration>,
    ) -> Result<Changed<NodeView>, CallError> {
        let seconds = deadline.map(|deadline| [("deadline_s", deadline.as_secs())]);
        let request = self.node_request(node, "drain").query(&seconds);
        self.caller.fetch(request).await
    }

    /// Removes a node whose agent holds no lease.
    pub async fn remove_node(&self, node: &NodeName) -> Result<Changed<RemovedNode>, CallError> {
        let request = self.node_removal_request(node);
        self.caller.fetch(request).await
    }

    /// Makes a token for the agent of one node. Other tokens do not lease the node any more.
    pub async fn new_node_token(&self, node: &NodeName) -> Result<NodeTokenView, CallError> {
        let route = ["v1", "nodes", node.as_str(), "token"];
        self.caller
            .fetch(self.caller.request(Method::POST, route))
            .await
    }

    /// Makes an API key, which is returned once.
    pub async fn create_key(&self, request: &KeyRequest) -> Result<CreatedKey, CallError> {
        let call = self.caller.request(Method::POST, ["v1", "keys"]);
        self.caller.fetch(call.json(request)).await
    }

    /// Returns all API keys, without their secrets.
    pub async fn keys(&self) -> Result<Vec<KeyView>, CallError> {
        self.get(["v1", "keys"]).await
    }

    /// Returns an API key, without its secret.
    pub async fn key(&self, id: &str) -> Result<KeyView, CallError> {
        self.get(["v1", "keys", id]).await
    }

    /// Replaces the secret of an API key, which is returned once.
    pub async fn rotate_key(
        &self,
        id: &str,
        rotation: KeyRotation,
    ) -> Result<CreatedKey, CallError> {
        let call = self
            .caller
            .request(Method::POST, ["v1", "keys", id, "rotate"]);
        self.caller.fetch(call.json(&rotation)).await
    }

    /// Changes the limits of an API key.
    pub async fn change_key(&self, id: &str, change: &KeyChange) -> Result<KeyView, CallError> {
        let call = self.caller.request(Method::PATCH, ["v1", "keys", id]);
        self.caller.fetch(call.json(change)).await
    }

    /// Deletes an API key.
    pub async fn delete_key(&self, id: &str) -> Result<(), CallError> {
        let call = self.caller.request(Method::DELETE, ["v1", "keys", id]);
        self.caller.send(call).await.map(drop)
    }

    /// Makes a code that starts a session in a browser once, within a minute.
    pub async fn session_code(&self) -> Result<SessionCode, CallError> {
        let call = self
            .caller
            .request(Method::POST, ["v1", "session", "codes"]);
        self.caller.fetch(call).await
    }

    /// Writes a backup of the gateway's state, which is a tar archive, and returns its number of bytes.
    ///
    /// # Errors
    /// If the call failed, or a part cannot be written. What was written then is no backup.
    pub async fn backup(&self, to: &mut (dyn io::Write + Send)) -> Result<u64, BackupError> {
        let request = self.caller.request(Method::GET, ["v1", "backup"]);
        let mut response = self.caller.open(request).await?;
        let mut bytes = 0;
        while let Some(chunk) = self.caller.chunk(&mut response).await? {
            to.write_all(&chunk).map_err(BackupError::Write)?;
            bytes += chunk.len() as u64;
        }
        Ok(bytes)
    }

    /// Returns the plan in force; `None` before the first plan.
    pub async fn plan(&self) -> Result<Option<PlanView>, CallError> {
        match self.get(["v1", "plan"]).await {
            Err(e) if e.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            result => result,
        }
    }

    /// Returns the plan in force with an explanation of each model: what limits it, and which changes would suffice. `None` before the
    /// first plan.
    pub async fn explained_plan(&self) -> Result<Option<PlanView>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "plan"]);
        match self.caller.fetch(request.query(&[("explain", true)])).await {
            Err(e) if e.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            result => result,
        }
    }

    /// Returns the stored plans without their replicas, newest first.
    pub async fn plans(&self) -> Result<Vec<PlanSummary>, CallError> {
        self.get(["v1", "plans"]).await
    }

    /// Returns a stored plan by its number.
    pub async fn stored_plan(&self, generation: Generation) -> Result<PlanView, CallError> {
        self.get(["v1", "plans", &generation.to_string()]).await
    }

    /// Returns the replicas that the plan `after` starts and stops in place of the plan `before`.
    pub async fn plan_diff(
        &self,
        before: Generation,
        after: Generation,
    ) -> Result<PlanDiff, CallError> {
        let (before, after) = (before.to_string(), after.to_string());
        self.get(["v1", "plans", &before, "diff", &after]).await
    }

    /// Returns the plan that the changes of the request would lead to. Changes nothing.
    pub async fn preview_plan(
        &self,
        request: &PlanPreviewRequest,
    ) -> Result<PlanPreview, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::POST, ["v1", "plans", "preview"])
                    .json(request),
            )
            .await
    }

    /// Returns the placement policy and the dispatch discipline.
    pub async fn policy(&self) -> Result<PolicyView, CallError> {
        self.get(["v1", "policy"]).await
    }

    /// Changes the placement policy or the dispatch discipline.
    pub async fn change_policy(
        &self,
        change: &PolicyChange,
    ) -> Result<Changed<PolicyView>, CallError> {
        self.caller.fetch(self.policy_request(change)).await
    }

    /// Returns the goodput and latencies of all models in the last `window_s` seconds.
    pub async fn goodput(&self, window_s: u32) -> Result<GoodputView, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::GET, ["v1", "goodput"])
                    .query(&[("window_s", window_s)]),
            )
            .await
    }

    async fn get<'a, T: serde::de::DeserializeOwned>(
        &self,
        segments: impl IntoIterator<Item = &'a str>,
    ) -> Result<T, CallError> {
        self.caller
            .fetch(self.caller.request(Method::GET, segments))
            .await
    }

    async fn fetch_text(&self, request: RequestBuilder) -> Result<String, CallError> {
        let (_, body) = self.caller.send(request).await?;
        let text = String::from_utf8(body.into());
        text.map_err(|e| self.caller.invalid_response(Cause::innermost(&e)))
    }

    pub(crate) fn registration_request(&self, registration: &ModelRegistration) -> RequestBuilder {
        let request = self.caller.request(Method::POST, ["v1", "models"]);
        request.json(registration)
    }

    pub(crate) fn promotion_request(
        &self,
        name: &ModelName,
        version: ModelVersion,
    ) -> RequestBuilder {
        let path = ["v1", "models", name.as_str(), "promote"];
        let request = self.caller.request(Method::POST, path);
        request.json(&Promotion { version })
    }

    pub(crate) fn rollback_request(&self, name: &ModelName) -> RequestBuilder {
        let path = ["v1", "models", name.as_str(), "rollback"];
        self.caller.request(Method::POST, path)
    }

    pub(crate) fn node_request(&self, node: &NodeName, action: &str) -> RequestBuilder {
        let path = ["v1", "nodes", node.as_str(), action];
        self.caller.request(Method::POST, path)
    }

    pub(crate) fn node_removal_request(&self, node: &NodeName) -> RequestBuilder {
        let path = ["v1", "nodes", node.as_str()];
        self.caller.request(Method::DELETE, path)
    }

    pub(crate) fn policy_request(&self, change: &PolicyChange) -> RequestBuilder {
        let request = self.caller.request(Method::PUT, ["v1", "policy"]);
        request.json(change)
    }

    pub(crate) fn model_request(
        &self,
        method: Method,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> RequestBuilder {
        let request = self.caller.request(method, ["v1", "models", name.as_str()]);
        request.query(&version.map(|version| [("version", version)]))
    }
}
