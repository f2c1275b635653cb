//! The routes of Text Embeddings Inference, under a path for each model: `embed`, `predict`, `rerank`, `info`.
//!
//! Source: the `OpenAPI` document of text-embeddings-inference 1.8.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    MAX_TEXTS,
    answers::{Row, Rows},
    ask::{Ask, Wanted, check_dimensions, classes_of, embedding_of, size_of},
    call::{Call, Received, receive},
    failure::in_form,
    input::{Texts, TextsSchema},
    rerank::{in_order, rank, score},
};
use crate::{
    api::inference::{
        classes::ranked, error::InferenceError, model_path::ModelPath, state::Inference,
    },
    driver::ServedModel,
};

/// A request for embeddings or classes of texts. Further fields are not looked at.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::api::inference) struct TextsRequest {
    /// A text, or a list of at most 2048 texts.
    #[schema(value_type = TextsSchema)]
    inputs: Texts,
    /// True to cut texts that are too long, false to refuse them; by default as the model's registration says.
    #[serde(default)]
    truncate: Option<bool>,
    /// True to bring embeddings to the length of one, false not to; by default as the model's registration says.
    #[serde(default)]
    normalize: Option<bool>,
    /// The number of dimensions that are left of each embedding, which is brought to the length of one again.
    #[serde(default)]
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
    /// True for the numbers of the output in place of their softmax.
    #[serde(default)]
    raw_scores: Option<bool>,
}

/// A request for the ranks of texts by a query.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::api::inference) struct RerankRequest {
    /// The query.
    query: String,
    /// At most 2048 texts.
    #[schema(value_type = TextsSchema)]
    texts: Texts,
    /// True for the number of the output in place of its sigmoid.
    #[serde(default)]
    raw_scores: Option<bool>,
    /// True to have the texts in the answer.
    #[serde(default)]
    return_text: Option<bool>,
    /// True to cut texts that are too long, false to refuse them; by default as the model's registration says.
    #[serde(default)]
    truncate: Option<bool>,
}

/// A class of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct Prediction {
    /// The name of the class, or `LABEL_` and its index.
    #[schema(value_type = String)]
    label: Label,
    /// The score.
    score: f64,
}

/// The name of a class: one of these names, or that of its index.
#[derive(Debug)]
struct Label(Option<Arc<[String]>>, usize);

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(names, index) = self;
        match names {
            Some(names) => serializer.serialize_str(&names[*index]),
            None => serializer.collect_str(&format_args!("LABEL_{index}")),
        }
    }
}

/// The classes of one text, or of each text of a list.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Predictions {
    One(Vec<Prediction>),
    Each(Vec<Vec<Prediction>>),
}

/// The rank of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct Rank {
    /// The index of the text.
    index: usize,
    /// The score.
    score: f64,
    /// The text, if it is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// A model that takes texts.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct Info {
    /// The model's name.
    model_id: String,
    /// The version.
    model_sha: String,
    /// The datatype of the output.
    model_dtype: String,
    /// What it is for.
    model_type: serde_json::Value,
    /// The most tokens of a text.
    max_input_length: u32,
    /// The most texts of a call.
    max_client_batch_size: usize,
    /// True if texts that are too long are cut.
    auto_truncate: bool,
    /// The version of the gateway.
    version: &'static str,
}

/// An error in the form of these routes.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct TeiError {
    /// What is wrong.
    error: String,
    /// The kind of error.
    error_type: &'static str,
}

/// An error of these routes.
pub(in crate::api::inference) struct Failure(InferenceError);

impl From<InferenceError> for Failure {
    fn from(error: InferenceError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let error_type = match error.status() {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            StatusCode::SERVICE_UNAVAILABLE => "Unhealthy",
            status if status.is_server_error() => "Backend",
            _ => "Validation",
        };
        let body = TeiError {
            error: error.message().to_owned(),
            error_type,
        };
        in_form(error, &body)
    }
}

/// The task that a model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Embed,
    Predict,
    /// Whichever the model declares.
    Any,
}

