//! The comparison of two answers to the same inputs.

use std::fmt;

use half::{bf16, f16};
use packhorse_cluster::Datatype;
use packhorse_wire::TensorHeader;

/// The tolerances: for each datatype whose numbers are rounded the largest difference of an element, as a part of its own magnitude and that of
/// its tensor, with the reason. All other datatypes must be equal.
const TOLERANCES: [(Datatype, f64, &str); 4] = [
    (
        Datatype::Fp64,
        1e-9,
        "another order of sums, in steps of 2^-52; no rewriting computes with less",
    ),
    (
        Datatype::Fp32,
        1e-3,
        "another order of sums and weights multiplied beforehand, in steps of 2^-23 over hundreds of layers: the demo's models differ by 1e-6 \
         to 1e-5, wrong operators by 1e-2 and more",
    ),
    (
        Datatype::Fp16,
        2e-2,
        "steps of 2^-10, of which each layer may add one",
    ),
    (
        Datatype::Bf16,
        1e-1,
        "steps of 2^-7, of which each layer may add one",
    ),
];

/// The tolerance of FP32 on a GPU. There convolutions compute with TF32, whose steps are those of FP16, in both programs but in another order.
const TOLERANCE_WITH_TF32: f64 = 2e-2;

/// The smallest magnitude of a tensor: smaller numbers may be what roundings leave of larger ones.
const SMALLEST_MAGNITUDE: f64 = 1e-3;

/// The multiple of the difference that one rounding of the inputs makes which is no error of a rewriting.
const ROUNDINGS: f64 = 8.0;

/// The part of a tensor's magnitude that one rounding of the inputs may change. Beyond it a comparison says nothing.
const STEADY: f64 = 1e-2;

/// The device-dependent part of the tolerances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) enum Precision {
    /// FP32 is computed as such.
    Full,
    /// FP32 may be computed with TF32.
    Tf32,
}

/// A tensor that a program answered.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::executor) struct Answer {
    /// The datatype and shape.
    pub(in crate::executor) header: TensorHeader,
    /// The elements.
    pub(in crate::executor) bytes: Vec<u8>,
}

/// The change of a tensor by a rounding of the inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::executor) struct Noise {
    /// The largest change of an element.
    largest: f64,
    /// The number of elements that changed at all.
    changed: usize,
}

/// The first tensor in which two answers differ.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::executor) enum Difference {
    /// One program answered, the other threw, with the text of its exception.
    Threw(String),
    /// The numbers of tensors, a shape or a datatype differ.
    Shape {
        /// The datatypes and shapes that were expected.
        expected: String,
        /// Those that were found.
        found: String,
    },
    /// Elements differ.
    Elements {
        /// The index of the output.
        output: usize,
        /// The number of elements that differ by more than the tolerance, and of all.
        wrong: (usize, usize),
        /// The largest difference.
        largest: f64,
        /// The magnitude of the tensor.
        magnitude: f64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threw(text) => write!(f, "it fails where the program as it is answers: {text}"),
            Self::Shape { expected, found } => {
                write!(f, "it answers {found} in place of {expected}")
            }
            Self::Elements {
                output,
                wrong: (wrong, all),
                largest,
                magnitude,
            } => write!(
                f,
                "its answers differ by up to {largest:.2e} at a magnitude of {magnitude:.2e}, in {wrong} of {all} elements of outputs[{output}]"
            ),
        }
    }
}

/// Compares answers with those that are expected, of which a rounding of the inputs changes each by its noise.
pub(in crate::executor) fn compare(
    expected: &[Answer],
    noise: &[Noise],
    found: &[Answer],
    precision: Precision,
) -> Result<(), Difference> {
    let shapes = |answers: &[Answer]| {
        let shape =
            |answer: &Answer| format!("{}{}", answer.header.datatype(), answer.header.shape());
        answers.iter().map(shape).collect::<Vec<_>>().join(", ")
    };
    let headers = |answers: &[Answer]| -> Vec<TensorHeader> {
        answers.iter().map(|answer| answer.header.clone()).collect()
    };
    if headers(expected) != headers(found) {
        return Err(Difference::Shape {
            expected: shapes(expected),
            found: shapes(found),
        });
    }
    for (output, (expected, found)) in expected.iter().zip(found).enumerate() {
        let noise = noise.get(output).copied().unwrap_or_default();
        compare_tensor(output, expected, found, noise, precision)?;
    }
    Ok(())
}

