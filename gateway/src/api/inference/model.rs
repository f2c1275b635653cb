//! The routes about models: metadata, readiness, configuration, statistics.

use axum::{Json, extract::State, http::Extensions};
use packhorse_api::ErrorBody;
use packhorse_cluster::ModelVersion;
use packhorse_protocol::{
    DurationStatistics, InferenceStatistics, ModelConfig, ModelMetadata, ModelReady,
    ModelStatistics, Statistics,
};

use super::{authorize, error::InferenceError, model_path::ModelPath, state::Inference};
use crate::{driver::ServedModel, telemetry::CountAndTime};

/// Returns a model's versions, inputs and outputs.
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = ModelMetadata), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn metadata(path: ModelPath) -> Json<ModelMetadata> {
    let versions = path
        .catalog
        .versions(&path.model.id().name)
        .map(|version: ModelVersion| version.to_string());
    Json(ModelMetadata::new(
        &path.model.spec.program,
        versions.collect(),
    ))
}

/// Returns the inputs and outputs of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = ModelMetadata), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn version_metadata(path: ModelPath) -> Json<ModelMetadata> {
    metadata(path).await
}

/// Returns 200 if a model takes inference requests.
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses(
        (status = 200, body = ModelReady),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    )
)]
pub(super) async fn ready(path: ModelPath) -> Result<Json<ModelReady>, InferenceError> {
    let id = path.model.id();
    if path.model.is_ready() {
        Ok(Json(ModelReady {
            name: id.name.to_string(),
            ready: true,
        }))
    } else {
        Err(InferenceError::unavailable(format!(
            "no replica of model \"{}\" version {} is ready; retry later",
            id.name, id.version
        )))
    }
}

/// Returns 200 if a version of a model takes inference requests.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}/ready", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses(
        (status = 200, body = ModelReady),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    )
)]
pub(super) async fn version_ready(path: ModelPath) -> Result<Json<ModelReady>, InferenceError> {
    ready(path).await
}

/// Returns the parts of a model's configuration that load generators read.
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = ModelConfig), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn config(path: ModelPath) -> Json<ModelConfig> {
    Json(ModelConfig::new(&path.model.spec.program))
}

/// Returns the configuration of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}/config", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = ModelConfig), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn version_config(path: ModelPath) -> Json<ModelConfig> {
    config(path).await
}

/// Returns the statistics of a model since it is served.
#[utoipa::path(
    get, path = "/v2/models/{model}/stats", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = Statistics), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn stats(path: ModelPath) -> Json<Statistics> {
    Json(Statistics {
        model_stats: vec![statistics(&path.model)],
    })
}

/// Returns the statistics of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}/stats", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = Statistics), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(super) async fn version_stats(path: ModelPath) -> Json<Statistics> {
    stats(path).await
}

/// Returns the statistics of all models that the client may use.
#[utoipa::path(get, path = "/v2/models/stats", tag = "inference", responses((status = 200, body = Statistics)))]
pub(super) async fn all_stats(
    State(inference): State<Inference>,
    extensions: Extensions,
) -> Json<Statistics> {
    let catalog = inference.data_plane.catalog();
    let listed = catalog
        .all()
        .filter(|model| authorize::is_listed(&extensions, model.id().name.as_str()));
    Json(Statistics {
        model_stats: listed.map(|model| statistics(model)).collect(),
    })
}

fn statistics(model: &ServedModel) -> ModelStatistics {
    let measured = &model.telemetry;
    let duration = |time: &CountAndTime| DurationStatistics {
        count: time.count(),
        ns: time.nanos(),
    };
    let [compute_input, compute_infer, compute_output] = measured.compute();
    let (failed, failed_ns) = measured.failed();
    ModelStatistics {
        name: model.id().name.to_string(),
        version: model.id().version.to_string(),
        last_inference: measured.last_inference_unix_ms(),
        inference_count: measured.inferences(),
        execution_count: measured.executions(),
        inference_stats: InferenceStatistics {
            success: duration(measured.success()),
            fail: DurationStatistics {
                count: failed,
                ns: failed_ns,
            },
            queue: duration(measured.queue()),
            compute_input: duration(compute_input),
            compute_infer: duration(compute_infer),
            compute_output: duration(compute_output),
            cache_hit: DurationStatistics::default(),
            cache_miss: DurationStatistics::default(),
        },
        batch_stats: Vec::new(),
    }
}
