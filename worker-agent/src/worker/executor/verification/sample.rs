//! Random inputs of a program, such as real ones may be.

use std::collections::BTreeMap;

use half::{bf16, f16};
use packhorse_cluster::{Datatype, Dim, Program, Shape, TensorSpec};
use packhorse_wire::TensorHeader;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

use crate::executor::{
    stages::PreparedBatch,
    synthetic::{usual_cases, write_floats, write_integers},
};

/// The random inputs of one batch. The same sample gives the same inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// The number from which all others are made.
    pub(super) seed: u64,
    /// The rows of the batch.
    pub(super) rows: u32,
    /// The sizes of variable dimensions other than the batch, by axis; the last is that of all further axes.
    pub(super) sizes: &'static [u64],
    /// True if variable dimensions have the usual sizes of the inputs instead.
    pub(super) typical: bool,
    /// True if inputs with an example have its elements.
    pub(super) examples: bool,
    /// The floating-point numbers.
    pub(super) floats: Floats,
    /// The integers and booleans.
    pub(super) integers: Integers,
}

/// The floating-point numbers of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floats {
    /// The standard normal distribution, such as of normalized images.
    Normal,
    /// Evenly between 0 and 1, such as probabilities and images that are not normalized.
    Uniform,
}

/// The integers of a sample. They may be indices, lengths, masks or tokens, which nobody tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Integers {
    /// Evenly from 0 up to this number, which is not among them; booleans are 0 or 1.
    Below(u8),
    /// All are this number.
    All(u8),
}

/// A change of the floating-point inputs by about one rounding, which shows how far a program carries roundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nudge {
    /// The sample itself.
    None,
    /// Each number is changed by a part of itself, up or down.
    Rounding,
}

impl Sample {
    /// Returns the datatypes and shapes of the inputs; `None` if they are too large.
    pub(super) fn headers(self, program: &Program) -> Option<Vec<TensorHeader>> {
        // Several usual shapes take turns.
        let cases = usual_cases(program);
        let (_, program) = &cases[self.seed as usize / 2 % cases.len()];
        let mut named = BTreeMap::new();
        let header = |spec| {
            let shape = Shape::new(&self.dims(program, spec, &mut named)).ok()?;
            TensorHeader::new(spec.datatype, shape).ok()
        };
        program.inputs.iter().map(header).collect()
    }

    /// Returns the sizes of an input's dimensions. `named` has those of names that were met before.
    fn dims<'a>(
        self,
        program: &Program,
        spec: &'a TensorSpec,
        named: &mut BTreeMap<&'a str, i64>,
    ) -> Vec<i64> {
        let batches = program.batches();
        let size = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Any if axis == 0 && batches => i64::from(self.rows),
            Dim::Any if self.typical => spec.tried_dim(axis).cast_signed(),
            Dim::Any => {
                let index = (axis - usize::from(batches)).min(self.sizes.len() - 1);
                let size = spec.limited_dim(axis, self.sizes[index]).cast_signed();
                match spec.dim_name(axis) {
                    Some(name) => *named.entry(name).or_insert(size),
                    None => size,
                }
            }
            Dim::Fixed(_) => i64::from(*dim),
        };
        spec.shape.iter().enumerate().map(size).collect()
    }

    /// Fills the inputs of a batch.
    pub(super) fn fill(self, batch: &mut dyn PreparedBatch, program: &Program, nudge: Nudge) {
        for (i, spec) in program.inputs.iter().enumerate() {
            let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(i as u64);
            let example = spec.example.as_deref().filter(|_| self.examples);
            self.write(batch.input_mut(i), spec.datatype, example, seed, nudge);
        }
    }

    fn write(
        self,
        bytes: &mut [u8],
        datatype: Datatype,
        example: Option<&[f64]>,
        seed: u64,
        nudge: Nudge,
    ) {
        let mut numbers = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut nudges = Xoshiro256PlusPlus::seed_from_u64(!seed);
        let mut elements = example.into_iter().flatten().copied().cycle();
        let mut float = |rounding: f64| {
            let value = elements.next().unwrap_or_else(|| match self.floats {
                Floats::Normal => normal(&mut numbers),
                Floats::Uniform => numbers.random(),
            });
            match nudge {
                Nudge::None => value,
                Nudge::Rounding if nudges.random() => value * (1.0 + rounding),
                Nudge::Rounding => value * (1.0 - rounding),
            }
        };
        match datatype {
            // A rounding of the first two is one in the last place; that of the others is some, because a program has many steps.
            Datatype::Fp16 => write_floats(bytes, datatype, || float(f64::from(f16::EPSILON))),
            Datatype::Bf16 => write_floats(bytes, datatype, || float(f64::from(bf16::EPSILON))),
            Datatype::Fp32 => {
                write_floats(bytes, datatype, || float(8.0 * f64::from(f32::EPSILON)));
            }
            Datatype::Fp64 => write_floats(bytes, datatype, || float(8.0 * f64::EPSILON)),
            Datatype::Bytes => {}
            integer if example.is_some() => {
                write_integers(bytes, integer, || elements.next().unwrap_or_default());
            }
            integer => {
                let is_bool = integer == Datatype::Bool;
                bytes.fill(0);
                // Little-endian: the others of an element's bytes are zero.
                for element in bytes.chunks_exact_mut(integer.width().unwrap_or(1)) {
                    element[0] = match self.integers {
                        Integers::Below(limit) => {
                            numbers.random_range(0..if is_bool { 2 } else { limit })
                        }
                        Integers::All(number) => number,
                    };
                }
            }
        }
    }
}

