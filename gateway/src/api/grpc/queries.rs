//! The calls about the server, its models and shared memory.

use axum::{
    Json,
    extract::{Request, State},
    http::{Extensions, HeaderMap},
    response::Response,
};
use packhorse_grpc::messages::inference::{
    ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest, ModelStatisticsResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
};
use packhorse_protocol::RegisterSystemSharedMemory;

use super::{
    state::Grpc,
    unary::{Question, answer},
};
use crate::api::inference::{
    error::InferenceError, model, model_path::ModelPath, server, shared_memory::regions_of,
};

impl Question for ServerLiveRequest {
    const NEEDS_NO_KEY: bool = true;
}

impl Question for ServerReadyRequest {
    const NEEDS_NO_KEY: bool = true;
}

impl Question for ServerMetadataRequest {}
impl Question for RepositoryIndexRequest {}
impl Question for SystemSharedMemoryRegisterRequest {}
impl Question for SystemSharedMemoryStatusRequest {}
impl Question for SystemSharedMemoryUnregisterRequest {}

/// Questions about a model, whose name is in this field.
macro_rules! about_models {
    ($($question:ident: $field:ident),* $(,)?) => {$(
        impl Question for $question {
            fn model(&self) -> Option<&str> {
                Some(self.$field.as_str()).filter(|name| !name.is_empty())
            }
        }
    )*};
}

about_models! {
    ModelReadyRequest: name,
    ModelMetadataRequest: name,
    ModelConfigRequest: name,
    ModelStatisticsRequest: name,
    RepositoryModelLoadRequest: model_name,
    RepositoryModelUnloadRequest: model_name,
}

/// Returns the model or family of a name and a version, which may be empty.
fn path_of(grpc: &Grpc, name: &str, version: &str) -> Result<ModelPath, InferenceError> {
    ModelPath::find(grpc.inference(), name, version, &HeaderMap::new())
}

pub(super) async fn server_live(State(grpc): State<Grpc>, request: Request) -> Response {
    let live = async |_: ServerLiveRequest, _: &Extensions| Ok(ServerLiveResponse { live: true });
    answer(&grpc, request, live).await
}

pub(super) async fn server_ready(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |_: ServerReadyRequest, _: &Extensions| {
            let ready = grpc.data_plane.is_ready();
            Ok(ServerReadyResponse { ready })
        },
    )
    .await
}

pub(super) async fn server_metadata(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |_: ServerMetadataRequest, _: &Extensions| {
            let Json(metadata) = server::metadata(State(grpc.inference().clone())).await;
            Ok(ServerMetadataResponse::from(metadata))
        },
    )
    .await
}

/// A model that is not there is not ready, as with Triton: clients ask until it is.
pub(super) async fn model_ready(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |asked: ModelReadyRequest, _: &Extensions| {
            let ready = match path_of(&grpc, &asked.name, &asked.version) {
                Ok(path) => path.requested.is_ready(),
                Err(error) if error.is_not_found() => false,
                Err(error) => return Err(error),
            };
            Ok(ModelReadyResponse { ready })
        },
    )
    .await
}

pub(super) async fn model_metadata(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |asked: ModelMetadataRequest, _: &Extensions| {
            let path = path_of(&grpc, &asked.name, &asked.version)?;
            let Json(metadata) = model::metadata(path).await;
            Ok(ModelMetadataResponse::from(metadata))
        },
    )
    .await
}

pub(super) async fn model_config(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |asked: ModelConfigRequest, _: &Extensions| {
            let path = path_of(&grpc, &asked.name, &asked.version)?;
            let Json(config) = model::config(path).await;
            let config = Some(config.into());
            Ok(ModelConfigResponse { config })
        },
    )
    .await
}

pub(super) async fn model_statistics(State(grpc): State<Grpc>, request: Request) -> Response {
    let of_models = async |asked: ModelStatisticsRequest, extensions: &Extensions| {
        let Json(statistics) = if asked.name.is_empty() {
            let inference = State(grpc.inference().clone());
            model::all_stats(inference, extensions.clone()).await
        } else {
            model::stats(path_of(&grpc, &asked.name, &asked.version)?).await
        };
        let model_stats = statistics.model_stats.into_iter().map(Into::into);
        Ok(ModelStatisticsResponse {
            model_stats: model_stats.collect(),
        })
    };
    answer(&grpc, request, of_models).await
}

pub(super) async fn repository_index(State(grpc): State<Grpc>, request: Request) -> Response {
    let index = async |asked: RepositoryIndexRequest, extensions: &Extensions| {
        if !asked.repository_name.is_empty() {
            return Err(InferenceError::bad_request(
                "repository_name: there is one repository, which has no name",
            ));
        }
        let entries = server::index(grpc.inference(), extensions, asked.ready);
        let models = entries.into_iter().map(Into::into).collect();
        Ok(RepositoryIndexResponse { models })
    };
    answer(&grpc, request, index).await
}

pub(super) async fn load(State(grpc): State<Grpc>, request: Request) -> Response {
    let refuse = async |_: RepositoryModelLoadRequest, _: &Extensions| {
        Err::<RepositoryModelLoadResponse, _>(server::no_loading())
    };
    answer(&grpc, request, refuse).await
}

pub(super) async fn unload(State(grpc): State<Grpc>, request: Request) -> Response {
    let refuse = async |_: RepositoryModelUnloadRequest, _: &Extensions| {
        Err::<RepositoryModelUnloadResponse, _>(server::no_loading())
    };
    answer(&grpc, request, refuse).await
}

pub(super) async fn shared_memory_status(State(grpc): State<Grpc>, request: Request) -> Response {
    let status = async |asked: SystemSharedMemoryStatusRequest, extensions: &Extensions| {
        let regions = regions_of(grpc.inference(), extensions).await?;
        let listed = if asked.name.is_empty() {
            regions.list()
        } else {
            vec![regions.description(&asked.name)?]
        };
        Ok(SystemSharedMemoryStatusResponse::from_iter(listed))
    };
    answer(&grpc, request, status).await
}

pub(super) async fn shared_memory_register(State(grpc): State<Grpc>, request: Request) -> Response {
    let register = async |asked: SystemSharedMemoryRegisterRequest, extensions: &Extensions| {
        let regions = regions_of(grpc.inference(), extensions).await?;
        let registration = RegisterSystemSharedMemory {
            key: asked.key,
            offset: asked.offset,
            byte_size: asked.byte_size,
        };
        regions.register(asked.name, registration).await?;
        Ok(SystemSharedMemoryRegisterResponse {})
    };
    answer(&grpc, request, register).await
}

pub(super) async fn shared_memory_unregister(
    State(grpc): State<Grpc>,
    request: Request,
) -> Response {
    let unregister = async |asked: SystemSharedMemoryUnregisterRequest, extensions: &Extensions| {
        let regions = regions_of(grpc.inference(), extensions).await?;
        if asked.name.is_empty() {
            regions.unregister_all();
        } else {
            regions.unregister(&asked.name);
        }
        Ok(SystemSharedMemoryUnregisterResponse {})
    };
    answer(&grpc, request, unregister).await
}
