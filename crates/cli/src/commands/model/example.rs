//! An example request, from which the inputs of a registration get their usual shapes and elements.

use anyhow::{Context as _, bail, ensure};
use packhorse_cluster::TensorSpec;
use serde_json::{Map, Value, json};

/// Enters what a request, the body of `POST /v2/models/NAME/infer`, says of the inputs into a registration. What the registration says itself stays.
/// Returns what people should know of it.
///
/// # Errors
/// If the request is none, is not one for this model, or has not all inputs with their data.
pub(super) fn add_example(
    spec: &mut Map<String, Value>,
    request: &Value,
) -> anyhow::Result<Vec<String>> {
    let batches = spec.get("max_batch_size").and_then(Value::as_u64) != Some(0);
    let given = { request.get("inputs").and_then(Value::as_array) }
        .context("inputs: expected a list, as in the body of an inference request")?;
    let inputs = { spec.get_mut("inputs").and_then(Value::as_array_mut) }
        .context("the specification has no inputs")?;
    let limit = (TensorSpec::MAX_EXAMPLES / inputs.len().max(1)).clamp(1, TensorSpec::MAX_EXAMPLE);
    let mut notes = Vec::new();
    for tensor in given {
        let name = tensor.get("name").unwrap_or(&Value::Null);
        let is_it = |other: &&Value| other.get("name") == Some(name);
        ensure!(
            inputs.iter().any(|input| is_it(&input)),
            "inputs: the specification has no input {name}"
        );
        ensure!(
            given.iter().filter(is_it).count() == 1,
            "inputs: {name} is given twice"
        );
    }
    for input in inputs.iter_mut().filter_map(Value::as_object_mut) {
        let name = input.get("name").cloned().unwrap_or_default();
        let Some(tensor) = given
            .iter()
            .find(|tensor| tensor.get("name") == Some(&name))
        else {
            bail!("inputs: the request has no input {name}");
        };
        let added = add_tensor(input, tensor, batches, limit);
        if let Some(note) = added.with_context(|| format!("input {name}"))? {
            notes.push(format!("input {name}: {note}"));
        }
    }
    Ok(notes)
}

/// Enters a tensor into an input. Returns what people should know of it.
fn add_tensor(
    input: &mut Map<String, Value>,
    tensor: &Value,
    batches: bool,
    limit: usize,
) -> anyhow::Result<Option<String>> {
    if let (Some(expected), Some(datatype)) = (input.get("datatype"), tensor.get("datatype")) {
        ensure!(
            datatype == expected,
            "datatype: expected {expected} as in the specification, not {datatype}"
        );
    }
    let dims = shape(tensor)?;
    let declared = input.get("shape").and_then(Value::as_array);
    let rank = declared.map_or(dims.len(), Vec::len);
    ensure!(
        dims.len() == rank,
        "shape: expected {rank} dimensions as in the specification, not {}",
        dims.len()
    );
    let first = usize::from(batches);
    let varies = declared.is_some_and(|dims| dims.iter().skip(first).any(|dim| *dim == json!(-1)));
    let mut elements = elements(tensor)?;
    let expected = dims
        .iter()
        .try_fold(1_u64, |all, dim| all.checked_mul(*dim));
    ensure!(
        expected == u64::try_from(elements.len()).ok(),
        "data: the shape {dims:?} has other than {} elements",
        elements.len()
    );
    let rows = if batches { dims.first() } else { None };
    let rows = rows.map_or(1, |rows| usize::try_from(*rows).unwrap_or(usize::MAX));
    let row = elements.len() / rows;
    let kept = if row <= limit {
        limit / row * row
    } else {
        limit
    };
    elements.truncate(kept);
    if varies && !input.contains_key("typical_shape") {
        let usual = dims.iter().enumerate();
        let usual: Vec<Value> = usual
            .map(|(axis, dim)| if axis < first { json!(-1) } else { json!(dim) })
            .collect();
        input.insert("typical_shape".to_owned(), usual.into());
    }
    if !input.contains_key("example") {
        input.insert("example".to_owned(), elements.into());
    }
    Ok((row > limit).then(|| {
        format!("a row has {row} elements, of which the example keeps the first {limit} and repeats them")
    }))
}

/// Returns the shape of a tensor, whose dimensions are at least 1.
fn shape(tensor: &Value) -> anyhow::Result<Vec<u64>> {
    const EXPECTED: &str = "shape: expected a list of sizes of at least 1";
    let dims = { tensor.get("shape").and_then(Value::as_array) }.context(EXPECTED)?;
    let sizes = dims.iter().map(|dim| dim.as_u64().filter(|size| *size > 0));
    sizes.collect::<Option<_>>().context(EXPECTED)
}

