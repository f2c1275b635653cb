//! The operators of a program, as `packhorse-worker inspect` finds them.

use serde::{Deserialize, Serialize};

/// The most distinct operators of a graph. The largest network of Clockwork's zoo has 379.
pub const MAX_OPERATORS: usize = 4096;
/// The largest number in a graph, which a 64-bit floating-point number holds exactly.
const MAX_NUMBER: u64 = 1 << 53;

/// A quantity of a batch: `fixed + per_row * rows`. In JSON a list of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct PerBatch {
    /// The part that does not depend on the rows.
    pub fixed: u64,
    /// The part of each row.
    pub per_row: u64,
}

impl PerBatch {
    /// Returns the line through the values of two batches of different sizes. If it is below zero without rows, because the quantity grows
    /// faster than the rows, the line through zero and the larger batch.
    pub fn through(smaller: (u32, u64), larger: (u32, u64)) -> Self {
        let rows = u64::from(larger.0 - smaller.0);
        let per_row = larger.1.saturating_sub(smaller.1) / rows;
        match larger.1.checked_sub(per_row * u64::from(larger.0)) {
            Some(fixed) => Self { fixed, per_row },
            None => Self {
                fixed: 0,
                per_row: larger.1 / u64::from(larger.0),
            },
        }
    }

    /// Returns the quantity of a batch.
    pub fn at(self, rows: u32) -> f64 {
        self.fixed as f64 + self.per_row as f64 * f64::from(rows)
    }

    fn is_within_limits(self) -> bool {
        self.fixed <= MAX_NUMBER && self.per_row <= MAX_NUMBER
    }
}

impl From<(u64, u64)> for PerBatch {
    fn from((fixed, per_row): (u64, u64)) -> Self {
        Self { fixed, per_row }
    }
}

impl From<PerBatch> for (u64, u64) {
    fn from(quantity: PerBatch) -> Self {
        (quantity.fixed, quantity.per_row)
    }
}

/// The operators of a program that are equal in all that is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Operators {
    /// libtorch's name of the operator; of convolutions `convolution_1x1`, `convolution_3x3` (without stride or dilation),
    /// `grouped_convolution`, `depthwise_convolution`, or `convolution`.
    pub name: String,
    /// The number of these operators in one run.
    pub count: u64,
    /// The floating-point operations; an operator that does not multiply and add counts one per element.
    pub operations: PerBatch,
    /// The bytes of parameters that are read.
    pub parameter_bytes: u64,
    /// The bytes of other tensors that are read.
    pub read_bytes: PerBatch,
    /// The bytes that are written.
    pub written_bytes: PerBatch,
    /// The elements of the result.
    pub elements: PerBatch,
}

/// The operators of a program and its memory. Workers, agents, gateways and their stores may be one version apart: fields that a newer
/// one has are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorGraph {
    /// The number of parameters, and of elements of buffers.
    pub parameters: u64,
    /// The bytes of these.
    pub parameter_bytes: u64,
    /// The most bytes of intermediate results that live at the same time.
    pub activation_bytes: PerBatch,
    /// The operators.
    pub operators: Vec<Operators>,
    /// The operators that read weights, by which programs with the same backbone are found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<ReadWeights>,
}

/// An operator that reads weights. In JSON a list of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct ReadWeights {
    /// The digest of all that the result follows from beside the program's inputs: weights and operators. Equal digests of two programs are the
    /// same computation. It is 0 if another program cannot share it.
    pub digest: u64,
    /// The bytes of the weights.
    pub bytes: u64,
}

impl From<(u64, u64)> for ReadWeights {
    fn from((digest, bytes): (u64, u64)) -> Self {
        Self { digest, bytes }
    }
}

impl From<ReadWeights> for (u64, u64) {
    fn from(weights: ReadWeights) -> Self {
        (weights.digest, weights.bytes)
    }
}

/// The reason why a text is not a graph.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The text is not the JSON of a graph.
    #[error("operators: {0}")]
    Json(#[from] serde_json::Error),
    /// There are too many operators.
    #[error("operators: at most {MAX_OPERATORS} different ones are allowed, not {0}")]
    TooMany(usize),
    /// There are no operators.
    #[error("operators: there are none")]
    Empty,
    /// A number is too large, or nothing is computed.
    #[error("operators: {0:?} has a number above 2^53, a count of 0 or no elements")]
    Number(String),
}

