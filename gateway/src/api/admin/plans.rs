//! `/v1/plan`, `/v1/plans`, `/v1/policy` and `/v1/goodput`.

use std::time::Duration;

use axum::{Json, extract::State};
use packhorse_api::{
    ErrorBody, GoodputView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanView, PolicyChange,
    PolicyView,
};
use packhorse_cluster::Generation;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::{
    api::error::{ApiError, JsonBody, Path, Query},
    controller::{diff, plan_view},
    telemetry::LONGEST_WINDOW,
};

/// Which stored plans are listed.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichPlans {
    /// Only plans with a smaller generation.
    before: Option<u64>,
    /// At most so many: 1 to 1000.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default = "WhichPlans::default_limit")]
    limit: u32,
}

impl WhichPlans {
    const MAX_LIMIT: u32 = 1000;

    fn default_limit() -> u32 {
        100
    }
}

/// Over how long a time goodput is told.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Window {
    /// The window's length in seconds, 1 to 300; it ends now.
    #[param(minimum = 1, maximum = 300)]
    #[serde(default = "Window::default_s")]
    window_s: u64,
}

impl Window {
    fn default_s() -> u64 {
        60
    }
}

/// How the current plan is told.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HowTold {
    /// Whether to explain what bounds each model that is not fully served, and what it would take; that takes up to as long as
    /// planning may.
    #[serde(default)]
    explain: bool,
}

/// The current plan.
#[utoipa::path(
    get, path = "/v1/plan", tag = "plans", security(("admin" = [])),
    params(HowTold),
    responses(
        (status = 200, body = PlanView),
        (status = 404, description = "There is none yet", body = ErrorBody),
        (status = 409, description = "To be explained: it does not fit the cluster any more, and a new one is not there yet", body = ErrorBody),
        (status = 503, description = "To be explained: too many explanations and previews are asked for at a time", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn current(
    State(admin): State<Admin>,
    Query(HowTold { explain }): Query<HowTold>,
) -> Result<Json<PlanView>, ApiError> {
    if explain {
        return Ok(Json(admin.controller.explained_plan().await??));
    }
    let plan = admin.controller.plan().await?;
    plan.map(Json)
        .ok_or_else(|| ApiError::not_found("no plan has been made yet"))
}

/// The stored plans, newest first.
#[utoipa::path(
    get, path = "/v1/plans", tag = "plans", security(("admin" = [])),
    params(WhichPlans),
    responses((status = 200, body = [PlanView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(which): Query<WhichPlans>,
) -> Result<Json<Vec<PlanView>>, ApiError> {
    if which.limit == 0 || which.limit > WhichPlans::MAX_LIMIT {
        let max = WhichPlans::MAX_LIMIT;
        return Err(ApiError::bad_request(format!("limit: expected 1 to {max}")));
    }
    let before = which.before.map(Generation);
    let plans = admin.store.plans(before, which.limit).await?;
    Ok(Json(plans.iter().map(plan_view).collect()))
}

/// A stored plan.
#[utoipa::path(
    get, path = "/v1/plans/{generation}", tag = "plans", security(("admin" = [])),
    params(("generation" = u64, Path, description = "Its number")),
    responses(
        (status = 200, body = PlanView),
        (status = 404, description = "It is not stored", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(generation): Path<Generation>,
) -> Result<Json<PlanView>, ApiError> {
    Ok(Json(stored(&admin, generation).await?))
}

/// What a stored plan starts and stops where another one ran.
#[utoipa::path(
    get, path = "/v1/plans/{before}/diff/{after}", tag = "plans", security(("admin" = [])),
    params(
        ("before" = u64, Path, description = "The number of the plan that ran"),
        ("after" = u64, Path, description = "The number of the plan that takes its place"),
    ),
    responses(
        (status = 200, body = PlanDiff),
        (status = 404, description = "One of them is not stored", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn difference(
    State(admin): State<Admin>,
    Path((before, after)): Path<(Generation, Generation)>,
) -> Result<Json<PlanDiff>, ApiError> {
    let before = stored(&admin, before).await?;
    let after = stored(&admin, after).await?;
    Ok(Json(diff(&before.replicas, &after.replicas)))
}

async fn stored(admin: &Admin, generation: Generation) -> Result<PlanView, ApiError> {
    let plan = admin.store.plan(generation).await?;
    let missing = || ApiError::not_found(format!("no plan {generation} is stored"));
    plan.as_ref().map(plan_view).ok_or_else(missing)
}

/// What would be planned if something were different. Changes nothing.
#[utoipa::path(
    post, path = "/v1/plans/preview", tag = "plans", security(("admin" = [])),
    request_body = PlanPreviewRequest,
    responses(
        (status = 200, body = PlanPreview),
        (status = 400, description = "It names what does not exist", body = ErrorBody),
        (status = 422, description = "The policy found no plan", body = ErrorBody),
        (status = 503, description = "Too many explanations and previews are asked for at a time", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn preview(
    State(admin): State<Admin>,
    JsonBody(request): JsonBody<PlanPreviewRequest>,
) -> Result<Json<PlanPreview>, ApiError> {
    Ok(Json(admin.controller.preview(request).await??))
}

/// How models are placed and requests dispatched.
#[utoipa::path(
    get, path = "/v1/policy", tag = "plans", security(("admin" = [])),
    responses((status = 200, body = PolicyView), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn policy(State(admin): State<Admin>) -> Result<Json<PolicyView>, ApiError> {
    Ok(Json(admin.controller.policy().await?))
}

/// Changes how models are placed and requests dispatched; absent fields stay.
#[utoipa::path(
    put, path = "/v1/policy", tag = "plans", security(("admin" = [])),
    request_body = PolicyChange,
    responses(
        (status = 200, body = PolicyView),
        (status = 400, description = "There is no such policy, option or discipline", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn change_policy(
    State(admin): State<Admin>,
    JsonBody(change): JsonBody<PolicyChange>,
) -> Result<Json<PolicyView>, ApiError> {
    Ok(Json(admin.controller.change_policy(change).await??))
}

/// How all models fared in a window of time that ends now.
#[utoipa::path(
    get, path = "/v1/goodput", tag = "plans", security(("admin" = [])),
    params(Window),
    responses((status = 200, body = GoodputView), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn goodput(
    State(admin): State<Admin>,
    Query(Window { window_s }): Query<Window>,
) -> Result<Json<GoodputView>, ApiError> {
    let window = Duration::from_secs(window_s);
    if window.is_zero() || window > LONGEST_WINDOW {
        let max = LONGEST_WINDOW.as_secs();
        return Err(ApiError::bad_request(format!(
            "window_s: expected 1 to {max}"
        )));
    }
    Ok(Json(GoodputView {
        window_s: window.as_secs_f64(),
        models: admin.data_plane.goodput(window),
    }))
}