/// Returns the elements of a tensor.
fn elements(tensor: &Value) -> anyhow::Result<Vec<Value>> {
    let data = tensor.get("data").context(
        "data: expected the elements as JSON; data in a binary part of a request, or in shared memory, is not read",
    )?;
    let mut elements = Vec::new();
    flatten(data, &mut elements)?;
    Ok(elements)
}

/// Appends the numbers of a list, which may have lists in it, in their order.
fn flatten(data: &Value, elements: &mut Vec<Value>) -> anyhow::Result<()> {
    match data {
        Value::Array(list) => list.iter().try_for_each(|part| flatten(part, elements))?,
        Value::Number(_) => elements.push(data.clone()),
        Value::Bool(is_true) => elements.push(json!(u8::from(*is_true))),
        other => bail!("data: expected numbers, not {other}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_example(spec: Value, request: &Value) -> Result<(Value, Vec<String>), String> {
        let Value::Object(mut spec) = spec else {
            unreachable!("the tests give objects")
        };
        let notes = add_example(&mut spec, request).map_err(|e| format!("{e:#}"))?;
        Ok((spec.into(), notes))
    }

    #[test]
    fn shapes_and_elements_are_those_of_the_request() {
        let spec = json!({
            "max_batch_size": 8,
            "inputs": [
                {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
                {"name": "mask", "datatype": "BOOL", "shape": [-1, -1], "typical_shape": [-1, 9]},
                {"name": "image", "datatype": "FP32", "shape": [-1, 2]},
            ],
        });
        let request = json!({"inputs": [
            {"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [0.5, -1]},
            {"name": "mask", "datatype": "BOOL", "shape": [1, 3], "data": [true, false, true]},
            {"name": "ids", "datatype": "INT64", "shape": [2, 3], "data": [[101, 7, 102], [101, 8, 102]]},
        ]});
        let expected = json!([
            {"name": "ids", "datatype": "INT64", "shape": [-1, -1], "typical_shape": [-1, 3], "example": [101, 7, 102, 101, 8, 102]},
            {"name": "mask", "datatype": "BOOL", "shape": [-1, -1], "typical_shape": [-1, 9], "example": [1, 0, 1]},
            {"name": "image", "datatype": "FP32", "shape": [-1, 2], "example": [0.5, -1]},
        ]);
        let (spec, notes) = with_example(spec, &request).unwrap();
        assert_eq!((&spec["inputs"], &notes[..]), (&expected, &[][..]));
    }

    #[test]
    fn whole_rows_are_kept_and_of_a_longer_row_the_first_elements() {
        let with = |batch: u32, shape: &[usize]| {
            let elements: usize = shape.iter().product();
            let dims = vec![-1; shape.len()];
            let spec = json!({"max_batch_size": batch, "inputs": [{"name": "x", "datatype": "INT32", "shape": dims}]});
            let data: Vec<usize> = (0..elements).collect();
            let request = json!({"inputs": [{"name": "x", "datatype": "INT32", "shape": shape, "data": data}]});
            let (spec, notes) = with_example(spec, &request).unwrap();
            let input = &spec["inputs"][0];
            let kept = input["example"].as_array().unwrap().len();
            (kept, input["typical_shape"].clone(), notes.len())
        };
        assert_eq!(with(8, &[3, 1500]), (3000, json!([-1, 1500]), 0));
        assert_eq!(with(8, &[1, 5000]), (4096, json!([-1, 5000]), 1));
        assert_eq!(with(0, &[10_000]), (4096, json!([10_000]), 1));
    }

    #[test]
    fn a_request_that_is_none_is_refused_with_what_is_missing() {
        let spec = || json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]});
        for (request, problem) in [
            (
                json!([]),
                "inputs: expected a list, as in the body of an inference request",
            ),
            (
                json!({"inputs": []}),
                "inputs: the request has no input \"x\"",
            ),
            (
                json!({"inputs": [{"name": "x", "data": [1]}]}),
                "input \"x\": shape: expected a list of sizes of at least 1",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}),
                "input \"x\": data: expected the elements as JSON; data in a binary part of a request, or in shared memory, is not read",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [1, 2], "data": ["a"]}]}),
                "input \"x\": data: expected numbers, not \"a\"",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [1, 2], "data": [1, 2, 3]}]}),
                "input \"x\": data: the shape [1, 2] has other than 3 elements",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [2], "data": [1, 2]}]}),
                "input \"x\": shape: expected 2 dimensions as in the specification, not 1",
            ),
            (
                json!({"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}]}),
                "input \"x\": datatype: expected \"FP32\" as in the specification, not \"INT8\"",
            ),
            (
                json!({"inputs": [{"name": "x"}, {"name": "y"}]}),
                "inputs: the specification has no input \"y\"",
            ),
            (
                json!({"inputs": [{"name": "x"}, {"name": "x"}]}),
                "inputs: \"x\" is given twice",
            ),
        ] {
            assert_eq!(with_example(spec(), &request), Err(problem.to_owned()));
        }
    }
}
