//! The dimensions from which a package's code takes its sizes.
//!
//! The code takes each size from one input, and assumes it of all others that share it: only of the first it says `int64_t s27 = arg1_1_size[1];`.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::TensorSpec;

use crate::signature::{Signature, Size, Tensor};

/// A dimension: the index of its input, and its axis.
type Dimension = (usize, usize);

/// The dimensions that the source text reads sizes from, found line by line.
#[derive(Debug, Default)]
pub(crate) struct ReadSizes {
    inputs: BTreeMap<String, usize>,
    read: BTreeSet<Dimension>,
}

impl ReadSizes {
    /// Takes a line of the source text.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some((variable, index)) = input_of(line) {
            if index < Signature::MAX_TENSORS {
                self.inputs.insert(variable.to_owned(), index);
            }
        } else if let Some((variable, axis)) = size_of(line)
            && axis < Signature::MAX_RANK
            && let Some(input) = self.inputs.get(variable)
        {
            self.read.insert((*input, axis));
        }
    }

    /// Names the dimensions that vary: those that are read after their places, and each other one after the one that is most likely its own.
    ///
    /// One that is not read has the bounds of its own; among several with these it is at the same place rather than at another.
    pub(crate) fn name_dims(&self, inputs: &mut [Tensor]) {
        let sizes =
            |(input, axis): Dimension| inputs.get(input)?.shape.as_ref()?.get(axis).copied();
        let all = inputs.iter().enumerate().flat_map(|(input, tensor)| {
            let rank = tensor.shape.as_ref().map_or(0, Vec::len);
            (0..rank).map(move |axis| (input, axis))
        });
        let varies = |dim: &Dimension| matches!(sizes(*dim), Some(Size::Varies { .. }));
        let varying: Vec<Dimension> = all.filter(varies).collect();
        let read: Vec<Dimension> = { varying.iter().copied() }
            .filter(|dim| self.read.contains(dim))
            .collect();
        let source = |dim: Dimension| -> Option<Dimension> {
            if read.contains(&dim) {
                return Some(dim);
            }
            let alike = |other: &&Dimension| sizes(**other) == sizes(dim);
            let at_place = |other: &&Dimension| other.1 == dim.1;
            let found = { read.iter().find(|other| alike(other) && at_place(other)) }
                .or_else(|| read.iter().find(alike))
                .or_else(|| read.iter().find(at_place))
                .or(read.first());
            found.copied()
        };
        let sources: Vec<(Dimension, Dimension)> = { varying.iter() }
            .filter_map(|dim| Some((*dim, source(*dim)?)))
            .collect();
        let mut taken = BTreeSet::new();
        let name = |dim: &Dimension| {
            let name = name_of(*dim, &inputs[dim.0]);
            let is_new = taken.insert(name.clone());
            (
                *dim,
                if is_new {
                    name
                } else {
                    format!("input_{}.{}", dim.0, dim.1)
                },
            )
        };
        let names: BTreeMap<Dimension, String> = read.iter().map(name).collect();
        for ((input, axis), source) in sources {
            let tensor = &mut inputs[input];
            let rank = tensor.shape.as_ref().map_or(0, Vec::len);
            tensor.dim_names.resize(rank, None);
            tensor.dim_names[axis] = names.get(&source).cloned();
        }
    }
}

/// Returns the name of a dimension: that of its input, as far as it may be one, and its axis.
fn name_of((input, axis): Dimension, tensor: &Tensor) -> String {
    let end = format!("_{axis}");
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match tensor.name.as_deref() {
        Some(name)
            if !name.is_empty()
                && name.len() + end.len() <= TensorSpec::MAX_DIM_NAME
                && name.chars().all(allowed) =>
        {
            format!("{name}{end}")
        }
        _ => format!("input_{input}{end}"),
    }
}

/// Returns the variable and the index in `auto arg1_1 = std::move(inputs[0]);`.
fn input_of(line: &str) -> Option<(&str, usize)> {
    let (variable, rest) = line
        .strip_prefix("auto ")?
        .split_once(" = std::move(inputs[")?;
    let index = rest.strip_suffix("]);")?.parse().ok()?;
    Some((variable, index))
}

/// Returns the variable and the axis in `int64_t s27 = arg1_1_size[1];`.
fn size_of(line: &str) -> Option<(&str, usize)> {
    let (symbol, rest) = line.strip_prefix("int64_t ")?.split_once(" = ")?;
    symbol.strip_prefix(['s', 'u'])?.parse::<u64>().ok()?;
    let (variable, axis) = rest.strip_suffix("];")?.split_once("_size[")?;
    Some((variable, axis.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "auto arg1_1 = std::move(inputs[0]);
auto arg2_1 = std::move(inputs[1]);
auto arg3_1 = std::move(inputs[2]);
auto arg1_1_size = arg1_1.sizes();
int64_t s23 = arg1_1_size[0];
int64_t s27 = arg1_1_size[1];
int64_t s83 = arg3_1_size[1];";

    fn tensor(name: &str, shape: &[(u64, u64)]) -> Tensor {
        let varies = |(min, max): &(u64, u64)| Size::Varies {
            min: *min,
            max: Some(*max),
            example: None,
        };
        Tensor {
            name: Some(name.to_owned()),
            shape: Some(shape.iter().map(varies).collect()),
            ..Tensor::default()
        }
    }

    fn named(source: &str, mut inputs: Vec<Tensor>) -> Vec<Vec<Option<String>>> {
        let mut sizes = ReadSizes::default();
        source.lines().for_each(|line| sizes.line(line));
        sizes.name_dims(&mut inputs);
        inputs.into_iter().map(|input| input.dim_names).collect()
    }

    fn names(names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|name| Some((*name).to_owned())).collect()
    }

    #[test]
    fn a_dimension_that_is_not_read_has_the_name_of_the_one_with_its_bounds() {
        let inputs = vec![
            tensor("ids", &[(1, 8), (2, 128)]),
            tensor("mask", &[(1, 8), (2, 128)]),
            tensor("other", &[(1, 8), (2, 4096)]),
        ];
        assert_eq!(
            named(SOURCE, inputs),
            [
                names(&["ids_0", "ids_1"]),
                names(&["ids_0", "ids_1"]),
                names(&["ids_0", "other_1"])
            ]
        );
        let square = vec![
            tensor("ids", &[(1, 8), (2, 128)]),
            tensor("mask", &[(1, 8), (2, 128), (2, 128)]),
            tensor("a name", &[(1, 8), (2, 128)]),
        ];
        assert_eq!(
            named(SOURCE, square),
            [
                names(&["ids_0", "ids_1"]),
                names(&["ids_0", "ids_1", "ids_1"]),
                names(&["ids_0", "input_2_1"])
            ]
        );
    }

    #[test]
    fn text_that_says_nothing_names_nothing_and_absurd_text_is_no_panic() {
        let inputs = || vec![tensor("x", &[(1, 8)])];
        assert_eq!(named("", inputs()), [Vec::new()]);
        for (end, _) in SOURCE.char_indices() {
            named(&SOURCE[..end], inputs());
        }
        let absurd = "auto a = std::move(inputs[99999999]);\nauto b = std::move(inputs[0]);\n\
            int64_t s1 = b_size[18446744073709551615];\nint64_t s1 = b_size[7];\nint64_t s = b_size[0];\nint64_t s2 = c_size[0];";
        assert_eq!(named(absurd, inputs()), [Vec::new()]);
    }
}
