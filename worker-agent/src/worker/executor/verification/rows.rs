//! The check that the rows of a program are those of a batch: each is answered beside any others as it is alone.

use std::time::Duration;

use half::{bf16, f16};
use packhorse_cluster::Datatype;
use packhorse_wire::TensorHeader;

use super::comparison::{Answer, Precision, compare};
use crate::{clock::now, executor::error::ExecutionError};

/// Runs the program on inputs.
pub(super) type Run<'a> = dyn Fn(&[Answer]) -> Result<Vec<Answer>, ExecutionError> + 'a;

/// The most rows of which each is compared.
pub(super) const MOST_ROWS: u32 = 8;
/// The most bytes of the inputs of a larger batch.
const MOST_BYTES: usize = 64 << 20;
/// The time after which no further batch is tried.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The factors of floating-point numbers, in turn: what depends on the largest number of a batch shows beside rows of another magnitude only.
const MAGNITUDES: [f64; 2] = [0.01, 100.0];

/// Checks that each of these rows alone has the answer that it has in batches of all sizes up to `limit`, and beside rows of very different
/// magnitude.
///
/// # Errors
/// The size of the batch and the difference, as text for people.
pub(super) fn check(run: &Run<'_>, inputs: &[Answer], limit: u32) -> Result<(), String> {
    let until = now() + TIME_LIMIT;
    let alone = answers_alone(run, inputs)?;
    for rows in batch_sizes(limit) {
        if now() > until {
            return Ok(());
        }
        let batch: Option<Vec<Answer>> = inputs.iter().map(|i| with_rows(i, rows)).collect();
        let Some(batch) = batch else {
            return Ok(());
        };
        check_batch(run, &batch, rows, &alone)?;
    }
    let uneven: Vec<Answer> = inputs.iter().map(uneven).collect();
    // The program may refuse such numbers.
    if let Ok(alone) = answers_alone(run, &uneven)
        && now() < until
    {
        let rows = alone.len() as u32;
        check_batch(run, &uneven, rows, &alone)
            .map_err(|difference| format!("{difference} (rows of very different magnitude)"))?;
    }
    Ok(())
}

/// Returns the sizes of the batches: all small ones, then each about twice the one before, and the largest.
fn batch_sizes(limit: u32) -> impl Iterator<Item = u32> {
    let powers = (0..32).map(|exponent| 1_u32 << exponent);
    let larger = powers.filter(|rows| *rows > MOST_ROWS);
    let until = larger.take_while(move |rows| *rows < limit);
    let last = (limit > MOST_ROWS).then_some(limit);
    (2..=limit.min(MOST_ROWS)).chain(until).chain(last)
}

/// Returns the answer of each row alone.
fn answers_alone(run: &Run<'_>, inputs: &[Answer]) -> Result<Vec<Vec<Answer>>, String> {
    let row = |row: usize| {
        let inputs: Option<Vec<Answer>> = inputs.iter().map(|i| row_of(i, row)).collect();
        let inputs = inputs.ok_or("a row is too large")?;
        run(&inputs).map_err(|e| format!("it answers a batch, and a row alone not: {e}"))
    };
    (0..rows_of(inputs)).map(row).collect()
}

/// Checks a batch whose rows are those of `alone` in turn: the first of each, and the last one.
fn check_batch(
    run: &Run<'_>,
    batch: &[Answer],
    rows: u32,
    alone: &[Vec<Answer>],
) -> Result<(), String> {
    let answers = run(batch)
        .map_err(|e| format!("it answers a row alone, and a batch of {rows} not: {e}"))?;
    let first = |answer: &Answer| answer.header.shape().dims().first().copied();
    if let Some(i) = { answers.iter() }.position(|answer| first(answer) != Some(rows.into())) {
        let shape = answers[i].header.shape();
        return Err(format!(
            "output {i} is {shape} for a batch of {rows}: its first dimension is not the batch"
        ));
    }
    let rows = rows as usize;
    for row in (0..rows.min(alone.len())).chain([rows - 1]) {
        let found: Option<Vec<Answer>> = answers.iter().map(|a| row_of(a, row)).collect();
        let found = found.ok_or("a row is too large")?;
        let expected = &alone[row % alone.len()];
        compare(&found, &[], expected, Precision::Full).map_err(|difference| {
            format!("a row alone has another answer than in a batch of {rows}: {difference}")
        })?;
    }
    Ok(())
}

/// Returns the number of rows of a batch's inputs.
fn rows_of(inputs: &[Answer]) -> usize {
    let first = inputs.first().and_then(|i| i.header.shape().dims().first());
    first.map_or(0, |rows| *rows as usize)
}

/// Returns a row of a batch.
fn row_of(tensor: &Answer, row: usize) -> Option<Answer> {
    let rows = *tensor.header.shape().dims().first()? as usize;
    let bytes = tensor.bytes.len().checked_div(rows)?;
    Some(Answer {
        header: header_of(tensor, 1)?,
        bytes: tensor.bytes.get(bytes * row..bytes * (row + 1))?.to_vec(),
    })
}

/// Returns a batch of so many rows, which are those of another in turn; `None` if it is too large.
fn with_rows(tensor: &Answer, rows: u32) -> Option<Answer> {
    let existing = *tensor.header.shape().dims().first()? as usize;
    let length = tensor.bytes.len().checked_div(existing)? * rows as usize;
    if length > MOST_BYTES {
        return None;
    }
    Some(Answer {
        header: header_of(tensor, rows)?,
        bytes: tensor.bytes.iter().copied().cycle().take(length).collect(),
    })
}

fn header_of(tensor: &Answer, rows: u32) -> Option<TensorHeader> {
    let shape = tensor.header.shape().with_dim(0, rows.into());
    TensorHeader::new(tensor.header.datatype(), shape).ok()
}

