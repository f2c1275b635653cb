//! Inputs from the command line: arrays and JSON.

use std::{path::Path, str::FromStr};

use anyhow::{Context as _, ensure};
use packhorse_cluster::Shape;
use packhorse_protocol::{Form, Limits, ModelMetadata, RequestMessage, Tensor, TensorMetadata};
use serde_json::{Value, json};

use crate::{
    files::{read_file, read_text},
    npy,
};

/// An argument of the form NAME=VALUE.
#[derive(Clone, Debug)]
pub struct NamedValue {
    /// The part before the `=`.
    pub name: String,
    /// The part after it.
    pub value: String,
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

/// Reads an input: an `.npy` file, a `.raw` file with the bytes of its rows, JSON, or a file with JSON (`.json`, or after `@`).
pub fn read_input(input: &NamedValue, metadata: &ModelMetadata) -> anyhow::Result<Tensor> {
    let NamedValue { name, value } = input;
    let is_file = |extension: &str| {
        Path::new(value)
            .extension()
            .is_some_and(|given| given == extension)
    };
    if is_file("npy") {
        let file = read_file(Path::new(value))?;
        return npy::read(name, &file).with_context(|| format!("input {name:?}: {value}"));
    }
    if is_file("raw") {
        let spec = declared(name, metadata)?;
        let file = read_file(Path::new(value))?;
        return raw(spec, file).with_context(|| format!("input {name:?}: {value}"));
    }
    let text = match value.strip_prefix('@') {
        Some(path) => read_text(Path::new(path))?,
        None if is_file("json") => read_text(Path::new(value))?,
        None => value.clone(),
    };
    let data: Value = serde_json::from_str(&text).with_context(|| {
        format!("input {name:?}: expected FILE.npy, FILE.raw, FILE.json, @FILE or JSON")
    })?;
    let spec = declared(name, metadata)?;
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

/// Returns the declaration of an input.
fn declared<'a>(name: &str, metadata: &'a ModelMetadata) -> anyhow::Result<&'a TensorMetadata> {
    let names = || {
        let names = metadata.inputs.iter().map(|input| input.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let spec = metadata.inputs.iter().find(|spec| spec.name == *name);
    spec.with_context(|| {
        format!(
            "input {name:?}: the model has no such input; its inputs are {}",
            names()
        )
    })
}

/// Returns a tensor of these bytes, in the declared shape. One dimension may vary; its size follows from the number of bytes.
fn raw(spec: &TensorMetadata, bytes: Vec<u8>) -> anyhow::Result<Tensor> {
    let width = spec.datatype.width();
    let width = width.context("a .raw file has no strings; save them as .npy")?;
    let varying = spec.shape.iter().filter(|dim| **dim < 0).count();
    ensure!(
        varying <= 1,
        "{varying} dimensions vary, so that the bytes do not tell the shape; save the array as .npy"
    );
    let fixed = spec.shape.iter().filter(|dim| **dim >= 0);
    let row = fixed.fold(width as u64, |product, dim| {
        product.saturating_mul(dim.unsigned_abs())
    });
    let length = bytes.len() as u64;
    ensure!(
        row > 0 && length > 0 && length.is_multiple_of(row) && (varying == 1 || length == row),
        "{length} bytes are not {} of {row} bytes",
        if varying == 1 {
            "a number of rows"
        } else {
            "an array"
        }
    );
    let size = (length / row).cast_signed();
    let dims = spec.shape.iter();
    let dims: Vec<i64> = dims.map(|dim| if *dim < 0 { size } else { *dim }).collect();
    let (name, shape) = (spec.name.clone(), Shape::new(&dims)?);
    Ok(Tensor::new(name, spec.datatype, shape, bytes.into())?)
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
    use packhorse_cluster::Datatype;

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
            raw_inputs: Vec::new(),
            classes: Vec::new(),
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
    fn raw_bytes_are_rows_of_the_declared_shape() {
        let spec = |shape: &[i64]| TensorMetadata {
            name: "x".to_owned(),
            datatype: Datatype::Fp32,
            shape: shape.to_vec(),
        };
        // Two rows of three numbers of four bytes.
        let tensor = raw(&spec(&[-1, 3]), vec![0; 24]).unwrap();
        assert_eq!(tensor.shape().dims(), [2, 3]);
        assert_eq!(raw(&spec(&[6]), vec![0; 24]).unwrap().shape().dims(), [6]);
        for (shape, bytes, expected) in [
            (
                &[-1, 3][..],
                25,
                "25 bytes are not a number of rows of 12 bytes",
            ),
            (&[3], 24, "24 bytes are not an array of 12 bytes"),
            (&[-1, 3], 0, "0 bytes"),
            (&[-1, -1], 24, "2 dimensions vary"),
        ] {
            let error = raw(&spec(shape), vec![0; bytes]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn errors_name_the_invalid_input() {
        for (datatype, value, expected) in [
            ("UINT8", "[256]", "256"),
            ("FP32", "[[1, 2], [3]]", "list"),
            (
                "FP32",
                "cat.jpg",
                "expected FILE.npy, FILE.raw, FILE.json, @FILE or JSON",
            ),
            ("FP32", "@no-such-file", "no-such-file"),
        ] {
            let error = format!("{:#}", input(datatype, value).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!("=1".parse::<NamedValue>().is_err() && "x".parse::<NamedValue>().is_err());
    }
}
