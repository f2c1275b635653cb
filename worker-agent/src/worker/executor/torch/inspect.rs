//! The operators of a program, found in its file without running it.

use std::{fs::File, path::Path};

use packhorse_cluster::{Datatype, Program};
use packhorse_estimator::{OperatorGraph, ReadWeights, RecordedOperator, RecordedRun};

use super::{
    package,
    shim::{Input, operators, weights},
};
use crate::executor::synthetic::input_dims;

/// The batch sizes for which a program's operators are recorded. Batches of one row have fewer copies than all others, because a dimension
/// of one needs no reordering.
const BATCH_SIZES: [u32; 2] = [2, 4];

/// The batch dimension for the shim.
const BATCH_DIMENSION: i64 = -1;

/// Returns the operators of a program.
///
/// # Errors
/// The reason why they cannot be known, as text for people.
pub(in crate::executor) fn inspect(
    program: &Program,
    artifact: &Path,
) -> Result<OperatorGraph, String> {
    let names = File::open(artifact).and_then(package::program_names);
    if !names
        .map_err(|e| format!("the model file cannot be read: {e}"))?
        .is_empty()
    {
        return Err(
            "a package that was compiled ahead of time contains kernels and no operators"
                .to_owned(),
        );
    }
    if let Some(spec) = program
        .inputs
        .iter()
        .find(|spec| spec.datatype == Datatype::Bytes)
    {
        return Err(format!("input {:?}: BYTES has no operators", spec.name));
    }
    let inputs = program.inputs.iter().map(|spec| Input {
        datatype: spec.datatype,
        dims: input_dims(program, spec, BATCH_DIMENSION),
    });
    let inputs: Vec<Input> = inputs.collect();
    let lines = operators(artifact, &inputs, &BATCH_SIZES).map_err(|error| error.summary())?;
    let (parameters, runs) = parse(&lines).ok_or("the operators cannot be read")?;
    let [smaller, larger] = &runs[..] else {
        return Err("the operators cannot be read".to_owned());
    };
    let mut graph = OperatorGraph::from_runs(parameters[0], parameters[1], smaller, larger)
        .ok_or("the program runs other operators for other batch sizes")?;
    match weights(artifact) {
        Ok(lines) => graph.weights = parse_weights(&lines).ok_or("the weights cannot be read")?,
        Err(error) => tracing::info!(error = error.summary(), "the program shares no backbone"),
    }
    graph.check().map_err(|e| e.to_string())?;
    Ok(graph)
}

/// Reads the lines of the shim about weights.
fn parse_weights(lines: &str) -> Option<Vec<ReadWeights>> {
    let weights = lines.lines().map(|line| {
        let (digest, bytes) = line.split_once(',')?;
        Some(ReadWeights {
            digest: digest.parse().ok()?,
            bytes: bytes.parse().ok()?,
        })
    });
    weights.collect()
}

/// Reads the lines of the shim about operators.
fn parse(lines: &str) -> Option<([u64; 2], Vec<RecordedRun>)> {
    let mut parameters = None;
    let mut runs: Vec<RecordedRun> = Vec::new();
    for line in lines.lines() {
        let (name, cells) = line.split_once(',')?;
        let numbers: Result<Vec<u64>, _> = cells.split(',').map(str::parse).collect();
        match (name, &numbers.ok()?[..]) {
            ("parameters", &[count, bytes]) => parameters = Some([count, bytes]),
            ("batch", &[rows, activation_bytes]) => runs.push(RecordedRun {
                rows: u32::try_from(rows).ok()?,
                activation_bytes,
                operators: Vec::new(),
            }),
            (
                name,
                &[
                    operations,
                    parameter_bytes,
                    read_bytes,
                    written_bytes,
                    elements,
                ],
            ) => {
                runs.last_mut()?.operators.push(RecordedOperator {
                    name: name.to_owned(),
                    operations,
                    parameter_bytes,
                    read_bytes,
                    written_bytes,
                    elements,
                });
            }
            _ => return None,
        }
    }
    Some((parameters?, runs))
}
