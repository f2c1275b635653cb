//! The model in the path of a request.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{HeaderMap, HeaderValue, request::Parts},
};
use packhorse_cluster::{IdError, ModelName, ModelVersion, Time};

use super::{error::InferenceError, state::Inference};
use crate::{
    driver::{Catalog, RequestedModel},
    telemetry::REQUEST_ID,
};

/// Returns the id that a client gave its request, by which a version is chosen for it where the model's split is sticky.
pub(in crate::api) fn request_id(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(&REQUEST_ID).map(HeaderValue::as_bytes)
}

/// Returns the name and the version of `NAME` or `NAME:VERSION`; the version is empty for any.
pub(in crate::api::inference) fn name_and_version(
    model: &str,
) -> Result<(&str, &str), InferenceError> {
    match model.split_once(':') {
        None => Ok((model, "")),
        Some((_, "")) => {
            let message = "model: the version after the colon is empty";
            Err(InferenceError::bad_request(message))
        }
        Some(named) => Ok(named),
    }
}

/// The model or family of `/v2/models/{model}`, or the model of `/v2/models/{model}/versions/{version}`, and the catalog that it was found in.
#[derive(Clone, Debug)]
pub(in crate::api) struct ModelPath {
    pub(in crate::api) requested: RequestedModel,
    /// The version in the path; `None` if the model's split chose one.
    pub(in crate::api) version: Option<ModelVersion>,
    pub(in crate::api) catalog: Arc<Catalog>,
}

impl ModelPath {
    /// Finds the model of a name and a version, which is empty for any. The headers may have the request's id.
    pub(in crate::api) fn find(
        inference: &Inference,
        name: &str,
        version: &str,
        headers: &HeaderMap,
    ) -> Result<Self, InferenceError> {
        let bad = |e: IdError| InferenceError::bad_request(e.to_string());
        let name: ModelName = name.parse().map_err(bad)?;
        let version = Some(version).filter(|version| !version.is_empty());
        let version = version.map(str::parse::<ModelVersion>);
        let version = version.transpose().map_err(bad)?;
        let catalog = inference.data_plane.catalog();
        let requested = catalog.find(&name, version, request_id(headers))?;
        Ok(Self {
            requested,
            version,
            catalog,
        })
    }

    /// Returns the model as it is once the gateway has started, or when the SLO has passed since `arrived`: until then a gateway that was
    /// started again connects to workers that are ready, and a request is not refused for that.
    pub(in crate::api) async fn started(
        self,
        inference: &Inference,
        arrived: Time,
        headers: &HeaderMap,
    ) -> Result<Self, InferenceError> {
        if !self.catalog.is_starting() {
            return Ok(self);
        }
        let deadline = arrived + self.requested.model.spec.slo;
        let catalog = inference.data_plane.started_catalog(deadline).await;
        let name = self.requested.name();
        let requested = catalog.find(name, self.version, request_id(headers))?;
        Ok(Self {
            requested,
            version: self.version,
            catalog,
        })
    }
}

impl FromRequestParts<Inference> for ModelPath {
    type Rejection = InferenceError;

    async fn from_request_parts(
        parts: &mut Parts,
        inference: &Inference,
    ) -> Result<Self, InferenceError> {
        // The parameters are percent-decoded once: what is still encoded then is not part of any name.
        let params = RawPathParams::from_request_parts(parts, inference)
            .await
            .map_err(|e| InferenceError::bad_request(e.body_text()))?;
        let param = |name| {
            params
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let (name, version) = (param("model").unwrap_or_default(), param("version"));
        if version == Some("") {
            // An empty version of a path is a mistake, and no absent one.
            return Err(InferenceError::bad_request(
                "the version in the path is empty",
            ));
        }
        Self::find(inference, name, version.unwrap_or_default(), &parts.headers)
    }
}