impl OperatorGraph {
    /// Reads the JSON of a graph.
    ///
    /// # Errors
    /// If it is none, or above a limit.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let graph: Self = serde_json::from_str(text)?;
        graph.check()?;
        Ok(graph)
    }

    /// Checks the limits of a graph.
    ///
    /// # Errors
    /// Names what is beyond a limit.
    pub fn check(&self) -> Result<(), GraphError> {
        if self.operators.len() > MAX_OPERATORS {
            return Err(GraphError::TooMany(self.operators.len()));
        }
        if self.weights.len() > MAX_OPERATORS {
            return Err(GraphError::TooMany(self.weights.len()));
        }
        if self.operators.is_empty() {
            return Err(GraphError::Empty);
        }
        for operator in &self.operators {
            let numbers = [
                operator.operations,
                operator.read_bytes,
                operator.written_bytes,
                operator.elements,
                (operator.count, operator.parameter_bytes).into(),
            ];
            let computes = operator.count > 0 && operator.elements != PerBatch::default();
            if !computes || !numbers.into_iter().all(PerBatch::is_within_limits) {
                return Err(GraphError::Number(operator.name.clone()));
            }
        }
        let memory = [
            self.activation_bytes,
            (self.parameters, self.parameter_bytes).into(),
        ];
        if !memory.into_iter().all(PerBatch::is_within_limits) {
            return Err(GraphError::Number("memory".to_owned()));
        }
        let mut weights = self.weights.iter();
        let bytes = weights.try_fold(0_u64, |sum, read| sum.checked_add(read.bytes));
        if bytes.is_none_or(|bytes| bytes > MAX_NUMBER) {
            return Err(GraphError::Number("weights".to_owned()));
        }
        Ok(())
    }

    /// Writes the graph as JSON, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a graph is JSON")
    }

    /// Returns the floating-point operations of a batch.
    pub fn operations(&self, rows: u32) -> f64 {
        let all = self.operators.iter();
        all.map(|operator| operator.count as f64 * operator.operations.at(rows))
            .sum()
    }
}

/// An operator of one run on a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedOperator {
    /// The name, as in [`Operators`].
    pub name: String,
    /// The floating-point operations.
    pub operations: u64,
    /// The bytes of parameters that are read.
    pub parameter_bytes: u64,
    /// The bytes of other tensors that are read.
    pub read_bytes: u64,
    /// The bytes that are written.
    pub written_bytes: u64,
    /// The elements of the result.
    pub elements: u64,
}

/// The record of one run on a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    /// The rows of the batch.
    pub rows: u32,
    /// The most bytes of intermediate results at the same time.
    pub activation_bytes: u64,
    /// The operators in the order of the run.
    pub operators: Vec<RecordedOperator>,
}

