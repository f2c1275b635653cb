//! Who may ask what: bearer tokens, compared in constant time.

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

/// The tokens of a gateway. Only their hashes are kept.
#[derive(Clone, Debug)]
pub struct Credentials {
    admin: TokenHash,
    agent: TokenHash,
}

/// What a token is compared by: hashes have one length and share no prefixes, so that a comparison tells nothing of the token.
#[derive(Clone, Debug)]
struct TokenHash(Arc<[u8; 32]>);

/// Whose token a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Admin,
    Agent,
}

impl TokenHash {
    fn of(token: &str) -> Self {
        Self(Arc::new(Sha256::digest(token).into()))
    }

    fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(other.0.as_ref()).into()
    }
}

impl Credentials {
    /// From the tokens' texts.
    pub fn new(admin: &str, agent: &str) -> Self {
        Self {
            admin: TokenHash::of(admin),
            agent: TokenHash::of(agent),
        }
    }

    fn role(&self, headers: &HeaderMap) -> Result<Role, ApiError> {
        let refused = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
        let Some(token) = bearer(headers) else {
            return refused("this route wants a token: Authorization: Bearer TOKEN");
        };
        let given = TokenHash::of(token);
        if self.admin.matches(&given) {
            Ok(Role::Admin)
        } else if self.agent.matches(&given) {
            Ok(Role::Agent)
        } else {
            refused("the token is not valid")
        }
    }
}

/// Lets only the admin through.
pub(super) async fn admin_only(
    State(credentials): State<Credentials>,
    request: Request,
    next: Next,
) -> Response {
    match credentials.role(request.headers()) {
        Ok(Role::Admin) => next.run(request).await,
        Ok(Role::Agent) => {
            let message = "an agent's token does not open this route";
            ApiError::new(StatusCode::FORBIDDEN, message).into_response()
        }
        Err(e) => e.into_response(),
    }
}

/// Lets agents and the admin through.
pub(super) async fn agents_too(
    State(credentials): State<Credentials>,
    request: Request,
    next: Next,
) -> Response {
    match credentials.role(request.headers()) {
        Ok(_) => next.run(request).await,
        Err(e) => e.into_response(),
    }
}

/// The token of `Authorization: Bearer TOKEN`; the scheme is spelt in any case.
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
    fn tokens_open_what_they_are_for_and_nothing_else_is_one() {
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
