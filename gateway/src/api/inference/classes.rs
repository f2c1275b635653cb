//! The best classes of each row of an output, as Triton's classification extension writes them: `SCORE:INDEX:LABEL`.

use bytes::Bytes;
use half::{bf16, f16};
use packhorse_cluster::{Classes, Datatype, Shape, TensorSpec};
use packhorse_protocol::{Tensor, TensorError};

/// The most bytes of a class as JSON: its score, its index and a label in which every byte is escaped.
pub(super) const CLASS_TEXT: u64 = 6 * (Classes::MAX_LABEL_BYTES as u64 + 64);

/// Returns the best classes of each row, the best first, with their labels if they have any.
pub(super) fn best(
    spec: &TensorSpec,
    shape: &Shape,
    data: &Bytes,
    count: u32,
    declared: Option<&Classes>,
) -> Result<Tensor, TensorError> {
    let dims = shape.dims();
    let (classes, rows) = dims
        .split_last()
        .map_or((1, dims), |(last, rows)| (*last, rows));
    let count = u64::from(count).min(classes);
    let scores = scores(spec.datatype, data);
    let mut texts = Vec::new();
    for row in scores.chunks_exact((classes as usize).max(1)) {
        let softmax = declared.is_some_and(|declared| declared.softmax);
        for (score, index) in ranked(row, count as usize, softmax) {
            let label = declared.and_then(|declared| declared.labels.get(index));
            let colon = if label.is_some() { ":" } else { "" };
            let label = label.map_or("", String::as_str);
            texts.push(format!("{score:.6}:{index}{colon}{label}"));
        }
    }
    let dims = rows.iter().copied().chain([count]).map(u64::cast_signed);
    let shape = Shape::new(&dims.collect::<Vec<_>>()).map_err(TensorError::Shape)?;
    Tensor::from_byte_strings(&spec.name, shape, &texts)
}

/// Returns the best classes of a row, the best first: their scores, or the softmax of them, and their indices.
pub(super) fn ranked(row: &[f64], count: usize, softmax: bool) -> Vec<(f64, usize)> {
    let total = total(row, softmax);
    let score = |index: usize| {
        total.map_or(row[index], |(largest, sum)| {
            (row[index] - largest).exp() / sum
        })
    };
    let indices = indices(row, count).into_iter();
    indices.map(|index| (score(index), index)).collect()
}

/// Returns the largest score of a row and the sum of the exponentials of all, if their softmax is wanted.
fn total(row: &[f64], softmax: bool) -> Option<(f64, f64)> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = || row.iter().map(|score| (score - largest).exp()).sum();
    softmax.then(|| (largest, sum()))
}

/// Returns the indices of the largest scores, of equal ones the first first; NaN is below all numbers.
fn indices(row: &[f64], count: usize) -> Vec<usize> {
    let number = |index: usize| Some(row[index]).filter(|score| !score.is_nan());
    let order = |a: &usize, b: &usize| {
        let by_score = match (number(*a), number(*b)) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        by_score.then_with(|| a.cmp(b))
    };
    let mut indices: Vec<usize> = (0..row.len()).collect();
    if count < indices.len() {
        indices.select_nth_unstable_by(count, order);
        indices.truncate(count);
    }
    indices.sort_unstable_by(order);
    indices
}

/// Returns the numbers of an output of floats.
pub(super) fn scores(datatype: Datatype, data: &[u8]) -> Vec<f64> {
    let words = |width| data.chunks_exact(width);
    match datatype {
        Datatype::Fp16 => { words(2) }
            .map(|w| f16::from_le_bytes([w[0], w[1]]).into())
            .collect(),
        Datatype::Bf16 => { words(2) }
            .map(|w| bf16::from_le_bytes([w[0], w[1]]).into())
            .collect(),
        Datatype::Fp32 => { words(4) }
            .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]).into())
            .collect(),
        _ => {
            let word = |w: &[u8]| w.try_into().map_or(f64::NAN, f64::from_le_bytes);
            words(8).map(word).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Dim;

    use super::*;

    fn classes(shape: &[i64], scores: &[f32], count: u32, declared: &str) -> Vec<String> {
        let spec = TensorSpec::new("y", Datatype::Fp32, vec![Dim::Any, Dim::Any]);
        let data: Vec<u8> = scores
            .iter()
            .flat_map(|score| score.to_le_bytes())
            .collect();
        let declared: Option<Classes> = serde_json::from_str(declared).unwrap();
        let shape = Shape::new(shape).unwrap();
        let tensor = best(&spec, &shape, &data.into(), count, declared.as_ref()).unwrap();
        let strings = tensor.byte_strings().unwrap();
        strings
            .iter()
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect()
    }

    #[test]
    fn the_best_classes_of_each_row_come_first_with_their_labels() {
        let labels = r#"{"top_k":2,"labels":["cat","dog","a:b"]}"#;
        assert_eq!(
            classes(&[2, 3], &[0.1, 0.2, 0.7, 0.5, 0.25, 0.25], 2, labels),
            [
                "0.700000:2:a:b",
                "0.200000:1:dog",
                "0.500000:0:cat",
                "0.250000:1:dog"
            ]
        );
        assert_eq!(
            classes(&[1, 2], &[1.0, 2.0], 9, "null"),
            ["2.000000:1", "1.000000:0"]
        );
    }

    #[test]
    fn softmax_and_what_is_no_number() {
        let softmax = r#"{"top_k":1,"softmax":true}"#;
        assert_eq!(
            classes(&[1, 2], &[1000.0, 1000.0], 1, softmax),
            ["0.500000:0"]
        );
        assert_eq!(
            classes(&[1, 3], &[f32::NAN, f32::NEG_INFINITY, 1.0], 3, "null"),
            ["1.000000:2", "-inf:1", "NaN:0"]
        );
        assert!(classes(&[0, 3], &[], 1, "null").is_empty());
    }
}
