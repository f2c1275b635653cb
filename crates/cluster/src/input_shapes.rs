//! The shapes of inputs that a program is measured with.

use std::{fmt, str::FromStr};

use crate::{Dim, Program, TensorSpec, TypicalShapes};

/// The shape of each input of a program in a measurement, in the order of its inputs; -1 for the batch dimension.
///
/// As text it is `-1x128 -1x128`.
///
/// ```
/// use packhorse_cluster::InputShapes;
///
/// let shapes: InputShapes = "-1x80x3000".parse()?;
/// assert_eq!(shapes.to_string(), "-1x80x3000");
/// # Ok::<(), packhorse_cluster::InputShapesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputShapes(Vec<Vec<Dim>>);

/// The error for a text that is no shapes of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the dimensions of 1 to {} inputs, as in -1x128 -1x128",
    Program::MAX_TENSORS
)]
pub struct InputShapesError;

impl InputShapes {
    /// The largest number of dimensions of an input.
    const MAX_RANK: usize = 64;

    /// Returns the shapes with which a program is measured: its fixed dimensions, and the usual or assumed sizes of the variable ones.
    pub fn tried(program: &Program) -> Self {
        let shapes = program.inputs.iter().map(|spec| {
            let dims = spec.shape.iter().enumerate();
            let dims = dims.map(|(axis, dim)| match dim {
                Dim::Any if program.is_batch_axis(axis) => Dim::Any,
                Dim::Any => Dim::Fixed(spec.tried_dim(axis)),
                Dim::Fixed(_) => *dim,
            });
            dims.collect()
        });
        Self(shapes.collect())
    }

    /// Returns the usual shapes of a program's inputs with their weights: those with which it is measured, at least one.
    pub fn usual(program: &Program) -> Vec<(u32, Self)> {
        let mut several = program.inputs.iter().filter_map(TensorSpec::several_shapes);
        let Some(first) = several.next() else {
            return vec![(1, Self::tried(program))];
        };
        let cases = first.weights().enumerate().map(|(case, weight)| {
            let mut of_case = program.clone();
            for spec in &mut of_case.inputs {
                let shape = { spec.several_shapes() }
                    .and_then(|shapes| shapes.shapes().get(case))
                    .map(|shape| TypicalShapes::one(shape.shape.clone()));
                if shape.is_some() {
                    spec.typical_shape = shape;
                }
            }
            (weight, Self::tried(&of_case))
        });
        cases.collect()
    }

    /// Returns the shapes in which the variable dimensions of a program have these sizes, in the order of [`Program::variable_dims`].
    /// `None` if they are not as many.
    pub fn with_sizes(program: &Program, sizes: &[u64]) -> Option<Self> {
        let mut shapes = Self::tried(program);
        let variable: Vec<(usize, usize)> = program.variable_dims().collect();
        if variable.len() != sizes.len() {
            return None;
        }
        for ((input, axis), size) in variable.into_iter().zip(sizes) {
            shapes.0[input][axis] = Dim::Fixed(*size);
        }
        Some(shapes)
    }

    /// Returns the size of an input's dimension, unless it is that of the batch.
    pub(crate) fn size(&self, input: usize, axis: usize) -> Option<u64> {
        match self.0.get(input)?.get(axis)? {
            Dim::Fixed(size) => Some(*size),
            Dim::Any => None,
        }
    }

    /// Returns the sizes of the variable dimensions of a program, in the order of [`Program::variable_dims`]. `None` if the shapes are not
    /// of this program.
    pub fn sizes(&self, program: &Program) -> Option<Vec<u64>> {
        let size = |(input, axis): (usize, usize)| self.size(input, axis);
        (self.0.len() == program.inputs.len())
            .then(|| program.variable_dims().map(size).collect())
            .flatten()
    }

    /// Returns the program with these shapes as the usual ones of its inputs.
    #[must_use]
    pub fn as_typical_of(&self, program: &Program) -> Program {
        let mut program = program.clone();
        for (spec, shape) in program.inputs.iter_mut().zip(&self.0) {
            spec.typical_shape = Some(TypicalShapes::one(shape.clone()));
        }
        program
    }
}

