//! `/v1/plan`, `/v1/plans`, `/v1/policy` and `/v1/goodput`: plans, policies and goodput.

use std::time::Duration;

use axum::{Extension, Json, extract::State, http::header, response::IntoResponse};
use packhorse_api::{
    AuditActor, ChangeAnswer, ErrorBody, GoodputView, PlanDiff, PlanPreview, PlanPreviewRequest,
    PlanSummary, PlanView, PolicyChange, PolicyView,
};
use packhorse_cluster::{Discipline, Generation};
use packhorse_control::{
    Command,
    record::{PlanOutcome, Settings},
};
use packhorse_scenario::export_toml;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    Admin,
    consequences::{self, Rehearsed},
};
use crate::{
    api::{
        body::JsonBody,
        error::{ApiError, Path, Query, off_reactor},
    },
    controller::{diff, plan_view},
    store::PlanSummaryRecord,
    telemetry::LONGEST_WINDOW,
};

/// The stored plans to list.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanRange {
    /// Lists only plans with a smaller generation.
    before: Option<u64>,
    /// The largest number of plans to list, 1 to 1000.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default = "PlanRange::default_limit")]
    limit: u32,
}

impl PlanRange {
    const MAX_LIMIT: u32 = 1000;

    fn default_limit() -> u32 {
        100
    }
}

/// The time window of goodput.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Window {
    /// The length of the window that ends now, in seconds; 1 to 300.
    #[param(minimum = 1, maximum = 300)]
    #[serde(default = "Window::default_s")]
    window_s: u64,
}

impl Window {
    fn default_s() -> u64 {
        60
    }
}

/// The parts of the current plan to return.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanParts {
    /// True to explain what limits each model that is not fully served, and what would serve it. The explanation may take as long
    /// as planning.
    #[serde(default)]
    explain: bool,
}

