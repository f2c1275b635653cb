//! `/v1/session`: signing in to the dashboard.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};
use packhorse_api::{ErrorBody, SESSION_COOKIE, SessionCode, SessionRequest, SessionView};

use super::{Admin, NO_STORE};
use crate::{
    api::error::{ApiError, JsonBody},
    sessions::{CODE_LIFETIME, LIFETIME},
};

/// Starts a session with a token or a code: sets the cookie `packhorse_session`, which is valid for 12 hours and stands for the token in
/// requests of the same site. Requests with it that change something also need the header `x-packhorse-csrf`, with any value.
#[utoipa::path(
    post, path = "/v1/session", tag = "keys",
    request_body = SessionRequest,
    responses(
        (status = 201, body = SessionView, headers(("Set-Cookie" = String, description = "The session"))),
        (status = 400, description = "Not one of token and code", body = ErrorBody),
        (status = 401, description = "The token or the code is not valid", body = ErrorBody),
        (status = 403, description = "The key may not use this listener, or a page of another site asks", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(admin): State<Admin>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        let message = "a session cannot be started by a page of another site";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    let (session, view) = admin.credentials.sign_in(&request)?;
    tracing::info!(session.name = view.name, "a session was started");
    let cookie = set_cookie(&session, LIFETIME.as_secs(), admin.uses_tls);
    Ok((
        StatusCode::CREATED,
        [NO_STORE, (header::SET_COOKIE, &*cookie)].map(|(name, value)| (name, value.to_owned())),
        Json(view),
    ))
}

/// Returns who asks: the owner of the session, the token or the key.
#[utoipa::path(
    get, path = "/v1/session", tag = "keys", security(("admin" = [])),
    responses(
        (status = 200, body = SessionView),
        (status = 401, description = "There is no valid session or token", body = ErrorBody),
        (status = 403, description = "The token or key may not use the admin API", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let view = admin.credentials.session_view(&headers)?;
    Ok(([NO_STORE], Json(view)))
}

/// Ends a session: the browser forgets its cookie.
#[utoipa::path(
    delete, path = "/v1/session", tag = "keys",
    responses((status = 204, description = "Ended"), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn delete(State(admin): State<Admin>) -> impl IntoResponse {
    let cookie = set_cookie("", 0, admin.uses_tls);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)])
}

/// Makes a code that starts a session of the same owner once, within a minute.
#[utoipa::path(
    post, path = "/v1/session/codes", tag = "keys", security(("admin" = [])),
    responses(
        (status = 201, body = SessionCode),
        (status = 401, description = "There is no valid token", body = ErrorBody),
        (status = 403, description = "The token or key may not use the admin API", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn create_code(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let code = admin.credentials.session_code(&headers)?;
    let expires_in_s = u32::try_from(CODE_LIFETIME.as_secs()).unwrap_or(u32::MAX);
    let answer = SessionCode { code, expires_in_s };
    Ok((StatusCode::CREATED, [NO_STORE], Json(answer)))
}

/// Returns the cookie of a session. That of a listener with TLS is never sent in clear text.
fn set_cookie(value: &str, seconds: u64, uses_tls: bool) -> String {
    let secure = if uses_tls { "; Secure" } else { "" };
    format!(
        "{SESSION_COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    )
}
