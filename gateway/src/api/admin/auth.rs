//! Authorisation by bearer tokens, which are compared in constant time.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::api::ApiError;

/// The tokens of a gateway, as hashes.
#[derive(Clone, Debug)]
pub struct Credentials {
    admin: TokenHash,
    agent: TokenHash,
}

/// The hash of a token. Comparing hashes, which have equal length, in constant time reveals nothing about the token.
#[derive(Clone, Debug)]
struct TokenHash(Arc<[u8; 32]>);

/// The owner of a request's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Admin,
    Agent,
}

impl TokenHash {
    fn new(token: &str) -> Self {
        Self(Arc::new(Sha256::digest(token).into()))
    }

    fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(other.0.as_ref()).into()
    }
}

impl Credentials {
    /// Creates the credentials from the tokens.
    pub fn new(admin: &str, agent: &str) -> Self {
        Self {
            admin: TokenHash::new(admin),
            agent: TokenHash::new(agent),
        }
    }

    /// Returns the owner of the token in the headers.
    fn role(&self, headers: &HeaderMap) -> Result<Role, ApiError> {
        let refused = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
        let Some(token) = bearer(headers) else {
            return refused("this route requires a token: Authorization: Bearer TOKEN");
        };
        let given = TokenHash::new(token);
        if self.admin.matches(&given) {
            Ok(Role::Admin)
        } else if self.agent.matches(&given) {
            Ok(Role::Agent)
        } else {
            refused("the token is invalid")
        }
    }
}

/// Middleware that accepts the admin token only.
pub(super) async fn admin_only(
    State(credentials): State<Credentials>,
    request: Request,
    next: Next,
) -> Response {
    match credentials.role(request.headers()) {
        Ok(Role::Admin) => next.run(request).await,
        Ok(Role::Agent) => {
            let message = "this route requires the admin token; an agent token was given";
            ApiError::new(StatusCode::FORBIDDEN, message).into_response()
        }
        Err(e) => e.into_response(),
    }
}

/// Middleware that accepts the agent token and the admin token.
pub(super) async fn agent_or_admin(
    State(credentials): State<Credentials>,
    request: Request,
    next: Next,
) -> Response {
    match credentials.role(request.headers()) {
        Ok(_) => next.run(request).await,
        Err(e) => e.into_response(),
    }
}

/// Returns the token of `Authorization: Bearer TOKEN`. The case of the scheme does not matter.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(authorization: &str) -> Option<Role> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        Credentials::new("admin-secret", "agent-secret")
            .role(&headers)
            .ok()
    }

    #[test]
    fn each_token_has_its_role_and_nothing_else_is_a_token() {
        assert_eq!(role("Bearer admin-secret"), Some(Role::Admin));
        assert_eq!(role("bearer agent-secret"), Some(Role::Agent));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer admin-secre",
            "Bearer admin-secret x",
            "Bearer\tadmin-secret",
            "Basic admin-secret",
            "admin-secret",
        ] {
            assert_eq!(role(bad), None, "{bad:?} was accepted");
        }
    }
}
