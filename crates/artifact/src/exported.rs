//! The signature of a program of `torch.export.save`, which is in its `models/model.json`.

use std::{
    collections::BTreeMap,
    io::{Read, Seek},
};

use packhorse_cluster::Datatype;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    archive::{Archive, ArchiveError},
    call_spec::names_of_results,
    signature::{Signature, Size, Tensor},
};

/// The largest description of a program that is read, in bytes.
const MAX_MODEL: u64 = 64 << 20;

/// The description of a program, without its operators.
#[derive(Deserialize)]
struct Program {
    graph_module: GraphModule,
    #[serde(default)]
    range_constraints: BTreeMap<String, Range>,
}

#[derive(Deserialize)]
struct GraphModule {
    graph: Graph,
    signature: GraphSignature,
    #[serde(default)]
    module_call_graph: Vec<Call>,
}

#[derive(Deserialize)]
struct Graph {
    tensor_values: BTreeMap<String, TensorValue>,
}

#[derive(Deserialize)]
struct TensorValue {
    dtype: u32,
    sizes: Vec<SizeValue>,
}

#[derive(Deserialize)]
struct SizeValue {
    as_int: Option<i64>,
    as_expr: Option<Expression>,
}

#[derive(Deserialize)]
struct Expression {
    expr_str: String,
    hint: Option<Hint>,
}

#[derive(Deserialize)]
struct Hint {
    as_int: Option<i64>,
}

#[derive(Deserialize)]
struct GraphSignature {
    input_specs: Vec<BTreeMap<String, Spec>>,
    output_specs: Vec<BTreeMap<String, Spec>>,
}

