//! `/v1/session`: signing in to the dashboard.

use std::net::IpAddr;

use axum::{
    Json,
    extract::State,
    http::{Extensions, HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_api::{
    AuditActor, ErrorBody, SESSION_COOKIE, SessionCode, SessionRequest, SessionView,
};
use serde_json::json;
use tokio::time::sleep;

use super::{Admin, NO_STORE, auth, sign_ins::PAUSE};
use crate::{
    api::{body::JsonBody, error::ApiError},
    audit::Act,
    sessions::{CODE_LIFETIME, LIFETIME},
    store::unix_ms,
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
        (status = 403, description = "The key may not use this listener, or a page of another origin asks", body = ErrorBody),
        (status = 429, description = "Too many sign-ins from this address were refused", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(admin): State<Admin>,
    extensions: Extensions,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Response, ApiError> {
    let (source, sign_ins) = (auth::source(&extensions), &admin.credentials.sign_ins);
    if let Some(left) = sign_ins.blocked(source, unix_ms()) {
        let message = "too many sign-ins from this address were refused; retry later";
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message);
        let seconds = left.as_secs_f64().ceil().to_string();
        return Ok(([(header::RETRY_AFTER, seconds)], error).into_response());
    }
    let (session, mut view) = match admin.credentials.sign_in(&request) {
        Ok(signed_in) => signed_in,
        Err(error) => {
            if error.is_refusal() {
                refused(&admin, source).await;
            }
            return Err(error);
        }
    };
    tracing::info!(session.name = view.name, "a session was started");
    view.grafana_url = grafana_url(&admin);
    let cookie = set_cookie(&session, LIFETIME.as_secs(), admin.uses_tls);
    let headers =
        [NO_STORE, (header::SET_COOKIE, &*cookie)].map(|(name, value)| (name, value.to_owned()));
    Ok((StatusCode::CREATED, headers, Json(view)).into_response())
}

/// Records a refused sign-in, and waits for the pause before its answer.
async fn refused(admin: &Admin, source: IpAddr) {
    if let Some(count) = admin.credentials.sign_ins.refused(source, unix_ms()) {
        let actor = AuditActor {
            name: String::new(),
            key_id: None,
            session: false,
            address: Some(source.to_string()),
        };
        tracing::warn!(client.address = %source, refused = count, "sign-ins were refused");
        let act = Act::of_cluster(actor, "session.refuse").with(json!({"refused": count}));
        if let Err(e) = admin.store.acting(act).record().await {
            tracing::warn!(error = %e, "a refused sign-in is not in the audit log");
        }
    }
    sleep(PAUSE).await;
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
    let mut view = admin.credentials.session_view(&headers)?;
    view.grafana_url = grafana_url(&admin);
    Ok(([NO_STORE], Json(view)))
}

fn grafana_url(admin: &Admin) -> Option<String> {
    let url = admin.grafana_url.as_ref();
    url.map(|url| url.as_str().to_owned())
}

/// Ends a session: its cookie is not valid any more, and the browser forgets it.
#[utoipa::path(
    delete, path = "/v1/session", tag = "keys",
    responses((status = 204, description = "Ended"), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn delete(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    admin.credentials.sign_out(&admin.store, &headers).await?;
    let cookie = set_cookie("", 0, admin.uses_tls);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]))
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
