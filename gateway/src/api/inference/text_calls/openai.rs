//! `OpenAI`'s embeddings and list of models.
//!
//! Source: the API reference of `OpenAI`, version 1: Embeddings, Models.

use axum::{
    Json,
    extract::{Path, Request, State},
    http::{Extensions, StatusCode},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use packhorse_protocol::RepositoryState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    answers::{Row, Rows},
    ask::{Ask, Wanted, check_dimensions, embedding_of, size_of},
    call::{Received, receive},
    failure::in_form,
    input::{Texts, TextsSchema},
};
use crate::api::inference::{error::InferenceError, server::index, state::Inference};

/// A request for embeddings. Further fields are not looked at.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::api::inference) struct EmbeddingsRequest {
    /// The model, as `NAME` or `NAME:VERSION`.
    model: String,
    /// A text, or a list of at most 2048 texts.
    #[schema(value_type = TextsSchema)]
    input: Texts,
    /// The form of the embeddings.
    #[serde(default)]
    encoding_format: Option<EncodingFormat>,
    /// The number of dimensions that are left of each embedding, which is brought to the length of one again.
    #[serde(default)]
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
}

/// The form of an embedding in an answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// The numbers as little-endian 32-bit floating point, in base64.
    Base64,
}

/// Embeddings of texts.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct EmbeddingsAnswer {
    /// The word `list`.
    object: &'static str,
    /// The embeddings, in the order of the texts.
    data: Vec<EmbeddingItem>,
    /// The model.
    model: String,
    /// The tokens that were counted.
    usage: Usage,
}

/// An embedding.
#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingItem {
    /// The word `embedding`.
    object: &'static str,
    /// The index of the text.
    index: usize,
    /// The numbers.
    #[schema(value_type = serde_json::Value)]
    embedding: Numbers,
}

/// The numbers of an embedding.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Base64(String),
}

/// The tokens of a call.
#[derive(Debug, Serialize, ToSchema)]
struct Usage {
    /// The tokens of all texts, with those that the tokenizer adds.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// The models that a client may use.
#[derive(Debug, Serialize)]
pub(in crate::api::inference) struct ModelList {
    /// The word `list`.
    object: &'static str,
    /// The models and families.
    data: Vec<ModelItem>,
    /// Their names, as `KServe`'s protocol of version 1 has them, if that is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
}

/// A model or a family.
#[derive(Debug, Serialize)]
pub(in crate::api::inference) struct ModelItem {
    /// The name.
    id: String,
    /// The word `model`.
    object: &'static str,
    /// The number 0: the time of the registration is told to admins only.
    created: u64,
    /// The word `packhorse`.
    owned_by: &'static str,
    /// The name and the readiness, as `KServe`'s protocol of version 1 has them, if that is on.
    #[serde(flatten)]
    readiness: Option<Readiness>,
}

/// The readiness of a model or a family.
#[derive(Debug, Serialize)]
struct Readiness {
    /// The name.
    name: String,
    /// True if it takes requests.
    ready: bool,
}

/// An error in the form of this API.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct OpenAiError {
    /// The error.
    error: ErrorItem,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorItem {
    /// What is wrong.
    message: String,
    /// The kind of error.
    r#type: &'static str,
    /// Nothing: the message names the field.
    param: Option<String>,
    /// The word `model_not_found` if there is no such model.
    code: Option<&'static str>,
}

/// An error of this API's routes.
pub(in crate::api::inference) struct Failure(InferenceError);

impl<E: Into<InferenceError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let r#type = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let item = ErrorItem {
            message: error.message().to_owned(),
            r#type,
            param: None,
            code: error.is_not_found().then_some("model_not_found"),
        };
        in_form(error, &OpenAiError { error: item })
    }
}

