//! The tokens of a text.

use std::str;

use tokenizers::{Encoding, PostProcessor as _};

use crate::Tokens;

/// A tokenizer of Hugging Face's format `tokenizer.json`.
///
/// It is their code, so that the tokens are theirs. What the file says of a text's longest length and of padding does not hold: both are the model's.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pad: u32,
}

/// A text that was cut into tokens, without those that are added.
#[derive(Clone, Debug)]
pub struct Cut(Encoding);

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
    pub const MAX_TEXT_BYTES: usize = 64 << 10;

    /// The most memory that a byte of a text takes while it is cut into tokens, in bytes: the text as it was and normalised, with an entry for each
    /// character and for each token.
    pub const WORK: u64 = 800;

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
        let Cut(alone) = self.cut(text)?;
        let [count, _] = self.within([alone.len(), 0], false, limit, truncate)?;
        self.complete(beginning(&alone, count), None, limit)
    }

    /// Cuts a text that will be compared with others.
    ///
    /// # Errors
    /// The bytes are no text.
    pub fn cut(&self, text: &[u8]) -> Result<Cut, TextError> {
        let encoded = self.inner.encode_fast(checked(text)?, false);
        encoded.map(Cut).map_err(|e| fails(&*e))
    }

    /// Returns the tokens of two texts that the model compares, such as a question and a document. Of more than `limit` tokens the longer text loses
    /// some at its end, until both have as many.
    ///
    /// # Errors
    /// They have too many tokens or none.
    pub fn pair_tokens(
        &self,
        Cut(first): &Cut,
        Cut(second): &Cut,
        limit: usize,
        truncate: bool,
    ) -> Result<Tokens, TextError> {
        let counts = [first.len(), second.len()];
        let [one, other] = self.within(counts, true, limit, truncate)?;
        let second = beginning(second, other);
        self.complete(beginning(first, one), Some(second), limit)
    }

    /// Returns how many tokens are left of one text or two, so that they are at most `limit` with those that are added.
    fn within(
        &self,
        [one, other]: [usize; 2],
        is_pair: bool,
        limit: usize,
        truncate: bool,
    ) -> Result<[usize; 2], TextError> {
        let added = self.inner.get_post_processor();
        let added = added.map_or(0, |processor| processor.added_tokens(is_pair));
        let tokens = one + other + added;
        let most = limit.saturating_sub(added);
        match (tokens <= limit, truncate, is_pair) {
            (true, _, _) => Ok([one, other]),
            (false, false, _) => Err(TextError::TooLong { tokens, limit }),
            (false, true, false) => Ok([most, 0]),
            (false, true, true) => Ok(longest_first([one, other], most)),
        }
    }

    /// Returns tokens with those that are added.
    fn complete(
        &self,
        first: Encoding,
        second: Option<Encoding>,
        limit: usize,
    ) -> Result<Tokens, TextError> {
        let complete = self.inner.post_process(first, second, true);
        let complete = complete.map_err(|e| fails(&*e))?;
        // Those that are added may be more than the limit.
        let count = complete.len().min(limit);
        if count == 0 {
            return Err(TextError::Empty);
        }
        Ok(Tokens {
            ids: complete.get_ids()[..count].into(),
            type_ids: complete.get_type_ids()[..count].into(),
        })
    }
}

/// Returns how many of the tokens of two texts are left of more than `most`, as Hugging Face's strategy "longest first" has it: the longer text loses
/// tokens, and both are halves where the shorter one is more than that.
fn longest_first([one, other]: [usize; 2], most: usize) -> [usize; 2] {
    let shorter = one.min(other);
    let rest = if shorter > most {
        shorter
    } else {
        shorter.max(most - shorter)
    };
    let (shorter, longer) = if shorter + rest > most {
        (most / 2, most / 2 + most % 2)
    } else {
        (shorter, rest)
    };
    if one > other {
        [longer, shorter]
    } else {
        [shorter, longer]
    }
}

/// Returns the first tokens of a text. The method of the library makes texts of the rest, which takes three times as long.
#[expect(
    clippy::default_trait_access,
    reason = "the crate of that map is not a dependency of ours"
)]
fn beginning(whole: &Encoding, count: usize) -> Encoding {
    if whole.len() <= count {
        return whole.clone();
    }
    Encoding::new(
        whole.get_ids()[..count].to_vec(),
        whole.get_type_ids()[..count].to_vec(),
        whole.get_tokens()[..count].to_vec(),
        whole.get_word_ids()[..count].to_vec(),
        whole.get_offsets()[..count].to_vec(),
        whole.get_special_tokens_mask()[..count].to_vec(),
        whole.get_attention_mask()[..count].to_vec(),
        Vec::new(),
        Default::default(),
    )
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
