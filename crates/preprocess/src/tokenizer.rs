//! The tokens of a text.

use std::str;

use tokenizers::{
    Encoding, PostProcessor as _, TruncationDirection, TruncationParams, TruncationStrategy,
    truncate_encodings,
};

use crate::Tokens;

/// A tokenizer of Hugging Face's format `tokenizer.json`.
///
/// It is their code, so that the tokens are theirs. What the file says of a text's longest length and of padding does not hold: both are the model's.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pad: u32,
}

/// The reason why a file is no tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file is too large.
    #[error(
        "the tokenizer has {bytes} bytes, over the limit of {}",
        Tokenizer::MAX_BYTES
    )]
    TooLarge {
        /// The size of the file, in bytes.
        bytes: u64,
    },
    /// The file is not of the format.
    #[error("not a tokenizer.json of Hugging Face: {0}")]
    Format(String),
}

/// The reason why a text is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Bytes that are no text.
    #[error("it is not UTF-8: byte {at} is wrong")]
    Encoding {
        /// The index of the first byte that is wrong.
        at: usize,
    },
    /// A text that is too large to be looked at.
    #[error(
        "it has {bytes} bytes, over the limit of {}",
        Tokenizer::MAX_TEXT_BYTES
    )]
    TooLarge {
        /// The size of the text, in bytes.
        bytes: usize,
    },
    /// More tokens than the model takes.
    #[error(
        "it has {tokens} tokens, over the limit of {limit} that the model declares (max_length)"
    )]
    TooLong {
        /// The number of tokens.
        tokens: usize,
        /// The most tokens.
        limit: usize,
    },
    /// No token at all.
    #[error("it has no tokens")]
    Empty,
    /// A text that the tokenizer fails at.
    #[error("its tokenizer fails: {0}")]
    Tokenizer(String),
}

/// The most characters of a foreign error that are passed on.
const SHOWN: usize = 200;

fn shown(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(SHOWN).collect()
}

impl Tokenizer {
    /// The largest file of a tokenizer, in bytes: the largest of well-known models have 35 MB.
    pub const MAX_BYTES: u64 = 64 << 20;
    /// The largest text, in bytes: its tokens take up to a tenth of a second, and cannot be interrupted.
    pub const MAX_TEXT_BYTES: usize = 256 << 10;

    /// Reads the file of a tokenizer.
    ///
    /// # Errors
    /// The file is too large, or not of the format.
    pub fn read(file: &[u8]) -> Result<Self, TokenizerError> {
        let bytes = file.len() as u64;
        if bytes > Self::MAX_BYTES {
            return Err(TokenizerError::TooLarge { bytes });
        }
        let read = tokenizers::Tokenizer::from_bytes(file);
        let mut inner = read.map_err(|e| TokenizerError::Format(shown(&*e)))?;
        let pad = inner.get_padding().map_or(0, |padding| padding.pad_id);
        inner.with_padding(None);
        let cleared = inner.with_truncation(None);
        cleared.map_err(|e| TokenizerError::Format(shown(&*e)))?;
        Ok(Self { inner, pad })
    }

    /// Returns the number of the token that fills up rows, 0 where the file names none.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// Returns the tokens of a text with those that the tokenizer adds, at most `limit`. A longer text is cut at its end, or refused.
    ///
    /// # Errors
    /// The bytes are no text, or one with too many tokens or none.
    pub fn tokens(&self, text: &[u8], limit: usize, truncate: bool) -> Result<Tokens, TextError> {
        let text = checked(text)?;
        let encoded = self.inner.encode_fast(text, true).map_err(|e| fails(&*e))?;
        Self::within(encoded, limit, truncate, || {
            let alone = self.inner.encode_fast(text, false)?;
            let limits = self.limits(limit, false);
            let (alone, _) = truncate_encodings(alone, None, &limits)?;
            self.inner.post_process(alone, None, true)
        })
    }

    /// Returns the tokens of two texts that the model compares, such as a question and a document. Of more than `limit` tokens the longer text loses
    /// some at its end, until both have as many.
    ///
    /// # Errors
    /// The bytes are no texts, or such with too many tokens or none.
    pub fn pair_tokens(
        &self,
        [first, second]: [&[u8]; 2],
        limit: usize,
        truncate: bool,
    ) -> Result<Tokens, TextError> {
        let (first, second) = (checked(first)?, checked(second)?);
        let encoded = self.inner.encode_fast((first, second), true);
        Self::within(encoded.map_err(|e| fails(&*e))?, limit, truncate, || {
            let first = self.inner.encode_fast(first, false)?;
            let second = self.inner.encode_fast(second, false)?;
            let limits = self.limits(limit, true);
            let (first, second) = truncate_encodings(first, Some(second), &limits)?;
            self.inner.post_process(first, second, true)
        })
    }

    /// Returns the tokens of a text if it has at most `limit`, else those of the cut one.
    fn within(
        whole: Encoding,
        limit: usize,
        truncate: bool,
        cut: impl FnOnce() -> tokenizers::Result<Encoding>,
    ) -> Result<Tokens, TextError> {
        let tokens = whole.len();
        let encoded = match (tokens <= limit, truncate) {
            (true, _) => whole,
            (false, false) => return Err(TextError::TooLong { tokens, limit }),
            (false, true) => {
                let mut cut = cut().map_err(|e| fails(&*e))?;
                // The tokens that are added alone may be more.
                cut.truncate(limit, 0, TruncationDirection::Right);
                cut
            }
        };
        if encoded.is_empty() {
            return Err(TextError::Empty);
        }
        Ok(Tokens {
            ids: encoded.get_ids().into(),
            type_ids: encoded.get_type_ids().into(),
        })
    }

    /// Returns how texts are cut so that they have at most `limit` tokens with those that are added.
    fn limits(&self, limit: usize, is_pair: bool) -> TruncationParams {
        let added = self.inner.get_post_processor();
        let added = added.map_or(0, |processor| processor.added_tokens(is_pair));
        TruncationParams {
            max_length: limit.saturating_sub(added),
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
            direction: TruncationDirection::Right,
        }
    }
}

/// Returns bytes as a text that is not too large.
fn checked(text: &[u8]) -> Result<&str, TextError> {
    let bytes = text.len();
    if bytes > Tokenizer::MAX_TEXT_BYTES {
        return Err(TextError::TooLarge { bytes });
    }
    let wrong = |e: str::Utf8Error| TextError::Encoding {
        at: e.valid_up_to(),
    };
    str::from_utf8(text).map_err(wrong)
}

fn fails(error: &dyn std::fmt::Display) -> TextError {
    TextError::Tokenizer(shown(error))
}
