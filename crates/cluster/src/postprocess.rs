//! Answers as clients want them: what the gateway makes of an output.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The way from an output to what clients want.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "Fields", untagged)]
pub enum Postprocess {
    /// The best classes of each row.
    Classes(Classes),
    /// The embedding of each row.
    Embedding(Embedding),
}

/// The way from a row of scores to its best classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Classes {
    /// True if the scores of classes are the softmax of the output's rows, which are then logits.
    #[serde(default)]
    pub softmax: bool,
    /// The number of classes that a request without JSON is answered.
    pub top_k: u32,
    /// The names of the classes, in the order of the output.
    #[serde(default, skip_serializing_if = "no_labels")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub labels: Arc<[String]>,
}

/// The way from a row of numbers to an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// The way from the vectors of the tokens to one; missing where the model answers one vector for each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// True if the vector is brought to the length of one.
    #[serde(default)]
    pub normalize: bool,
}

/// The way from the vectors of a text's tokens to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// Their mean.
    Mean,
    /// The first one, which is that of the class token.
    Cls,
    /// The last one.
    Last,
}

/// The fields of all ways, which tell by their names which way it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    softmax: Option<bool>,
    top_k: Option<u32>,
    labels: Option<Arc<[String]>>,
    pool: Option<Pool>,
    normalize: Option<bool>,
}

impl TryFrom<Fields> for Postprocess {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, &'static str> {
        let Fields {
            softmax,
            top_k,
            labels,
            pool,
            normalize,
        } = fields;
        let is_embedding = pool.is_some() || normalize.is_some();
        match (top_k, softmax.is_some() || labels.is_some()) {
            (None, false) if is_embedding => Ok(Self::Embedding(Embedding {
                pool,
                normalize: normalize.unwrap_or_default(),
            })),
            _ if is_embedding => {
                Err("pool and normalize are of embeddings, softmax, top_k and labels of classes")
            }
            (Some(top_k), _) => Ok(Self::Classes(Classes {
                softmax: softmax.unwrap_or_default(),
                top_k,
                labels: labels.unwrap_or_default(),
            })),
            (None, true) => Err("missing field `top_k`"),
            (None, false) => {
                Err("expected top_k for classes, or pool or normalize for an embedding")
            }
        }
    }
}

fn no_labels(labels: &Arc<[String]>) -> bool {
    labels.is_empty()
}

impl Postprocess {
    /// Returns the way to classes.
    pub fn classes(&self) -> Option<&Classes> {
        match self {
            Self::Classes(classes) => Some(classes),
            Self::Embedding(_) => None,
        }
    }

    /// Returns the way to an embedding.
    pub fn embedding(&self) -> Option<Embedding> {
        match self {
            Self::Classes(_) => None,
            Self::Embedding(embedding) => Some(*embedding),
        }
    }
}

impl Classes {
    /// The most classes of a row that are answered.
    pub const MAX_CLASSES: u32 = 1000;
    /// The most names of classes.
    pub const MAX_LABELS: usize = 32_768;
    /// The largest size of a name, in bytes.
    pub const MAX_LABEL_BYTES: usize = 256;
}
