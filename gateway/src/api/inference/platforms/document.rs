//! The platforms' routes in the API's document, which has them whether they are on or not.

use utoipa::OpenApi;

use super::{
    routes,
    schema::{PredictAnswer, PredictRequest},
};

#[derive(OpenApi)]
#[openapi(
    paths(
        routes::kserve_predict,
        routes::ping,
        routes::invocations,
        routes::vertex_health,
        routes::vertex_predict
    ),
    components(schemas(PredictRequest, PredictAnswer))
)]
struct PlatformsDocument;

/// Returns the document of the platforms' routes.
pub(in crate::api::inference) fn document() -> utoipa::openapi::OpenApi {
    PlatformsDocument::openapi()
}