/// Returns the current plan.
#[utoipa::path(
    get, path = "/v1/plan", tag = "plans", security(("admin" = [])),
    params(PlanParts),
    responses(
        (status = 200, body = PlanView),
        (status = 404, description = "No plan has been made yet", body = ErrorBody),
        (status = 409, description = "The plan cannot be explained: it no longer fits the cluster, and the new one is not made yet", body = ErrorBody),
        (status = 503, description = "The plan cannot be explained now: too many explanations and previews run at once", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn current(
    State(admin): State<Admin>,
    Query(PlanParts { explain }): Query<PlanParts>,
) -> Result<Json<PlanView>, ApiError> {
    if explain {
        return Ok(Json(admin.controller.explained_plan().await??));
    }
    let plan = admin.controller.plan().await?;
    plan.map(Json)
        .ok_or_else(|| ApiError::not_found("no plan has been made yet"))
}

/// Returns what a plan would be made for now, as the TOML of a scenario: devices, models with their rates, profiles, the current plan, and what was
/// learned. `packhorse-lab plan --scenario` makes the same plan of it.
#[utoipa::path(
    get, path = "/v1/plan/scenario", tag = "plans", security(("admin" = [])),
    responses(
        (status = 200, description = "The scenario", body = String, content_type = "application/toml"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn scenario(State(admin): State<Admin>) -> Result<impl IntoResponse, ApiError> {
    let input = admin.controller.planning_input().await?;
    let text = off_reactor(move || export_toml("live", &input)).await?;
    let text = text.map_err(|e| ApiError::internal(&e))?;
    Ok(([(header::CONTENT_TYPE, "application/toml")], text))
}

/// Returns stored plans without their replicas and forecasts, the newest first.
#[utoipa::path(
    get, path = "/v1/plans", tag = "plans", security(("admin" = [])),
    params(PlanRange),
    responses((status = 200, body = [PlanSummary]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(range): Query<PlanRange>,
) -> Result<Json<Vec<PlanSummary>>, ApiError> {
    if range.limit == 0 || range.limit > PlanRange::MAX_LIMIT {
        let max = PlanRange::MAX_LIMIT;
        return Err(ApiError::bad_request(format!("limit: expected 1 to {max}")));
    }
    if range
        .before
        .is_some_and(|before| i64::try_from(before).is_err())
    {
        let max = i64::MAX;
        return Err(ApiError::bad_request(format!(
            "before: expected 0 to {max}"
        )));
    }
    let before = range.before.map(Generation);
    let plans = admin.store.plan_summaries(before, range.limit).await?;
    let mut plans: Vec<PlanSummary> = plans.into_iter().map(summary).collect();
    if let Some((current, outcome)) = admin.controller.plan_outcome().await?
        && let Some(plan) = plans.iter_mut().find(|plan| plan.generation == current)
    {
        plan.outcome = outcome_view(outcome);
    }
    Ok(Json(plans))
}

/// Returns the outcome of a plan in the form of the API; `None` if nothing was counted.
fn outcome_view(outcome: PlanOutcome) -> Option<packhorse_api::PlanOutcome> {
    let seconds = outcome.seconds;
    (seconds > 0.0).then(|| packhorse_api::PlanOutcome {
        duration_s: seconds,
        offered_rps: outcome.arrived / seconds,
        predicted_rps: outcome.predicted / seconds,
        goodput_rps: outcome.observed / seconds,
    })
}

fn summary(plan: PlanSummaryRecord) -> PlanSummary {
    let totals = plan.totals;
    PlanSummary {
        generation: plan.generation,
        policy: plan.policy,
        created_unix_ms: plan.created_ms,
        reason: plan.reason,
        solve_ms: plan.solve_ms,
        predicted_goodput_rps: totals.goodput_rps,
        replicas: totals.replicas,
        models: totals.models,
        devices_used: totals.devices_used,
        unserved_models: totals.unserved_models,
        unserved: totals.unserved.iter().map(ToString::to_string).collect(),
        outcome: plan.outcome.and_then(outcome_view),
    }
}

/// Returns a stored plan.
#[utoipa::path(
    get, path = "/v1/plans/{generation}", tag = "plans", security(("admin" = [])),
    params(("generation" = u64, Path, description = "The plan's number")),
    responses(
        (status = 200, body = PlanView),
        (status = 404, description = "The plan is not stored", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(generation): Path<Generation>,
) -> Result<Json<PlanView>, ApiError> {
    Ok(Json(stored(&admin, generation).await?))
}

/// Returns the replicas that start and stop when a stored plan replaces another one.
#[utoipa::path(
    get, path = "/v1/plans/{before}/diff/{after}", tag = "plans", security(("admin" = [])),
    params(
        ("before" = u64, Path, description = "The number of the replaced plan"),
        ("after" = u64, Path, description = "The number of the plan that replaces it"),
    ),
    responses(
        (status = 200, body = PlanDiff),
        (status = 404, description = "One of the plans is not stored", body = ErrorBody),
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
    let missing = || ApiError::not_found(format!("plan {generation} is not stored"));
    plan.as_ref().map(plan_view).ok_or_else(missing)
}

/// Returns the plan that a policy would make if the cluster were different. Changes nothing.
#[utoipa::path(
    post, path = "/v1/plans/preview", tag = "plans", security(("admin" = [])),
    request_body = PlanPreviewRequest,
    responses(
        (status = 200, body = PlanPreview),
        (status = 400, description = "A field is out of its limits, or names something that does not exist", body = ErrorBody),
        (status = 422, description = "The policy found no plan", body = ErrorBody),
        (status = 503, description = "Too many explanations and previews run at once", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn preview(
    State(admin): State<Admin>,
    JsonBody(request): JsonBody<PlanPreviewRequest>,
) -> Result<Json<PlanPreview>, ApiError> {
    Ok(Json(admin.controller.preview(request).await??))
}

/// Returns the placement policy, its options and the dispatch discipline.
#[utoipa::path(
    get, path = "/v1/policy", tag = "plans", security(("admin" = [])),
    responses((status = 200, body = PolicyView), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn policy(State(admin): State<Admin>) -> Result<Json<PolicyView>, ApiError> {
    Ok(Json(admin.controller.policy().await?))
}

/// Changes the placement policy, its options or the dispatch discipline; absent fields stay unchanged.
#[utoipa::path(
    put, path = "/v1/policy", tag = "plans", security(("admin" = [])),
    params(Rehearsed),
    request_body = PolicyChange,
    responses(
        (status = 200, description = "The policy, or after a dry run the consequences alone", body = ChangeAnswer<PolicyView>),
        (status = 400, description = "The policy, option or discipline does not exist, or the discipline runs in the simulator only", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn change_policy(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
    JsonBody(change): JsonBody<PolicyChange>,
) -> Result<Json<ChangeAnswer<PolicyView>>, ApiError> {
    let discipline = change.discipline.map(Discipline::live).transpose();
    let discipline = discipline.map_err(|e| ApiError::bad_request(format!("discipline: {e}")))?;
    let settings = Settings {
        policy: change.policy,
        options: change.options,
        discipline,
    };
    if let Some(name) = &settings.policy {
        packhorse_placement::policy(name)?;
    }
    let controller = admin.controller.by(actor);
    let command = Command::ChangeSettings(settings.clone());
    let make = async { Ok(controller.change_policy(settings).await??) };
    let answer = consequences::change(&controller, dry_run, vec![command], make).await?;
    Ok(Json(answer))
}

/// Returns the goodput and latency of all models in a time window that ends now.
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
    let models = admin.data_plane.goodput(window);
    Ok(Json(GoodputView::new(window.as_secs_f64(), models)))
}