impl OperatorGraph {
    /// Makes a graph from the records of a run on a smaller and of one on a larger batch. Returns `None` if the two ran different operators,
    /// or the batches have the same size.
    pub fn from_runs(
        parameters: u64,
        parameter_bytes: u64,
        smaller: &RecordedRun,
        larger: &RecordedRun,
    ) -> Option<Self> {
        if smaller.operators.len() != larger.operators.len() || smaller.rows >= larger.rows {
            return None;
        }
        let through = |small, large| PerBatch::through((smaller.rows, small), (larger.rows, large));
        let mut operators: Vec<Operators> = Vec::new();
        for (small, large) in smaller.operators.iter().zip(&larger.operators) {
            if small.name != large.name {
                return None;
            }
            operators.push(Operators {
                name: large.name.clone(),
                count: 1,
                operations: through(small.operations, large.operations),
                parameter_bytes: large.parameter_bytes,
                read_bytes: through(small.read_bytes, large.read_bytes),
                written_bytes: through(small.written_bytes, large.written_bytes),
                elements: through(small.elements, large.elements),
            });
        }
        operators.sort();
        operators.dedup_by(|next, first| {
            let is_equal = Operators {
                count: 1,
                ..first.clone()
            } == *next;
            first.count += u64::from(is_equal);
            is_equal
        });
        Some(Self {
            parameters,
            parameter_bytes,
            activation_bytes: through(smaller.activation_bytes, larger.activation_bytes),
            operators,
            weights: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operator(name: &str, number: u64) -> RecordedOperator {
        RecordedOperator {
            name: name.to_owned(),
            operations: 2 * number,
            parameter_bytes: 8,
            read_bytes: 100 + number,
            written_bytes: number,
            elements: number,
        }
    }

    fn run(rows: u32, names: &[&str]) -> RecordedRun {
        RecordedRun {
            rows,
            activation_bytes: 64 * u64::from(rows),
            operators: names
                .iter()
                .map(|name| operator(name, 10 * u64::from(rows)))
                .collect(),
        }
    }

    #[test]
    fn equal_operators_of_two_runs_are_counted_and_extended_to_other_batches() {
        let names = ["addmm", "relu", "addmm"];
        let graph = OperatorGraph::from_runs(7, 28, &run(2, &names), &run(4, &names)).unwrap();
        assert_eq!(graph.operators.len(), 2);
        let product = &graph.operators[0];
        assert_eq!((product.name.as_str(), product.count), ("addmm", 2));
        assert_eq!(product.read_bytes, (100, 10).into());
        assert_eq!(graph.activation_bytes, (0, 64).into());
        // Three operators with 2 * 10 operations per row.
        assert!((graph.operations(8) - 480.0).abs() < 1e-9);
        assert_eq!(OperatorGraph::from_json(&graph.to_json()).unwrap(), graph);
    }

    #[test]
    fn runs_with_different_operators_make_no_graph() {
        let of = |small: &[&str], large: &[&str]| {
            OperatorGraph::from_runs(0, 0, &run(2, small), &run(4, large))
        };
        assert_eq!(of(&["mm"], &["mm", "mm"]), None);
        assert_eq!(of(&["mm"], &["bmm"]), None);
    }

    #[test]
    fn what_grows_faster_than_the_rows_is_not_below_zero_without_rows() {
        assert_eq!(PerBatch::through((2, 4), (4, 16)), (0, 4).into());
        assert_eq!(PerBatch::through((2, 16), (4, 4)), (4, 0).into());
    }

    #[test]
    fn a_graph_from_outside_is_checked() {
        let graph = |operators: &str| {
            let text = format!(
                r#"{{"parameters":1,"parameter_bytes":4,"activation_bytes":[0,4],"operators":[{operators}]}}"#
            );
            OperatorGraph::from_json(&text).map_err(|e| e.to_string())
        };
        let one = |count: u64, elements: u64| {
            format!(
                r#"{{"name":"mm","count":{count},"operations":[0,1],"parameter_bytes":0,"read_bytes":[0,1],"written_bytes":[0,1],"elements":[0,{elements}]}}"#
            )
        };
        assert!(graph(&one(1, 1)).is_ok());
        for bad in [one(0, 1), one(1, 0), one(u64::MAX, 1)] {
            assert!(
                graph(&bad).unwrap_err().contains("\"mm\" has a number"),
                "{bad}"
            );
        }
        assert_eq!(graph("").unwrap_err(), "operators: there are none");
        let weights = |bytes: u64| {
            let text = format!(
                r#"{{"parameters":1,"parameter_bytes":4,"activation_bytes":[0,4],"operators":[{}],"weights":[[7,{bytes}],[8,{bytes}]]}}"#,
                one(1, 1)
            );
            OperatorGraph::from_json(&text).map_err(|e| e.to_string())
        };
        assert!(weights(MAX_NUMBER / 2).is_ok());
        for bytes in [MAX_NUMBER, u64::MAX] {
            assert!(weights(bytes).unwrap_err().contains("\"weights\" has"));
        }
        let many = vec![one(1, 1); MAX_OPERATORS + 1].join(",");
        assert!(graph(&many).unwrap_err().contains("at most 4096"));
    }

    proptest! {
        #[test]
        fn a_line_goes_through_both_batches_if_it_starts_above_zero(fixed in 0_u64..1 << 40, per_row in 0_u64..1 << 30, small in 1_u32..100, more in 1_u32..100) {
            let line = PerBatch { fixed, per_row };
            let at = |rows: u32| fixed + per_row * u64::from(rows);
            prop_assert_eq!(PerBatch::through((small, at(small)), (small + more, at(small + more))), line);
        }
    }
}