/// Returns the embeddings of texts, as `OpenAI`'s API does.
///
/// The model declares a text (`preprocess`) and an embedding (`postprocess`).
/// A call of many texts is as many requests as they fill batches, each with the model's objective from when it was sent to a device.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "inference",
    request_body = EmbeddingsRequest,
    responses(
        (status = 200, description = "The embeddings", body = EmbeddingsAnswer),
        (status = "default", description = "An error, in the form of `OpenAI`'s API", body = OpenAiError),
    )
)]
pub(in crate::api::inference) async fn embeddings(
    State(inference): State<Inference>,
    request: Request,
) -> Response {
    let received = receive::<EmbeddingsRequest>(&inference, request).await;
    let mut received = match received {
        Ok(received) => received,
        Err(error) => return Failure(error).into_response(),
    };
    let answered = embed(&inference, &mut received).await;
    let response = answered.unwrap_or_else(|error| Failure(error).into_response());
    received.end(&inference, response)
}

async fn embed(
    inference: &Inference,
    received: &mut Received<EmbeddingsRequest>,
) -> Result<Response, InferenceError> {
    let model = std::mem::take(&mut received.body.model);
    let texts = std::mem::take(&mut received.body.input.texts);
    let format = received.body.encoding_format.unwrap_or_default();
    let dimensions = received.body.dimensions;
    let call = received.of_named(inference, &model).await?;
    let spec = &call.path.requested.model.spec;
    let (output, declared) = embedding_of(spec)?;
    check_dimensions(dimensions, size_of(spec, &output))?;
    let ask = Ask {
        wanted: Wanted::Embedding(declared, dimensions),
        query: None,
        texts,
        truncate: None,
        output,
        timeout: None,
        priority: 0,
    };
    let rows = call.rows(ask).await?;
    let bytes = 64 * rows.by_text.len() + 16 * rows.numbers();
    let make = move |rows: Rows| {
        let tokens = rows.by_text.iter().map(|row| row.tokens).sum();
        let item = |(index, row): (usize, &Row)| {
            let numbers = row.numbers.iter().map(|number| *number as f32);
            let embedding = match format {
                EncodingFormat::Float => Numbers::Float(numbers.collect()),
                EncodingFormat::Base64 => {
                    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
                    Numbers::Base64(BASE64_STANDARD.encode(bytes))
                }
            };
            EmbeddingItem {
                object: "embedding",
                index,
                embedding,
            }
        };
        EmbeddingsAnswer {
            object: "list",
            data: rows.by_text.iter().enumerate().map(item).collect(),
            model,
            usage: Usage {
                prompt_tokens: tokens,
                total_tokens: tokens,
            },
        }
    };
    call.respond(rows, bytes, make).await
}

/// Returns the models and families that the client may use, as `OpenAI`'s API does.
pub(in crate::api::inference) async fn models(
    State(inference): State<Inference>,
    extensions: Extensions,
) -> Json<ModelList> {
    let data = items(&inference, &extensions);
    let names = data.iter().map(|item| item.id.clone());
    Json(ModelList {
        object: "list",
        models: inference.platforms.kserve_v1.then(|| names.collect()),
        data,
    })
}

/// Returns a model or a family, as `OpenAI`'s API does.
pub(in crate::api::inference) async fn model(
    State(inference): State<Inference>,
    Path(name): Path<String>,
    extensions: Extensions,
) -> Result<Json<ModelItem>, Failure> {
    let items = items(&inference, &extensions);
    let found = items.into_iter().find(|item| item.id == name);
    let shown: String = name.chars().take(64).collect();
    let message = format!("there is no model {shown:?}");
    Ok(Json(found.ok_or_else(|| {
        InferenceError::new(StatusCode::NOT_FOUND, message)
    })?))
}

fn items(inference: &Inference, extensions: &Extensions) -> Vec<ModelItem> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for entry in index(inference, extensions, false) {
        let is_ready = entry.state == RepositoryState::Ready;
        match names.last_mut().filter(|(name, _)| *name == entry.name) {
            // A name is ready if any of its versions is.
            Some((_, any)) => *any |= is_ready,
            None => names.push((entry.name, is_ready)),
        }
    }
    let item = |(id, ready): (String, bool)| ModelItem {
        readiness: inference.platforms.kserve_v1.then(|| Readiness {
            name: id.clone(),
            ready,
        }),
        id,
        object: "model",
        created: 0,
        owned_by: "packhorse",
    };
    names.into_iter().map(item).collect()
}
