//! The audit log: what admins did.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An act of an admin that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The entry's number. Later acts have larger ones.
    pub id: u64,
    /// The time of the act, as Unix time in milliseconds.
    pub at_ms: i64,
    /// Who acted.
    pub actor: AuditActor,
    /// The act: the kind of its subject and a verb, such as `model.register`.
    pub action: String,
    /// The model, node, key or file that it was about; null if it was about the whole cluster.
    pub subject: Option<String>,
    /// What was changed, as in the request, without secrets.
    #[schema(value_type = Object)]
    pub change: serde_json::Value,
    /// The values that it replaced: the fields of the change that were different before it; null if there are none, or they are not known.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub before: Option<serde_json::Value>,
}

/// The owner of the token, key or session with which a request came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditActor {
    /// The name of the key, or of the admin token.
    pub name: String,
    /// The identity of the API key; null for the admin token.
    pub key_id: Option<String>,
    /// True if a session of the dashboard acted for the owner of the token or key.
    pub session: bool,
    /// The address that the request came from.
    pub address: Option<String>,
}
