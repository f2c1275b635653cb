//! The routes about models: metadata, readiness, configuration, statistics.

use axum::{Json, extract::State, http::Extensions};
use packhorse_api::ErrorBody;
use packhorse_cluster::ModelVersion;
use packhorse_protocol::{
    DurationStatistics, InferenceStatistics, ModelConfig, ModelMetadata, ModelReady,
    ModelStatistics, Statistics,
};

use super::{authorize, error::InferenceError, model_path::ModelPath, state::Inference};
use crate::{
    driver::{RequestedModel, ServedModel},
    telemetry::CountAndTime,
};

/// Returns a model's versions, inputs and outputs. A family has no versions, and the inputs and outputs of its variants.
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = ModelMetadata), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn metadata(path: ModelPath) -> Json<ModelMetadata> {
    let requested = &path.requested;
    let versions = path.catalog.versions(requested.name());
    let versions = versions.map(|version: ModelVersion| version.to_string());
    let spec = &requested.model.spec;
    Json(ModelMetadata {
        name: requested.name().to_string(),
        ..ModelMetadata::new(&spec.program, &spec.processing, versions.collect())
    })
}

/// Returns the inputs and outputs of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = ModelMetadata), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn version_metadata(path: ModelPath) -> Json<ModelMetadata> {
    metadata(path).await
}

/// Returns 200 if a model, or any variant of a family, takes inference requests.
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses(
        (status = 200, body = ModelReady),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 503, description = "Not ready", body = ErrorBody),
    )
)]
pub(in crate::api) async fn ready(path: ModelPath) -> Result<Json<ModelReady>, InferenceError> {
    let requested = &path.requested;
    let id = requested.model.id();
    if requested.is_ready() {
        Ok(Json(ModelReady {
            name: requested.name().to_string(),
            ready: true,
        }))
    } else if let Some(family) = &requested.family {
        Err(InferenceError::unavailable(format!(
            "no replica of any variant of \"{family}\" is ready; retry later"
        )))
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
pub(in crate::api) async fn version_ready(
    path: ModelPath,
) -> Result<Json<ModelReady>, InferenceError> {
    ready(path).await
}

/// Returns the parts of a model's configuration that load generators read.
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = ModelConfig), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn config(path: ModelPath) -> Json<ModelConfig> {
    let requested = &path.requested;
    Json(ModelConfig {
        name: requested.name().to_string(),
        ..ModelConfig::new(&requested.model.spec.program)
    })
}

/// Returns the configuration of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}/config", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = ModelConfig), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn version_config(path: ModelPath) -> Json<ModelConfig> {
    config(path).await
}

/// Returns the statistics of a model since it is served; of a family the sum of those of its variants, as version 1.
#[utoipa::path(
    get, path = "/v2/models/{model}/stats", tag = "inference",
    params(("model" = String, Path, description = "The model's name")),
    responses((status = 200, body = Statistics), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn stats(path: ModelPath) -> Json<Statistics> {
    Json(Statistics {
        model_stats: vec![requested_statistics(&path.requested)],
    })
}

/// Returns the statistics of a version of a model.
#[utoipa::path(
    get, path = "/v2/models/{model}/versions/{version}/stats", tag = "inference",
    params(("model" = String, Path, description = "The model's name"), ("version" = u32, Path, description = "Its version")),
    responses((status = 200, body = Statistics), (status = 404, description = "No such model", body = ErrorBody))
)]
pub(in crate::api) async fn version_stats(path: ModelPath) -> Json<Statistics> {
    stats(path).await
}

/// Returns the statistics of all models that the client may use.
#[utoipa::path(get, path = "/v2/models/stats", tag = "inference", responses((status = 200, body = Statistics)))]
pub(in crate::api) async fn all_stats(
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

/// Returns the statistics of a model, or the sum of those of a family's variants. Load generators require a version: a family's is 1.
fn requested_statistics(requested: &RequestedModel) -> ModelStatistics {
    let mut all = requested.models().map(|model| statistics(model));
    let first = all.next().unwrap_or_default();
    match &requested.family {
        None => first,
        Some(family) => ModelStatistics {
            name: family.to_string(),
            version: ModelVersion::FIRST.to_string(),
            ..all.fold(first, |sum, of_variant| sum.plus(&of_variant))
        },
    }
}

fn statistics(model: &ServedModel) -> ModelStatistics {
    let measured = &model.telemetry;
    let duration = |time: &CountAndTime| DurationStatistics {
        count: time.count(),
        ns: time.nanos(),
    };
    let [hits, misses] = measured.cache();
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
            cache_hit: duration(hits),
            cache_miss: duration(misses),
        },
        batch_stats: Vec::new(),
    }
}