/// Returns the embeddings of texts, as Text Embeddings Inference does.
#[utoipa::path(
    post, path = "/tei/{model}/embed", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body = TextsRequest,
    responses(
        (status = 200, description = "An embedding for each text", body = Vec<Vec<f32>>),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn embed(
    State(inference): State<Inference>,
    Path(model): Path<String>,
    request: Request,
) -> Response {
    answer(&inference, &model, request, Task::Embed).await
}

/// Returns the classes of texts with their scores, the best first, as Text Embeddings Inference does.
#[utoipa::path(
    post, path = "/tei/{model}/predict", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body = TextsRequest,
    responses(
        (status = 200, description = "The classes of the text, or a list of them for each text of a list", body = Vec<Prediction>),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn predict(
    State(inference): State<Inference>,
    Path(model): Path<String>,
    request: Request,
) -> Response {
    answer(&inference, &model, request, Task::Predict).await
}

/// Returns the embeddings or classes of texts, whichever the model declares, as the clients of Hugging Face's endpoints expect them.
#[utoipa::path(
    post, path = "/tei/{model}", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body = TextsRequest,
    responses(
        (status = 200, description = "As `/embed` answers, or as `/predict` answers a list", body = serde_json::Value),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn any(
    State(inference): State<Inference>,
    Path(model): Path<String>,
    request: Request,
) -> Response {
    answer(&inference, &model, request, Task::Any).await
}

async fn answer(inference: &Inference, model: &str, request: Request, task: Task) -> Response {
    let answered = async {
        let mut received = receive::<TextsRequest>(inference, request).await?;
        let texts = std::mem::take(&mut received.body.inputs.texts);
        let call = received.of(inference, model, "").await?;
        let spec = &call.path.requested.model.spec;
        let embeds = match task {
            Task::Embed => true,
            Task::Predict => false,
            Task::Any => classes_of(spec).is_err(),
        };
        if embeds {
            embeddings(&call, texts, &received).await
        } else {
            classes(&call, texts, &received, task).await
        }
    };
    answered
        .await
        .unwrap_or_else(|error: InferenceError| Failure(error).into_response())
}

async fn embeddings(
    call: &Call<'_>,
    texts: Vec<String>,
    received: &Received<TextsRequest>,
) -> Result<Response, InferenceError> {
    let asked = &received.body;
    let spec = &call.path.requested.model.spec;
    let (output, mut declared) = embedding_of(spec)?;
    declared.normalize = asked.normalize.unwrap_or(declared.normalize);
    check_dimensions(asked.dimensions, size_of(spec, &output))?;
    let ask = Ask {
        wanted: Wanted::Embedding(declared, asked.dimensions),
        query: None,
        texts,
        truncate: asked.truncate,
        output,
        timeout: None,
        priority: 0,
    };
    let rows = call.rows(ask).await?;
    let bytes = 64 * rows.by_text.len() + 16 * rows.numbers();
    let make = move |rows: Rows| {
        let rows = rows.by_text.iter();
        let vector = |row: &Row| row.numbers.iter().map(|number| *number as f32).collect();
        rows.map(vector).collect::<Vec<Vec<f32>>>()
    };
    call.respond(rows, bytes, make).await
}

async fn classes(
    call: &Call<'_>,
    texts: Vec<String>,
    received: &Received<TextsRequest>,
    task: Task,
) -> Result<Response, InferenceError> {
    let asked = &received.body;
    let (output, mut declared) = classes_of(&call.path.requested.model.spec)?;
    declared.softmax &= !asked.raw_scores.unwrap_or_default();
    // Hugging Face's own client expects a list of lists for one text, too.
    let is_list = asked.inputs.is_list || task == Task::Any;
    let ask = Ask {
        wanted: Wanted::Scores,
        query: None,
        texts,
        truncate: asked.truncate,
        output,
        timeout: None,
        priority: 0,
    };
    let rows = call.rows(ask).await?;
    let labels = declared.labels.iter().map(String::len).sum::<usize>();
    // An escaped byte is six, and each class is there as itself and as text.
    let bytes = 160 * rows.numbers() + 6 * rows.by_text.len() * labels;
    let make = move |rows: Rows| {
        let labels = &declared.labels;
        let prediction = |(score, index): (f64, usize)| Prediction {
            label: Label(labels.get(index).map(|_| Arc::clone(labels)), index),
            score,
        };
        let of_row = |row: &Row| {
            let ranked = ranked(&row.numbers, row.numbers.len(), declared.softmax);
            ranked.into_iter().map(prediction).collect::<Vec<_>>()
        };
        let mut predictions: Vec<_> = rows.by_text.iter().map(of_row).collect();
        if is_list {
            return Predictions::Each(predictions);
        }
        Predictions::One(predictions.pop().unwrap_or_default())
    };
    call.respond(rows, bytes, make).await
}

/// Returns the ranks of texts by a query, the best first, as Text Embeddings Inference does.
#[utoipa::path(
    post, path = "/tei/{model}/rerank", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    request_body = RerankRequest,
    responses(
        (status = 200, description = "The ranks, the best first", body = Vec<Rank>),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn rerank(
    State(inference): State<Inference>,
    Path(model): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let mut received = receive::<RerankRequest>(&inference, request).await?;
    let query = std::mem::take(&mut received.body.query);
    let texts = std::mem::take(&mut received.body.texts.texts);
    let asked = &received.body;
    let truncate = asked.truncate;
    let raw = asked.raw_scores.unwrap_or_default();
    let with_text = asked.return_text.unwrap_or_default();
    let call = received.of(&inference, &model, "").await?;
    let bytes = texts.iter().map(|text| 64 + 6 * text.len()).sum();
    let rows = rank(&call, query, texts.clone(), truncate).await?;
    let make = move |rows: Rows| {
        let mut texts: Vec<Option<String>> = texts.into_iter().map(Some).collect();
        let ranked = in_order(&rows, |row| score(row, raw));
        let rank = |(index, score): (usize, f64)| Rank {
            index,
            score,
            text: texts[index].take().filter(|_| with_text),
        };
        ranked.into_iter().map(rank).collect::<Vec<_>>()
    };
    Ok(call.respond(rows, bytes, make).await?)
}

/// Returns the limits of a model that takes texts, as Text Embeddings Inference does.
#[utoipa::path(
    get, path = "/tei/{model}/info", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    responses(
        (status = 200, body = Info),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn info(
    State(inference): State<Inference>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Info>, Failure> {
    let model = find(&inference, &name, &request)?;
    let spec = &model.spec;
    let Some((_, text)) = spec.processing.text() else {
        let message = "the model does not declare how a text becomes its inputs (preprocess)";
        return Err(InferenceError::bad_request(message).into());
    };
    let (output, model_type) = if let Ok((output, declared)) = embedding_of(spec) {
        let pooling = declared
            .pool
            .map_or_else(|| "none".into(), |pool| serde_json::json!(pool));
        (
            output,
            serde_json::json!({"embedding": {"pooling": pooling}}),
        )
    } else {
        let (output, declared) = classes_of(spec)?;
        let names = declared.labels.iter().enumerate();
        let names: serde_json::Map<String, serde_json::Value> = names
            .map(|(index, name)| (index.to_string(), name.as_str().into()))
            .collect();
        (
            output,
            serde_json::json!({"classifier": {"id2label": names}}),
        )
    };
    let mut outputs = spec.program.outputs.iter();
    let datatype = outputs.find(|spec| spec.name == output);
    Ok(Json(Info {
        model_id: name,
        model_sha: model.id().version.to_string(),
        model_dtype: datatype.map_or_else(String::new, |spec| spec.datatype.to_string()),
        model_type,
        max_input_length: text.max_length,
        max_client_batch_size: MAX_TEXTS,
        auto_truncate: text.truncate,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Returns 200 if the model is ready, as Text Embeddings Inference does.
#[utoipa::path(
    get, path = "/tei/{model}/health", tag = "inference",
    params(("model" = String, Path, description = "The name of the model or family")),
    responses(
        (status = 200, description = "The model is ready"),
        (status = "default", description = "An error, in the form of Text Embeddings Inference", body = TeiError),
    )
)]
pub(in crate::api::inference) async fn health(
    State(inference): State<Inference>,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, Failure> {
    if find(&inference, &name, &request)?.is_ready() {
        return Ok(StatusCode::OK);
    }
    Err(InferenceError::unavailable("no replica of the model is ready").into())
}

fn find(
    inference: &Inference,
    name: &str,
    request: &Request,
) -> Result<Arc<ServedModel>, InferenceError> {
    let path = ModelPath::find(inference, name, "", request.headers())?;
    Ok(path.requested.model)
}