#[derive(Deserialize)]
struct Spec {
    arg: Option<Argument>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Argument {
    Tensor { as_tensor: Name },
    Other(IgnoredAny),
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
struct Call {
    fqn: String,
    signature: Option<CallSignature>,
}

#[derive(Deserialize)]
struct CallSignature {
    out_spec: String,
}

#[derive(Clone, Copy, Deserialize)]
struct Range {
    min_val: Option<i64>,
    max_val: Option<i64>,
}

/// Reads the exported program whose members are in this folder of an archive. A description in a newer format tells nothing.
pub(crate) fn read(
    archive: &mut Archive<impl Read + Seek>,
    folder: &str,
) -> Result<Signature, ArchiveError> {
    let member = format!("{folder}/models/model.json");
    if !archive.contains(&member) {
        return Ok(Signature::default());
    }
    let text = archive.read(&member, MAX_MODEL)?;
    Ok(signature_of(&text).unwrap_or_default())
}

fn signature_of(text: &[u8]) -> Option<Signature> {
    let program: Program = serde_json::from_slice(text).ok()?;
    let module = &program.graph_module;
    let values = &module.graph.tensor_values;
    let tensors = |specs: &[BTreeMap<String, Spec>], kind: &str| {
        let users = specs.iter().filter_map(|spec| spec.get(kind));
        let tensor = |spec: &Spec| match &spec.arg {
            Some(Argument::Tensor {
                as_tensor: Name { name },
            }) => {
                let value = values.get(name)?;
                let sizes = value.sizes.iter();
                let shape = sizes.map(|size| size_of(size, &program.range_constraints));
                Some(Tensor {
                    name: Some(name.clone()),
                    datatype: datatype_of(value.dtype),
                    shape: Some(shape.take(Signature::MAX_RANK).collect()),
                    ..Tensor::default()
                })
            }
            _ => None,
        };
        let found: Option<Vec<Tensor>> = users.take(Signature::MAX_TENSORS).map(tensor).collect();
        found.filter(|tensors| !tensors.is_empty())
    };
    let mut outputs = tensors(&module.signature.output_specs, "user_output");
    let whole = module.module_call_graph.iter().find(|c| c.fqn.is_empty());
    let names = whole.and_then(|call| names_of_results(&call.signature.as_ref()?.out_spec));
    if let Some(outputs) = &mut outputs {
        let names = names.filter(|names| names.len() == outputs.len());
        // The names of operators are none of outputs.
        for (i, output) in outputs.iter_mut().enumerate() {
            output.name = names.as_ref().and_then(|names| names[i].clone());
        }
    }
    Some(Signature {
        inputs: tensors(&module.signature.input_specs, "user_input"),
        outputs,
    })
}

fn size_of(size: &SizeValue, ranges: &BTreeMap<String, Range>) -> Size {
    if let Some(size) = size.as_int.and_then(|size| u64::try_from(size).ok()) {
        return Size::Fixed(size);
    }
    let expression = size.as_expr.as_ref();
    let symbol = expression.and_then(|e| e.expr_str.strip_prefix("Symbol('"));
    let symbol = symbol.and_then(|text| text.split_once('\''));
    // What is computed of others has bounds that nobody writes down.
    let is_alone = symbol.is_some_and(|(_, rest)| rest.matches('(').count() == 0);
    let range = symbol
        .filter(|_| is_alone)
        .and_then(|(name, _)| ranges.get(name));
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let max = range.and_then(|range| number(range.max_val));
    Size::Varies {
        min: { range.and_then(|range| number(range.min_val)) }
            .map_or(1, |min| if min <= 2 { 1 } else { min }),
        max: max.filter(|max| *max < u64::from(u32::MAX)),
        example: number(expression.and_then(|e| e.hint.as_ref()?.as_int)),
    }
}

/// Returns the datatype of a number that `torch.export` writes.
fn datatype_of(number: u32) -> Option<Datatype> {
    Some(match number {
        1 => Datatype::Uint8,
        2 => Datatype::Int8,
        3 => Datatype::Int16,
        4 => Datatype::Int32,
        5 => Datatype::Int64,
        6 => Datatype::Fp16,
        7 => Datatype::Fp32,
        8 => Datatype::Fp64,
        12 => Datatype::Bool,
        13 => Datatype::Bf16,
        28 => Datatype::Uint16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"{"graph_module": {
        "graph": {"tensor_values": {
            "w": {"dtype": 7, "sizes": [{"as_int": 4}]},
            "ids": {"dtype": 5, "sizes": [
                {"as_expr": {"expr_str": "Symbol('s1', positive=True, integer=True)", "hint": {"as_int": 2}}}, {"as_int": 16}]},
            "mul": {"dtype": 13, "sizes": [
                {"as_expr": {"expr_str": "Mul(Integer(8), Symbol('s1', positive=True))", "hint": null}}]}}},
        "signature": {
            "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "e"}}, {"user_input": {"arg": {"as_tensor": {"name": "ids"}}}}],
            "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "mul"}}}}]},
        "module_call_graph": [{"fqn": "", "signature": {"out_spec":
            "[1, {\"type\": \"builtins.dict\", \"context\": \"[\\\"logits\\\"]\", \"children_spec\": [{\"type\": null, \"context\": null, \"children_spec\": []}]}]"}}]},
        "range_constraints": {"s1": {"min_val": 2, "max_val": 8}}}"#;

    #[test]
    fn inputs_and_outputs_have_the_names_of_the_call_and_the_ranges_of_the_program() {
        let signature = signature_of(MODEL.as_bytes()).unwrap();
        let varies = |max, example| Size::Varies {
            min: 1,
            max,
            example,
        };
        let tensor = |name: &str, datatype, shape| Tensor {
            name: Some(name.to_owned()),
            datatype: Some(datatype),
            shape: Some(shape),
            ..Tensor::default()
        };
        assert_eq!(
            signature.inputs,
            Some(vec![tensor(
                "ids",
                Datatype::Int64,
                vec![varies(Some(8), Some(2)), Size::Fixed(16)]
            )])
        );
        assert_eq!(
            signature.outputs,
            Some(vec![tensor(
                "logits",
                Datatype::Bf16,
                vec![varies(None, None)]
            )])
        );
    }

    #[test]
    fn another_format_tells_nothing() {
        assert_eq!(signature_of(b"{}"), None);
        assert_eq!(signature_of(b"["), None);
        let other = MODEL.replace("\"as_tensor\": {\"name\": \"ids\"}", "\"as_int\": 3");
        assert_eq!(signature_of(other.as_bytes()).unwrap().inputs, None);
    }
}
