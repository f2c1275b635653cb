//! Ranks of documents by a query, as Cohere's and Jina's clients ask for them.
//!
//! Source: the API references of Cohere, version 2, and of Jina, version 1: Rerank.

use std::fmt;

use axum::{
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use utoipa::ToSchema;

use super::{
    MAX_TEXTS,
    answers::{Row, Rows},
    ask::{Ask, Wanted, classes_of, size_of},
    call::{Call, Received, receive},
    input::limited,
    openai::{Failure, OpenAiError},
};
use crate::api::inference::{error::InferenceError, state::Inference};

/// A request for the ranks of documents by a query. Further fields are not looked at.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::api::inference) struct RankRequest {
    /// The model, as `NAME` or `NAME:VERSION`.
    model: String,
    /// The query.
    query: String,
    /// At most 2048 documents: texts, or objects with a field `text`.
    #[schema(value_type = Vec<Document>)]
    documents: Documents,
    /// The most documents in the answer.
    #[serde(default)]
    top_n: Option<usize>,
    /// True to have the documents in the answer.
    #[serde(default)]
    return_documents: Option<bool>,
}

/// A document.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Document {
    /// A text.
    Text(String),
    /// An object with a text.
    Object {
        /// The text.
        text: String,
    },
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or an object with a field `text`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Document, E> {
        Ok(Document::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Document, A::Error> {
        let mut text = None;
        while let Some(name) = fields.next_key::<String>()? {
            if name == "text" {
                text = Some(fields.next_value()?);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        let text = text.ok_or_else(|| de::Error::missing_field("text"))?;
        Ok(Document::Object { text })
    }
}

/// A list of documents, of which there are not too many.
#[derive(Debug, Default)]
struct Documents(Vec<Document>);

impl<'de> Deserialize<'de> for Documents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DocumentsVisitor)
    }
}

struct DocumentsVisitor;

impl<'de> Visitor<'de> for DocumentsVisitor {
    type Value = Documents;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Documents, A::Error> {
        limited(&mut list, "documents").map(Documents)
    }
}

/// The ranks of documents.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api::inference) struct RankAnswer {
    /// The id of the request.
    id: String,
    /// The model.
    model: String,
    /// The ranks, the best first.
    results: Vec<RankItem>,
    /// The tokens that were counted.
    usage: RankUsage,
}

/// The rank of a document.
#[derive(Debug, Serialize, ToSchema)]
struct RankItem {
    /// The index of the document.
    index: usize,
    /// The score, 0 to 1.
    relevance_score: f64,
    /// The document, if it is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

/// The tokens of a call.
#[derive(Debug, Serialize, ToSchema)]
struct RankUsage {
    /// The tokens of all pairs of query and document.
    total_tokens: usize,
}

/// Returns the ranks of documents by a query, the best first.
///
/// The model declares a text (`preprocess`), which are query and document together, and an output of one number a row (`postprocess` with `top_k`).
#[utoipa::path(
    post, path = "/v2/rerank", tag = "inference",
    request_body = RankRequest,
    responses(
        (status = 200, description = "The ranks", body = RankAnswer),
        (status = "default", description = "An error, in the form of `OpenAI`'s API", body = OpenAiError),
    )
)]
pub(in crate::api::inference) async fn rerank(
    State(inference): State<Inference>,
    request: Request,
) -> Response {
    let received = receive::<RankRequest>(&inference, request).await;
    let mut received = match received {
        Ok(received) => received,
        Err(error) => return Failure::from(error).into_response(),
    };
    let answered = answer(&inference, &mut received).await;
    let response = answered.unwrap_or_else(|error| Failure::from(error).into_response());
    received.end(&inference, response)
}

async fn answer(
    inference: &Inference,
    received: &mut Received<RankRequest>,
) -> Result<Response, InferenceError> {
    let model = std::mem::take(&mut received.body.model);
    let query = std::mem::take(&mut received.body.query);
    let documents = std::mem::take(&mut received.body.documents);
    let (top_n, with_documents) = (
        received.body.top_n,
        received.body.return_documents.unwrap_or_default(),
    );
    let call = received.of_named(inference, &model).await?;
    let texts = documents.0.iter().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text.clone(),
    });
    let texts: Vec<String> = texts.collect();
    let bytes = texts.iter().map(|text| 64 + 6 * text.len()).sum();
    let rows = rank(&call, query, texts, None).await?;
    let id = call.arrival.identity.id().to_owned();
    let make = move |rows: Rows| {
        let total_tokens = rows.by_text.iter().map(|row| row.tokens).sum();
        let ranked = in_order(&rows, |row| score(row, false));
        let item = |(index, relevance_score): (usize, f64)| RankItem {
            index,
            relevance_score,
            document: with_documents.then(|| documents.0[index].clone()),
        };
        let most = top_n.unwrap_or(usize::MAX);
        RankAnswer {
            id,
            model,
            results: ranked.into_iter().take(most).map(item).collect(),
            usage: RankUsage { total_tokens },
        }
    };
    call.respond(rows, bytes, make).await
}

/// Has a model compare a query with texts.
pub(super) async fn rank(
    call: &Call<'_>,
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
) -> Result<Rows, InferenceError> {
    let count = texts.len();
    if !(1..=MAX_TEXTS).contains(&count) {
        let message = format!("{count} documents: expected 1 to {MAX_TEXTS}");
        return Err(InferenceError::bad_request(message));
    }
    let spec = &call.path.requested.model.spec;
    let (output, _) = classes_of(spec)?;
    let no_rank = |numbers: u64| {
        InferenceError::bad_request(format!(
            "the model compares no texts: its output has {numbers} numbers a row, and a rank is one"
        ))
    };
    if let Some(numbers) = size_of(spec, &output).filter(|numbers| *numbers != 1) {
        return Err(no_rank(numbers));
    }
    let ask = Ask {
        wanted: Wanted::Scores,
        query: Some(query),
        texts,
        truncate,
        output,
        timeout: None,
        priority: 0,
    };
    let rows = call.rows(ask).await?;
    match rows.by_text.iter().find(|row| row.numbers.len() != 1) {
        Some(row) => Err(no_rank(row.numbers.len() as u64)),
        None => Ok(rows),
    }
}

/// Returns the score of a row of one number: the number itself, or its sigmoid.
pub(super) fn score(row: &Row, raw: bool) -> f64 {
    let number = row.numbers.first().copied().unwrap_or(f64::NAN);
    if raw {
        number
    } else {
        1.0 / (1.0 + (-number).exp())
    }
}

/// Returns the indices of rows with their scores, the best first, of equal ones the first first.
pub(super) fn in_order(rows: &Rows, score: impl Fn(&Row) -> f64) -> Vec<(usize, f64)> {
    let mut scores: Vec<(usize, f64)> = rows.by_text.iter().map(score).enumerate().collect();
    scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    scores
}
