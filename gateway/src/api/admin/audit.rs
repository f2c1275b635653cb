//! `/v1/audit`: what admins did.

use axum::{Json, extract::State};
use packhorse_api::{AuditEntry, ErrorBody};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    Admin,
    times::{check_order, named_ms},
};
use crate::{
    api::error::{ApiError, Query},
    store::WhichEntries,
};

/// The entries to list.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListedEntries {
    /// The number of an entry: those before it are listed; the newest if absent.
    #[param(maximum = 9_223_372_036_854_775_807_u64)]
    before: Option<u64>,
    /// Only acts about this model, node, key or file; the name of a model stands for all of its versions.
    subject: Option<String>,
    /// Only acts of who has this name, or of the API key with this id.
    actor: Option<String>,
    /// Only this act, such as `model.register`, or all acts about this kind of subject, such as `model`.
    action: Option<String>,
    /// Only acts that did not happen before this time, in milliseconds since 1970; a negative number counts from now.
    since: Option<i64>,
    /// Only acts that had happened by this time, in milliseconds since 1970; a negative number counts from now.
    until: Option<i64>,
    /// The largest number of entries to list, 1 to 1000; those before them have smaller numbers than the last.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default = "ListedEntries::default_limit")]
    limit: u32,
}

impl ListedEntries {
    const MAX_LIMIT: u32 = 1000;

    fn default_limit() -> u32 {
        100
    }
}

/// Returns what admins did, newest first. The newest 100,000 acts are kept. Backups and downloads of model files are among them, and of refused
/// sign-ins the first and the last before the address is stopped; what else was refused or changed nothing is not.
#[utoipa::path(
    get, path = "/v1/audit", tag = "audit", security(("admin" = [])),
    params(ListedEntries),
    responses(
        (status = 200, body = [AuditEntry]),
        (status = 400, description = "A parameter is out of its limits", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(listed): Query<ListedEntries>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    let ListedEntries { before, limit, .. } = listed;
    if !(1..=ListedEntries::MAX_LIMIT).contains(&limit) {
        let message = format!(
            "limit: {limit} is not between 1 and {}",
            ListedEntries::MAX_LIMIT
        );
        return Err(ApiError::bad_request(message));
    }
    if before.is_some_and(|before| i64::try_from(before).is_err()) {
        return Err(ApiError::bad_request(format!(
            "before: expected at most {}",
            i64::MAX
        )));
    }
    check_order(listed.since, listed.until)?;
    let which = WhichEntries {
        before,
        subject: listed.subject,
        actor: listed.actor,
        action: listed.action,
        since_ms: listed.since.map(named_ms),
        until_ms: listed.until.map(named_ms),
        limit,
    };
    Ok(Json(admin.store.audit(&which).await?))
}