impl fmt::Display for InputShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, shape) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { " " })?;
            for (axis, dim) in shape.iter().enumerate() {
                f.write_str(if axis == 0 { "" } else { "x" })?;
                write!(f, "{dim}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for InputShapes {
    type Err = InputShapesError;

    fn from_str(text: &str) -> Result<Self, InputShapesError> {
        let dim = |text: &str| {
            let size = text.parse::<i64>().ok()?;
            Dim::try_from(size).ok()
        };
        let shape = |text: &str| {
            let dims = text.split('x').map(dim).collect::<Option<Vec<Dim>>>()?;
            (dims.len() <= Self::MAX_RANK).then_some(dims)
        };
        let shapes = text.split(' ').take(Program::MAX_TENSORS + 1).map(shape);
        let shapes: Vec<Vec<Dim>> = shapes.collect::<Option<_>>().ok_or(InputShapesError)?;
        if shapes.len() > Program::MAX_TENSORS {
            return Err(InputShapesError);
        }
        Ok(Self(shapes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ArtifactDigest, Datatype};

    fn program(max_batch_size: u32, shapes: &[&[i64]]) -> Program {
        let input = |(number, dims): (usize, &&[i64])| {
            TensorSpec::new(
                format!("x{number}"),
                Datatype::Fp32,
                { dims.iter() }
                    .map(|dim| Dim::try_from(*dim).unwrap())
                    .collect(),
            )
        };
        Program {
            model: "m".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size,
            inputs: shapes.iter().enumerate().map(input).collect(),
            outputs: Vec::new(),
        }
    }

    #[test]
    fn sizes_of_variable_dimensions_become_usual_ones() {
        let program = program(8, &[&[-1, 80, -1], &[-1, 4]]);
        let assumed = InputShapes::tried(&program);
        assert_eq!(assumed.to_string(), "-1x80x16 -1x4");
        let long = InputShapes::with_sizes(&program, &[3000]).unwrap();
        assert_eq!(long.to_string(), "-1x80x3000 -1x4");
        assert_eq!(long.sizes(&program), Some(vec![3000]));
        let measured = long.as_typical_of(&program);
        assert_eq!(InputShapes::tried(&measured), long);
        assert_eq!(measured.inputs[0].shape, program.inputs[0].shape);
        assert_eq!(InputShapes::with_sizes(&program, &[1, 2]), None);
    }

    #[test]
    fn several_usual_shapes_of_one_place_belong_together() {
        let mut program = program(8, &[&[-1, -1], &[-1, -1], &[-1, -1]]);
        let one = InputShapes::tried(&program);
        assert_eq!(InputShapes::usual(&program), [(1, one)]);
        for (input, sizes) in [(0, [32, 512]), (2, [4, 64])] {
            let shapes = serde_json::json!([
                {"shape": [-1, sizes[0]], "weight": 9},
                {"shape": [-1, sizes[1]], "weight": 10},
            ]);
            program.inputs[input].typical_shape = serde_json::from_value(shapes).unwrap();
        }
        let usual = InputShapes::usual(&program).into_iter();
        let usual: Vec<(u32, String)> = usual.map(|(w, shapes)| (w, shapes.to_string())).collect();
        let texts = [(9, "-1x32 -1x16 -1x4"), (10, "-1x512 -1x16 -1x64")];
        assert_eq!(usual, texts.map(|(weight, text)| (weight, text.to_owned())));
        // Alone they are tried with the heaviest.
        assert_eq!(InputShapes::tried(&program).to_string(), texts[1].1);
    }

    #[test]
    fn without_a_batch_dimension_the_first_one_may_vary() {
        let program = program(0, &[&[-1, 2]]);
        assert_eq!(InputShapes::tried(&program).to_string(), "16x2");
        let other: InputShapes = "-1x2".parse().unwrap();
        assert_eq!(other.sizes(&program), None);
    }

    #[test]
    fn other_texts_are_refused() {
        let many = ["1"; Program::MAX_TENSORS + 1].join(" ");
        let deep = ["1"; InputShapes::MAX_RANK + 1].join("x");
        for text in ["", "x", "1x", "-2", "1  2", "a", &many, &deep] {
            assert_eq!(text.parse::<InputShapes>(), Err(InputShapesError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn shapes_are_read_as_they_are_written(
            dims in proptest::collection::vec(
                proptest::collection::vec(-1_i64..100_000, 1..5),
                1..5,
            )
        ) {
            let shapes: Option<Vec<Vec<Dim>>> = { dims.iter() }
                .map(|dims| dims.iter().map(|dim| Dim::try_from(*dim).ok()).collect())
                .collect();
            let Some(shapes) = shapes.map(InputShapes) else {
                return Ok(());
            };
            prop_assert_eq!(shapes.to_string().parse(), Ok(shapes));
        }
    }
}
