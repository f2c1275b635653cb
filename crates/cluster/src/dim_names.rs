//! The names of inputs' dimensions: those of one name have one size in each request, such as the length of tokens and of their mask.
//!
//! Code that was compiled ahead of time reads such a size from one of the inputs, and with it the memory of all of them.

use std::{collections::BTreeMap, fmt};

use crate::{Dim, Program, TensorSpec};

/// Two dimensions of inputs that have the same name, but not the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnequalDims {
    name: String,
    dims: [(String, usize, u64); 2],
}

impl fmt::Display for UnequalDims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            dims: [(one, axis, size), (other, other_axis, other_size)],
        } = self;
        write!(
            f,
            "dimension {axis} of {one:?} is {size}, and dimension {other_axis} of {other:?} is {other_size}: \
             both are {name:?} (dim_names), and must be equal"
        )
    }
}

impl TensorSpec {
    /// The most bytes of a dimension's name.
    pub const MAX_DIM_NAME: usize = 64;

    /// Returns the name of a dimension.
    pub fn dim_name(&self, axis: usize) -> Option<&str> {
        self.dim_names.as_ref()?.get(axis)?.as_deref()
    }
}

impl Program {
    /// Returns two dimensions of the same name that do not have the same size, if there are any. `size` is that of an input's dimension.
    pub fn unequal_dims(&self, size: impl Fn(usize, usize) -> u64) -> Option<UnequalDims> {
        let mut seen: BTreeMap<&str, (usize, usize, u64)> = BTreeMap::new();
        for (input, spec) in self.inputs.iter().enumerate() {
            let names = spec.dim_names.iter().flatten().enumerate();
            for (axis, name) in names {
                let Some(name) = name else { continue };
                let found = (input, axis, size(input, axis));
                let first = *seen.entry(name).or_insert(found);
                if first.2 != found.2 {
                    let of = |(input, axis, size): (usize, usize, u64)| {
                        (self.inputs[input].name.clone(), axis, size)
                    };
                    return Some(UnequalDims {
                        name: name.clone(),
                        dims: [of(first), of(found)],
                    });
                }
            }
        }
        None
    }

    /// Returns the program with a name for each variable dimension that the registration does not name: that of its place, so that those of
    /// the same place in several inputs must be equal.
    #[must_use]
    pub fn with_assumed_dim_names(mut self) -> Self {
        let batches = self.batches();
        for spec in &mut self.inputs {
            let name = |(axis, dim): (usize, &Dim)| {
                let varies = *dim == Dim::Any && !(axis == 0 && batches);
                let assumed = varies.then(|| format!("dimension {axis}"));
                spec.dim_name(axis).map(str::to_owned).or(assumed)
            };
            spec.dim_names = Some(spec.shape.iter().enumerate().map(name).collect());
        }
        self
    }

    /// Checks that the names are those of an input's dimensions.
    pub(crate) fn validate_dim_names(
        &self,
        spec: &TensorSpec,
        is_input: bool,
    ) -> Result<(), String> {
        let Some(names) = &spec.dim_names else {
            return Ok(());
        };
        if !is_input {
            return Err("only dimensions of inputs have names".to_owned());
        }
        if names.len() != spec.shape.len() {
            return Err(format!(
                "expected {} names or nulls, one for each dimension of shape, got {}",
                spec.shape.len(),
                names.len()
            ));
        }
        for (axis, name) in names.iter().enumerate() {
            let Some(name) = name else { continue };
            if self.is_batch_axis(axis) {
                return Err(format!(
                    "dimension {axis}: the batch dimension is the same in all inputs: expected null"
                ));
            }
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            if name.is_empty()
                || name.len() > TensorSpec::MAX_DIM_NAME
                || !name.chars().all(is_allowed)
            {
                return Err(format!(
                    "dimension {axis}: expected a name of 1 to {} letters, digits, '_', '-' and '.'",
                    TensorSpec::MAX_DIM_NAME
                ));
            }
        }
        Ok(())
    }

