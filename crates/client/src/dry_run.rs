//! Dry runs: the gateway checks a change, says what it would take from models, and does not make it.

use packhorse_api::{Consequences, ModelChange, ModelRegistration, PolicyChange};
use packhorse_cluster::{ModelName, ModelVersion, NodeName};
use reqwest::{Method, RequestBuilder};

use crate::{AdminClient, CallError};

/// A client whose changes are dry runs.
#[derive(Clone, Copy, Debug)]
pub struct DryRun<'a> {
    client: &'a AdminClient,
}

impl AdminClient {
    /// Returns a client whose changes are dry runs.
    pub fn dry_run(&self) -> DryRun<'_> {
        DryRun { client: self }
    }
}

impl DryRun<'_> {
    /// Returns the consequences of [`AdminClient::register_model`].
    pub async fn register_model(
        self,
        registration: &ModelRegistration,
    ) -> Result<Consequences, CallError> {
        self.fetch(self.client.registration_request(registration))
            .await
    }

    /// Returns the consequences of a registration in place of one of the same name and version.
    pub async fn replace_model(
        self,
        registration: &ModelRegistration,
    ) -> Result<Consequences, CallError> {
        let request = self.client.registration_request(registration);
        self.fetch(request.query(&[("replace", true)])).await
    }

    /// Returns the consequences of [`AdminClient::change_model`].
    pub async fn change_model(
        self,
        name: &ModelName,
        version: Option<ModelVersion>,
        change: &ModelChange,
    ) -> Result<Consequences, CallError> {
        let request = self.client.model_request(Method::PATCH, name, version);
        self.fetch(request.json(change)).await
    }

    /// Returns the consequences of [`AdminClient::promote`].
    pub async fn promote(
        self,
        name: &ModelName,
        version: ModelVersion,
    ) -> Result<Consequences, CallError> {
        self.fetch(self.client.promotion_request(name, version))
            .await
    }

    /// Returns the consequences of [`AdminClient::roll_back`].
    pub async fn roll_back(self, name: &ModelName) -> Result<Consequences, CallError> {
        self.fetch(self.client.rollback_request(name)).await
    }

    /// Returns the consequences of [`AdminClient::remove_model`].
    pub async fn remove_model(
        self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Consequences, CallError> {
        let request = self.client.model_request(Method::DELETE, name, version);
        self.fetch(request).await
    }

    /// Returns the consequences of [`AdminClient::drain`].
    pub async fn drain(self, node: &NodeName) -> Result<Consequences, CallError> {
        self.fetch(self.client.node_request(node, "drain")).await
    }

    /// Returns the consequences of [`AdminClient::remove_node`].
    pub async fn remove_node(self, node: &NodeName) -> Result<Consequences, CallError> {
        self.fetch(self.client.node_removal_request(node)).await
    }

    /// Returns the consequences of [`AdminClient::change_policy`].
    pub async fn change_policy(self, change: &PolicyChange) -> Result<Consequences, CallError> {
        self.fetch(self.client.policy_request(change)).await
    }

    async fn fetch(self, request: RequestBuilder) -> Result<Consequences, CallError> {
        let request = request.query(&[("dry_run", true)]);
        self.client.caller.fetch(request).await
    }
}
