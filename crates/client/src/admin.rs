//! The admin API, one method per route.

use packhorse_api::{
    ArtifactView, GoodputView, ModelChange, ModelRegistration, ModelView, NodeView, PlanDiff,
    PlanPreview, PlanPreviewRequest, PlanView, PolicyChange, PolicyView,
};
use packhorse_cluster::{
    DeviceKind, Generation, ModelName, ModelVersion, NodeName, ProfileError, ProfileTable,
};
use packhorse_kernels::{KernelTable, KernelTableError};
use reqwest::{
    Method, RequestBuilder, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

use crate::{BaseUrl, CallError, Cause, call::Caller};

/// A client of the admin listener. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AdminClient {
    pub(crate) caller: Caller,
}

/// A text that cannot be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is one line of printable ASCII characters without blanks")]
pub struct TokenError;

/// Why profiles were not exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ProfilesError {
    /// The exchange failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The gateway's CSV is not in the profile contract.
    #[error("the gateway's profiles cannot be read")]
    Csv(#[source] ProfileError),
}

/// Why recorded kernels were not had.
#[derive(Debug, thiserror::Error)]
pub enum KernelsError {
    /// The exchange failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The gateway's CSV is no table of kernels.
    #[error("the gateway's kernels cannot be read")]
    Csv(#[source] KernelTableError),
}

impl AdminClient {
    /// A client that shows this admin token; blanks and line ends around it do not count.
    ///
    /// # Errors
    /// If it cannot be a token.
    pub fn new(base: BaseUrl, token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError);
        }
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError)?;
        authorization.set_sensitive(true);
        Ok(Self {
            caller: Caller::new(base, Some(authorization)),
        })
    }

    /// Registers a version of a model. When this returns it is stored durably.
    pub async fn register_model(
        &self,
        registration: &ModelRegistration,
    ) -> Result<ModelView, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::POST, ["v1", "models"])
                    .json(registration),
            )
            .await
    }

    /// All versions of all models.
    pub async fn models(&self) -> Result<Vec<ModelView>, CallError> {
        self.get(["v1", "models"]).await
    }

    /// A version of a model, the newest if none is named.
    pub async fn model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelView, CallError> {
        self.caller
            .fetch(self.model_request(Method::GET, name, version))
            .await
    }

    /// Changes SLO, rate or queue limit of a version, the newest if none is named.
    pub async fn change_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        change: &ModelChange,
    ) -> Result<ModelView, CallError> {
        self.caller
            .fetch(
                self.model_request(Method::PATCH, name, version)
                    .json(change),
            )
            .await
    }

    /// Removes a version, or all versions if none is named.
    pub async fn remove_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<(), CallError> {
        self.caller
            .send(self.model_request(Method::DELETE, name, version))
            .await
            .map(drop)
    }

    /// All stored model files.
    pub async fn artifacts(&self) -> Result<Vec<ArtifactView>, CallError> {
        self.get(["v1", "artifacts"]).await
    }

    /// Profiles of all models, or of one.
    pub async fn profiles(&self, model: Option<&ModelName>) -> Result<ProfileTable, ProfilesError> {
        let request = self
            .caller
            .request(Method::GET, ["v1", "profiles"])
            .query(&model.map(|name| [("model", name)]));
        let (_, body) = self.caller.send(request).await?;
        let text = std::str::from_utf8(&body).map_err(|e| self.caller.unreadable(Cause::of(&e)))?;
        ProfileTable::from_csv(text).map_err(ProfilesError::Csv)
    }

    /// The kernels that were recorded of a model, in all its versions.
    pub async fn kernels(&self, model: &ModelName) -> Result<KernelTable, KernelsError> {
        let request = self
            .caller
            .request(Method::GET, ["v1", "profiles", "kernels"])
            .query(&[("model", model)]);
        let (_, body) = self.caller.send(request).await?;
        let text = std::str::from_utf8(&body).map_err(|e| self.caller.unreadable(Cause::of(&e)))?;
        KernelTable::from_csv(text).map_err(KernelsError::Csv)
    }

    /// Adds profiles, replacing what is there for the same model and device kind.
    pub async fn import_profiles(&self, profiles: &ProfileTable) -> Result<(), CallError> {
        let request = self.caller.request(Method::PUT, ["v1", "profiles"]);
        self.caller
            .send(
                request
                    .header(CONTENT_TYPE, "text/csv")
                    .body(profiles.to_csv()),
            )
            .await
            .map(drop)
    }

    /// The pairs that were measured on a kind of device, as CSV; empty where there are none.
    pub async fn pairs(&self, kind: &DeviceKind) -> Result<String, CallError> {
        let request = self.pairs_request(Method::GET, kind);
        let (_, body) = self.caller.send(request).await?;
        let text = std::str::from_utf8(&body);
        let text = text.map_err(|e| self.caller.unreadable(Cause::of(&e)))?;
        Ok(text.to_owned())
    }

    /// Has the pairs of a CSV taken as what was measured on a kind of device, in the place of what is there.
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

    /// All nodes with their devices.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, CallError> {
        self.get(["v1", "nodes"]).await
    }

    /// Places nothing new on a node; what it serves stays.
    pub async fn cordon(&self, node: &NodeName) -> Result<NodeView, CallError> {
        self.node_action(node, "cordon").await
    }

    /// Lets a node take replicas again.
    pub async fn uncordon(&self, node: &NodeName) -> Result<NodeView, CallError> {
        self.node_action(node, "uncordon").await
    }

    /// Moves a node's replicas elsewhere.
    pub async fn drain(&self, node: &NodeName) -> Result<NodeView, CallError> {
        self.node_action(node, "drain").await
    }

    /// The current plan; `None` before the first.
    pub async fn plan(&self) -> Result<Option<PlanView>, CallError> {
        match self.get(["v1", "plan"]).await {
            Err(e) if e.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            answer => answer,
        }
    }

    /// The current plan, with what bounds each model that is not fully served and what it would take; `None` before the first.
    pub async fn explained_plan(&self) -> Result<Option<PlanView>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "plan"]);
        match self.caller.fetch(request.query(&[("explain", true)])).await {
            Err(e) if e.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            answer => answer,
        }
    }

    /// The stored plans, newest first.
    pub async fn plans(&self) -> Result<Vec<PlanView>, CallError> {
        self.get(["v1", "plans"]).await
    }

    /// A stored plan by its number.
    pub async fn plan_of(&self, generation: Generation) -> Result<PlanView, CallError> {
        self.get(["v1", "plans", &generation.to_string()]).await
    }

    /// What the plan `after` starts and stops where the plan `before` ran.
    pub async fn plan_difference(
        &self,
        before: Generation,
        after: Generation,
    ) -> Result<PlanDiff, CallError> {
        let (before, after) = (before.to_string(), after.to_string());
        self.get(["v1", "plans", &before, "diff", &after]).await
    }

    /// What would be planned if something were different. Changes nothing.
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

    /// How models are placed and requests dispatched.
    pub async fn policy(&self) -> Result<PolicyView, CallError> {
        self.get(["v1", "policy"]).await
    }

    /// Changes how models are placed and requests dispatched.
    pub async fn change_policy(&self, change: &PolicyChange) -> Result<PolicyView, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::PUT, ["v1", "policy"])
                    .json(change),
            )
            .await
    }

    /// How all models fared in the last `window_s` seconds.
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

    async fn node_action(&self, node: &NodeName, action: &str) -> Result<NodeView, CallError> {
        self.caller
            .fetch(
                self.caller
                    .request(Method::POST, ["v1", "nodes", node.as_str(), action]),
            )
            .await
    }

    fn model_request(
        &self,
        method: Method,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> RequestBuilder {
        let request = self.caller.request(method, ["v1", "models", name.as_str()]);
        request.query(&version.map(|version| [("version", version)]))
    }
}