    /// Checks that dimensions of the same name are tried with the same sizes.
    pub(crate) fn validate_tried_dims(&self) -> Result<(), (usize, String)> {
        let cases = crate::InputShapes::usual(self).into_iter();
        for (_, shapes) in cases {
            let unequal = self.unequal_dims(|input, axis| shapes.size(input, axis).unwrap_or(0));
            if let Some(unequal) = unequal {
                let input = { self.inputs.iter() }
                    .position(|spec| spec.name == unequal.dims[1].0)
                    .unwrap_or_default();
                let problem = format!("the sizes that it is tried with: {unequal}");
                return Err((input, problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArtifactDigest;

    fn program(max_batch_size: u32, inputs: &str) -> Program {
        Program {
            model: "m:1".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size,
            inputs: serde_json::from_str(inputs).unwrap(),
            outputs: serde_json::from_str(r#"[{"name":"y","datatype":"FP32","shape":[-1]}]"#)
                .unwrap(),
        }
    }

    fn unequal(program: &Program, sizes: &[&[u64]]) -> Option<String> {
        let found = program.unequal_dims(|input, axis| sizes[input][axis]);
        found.map(|found| found.to_string())
    }

    #[test]
    fn dimensions_of_one_name_have_one_size() {
        let program = program(
            8,
            r#"[{"name":"ids","datatype":"INT64","shape":[-1,-1],"dim_names":[null,"length"]},
                {"name":"mask","datatype":"INT64","shape":[-1,-1,-1],"dim_names":[null,"length","length"]},
                {"name":"other","datatype":"FP32","shape":[-1,-1]}]"#,
        );
        program.validate().unwrap();
        assert_eq!(unequal(&program, &[&[2, 7], &[2, 7, 7], &[2, 9]]), None);
        assert_eq!(
            unequal(&program, &[&[2, 7], &[2, 7, 6], &[2, 7]]).unwrap(),
            "dimension 1 of \"ids\" is 7, and dimension 2 of \"mask\" is 6: both are \"length\" (dim_names), and must be equal"
        );
    }

    #[test]
    fn without_names_the_dimensions_of_one_place_count_as_one() {
        let unnamed = r#"[{"name":"a","datatype":"FP32","shape":[-1,-1,3]},
                          {"name":"b","datatype":"FP32","shape":[-1,-1]}]"#;
        let assumed = program(8, unnamed).with_assumed_dim_names();
        assert_eq!(unequal(&assumed, &[&[1, 5, 3], &[1, 5]]), None);
        assert!(unequal(&assumed, &[&[1, 5, 3], &[1, 4]]).is_some());
        let without_batches = program(0, unnamed).with_assumed_dim_names();
        assert!(unequal(&without_batches, &[&[1, 5, 3], &[2, 5]]).is_some());
        let named = program(
            8,
            &unnamed.replace("[-1,-1]}", r#"[-1,-1],"dim_names":[null,"n"]}"#),
        );
        assert_eq!(
            unequal(&named.with_assumed_dim_names(), &[&[1, 5, 3], &[1, 4]]),
            None
        );
        // What is named says nothing of the others.
        let third = r#",{"name":"c","datatype":"FP32","shape":[-1,-1],"dim_names":[null,"n"]}]"#;
        let partly = unnamed.replace("}]", "}") + third;
        let partly = program(8, &partly).with_assumed_dim_names();
        assert!(unequal(&partly, &[&[1, 5, 3], &[1, 4], &[1, 4]]).is_some());
        assert_eq!(unequal(&partly, &[&[1, 5, 3], &[1, 5], &[1, 4]]), None);
    }

    #[test]
    fn a_wrong_name_is_refused_with_its_field() {
        for (names, expected) in [
            (
                r#"["n",null]"#,
                "inputs[0].dim_names: dimension 0: the batch",
            ),
            (r"[null]", "inputs[0].dim_names: expected 2 names or nulls"),
            (
                r#"[null,""]"#,
                "inputs[0].dim_names: dimension 1: expected a name of 1 to 64",
            ),
            (
                r#"[null,"a b"]"#,
                "inputs[0].dim_names: dimension 1: expected a name of 1 to 64",
            ),
        ] {
            let inputs = format!(
                r#"[{{"name":"a","datatype":"FP32","shape":[-1,-1],"dim_names":{names}}}]"#
            );
            let error = program(8, &inputs).validate().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn dimensions_of_one_name_are_tried_with_one_size() {
        let inputs = r#"[{"name":"a","datatype":"FP32","shape":[-1,-1],"dim_names":[null,"n"],"typical_shape":[-1,128]},
                         {"name":"b","datatype":"FP32","shape":[-1,-1],"dim_names":[null,"n"]}]"#;
        let error = program(8, inputs).validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "inputs[1].typical_shape: the sizes that it is tried with: dimension 1 of \"a\" is 128, and dimension 1 of \"b\" is 16: \
             both are \"n\" (dim_names), and must be equal"
        );
    }
}
