//! Texts as inputs: which file cuts them into tokens, and which inputs of the model these become.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ArtifactDigest;

/// The way from a text to rows of inputs: the numbers of its tokens, and what a model wants to know of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TextPreprocess {
    /// The file that cuts a text into tokens, of Hugging Face's format `tokenizer.json`: the digest of a stored file. A file `model.json` has its path
    /// beside it, and the command line stores it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "sha256:0123…"))]
    pub tokenizer: TokenizerFile,
    /// The most tokens of a text, with those that the tokenizer adds.
    pub max_length: u32,
    /// True if a longer text is cut at its end. It is refused otherwise.
    #[serde(default)]
    pub truncate: bool,
    /// What each input of the model is filled with, by its name.
    pub inputs: BTreeMap<String, TokenTensor>,
}

/// A property of tokens that an input is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenTensor {
    /// The number of each token in the vocabulary.
    Ids,
    /// 1 for each token, and 0 where a row is filled up.
    Mask,
    /// The part of the text that a token is of: 0 for the first, 1 for the second of a pair.
    TypeIds,
}

/// The file of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerFile {
    /// A file that the gateway has stored.
    Stored(ArtifactDigest),
    /// A file beside a registration that has not been sent yet.
    Path(String),
}

impl TextPreprocess {
    /// The largest `max_length`, in tokens.
    pub const MAX_LENGTH: u32 = 32_768;

    /// Returns the input that is filled with the tokens' numbers.
    pub fn ids(&self) -> Option<&str> {
        let found = self.inputs.iter().find(|(_, of)| **of == TokenTensor::Ids);
        found.map(|(name, _)| name.as_str())
    }
}

impl FromStr for TokenizerFile {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digest = text.parse().map(Self::Stored);
        Ok(digest.unwrap_or_else(|_| Self::Path(text.to_owned())))
    }
}

impl fmt::Display for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(digest) => digest.fmt(f),
            Self::Path(path) => f.write_str(path),
        }
    }
}

impl Serialize for TokenizerFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenizerFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Ok(file) = text.parse();
        Ok(file)
    }
}
