//! The texts of a call as requests for the engine.

use std::{ops::Range, time::Duration};

use packhorse_preprocess::{Cut, Tokenizer, Tokens};
use packhorse_protocol::{OutputRequest, RequestMessage};

use super::ask::Ask;
use crate::{
    api::inference::{
        computation::{REQUEST_BYTES, ReceivedRequest},
        error::InferenceError,
        raw_inputs::RawInputTimes,
        shared_memory::SharedMemoryError,
        texts::TextInput,
    },
    clock::Clock,
    driver::ServedModel,
    memory::TenantMemory,
};

/// A request of some of a call's texts.
pub(super) struct Part {
    /// The index of each row's text in the call.
    pub(super) texts: Vec<usize>,
    /// The number of tokens of each row.
    pub(super) lengths: Vec<usize>,
    pub(super) request: ReceivedRequest,
}

/// Returns ranges of a call's texts that one thread of the pool cuts in one go: few bytes, so that the calls of others wait for no longer than for a
/// single text, and that what nobody waits for any more is left soon. A query is put before each.
pub(super) fn portions(texts: &[String], query: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (index, text) in texts.iter().enumerate() {
        let more = text.len() + query;
        if index > from && bytes + more > Tokenizer::MAX_TEXT_BYTES {
            ranges.push(from..index);
            (from, bytes) = (index, 0);
        }
        bytes += more;
    }
    if from < texts.len() {
        ranges.push(from..texts.len());
    }
    ranges
}

/// Returns the cut query of a call. It takes long, and runs on the pool.
pub(super) fn cut_query(ask: &Ask, model: &ServedModel) -> Result<Option<Cut>, InferenceError> {
    let way = TextInput::of(model)?;
    let cut = ask.query.as_ref().map(|query| way.cut(query.as_bytes()));
    let wrong = |error| InferenceError::bad_request(format!("query: {error}"));
    cut.transpose().map_err(wrong)
}

/// A text of a call that was cut.
pub(super) struct CutText {
    /// The text's index in the call.
    pub(super) index: usize,
    pub(super) tokens: Tokens,
    /// The time that cutting it took.
    took: Duration,
}

/// Cuts some texts. It takes long, and runs on the pool.
pub(super) fn cut_texts(
    ask: &Ask,
    query: Option<&Cut>,
    range: Range<usize>,
    model: &ServedModel,
    clock: Clock,
) -> Result<Vec<CutText>, InferenceError> {
    let way = TextInput::of(model)?;
    let of_text = |index: usize| {
        let text = ask.texts[index].as_bytes();
        let begun = clock.now();
        let tokens = match query {
            Some(query) => way.pair_tokens(query, text, ask.truncate),
            None => way.tokens(text, ask.truncate),
        };
        let wrong = |error| InferenceError::bad_request(format!("text {index}: {error}"));
        Ok(CutText {
            index,
            tokens: tokens.map_err(wrong)?,
            took: clock.now().saturating_since(begun),
        })
    };
    range.map(of_text).collect()
}

/// Returns the requests of a call's tokens. It takes long, and runs on the pool.
pub(super) fn parts(
    ask: &Ask,
    mut rows: Vec<CutText>,
    model: &ServedModel,
    books: &TenantMemory,
    clock: Clock,
) -> Result<Vec<Part>, InferenceError> {
    let way = TextInput::of(model)?;
    rows.sort_by_key(|row| row.tokens.len());
    let limit = model.spec.program.rows_limit() as usize;
    let mut parts = Vec::new();
    let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
    for range in batches(&lengths, limit) {
        let begun = clock.now();
        let rows = &rows[range];
        let mut memory = books.reservation();
        let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or_default();
        memory.grow(REQUEST_BYTES + way.bytes(rows.len() as u64, longest))?;
        let tokens: Vec<&Tokens> = rows.iter().map(|row| &row.tokens).collect();
        let message = RequestMessage {
            inputs: way.tensors(&tokens)?,
            outputs: vec![OutputRequest {
                name: ask.output.clone(),
                form: None,
                range: None,
                classes: None,
            }],
            timeout: ask.timeout,
            priority: ask.priority,
            ..RequestMessage::default()
        };
        let no_regions = Err(SharedMemoryError::Off);
        let times = (clock, begun);
        let mut request = ReceivedRequest::checked(message, memory, no_regions, model, times)?;
        let cutting: Duration = rows.iter().map(|row| row.took).sum();
        request.raw_inputs = RawInputTimes {
            tokenize: cutting + clock.now().saturating_since(begun),
            ..RawInputTimes::default()
        };
        parts.push(Part {
            texts: rows.iter().map(|row| row.index).collect(),
            lengths,
            request,
        });
    }
    Ok(parts)
}

/// Returns ranges of rows by their lengths, which are sorted: at most `limit` rows each, of which at most half is filling.
fn batches(lengths: &[usize], limit: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut from, mut tokens) = (0, 0);
    for (index, length) in lengths.iter().enumerate() {
        let padded = (index - from + 1) * length;
        if index > from && (index - from == limit || padded > 2 * (tokens + length)) {
            ranges.push(from..index);
            (from, tokens) = (index, 0);
        }
        tokens += length;
    }
    if from < lengths.len() {
        ranges.push(from..lengths.len());
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_text_fills_up_no_short_ones() {
        assert_eq!(batches(&[8, 8, 8, 512], 32), [0..3, 3..4]);
        assert_eq!(batches(&[8, 9, 10, 12], 3), [0..3, 3..4]);
        assert_eq!(batches(&[5, 5], 1), [0..1, 1..2]);
    }

    #[test]
    fn texts_are_cut_in_portions_of_the_largest_text() {
        let text = |bytes: usize| "a".repeat(bytes);
        assert_eq!(portions(&[text(9), text(9)], 0), vec![0..2; 1]);
        let full = Tokenizer::MAX_TEXT_BYTES;
        let texts = [text(5), text(full - 5), text(1), text(2 * full), text(3)];
        assert_eq!(portions(&texts, 0), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(portions(&[text(1), text(1)], full), [0..1, 1..2]);
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_range_and_at_most_half_of_each_is_filling(
            mut lengths in prop::collection::vec(1_usize..600, 1..80),
            limit in 1_usize..40,
        ) {
            lengths.sort_unstable();
            let mut next = 0;
            for range in batches(&lengths, limit) {
                prop_assert_eq!(range.start, next);
                next = range.end;
                prop_assert!((1..=limit).contains(&range.len()));
                let tokens: usize = lengths[range.clone()].iter().sum();
                prop_assert!(range.len() * lengths[range.end - 1] <= 2 * tokens);
            }
            prop_assert_eq!(next, lengths.len());
        }
    }
}
