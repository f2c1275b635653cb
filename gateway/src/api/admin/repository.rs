//! `/v1/repository/problems`: what is wrong with the folder of models that `packhorse serve` registers.

use axum::{extract::State, http::StatusCode};
use packhorse_api::{ErrorBody, RepositoryProblem, RepositoryProblems};
use packhorse_control as control;

use super::Admin;
use crate::api::{body::JsonBody, error::ApiError};

/// The largest number of characters of a place, and of what is wrong there.
const MAX_TEXT: usize = 1000;

/// Replaces what is wrong with the folder of models. It is a finding until it is replaced, or the gateway starts again.
#[utoipa::path(
    put, path = "/v1/repository/problems", tag = "events", security(("admin" = [])),
    request_body = RepositoryProblems,
    responses(
        (status = 204, description = "Replaced"),
        (status = 400, description = "There are too many problems", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn put_problems(
    State(admin): State<Admin>,
    JsonBody(body): JsonBody<RepositoryProblems>,
) -> Result<StatusCode, ApiError> {
    let problems = body.problems.into_iter().map(shortened).collect();
    admin.controller.report_repository(problems).await??;
    Ok(StatusCode::NO_CONTENT)
}

fn shortened(problem: RepositoryProblem) -> control::RepositoryProblem {
    let within = |text: String| text.chars().take(MAX_TEXT).collect();
    control::RepositoryProblem {
        place: within(problem.place),
        problem: within(problem.problem),
    }
}