/// Returns nearly a standard normal number: the sum of twelve uniform ones, whose variance is one.
fn normal(numbers: &mut Xoshiro256PlusPlus) -> f64 {
    // Three draws of 64 bits have twelve numbers of 16 bits.
    let sum: u64 = (0..3)
        .map(|_| {
            let drawn = numbers.next_u64();
            (0..4)
                .map(|part| (drawn >> (16 * part)) & 0xffff)
                .sum::<u64>()
        })
        .sum();
    sum as f64 / 65_536.0 - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Sample = Sample {
        seed: 7,
        rows: 2,
        sizes: &[16],
        typical: false,
        examples: false,
        floats: Floats::Normal,
        integers: Integers::Below(100),
    };

    fn written(sample: Sample, datatype: Datatype, nudge: Nudge) -> Vec<u8> {
        let mut bytes = vec![9; 4096];
        sample.write(&mut bytes, datatype, None, sample.seed, nudge);
        bytes
    }

    #[test]
    fn a_sample_is_the_same_each_time_and_another_for_another_seed() {
        let other = Sample { seed: 8, ..SAMPLE };
        for datatype in [Datatype::Fp32, Datatype::Bf16, Datatype::Int64] {
            let bytes = written(SAMPLE, datatype, Nudge::None);
            assert_eq!(bytes, written(SAMPLE, datatype, Nudge::None));
            assert_ne!(bytes, written(other, datatype, Nudge::None));
        }
    }

    #[test]
    fn the_elements_of_an_example_are_written_and_floats_are_rounded() {
        let mut bytes = [9; 24];
        SAMPLE.write(
            &mut bytes,
            Datatype::Int64,
            Some(&[5.0, -6.0]),
            1,
            Nudge::Rounding,
        );
        let integers = bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
        assert_eq!(integers.collect::<Vec<_>>(), [5, -6, 5]);
        let floats = |nudge| {
            let mut bytes = [9; 12];
            SAMPLE.write(&mut bytes, Datatype::Fp32, Some(&[5.0, -6.0]), 1, nudge);
            let floats = bytes.as_chunks().0.iter();
            floats.map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
        };
        assert_eq!(floats(Nudge::None), [5.0, -6.0, 5.0]);
        assert_ne!(floats(Nudge::Rounding), [5.0, -6.0, 5.0]);
    }

    #[test]
    fn normal_numbers_have_the_mean_and_the_variance_of_their_name() {
        let bytes = written(SAMPLE, Datatype::Fp32, Nudge::None);
        let numbers = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let numbers: Vec<f64> = numbers.map(f64::from).collect();
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.1 && (0.85..1.15).contains(&variance));
    }

    #[test]
    fn a_nudge_changes_each_number_by_less_than_the_tolerance() {
        let numbers = |nudge| {
            let bytes = written(SAMPLE, Datatype::Fp32, nudge);
            let chunks = bytes.as_chunks().0.iter();
            chunks.map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
        };
        for (plain, nudged) in numbers(Nudge::None).iter().zip(numbers(Nudge::Rounding)) {
            let moved = (plain - nudged).abs() / plain.abs();
            assert!((1e-7..2e-6).contains(&moved), "{plain} {nudged}");
        }
        let integers = |nudge| written(SAMPLE, Datatype::Int32, nudge);
        assert_eq!(integers(Nudge::None), integers(Nudge::Rounding));
    }

    #[test]
    fn integers_stay_below_their_limit_and_booleans_are_mixed() {
        let integers = written(SAMPLE, Datatype::Int64, Nudge::None);
        let values = integers
            .as_chunks()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b));
        assert!(values.clone().all(|value| (0..100).contains(&value)));
        assert!(values.max().unwrap() > 50);
        let booleans = written(SAMPLE, Datatype::Bool, Nudge::None);
        assert!(booleans.contains(&0) && booleans.contains(&1));
        assert!(booleans.iter().all(|value| *value < 2));
        let all = Sample {
            integers: Integers::All(1),
            ..SAMPLE
        };
        let ones = written(all, Datatype::Int16, Nudge::None);
        assert!(ones.as_chunks().0.iter().all(|element| *element == [1, 0]));
    }
}