fn compare_tensor(
    output: usize,
    expected: &Answer,
    found: &Answer,
    noise: Noise,
    precision: Precision,
) -> Result<(), Difference> {
    let tolerance = tolerance(expected, precision);
    if tolerance.is_none() && expected.bytes == found.bytes {
        return Ok(());
    }
    let (expected, found) = (elements(expected), elements(found));
    let magnitude = magnitude(&expected);
    let mut wrong = 0;
    let mut largest: f64 = 0.0;
    for (&a, &b) in expected.iter().zip(&found) {
        let difference = difference(a, b);
        let allowed = tolerance.map_or(0.0, |part| {
            part * (a.abs().min(f64::MAX) + magnitude) + ROUNDINGS * noise.largest
        });
        if difference > allowed {
            wrong += 1;
            largest = largest.max(difference);
        }
    }
    // Numbers that are not rounded change where the number that they were made of passes a threshold.
    let allowed = match tolerance {
        Some(_) => 0,
        None => ROUNDINGS as usize * noise.changed,
    };
    // Integers whose bytes differ do so even where numbers of 53 bits do not.
    if wrong <= allowed && (tolerance.is_some() || allowed > 0) {
        return Ok(());
    }
    Err(Difference::Elements {
        output,
        wrong: (wrong.max(1), expected.len()),
        largest,
        magnitude,
    })
}

/// Returns the change of each tensor by a rounding of the inputs; `None` if that changes so much that a comparison would say nothing, or there
/// is no number to compare.
pub(in crate::executor) fn noise(expected: &[Answer], nudged: &[Answer]) -> Option<Vec<Noise>> {
    let mut all = Vec::new();
    let mut has_numbers = false;
    for (expected, nudged) in expected.iter().zip(nudged) {
        if expected.header != nudged.header {
            return None;
        }
        let is_rounded = tolerance(expected, Precision::Full).is_some();
        let (expected, nudged) = (elements(expected), elements(nudged));
        let differences = expected
            .iter()
            .zip(&nudged)
            .map(|(a, b)| difference(*a, *b));
        let noise = Noise {
            largest: differences.clone().fold(0.0, f64::max),
            changed: differences.filter(|difference| *difference > 0.0).count(),
        };
        let is_steady = if is_rounded {
            noise.largest <= STEADY * magnitude(&expected)
        } else {
            noise.changed as f64 <= STEADY * expected.len() as f64
        };
        if !is_steady {
            return None;
        }
        has_numbers |= expected.iter().any(|element| element.is_finite());
        all.push(noise);
    }
    has_numbers.then_some(all)
}

fn tolerance(answer: &Answer, precision: Precision) -> Option<f64> {
    let datatype = answer.header.datatype();
    let of_table = TOLERANCES.iter().find(|row| row.0 == datatype)?.1;
    match (datatype, precision) {
        (Datatype::Fp32, Precision::Tf32) => Some(TOLERANCE_WITH_TF32),
        _ => Some(of_table),
    }
}

/// Returns the difference of two elements. Those that are no numbers are equal, and so are infinite ones with the same sign.
#[expect(clippy::float_cmp, reason = "infinite elements have no difference")]
fn difference(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let difference = (a - b).abs();
    if difference.is_nan() {
        f64::INFINITY
    } else {
        difference
    }
}

/// Returns the magnitude of a tensor, at least the smallest: its largest finite element, but at most a hundred times the median of those that are not zero, so that a
/// few large ones, such as for what is masked out, hide no errors of the others.
fn magnitude(elements: &[f64]) -> f64 {
    let sizes = elements.iter().map(|element| element.abs());
    let mut sizes: Vec<f64> = sizes
        .filter(|size| size.is_finite() && *size > 0.0)
        .collect();
    if sizes.is_empty() {
        return SMALLEST_MAGNITUDE;
    }
    let largest = sizes.iter().copied().fold(0.0, f64::max);
    let middle = sizes.len() / 2;
    let (_, median, _) = sizes.select_nth_unstable_by(middle, f64::total_cmp);
    largest.min(100.0 * *median).max(SMALLEST_MAGNITUDE)
}