/// Returns the batch with small and large rows in turn. Integers become the smallest and stay as they are.
fn uneven(tensor: &Answer) -> Answer {
    fn scale<const N: usize>(bytes: &mut [u8], scaled: impl Fn([u8; N]) -> [u8; N]) {
        for element in bytes.as_chunks_mut().0 {
            *element = scaled(*element);
        }
    }
    let mut tensor = tensor.clone();
    let rows = tensor
        .header
        .shape()
        .dims()
        .first()
        .map_or(1, |r| *r as usize);
    let bytes = (tensor.bytes.len() / rows.max(1)).max(1);
    for (row, bytes) in tensor.bytes.chunks_mut(bytes).enumerate() {
        let factor = MAGNITUDES[row % MAGNITUDES.len()];
        match tensor.header.datatype() {
            Datatype::Fp64 => scale(bytes, |b| (f64::from_le_bytes(b) * factor).to_le_bytes()),
            Datatype::Fp32 => scale(bytes, |b| {
                ((f64::from(f32::from_le_bytes(b)) * factor) as f32).to_le_bytes()
            }),
            Datatype::Fp16 => scale(bytes, |b| {
                f16::from_f64(f64::from(f16::from_le_bytes(b)) * factor).to_le_bytes()
            }),
            Datatype::Bf16 => scale(bytes, |b| {
                bf16::from_f64(f64::from(bf16::from_le_bytes(b)) * factor).to_le_bytes()
            }),
            datatype if factor < 1.0 => {
                // Little-endian: the first byte is that of the smallest numbers.
                let width = datatype.width().unwrap_or(1);
                for element in bytes.chunks_exact_mut(width) {
                    element[0] &= 1;
                }
            }
            _ => {}
        }
    }
    tensor
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Shape;

    use super::*;

    fn tensor(datatype: Datatype, shape: &[i64], bytes: Vec<u8>) -> Answer {
        Answer {
            header: TensorHeader::new(datatype, Shape::new(shape).unwrap()).unwrap(),
            bytes,
        }
    }

    #[test]
    fn all_small_sizes_are_tried_then_powers_of_two_and_the_largest() {
        let sizes = |limit| batch_sizes(limit).collect::<Vec<_>>();
        assert!(sizes(1).is_empty());
        assert_eq!(sizes(5), [2, 3, 4, 5]);
        assert_eq!(sizes(8), [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(sizes(50), [2, 3, 4, 5, 6, 7, 8, 16, 32, 50]);
        assert_eq!(sizes(4096).last(), Some(&4096));
    }

    #[test]
    fn rows_are_taken_and_repeated() {
        let two = tensor(Datatype::Uint8, &[2, 3], vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(
            row_of(&two, 1),
            Some(tensor(Datatype::Uint8, &[1, 3], vec![4, 5, 6]))
        );
        assert_eq!(
            with_rows(&two, 3).unwrap().bytes,
            [1, 2, 3, 4, 5, 6, 1, 2, 3]
        );
        assert_eq!(with_rows(&two, u32::MAX), None);
    }

    /// Runs a program of one FP32 number a row.
    fn outcome(limit: u32, program: impl Fn(Vec<f32>) -> Vec<f32>) -> Result<(), String> {
        let numbers = |i: &Answer| -> Vec<f32> {
            let read = { i.bytes.as_chunks().0.iter() }.map(|b| f32::from_le_bytes(*b));
            read.collect()
        };
        let written = |numbers: &[f32]| {
            let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            tensor(
                Datatype::Fp32,
                &[numbers.len().cast_signed() as i64, 1],
                bytes,
            )
        };
        let run = |inputs: &[Answer]| Ok(vec![written(&program(numbers(&inputs[0])))]);
        let rows: Vec<f32> = (1..=limit.min(MOST_ROWS))
            .map(|row| row as f32 / 8.0)
            .collect();
        check(&run, &[written(&rows)], limit)
    }

    #[test]
    fn what_a_row_is_beside_others_shows_in_some_batch() {
        assert_eq!(outcome(50, |rows| rows), Ok(()));
        // Of the largest number only a part above eight counts.
        let clamped = |rows: Vec<f32>| {
            let largest = rows.iter().copied().fold(f32::MIN, f32::max);
            rows.iter().map(|row| row.max(largest - 8.0)).collect()
        };
        let error = outcome(8, clamped).unwrap_err();
        assert!(
            error.ends_with("(rows of very different magnitude)"),
            "{error}"
        );
        for crowd in [2, 5, 8, 16, 50] {
            let error = outcome(50, |rows| match rows.len() {
                many if many >= crowd => rows.iter().map(|row| row + 1.0).collect(),
                _ => rows,
            });
            let expected = format!("a row alone has another answer than in a batch of {crowd}");
            assert!(error.unwrap_err().starts_with(&expected));
        }
        let error = outcome(4, |rows| rows[..1].to_vec()).unwrap_err();
        assert!(
            error.contains("its first dimension is not the batch"),
            "{error}"
        );
    }

    #[test]
    fn uneven_rows_differ_in_their_magnitude() {
        let one = 1.0_f32.to_le_bytes();
        let rows = tensor(Datatype::Fp32, &[2, 1], [one, one].concat());
        let bytes = uneven(&rows).bytes;
        assert_eq!(bytes[..4], 0.01_f32.to_le_bytes());
        assert_eq!(bytes[4..], 100.0_f32.to_le_bytes());
        let lengths = tensor(
            Datatype::Int64,
            &[2],
            [57_i64, 57].map(i64::to_le_bytes).concat(),
        );
        assert_eq!(
            uneven(&lengths).bytes,
            [1_i64, 57].map(i64::to_le_bytes).concat()
        );
    }
}
