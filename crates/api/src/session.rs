//! Sessions of browsers: a cookie in place of a token.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The name of the cookie of a session.
pub const SESSION_COOKIE: &str = "packhorse_session";
/// The header, with any value, that a request with a session needs if it changes something. A page of another origin cannot send it.
pub const CSRF_HEADER: &str = "x-packhorse-csrf";

/// Starts a session with one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// The admin token, or a key with the scope `admin` or `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A code of `POST /v1/session/codes`, which is valid once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// The rights of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionScope {
    /// Read everything that is no secret.
    Read,
    /// Everything.
    Admin,
}

/// The owner of a session, token or key, with its rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// The name of the key; `admin` for the admin token.
    pub name: String,
    /// The rights of the session.
    pub scope: SessionScope,
    /// The end of the session, as Unix time in milliseconds; null for a request with a token or key instead of a session.
    pub expires_at_ms: Option<i64>,
    /// The address of Grafana, to which the dashboard links; null if none is configured.
    #[serde(default)]
    pub grafana_url: Option<String>,
}

/// A code that starts a session once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionCode {
    /// The code.
    pub code: String,
    /// The time for which it is valid, in seconds.
    pub expires_in_s: u32,
}
