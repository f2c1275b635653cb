//! The answers of the engine to the requests of a call, as rows of numbers in the order of its texts.

use axum::http::StatusCode;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use packhorse_api::CacheUse;

use super::{
    AT_A_TIME,
    ask::{Wanted, check_dimensions},
    embedding::embedding,
    texts::Part,
};
use crate::{
    api::inference::{
        classes::scores,
        computation::{Arrival, Computed, REQUEST_BYTES, compute},
        error::InferenceError,
        model_path::ModelPath,
        predictions::of_call,
        state::Inference,
        work_pool::Party,
    },
    memory::Reservation,
};

/// The answer to a text.
pub(in crate::api::inference) struct Row {
    /// The embedding, or the numbers of the output.
    pub(in crate::api::inference) numbers: Vec<f64>,
    /// The number of the text's tokens.
    pub(in crate::api::inference) tokens: usize,
}

/// The rows of a call, and the memory that they are in.
pub(in crate::api::inference) struct Rows {
    /// By the text's index.
    pub(in crate::api::inference) by_text: Vec<Row>,
    /// A hit if the cache had all of them; none if the model has no cache.
    pub(in crate::api::inference) cache: Option<CacheUse>,
    _memory: Vec<Reservation>,
}

impl Rows {
    /// Returns how many numbers all rows have.
    pub(in crate::api::inference) fn numbers(&self) -> usize {
        self.by_text.iter().map(|row| row.numbers.len()).sum()
    }
}

/// Has the engine answer the requests of a call.
pub(super) async fn answers(
    inference: &Inference,
    arrival: &Arrival<'_>,
    path: &ModelPath,
    parts: Vec<Part>,
    wanted: Wanted,
) -> Result<Rows, InferenceError> {
    let texts = parts.iter().map(|part| part.texts.len()).sum();
    let answered = stream::iter(
        parts
            .into_iter()
            .map(|part| answer(inference, arrival, path, part, wanted)),
    );
    let answered = answered.buffer_unordered(AT_A_TIME);
    let answered: Vec<_> = answered.try_collect().await?;
    let mut rows: Vec<Option<Row>> = Vec::new();
    rows.resize_with(texts, || None);
    let mut memory = Vec::with_capacity(answered.len());
    let cache = of_call(answered.iter().map(|(_, _, of_part)| *of_part));
    for (part, reservation, _) in answered {
        memory.push(reservation);
        for (index, row) in part {
            rows[index] = Some(row);
        }
    }
    let rows: Option<Vec<Row>> = rows.into_iter().collect();
    // A model may answer no numbers at all.
    let rows = rows.ok_or_else(|| wrong("it has no numbers for a text"))?;
    Ok(Rows {
        by_text: rows,
        cache,
        _memory: memory,
    })
}

/// Returns the error of a model whose output cannot be answered.
fn wrong(problem: &str) -> InferenceError {
    let message = format!("the output of the model: {problem}");
    InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

async fn answer(
    inference: &Inference,
    arrival: &Arrival<'_>,
    path: &ModelPath,
    part: Part,
    wanted: Wanted,
) -> Result<(Vec<(usize, Row)>, Reservation, Option<CacheUse>), InferenceError> {
    let called = arrival.at;
    let Part {
        texts,
        lengths,
        request,
    } = part;
    // It has come when its own texts were begun with: those of the call's other requests are not its own.
    let now = inference.data_plane.clock().now();
    let arrival = Arrival {
        at: now.saturating_sub(request.raw_inputs.tokenize),
        ..*arrival
    };
    let request = request.shortened_by(arrival.at.saturating_since(called));
    let computed = compute(inference, &arrival, path, request, None).await;
    let Computed {
        answer,
        mut memory,
        ending,
    } = computed?;
    let party = Party {
        model: ending.model.key,
        tenant: arrival.tenant,
    };
    // Each number becomes one of eight bytes.
    let bytes: u64 = { answer.answered.iter() }
        .map(|output| 4 * output.data.len() as u64)
        .sum();
    let read = move || {
        let index = answer.requested.first().map_or(0, |output| output.index);
        let spec = &answer.model.spec.program.outputs[index];
        let output = &answer.answered[index];
        let numbers = scores(spec.datatype, &output.data);
        let size = output.shape.dims().last().copied().unwrap_or(1);
        let each = (numbers.len() / texts.len().max(1)).max(1);
        let rows = numbers.chunks_exact(each).zip(texts.iter().zip(&lengths));
        let row = |(numbers, (text, tokens)): (&[f64], (&usize, &usize))| {
            if !numbers.iter().all(|number| number.is_finite()) {
                return Err(wrong(
                    "it has a number that is not finite, which the form of the answer cannot have",
                ));
            }
            let numbers = match wanted {
                Wanted::Scores => numbers.to_vec(),
                Wanted::Embedding(declared, dimensions) => {
                    check_dimensions(dimensions, Some(size))?;
                    embedding(numbers, size as usize, *tokens, declared, dimensions)
                }
            };
            Ok((
                *text,
                Row {
                    numbers,
                    tokens: *tokens,
                },
            ))
        };
        rows.map(row).collect::<Result<Vec<_>, InferenceError>>()
    };
    let read = match memory.grow(bytes) {
        Ok(()) => inference.pool.format(party, read).await,
        Err(exhausted) => Err(exhausted.into()),
    };
    let cache = ending.course.cache;
    let (rows, _) = ending.end(read)?;
    let kept: usize = rows.iter().map(|(_, row)| 8 * row.numbers.len()).sum();
    memory.resize(REQUEST_BYTES + kept as u64)?;
    Ok((rows, memory, cache))
}
