//! Authorisation of clients by API keys.

use axum::{
    RequestExt as _,
    extract::{RawPathParams, Request},
    http::{Extensions, StatusCode},
};

use packhorse_serving::TenantKey;

use super::{
    error::InferenceError,
    platforms::settings::{Asked, PREDICT},
    state::Inference,
};
use crate::{
    api::bearer,
    keys::{KeyRefusal, KeyUse, Keyring, ModelScope},
};

/// The refusal of a key that opens nothing.
const UNKNOWN_KEY: &str = "the API key is unknown or has expired";
/// The paths whose requests name their model in their body.
const NAMED_IN_BODY: [&str; 3] = ["/v1/embeddings", "/v1/rerank", "/v2/rerank"];
/// The paths that need no key: balancers and orchestrators ask them.
const HEALTH: &str = "/v2/health/";

/// Returns the use of a key that allows the request's model, if keys are required. The key's limit of requests at the same time counts the request
/// until the use ends.
pub(in crate::api) async fn authorize(
    inference: &Inference,
    request: &mut Request,
) -> Result<Option<KeyUse>, InferenceError> {
    let Some(keys) = &inference.keys else {
        return Ok(None);
    };
    if request.uri().path().starts_with(HEALTH) {
        return Ok(None);
    }
    let asked = inference
        .platforms
        .asked(request.uri().path(), request.headers());
    match asked? {
        None => {}
        Some(Asked::Health) => return Ok(None),
        Some(Asked::Model(model)) => {
            let name = model.split(':').next().unwrap_or(model).to_owned();
            let used = use_key(keys, bearer(request.headers()), Some(&name))?;
            grant(&used, Some(&name), request.extensions_mut());
            return Ok(Some(used));
        }
    }
    if NAMED_IN_BODY.contains(&request.uri().path()) {
        // The handler uses the key when it has read the model's name.
        let tenant = require_key(keys, bearer(request.headers()))?;
        request.extensions_mut().insert(tenant);
        return Ok(None);
    }
    // A name that is no text is refused by the handler.
    let parameters = request.extract_parts::<RawPathParams>().await.ok();
    let mut parameters = parameters.iter().flat_map(RawPathParams::iter);
    let model = parameters.find(|(name, _)| *name == "model");
    let model = model.map(|(_, model)| model.strip_suffix(PREDICT).unwrap_or(model));
    let used = use_key(keys, bearer(request.headers()), model)?;
    grant(&used, model, request.extensions_mut());
    Ok(Some(used))
}

/// Returns the use of a key for a request to a model, or to none.
pub(in crate::api) fn use_key(
    keys: &Keyring,
    key: Option<&str>,
    model: Option<&str>,
) -> Result<KeyUse, InferenceError> {
    let used = keys.use_for(key.ok_or_else(no_key)?, model);
    Ok(used.ok_or_else(|| unauthorized(UNKNOWN_KEY))??)
}

/// Returns the tenant of a request whose model is not known yet, and refuses one without a valid key.
pub(in crate::api) fn require_key(
    keys: &Keyring,
    key: Option<&str>,
) -> Result<TenantKey, InferenceError> {
    let tenant = keys.tenant(key.ok_or_else(no_key)?);
    tenant.ok_or_else(|| unauthorized(UNKNOWN_KEY))
}

/// Tells the handlers of a request for a model, or for none, who sends it and what its key allows.
pub(in crate::api) fn grant(used: &KeyUse, model: Option<&str>, extensions: &mut Extensions) {
    extensions.insert(used.tenant());
    extensions.insert(used.tenant_name());
    if model.is_none() {
        // A list contains the models that the key allows.
        extensions.insert(used.models().clone());
    }
}

/// Returns true if a list for this client contains the model; without a key it contains all.
pub(in crate::api) fn is_listed(extensions: &Extensions, model: &str) -> bool {
    let scope = extensions.get::<ModelScope>();
    scope.is_none_or(|scope| scope.allows(model))
}

fn no_key() -> InferenceError {
    unauthorized("this gateway requires an API key: Authorization: Bearer KEY")
}

fn unauthorized(message: &str) -> InferenceError {
    InferenceError::new(StatusCode::UNAUTHORIZED, message)
}

impl From<KeyRefusal> for InferenceError {
    fn from(refusal: KeyRefusal) -> Self {
        let error = Self::new(refusal.status(), refusal.to_string());
        match refusal {
            KeyRefusal::Rate { retry_after, .. } => error.retry_after(retry_after),
            _ => error,
        }
    }
}
