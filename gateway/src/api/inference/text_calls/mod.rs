//! Calls of text models as their clients make them: embeddings as `OpenAI`'s, and embeddings, classes and ranks as those of Text Embeddings Inference.
//!
//! A call has many texts, and names no tensor. Its texts are cut into tokens, sorted by their number and put into requests of rows that are about as
//! long, each of which the engine answers as any other, with the model's objective from the time at which it was sent.

pub(super) mod answers;
pub(super) mod ask;
pub(super) mod call;
mod embedding;
mod failure;
mod input;
pub(super) mod openai;
pub(super) mod rerank;
pub(super) mod tei;
mod texts;

/// The largest body of a call, in bytes.
const BODY_LIMIT: u64 = 8 << 20;
/// The most texts of a call.
pub(super) const MAX_TEXTS: usize = 2048;
/// The most requests of a call that the engine has at a time.
pub(super) const AT_A_TIME: usize = 8;
