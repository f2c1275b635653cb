//! Inputs from the command line: arrays and JSON.

use std::{path::Path, str::FromStr};

use anyhow::Context as _;
use packhorse_protocol::{Form, Limits, ModelMetadata, RequestMessage, Tensor};
use serde_json::{Value, json};

use super::npy;
use crate::files::{read_file, read_text};

/// An argument of the form NAME=VALUE.
#[derive(Clone, Debug)]
pub(super) struct NamedValue {
    pub(super) name: String,
    pub(super) value: String,
}

impl FromStr for NamedValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("expected NAME=VALUE".to_owned()),
        }
    }
}

/// Reads an input: an `.npy` file, JSON, or a file with JSON.
pub(super) fn read_input(input: &NamedValue, metadata: &ModelMetadata) -> anyhow::Result<Tensor> {
    let NamedValue { name, value } = input;
    if Path::new(value)
        .extension()
        .is_some_and(|extension| extension == "npy")
    {
        let file = read_file(Path::new(value))?;
        return npy::read(name, &file).with_context(|| format!("input {name:?}: {value}"));
    }
    let text = match value.strip_prefix('@') {
        Some(path) => read_text(Path::new(path))?,
        None => value.clone(),
    };
    let data: Value = serde_json::from_str(&text)
        .with_context(|| format!("input {name:?}: expected FILE.npy, @FILE or JSON"))?;
    let names = || {
        metadata
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let spec = metadata.inputs.iter().find(|spec| spec.name == *name);
    let spec = spec.with_context(|| {
        format!(
            "input {name:?}: the model has no such input; its inputs are {}",
            names()
        )
    })?;
    // The protocol's parser checks the numbers.
    let request = json!({ "inputs": [{
        "name": name,
        "datatype": spec.datatype,
        "shape": shape_of(&data),
        "data": if data.is_array() { data } else { json!([data]) },
    }] });
    let request = RequestMessage::parse(
        request.to_string().into_bytes().into(),
        None,
        &Limits::default(),
    )?;
    let tensor = request
        .inputs
        .into_iter()
        .next()
        .expect("the request has one input");
    Ok(tensor.in_form(Form::Binary))
}

/// Returns the shape of nested lists, judged by the first element of each level.
fn shape_of(data: &Value) -> Vec<usize> {
    let mut shape = Vec::new();
    let mut level = Some(data);
    while let Some(Value::Array(list)) = level {
        shape.push(list.len());
        level = list.first();
    }
    shape
}

#[cfg(test)]
mod tests {
    use packhorse_protocol::TensorMetadata;

    use super::*;

    fn input(datatype: &str, value: &str) -> anyhow::Result<Tensor> {
        let spec = TensorMetadata {
            name: "x".to_owned(),
            datatype: datatype.parse().unwrap(),
            shape: vec![-1],
        };
        let metadata = ModelMetadata {
            name: "m".to_owned(),
            versions: Vec::new(),
            platform: String::new(),
            inputs: vec![spec],
            outputs: Vec::new(),
        };
        read_input(&format!("x={value}").parse().unwrap(), &metadata)
    }

    #[test]
    fn json_becomes_a_tensor_of_the_models_datatype() {
        let tensor = input("FP32", "[[1, 2.5, 3], [4, 5, 6]]").unwrap();
        assert_eq!(tensor.shape().dims(), [2, 3]);
        assert_eq!(
            tensor.values::<f32>().unwrap(),
            [1.0, 2.5, 3.0, 4.0, 5.0, 6.0]
        );
        let scalar = input("INT64", "7").unwrap();
        assert_eq!(
            (scalar.shape().rank(), scalar.values::<i64>().unwrap()),
            (0, vec![7])
        );
        assert_eq!(
            input("BYTES", r#"["ab", ""]"#)
                .unwrap()
                .byte_strings()
                .unwrap(),
            ["ab", ""]
        );
    }

    #[test]
    fn errors_name_the_invalid_input() {
        for (datatype, value, expected) in [
            ("UINT8", "[256]", "256"),
            ("FP32", "[[1, 2], [3]]", "list"),
            ("FP32", "cat.jpg", "expected FILE.npy, @FILE or JSON"),
            ("FP32", "@no-such-file", "no-such-file"),
        ] {
            let error = format!("{:#}", input(datatype, value).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!("=1".parse::<NamedValue>().is_err() && "x".parse::<NamedValue>().is_err());
    }
}