/// Returns the elements of a tensor as numbers.
fn elements(answer: &Answer) -> Vec<f64> {
    fn read<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|b| number(*b)).collect()
    }
    let bytes = &answer.bytes[..];
    match answer.header.datatype() {
        Datatype::Fp64 => read(bytes, f64::from_le_bytes),
        Datatype::Fp32 => read(bytes, |b| f32::from_le_bytes(b).into()),
        Datatype::Fp16 => read(bytes, |b| f16::from_le_bytes(b).into()),
        Datatype::Bf16 => read(bytes, |b| bf16::from_le_bytes(b).into()),
        Datatype::Int64 => read(bytes, |b| i64::from_le_bytes(b) as f64),
        Datatype::Uint64 => read(bytes, |b| u64::from_le_bytes(b) as f64),
        Datatype::Int32 => read(bytes, |b| i32::from_le_bytes(b).into()),
        Datatype::Uint32 => read(bytes, |b| u32::from_le_bytes(b).into()),
        Datatype::Int16 => read(bytes, |b| i16::from_le_bytes(b).into()),
        Datatype::Uint16 => read(bytes, |b| u16::from_le_bytes(b).into()),
        Datatype::Int8 => read(bytes, |b| i8::from_le_bytes(b).into()),
        Datatype::Uint8 | Datatype::Bool | Datatype::Bytes => {
            bytes.iter().map(|b| f64::from(*b)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Shape;

    use super::*;

    fn answer(datatype: Datatype, bytes: Vec<u8>) -> Answer {
        let elements = bytes.len() / datatype.width().unwrap();
        let shape = Shape::new(&[elements.cast_signed() as i64]).unwrap();
        Answer {
            header: TensorHeader::new(datatype, shape).unwrap(),
            bytes,
        }
    }

    fn fp32(elements: &[f32]) -> Answer {
        let bytes = elements.iter().flat_map(|e| e.to_le_bytes()).collect();
        answer(Datatype::Fp32, bytes)
    }

    fn int64(elements: &[i64]) -> Answer {
        let bytes = elements.iter().flat_map(|e| e.to_le_bytes()).collect();
        answer(Datatype::Int64, bytes)
    }

    fn differs(expected: &Answer, found: &Answer) -> bool {
        let (expected, found) = (std::slice::from_ref(expected), std::slice::from_ref(found));
        compare(expected, &[], found, Precision::Full).is_err()
    }

    #[test]
    fn floats_differ_beyond_their_tolerance_of_the_magnitude() {
        let expected = fp32(&[1.0, -2.0, 0.0, 0.5]);
        assert!(!differs(&expected, &fp32(&[1.0, -2.0001, 0.0005, 0.5])));
        assert!(differs(&expected, &fp32(&[1.0, -2.02, 0.0, 0.5])));
        assert!(differs(&expected, &fp32(&[1.0, -2.0, 0.1, 0.5])));
    }

    #[test]
    fn what_is_no_number_is_equal_to_itself_only() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        let expected = fp32(&[nan, infinite, 1.0]);
        assert!(!differs(&expected, &fp32(&[nan, infinite, 1.0])));
        assert!(differs(&expected, &fp32(&[0.0, infinite, 1.0])));
        assert!(differs(&expected, &fp32(&[nan, -infinite, 1.0])));
        assert!(differs(&expected, &fp32(&[nan, f32::MAX, 1.0])));
    }

    #[test]
    fn what_roundings_leave_of_zero_is_no_difference() {
        assert!(!differs(&fp32(&[0.0, 0.0]), &fp32(&[6e-7, 0.0])));
        assert!(differs(&fp32(&[0.0, 0.0]), &fp32(&[6e-5, 0.0])));
    }

    #[test]
    fn a_few_huge_elements_hide_no_difference_of_the_others() {
        let mut elements = vec![1.0; 99];
        elements.push(-1e9);
        let expected = fp32(&elements);
        elements[0] = 1.5;
        assert!(differs(&expected, &fp32(&elements)));
    }

    #[test]
    fn integers_are_equal_unless_a_rounding_of_the_inputs_changes_some() {
        let (expected, found) = (int64(&[1, 2, 3]), int64(&[1, 2, 4]));
        assert!(differs(&expected, &found));
        let nudged = Noise {
            largest: 1.0,
            changed: 1,
        };
        let one = std::slice::from_ref;
        let compared = compare(one(&expected), &[nudged], one(&found), Precision::Full);
        assert_eq!(compared, Ok(()));
    }

    #[test]
    fn another_shape_or_datatype_is_a_difference_that_names_both() {
        let one = std::slice::from_ref;
        let (expected, found) = (fp32(&[1.0]), int64(&[1]));
        let difference = compare(one(&expected), &[], one(&found), Precision::Full);
        assert_eq!(
            difference.unwrap_err().to_string(),
            "it answers INT64[1] in place of FP32[1]"
        );
        assert!(differs(&expected, &fp32(&[1.0, 1.0])));
    }

    #[test]
    fn a_program_that_carries_a_rounding_far_says_nothing() {
        let one = std::slice::from_ref;
        let (steady, chaotic) = (fp32(&[1.0, 1.000_01]), fp32(&[1.0, 1.5]));
        let expected = fp32(&[1.0, 1.0]);
        let found = noise(one(&expected), one(&steady)).unwrap();
        assert!(found[0].largest < 2e-5 && found[0].changed == 1);
        assert_eq!(noise(one(&expected), one(&chaotic)), None);
        let nothing = fp32(&[f32::NAN]);
        assert_eq!(noise(one(&nothing), one(&nothing)), None);
    }
}
