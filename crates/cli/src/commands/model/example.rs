//! An example request, from which the inputs of a registration get their usual shapes and elements.

use anyhow::{Context as _, bail, ensure};
use packhorse_cluster::TensorSpec;
use serde_json::{Map, Value, json};

/// Enters what a request, the body of `POST /v2/models/NAME/infer`, says of the inputs into a registration. What the registration says itself stays.
///
/// # Errors
/// If the request is none, or has not all inputs with their data.
pub(super) fn add_example(spec: &mut Map<String, Value>, request: &Value) -> anyhow::Result<()> {
    let batches = spec.get("max_batch_size").and_then(Value::as_u64) != Some(0);
    let given = { request.get("inputs").and_then(Value::as_array) }
        .context("inputs: expected a list, as in the body of an inference request")?;
    let inputs = { spec.get_mut("inputs").and_then(Value::as_array_mut) }
        .context("the specification has no inputs")?;
    for input in inputs.iter_mut().filter_map(Value::as_object_mut) {
        let name = input.get("name").cloned().unwrap_or_default();
        let Some(tensor) = given
            .iter()
            .find(|tensor| tensor.get("name") == Some(&name))
        else {
            bail!("inputs: the request has no input {name}");
        };
        let at_input = || format!("input {name}");
        let shape = shape(tensor, batches).with_context(at_input)?;
        let varies = { input.get("shape").and_then(Value::as_array) }.is_some_and(|dims| {
            dims.iter()
                .skip(usize::from(batches))
                .any(|dim| *dim == json!(-1))
        });
        let elements = elements(tensor).with_context(at_input)?;
        if varies && !input.contains_key("typical_shape") {
            input.insert("typical_shape".to_owned(), shape);
        }
        if !input.contains_key("example") {
            input.insert("example".to_owned(), elements.into());
        }
    }
    Ok(())
}

/// Returns the shape of a tensor as a usual one, in which the batch dimension is -1.
fn shape(tensor: &Value, batches: bool) -> anyhow::Result<Value> {
    let shape =
        { tensor.get("shape").and_then(Value::as_array) }.context("shape: expected a list")?;
    let mut shape = shape.clone();
    if let Some(rows) = shape.first_mut().filter(|_| batches) {
        *rows = json!(-1);
    }
    Ok(shape.into())
}

/// Returns the first elements of a tensor, as many as an example may have.
fn elements(tensor: &Value) -> anyhow::Result<Vec<Value>> {
    let data = tensor.get("data").context(
        "data: expected the elements as JSON; data in a binary part of a request, or in shared memory, is not read",
    )?;
    let mut elements = Vec::new();
    flatten(data, &mut elements)?;
    ensure!(!elements.is_empty(), "data: expected at least one element");
    Ok(elements)
}

/// Appends the numbers of a list, which may have lists in it, in their order.
fn flatten(data: &Value, elements: &mut Vec<Value>) -> anyhow::Result<()> {
    if elements.len() >= TensorSpec::MAX_EXAMPLE {
        return Ok(());
    }
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

    fn with_example(spec: Value, request: &Value) -> Result<Value, String> {
        let Value::Object(mut spec) = spec else {
            unreachable!("the tests give objects")
        };
        add_example(&mut spec, request).map_err(|e| format!("{e:#}"))?;
        Ok(spec.into())
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
        assert_eq!(with_example(spec, &request).unwrap()["inputs"], expected);
    }

    #[test]
    fn a_long_tensor_gives_its_first_elements_and_no_batch_its_whole_shape() {
        let data: Vec<u32> = (0..10_000).collect();
        let spec = json!({"max_batch_size": 0, "inputs": [{"name": "x", "datatype": "INT32", "shape": [-1]}]});
        let request = json!({"inputs": [{"name": "x", "datatype": "INT32", "shape": [10_000], "data": data}]});
        let input = &with_example(spec, &request).unwrap()["inputs"][0];
        assert_eq!(
            input["example"].as_array().unwrap().len(),
            TensorSpec::MAX_EXAMPLE
        );
        assert_eq!(input["typical_shape"], json!([10_000]));
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
                "input \"x\": shape: expected a list",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}),
                "input \"x\": data: expected the elements as JSON; data in a binary part of a request, or in shared memory, is not read",
            ),
            (
                json!({"inputs": [{"name": "x", "shape": [1, 2], "data": ["a"]}]}),
                "input \"x\": data: expected numbers, not \"a\"",
            ),
        ] {
            assert_eq!(with_example(spec(), &request), Err(problem.to_owned()));
        }
    }
}
