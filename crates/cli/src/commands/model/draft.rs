//! A registration that is drafted from what a model's file tells, what its user says, and what its program has answered.

use std::{collections::BTreeSet, fmt};

use anyhow::{Context as _, bail, ensure};
use packhorse_api::local_worker::TriedOutput;
use packhorse_artifact::{Signature, Size, Tensor};
use packhorse_cluster::{Datatype, Dim, Program, TensorSpec, TypicalShapes};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::signature::GivenTensor;

/// The most rows of a batch where nobody says anything else.
pub(super) const DEFAULT_BATCH: u32 = 8;
/// What stands in a registration for what nobody knows.
pub(in crate::commands) const UNKNOWN: &str = "?";

/// A field of a registration that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Missing {
    /// The field, as in `inputs[0].datatype`.
    pub(in crate::commands) field: String,
    /// The reason, and what to say.
    pub(in crate::commands) reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

/// Joins what a file tells of its inputs and what its user says of them. A user's tensor belongs to that of its name, else to that of its place.
///
/// # Errors
/// If the two contradict each other.
pub(super) fn joined(
    side: &str,
    told: Option<&[Tensor]>,
    given: &[GivenTensor],
) -> anyhow::Result<Option<Vec<Tensor>>> {
    let Some(told) = told else {
        let tensors = given
            .iter()
            .map(|given| as_given(given, &Tensor::default()));
        let tensors: Vec<Tensor> = tensors.collect::<anyhow::Result<_>>()?;
        return Ok((!tensors.is_empty()).then_some(tensors));
    };
    let mut tensors = told.to_vec();
    for (place, given) in given.iter().enumerate() {
        let is_it = |tensor: &Tensor| tensor.name.as_deref() == Some(&given.name);
        let of_name = told.iter().position(is_it);
        // Names of the file that a user does not use give way to theirs.
        let index = of_name.or_else(|| (place < told.len()).then_some(place));
        let Some(index) = index else {
            let names: Vec<&str> = { told.iter() }
                .map(|tensor| tensor.name.as_deref().unwrap_or(UNKNOWN))
                .collect();
            bail!(
                "{side}: the program has {}: {}",
                told.len(),
                names.join(", ")
            );
        };
        tensors[index] =
            as_given(given, &told[index]).with_context(|| format!("{side}: {:?}", given.name))?;
    }
    Ok(Some(tensors))
}

/// Returns what a user says, which may be narrower than what the file tells, and has its limits.
fn as_given(given: &GivenTensor, told: &Tensor) -> anyhow::Result<Tensor> {
    if let Some(datatype) = told.datatype {
        ensure!(
            datatype == given.datatype,
            "it is {} in the file, not {}",
            datatype,
            given.datatype
        );
    }
    if let Some(shape) = &told.shape {
        ensure!(
            shape.len() == given.shape.len(),
            "it has {} dimensions in the file, not {}",
            shape.len(),
            given.shape.len()
        );
    }
    let known = |axis: usize| told.shape.as_ref().map(|shape| shape[axis]);
    let sizes = given.shape.iter().enumerate().map(|(axis, dim)| {
        Ok(match (dim, known(axis)) {
            (Dim::Any, Some(Size::Fixed(size))) => {
                bail!("the program takes {size} in dimension {axis} only")
            }
            (Dim::Fixed(dim), Some(Size::Fixed(size))) if *dim != size => {
                bail!("the program takes {size} in dimension {axis} only, not {dim}")
            }
            (Dim::Fixed(dim), _) => Size::Fixed(*dim),
            (Dim::Any, Some(varies @ Size::Varies { .. })) => varies,
            (Dim::Any, known) => Size::Varies {
                min: 1,
                max: None,
                example: match known {
                    Some(Size::Example(size)) => Some(size),
                    _ => None,
                },
            },
        })
    });
    Ok(Tensor {
        name: Some(given.name.clone()),
        datatype: Some(given.datatype),
        shape: Some(sizes.collect::<anyhow::Result<_>>()?),
        dim_names: told.dim_names.clone(),
    })
}

/// Returns the most rows that the inputs may have in a batch; `None` if their first dimensions are no batch.
pub(super) fn rows_limit(inputs: &[Tensor]) -> Option<u32> {
    let mut limit = Program::MAX_BATCH_SIZE;
    let mut examples = BTreeSet::new();
    for input in inputs {
        match input.shape.as_ref()?.first()? {
            Size::Fixed(_) => return None,
            Size::Example(size) => drop(examples.insert(*size)),
            Size::Varies { max, .. } => {
                let most = max.and_then(|max| u32::try_from(max).ok());
                limit = limit.min(most.unwrap_or(limit));
            }
        }
    }
    // Inputs whose examples have different first sizes have other first dimensions.
    (examples.len() <= 1).then_some(limit)
}

/// Returns true if the limit of a batch's rows is one of the program.
pub(super) fn has_declared_rows(inputs: &[Tensor]) -> bool {
    inputs.iter().any(|input| {
        let first = input.shape.as_ref().and_then(|shape| shape.first());
        matches!(first, Some(Size::Varies { max: Some(_), .. }))
    })
}

/// Returns the inputs of a registration, if all is known of them.
pub(super) fn input_specs(inputs: &[Tensor], batches: bool) -> Option<Vec<TensorSpec>> {
    let names = names(inputs, "input");
    let first = usize::from(batches);
    let told = |tensor: &Tensor| tensor.dim_names.iter().skip(first).flatten().count();
    // A single one has nothing to be equal to.
    let are_named = inputs.iter().map(told).sum::<usize>() > 1;
    let spec = |(tensor, name): (&Tensor, String)| {
        let shape = tensor.shape.as_ref()?;
        let dims = shape.iter().enumerate().map(|(axis, size)| match size {
            _ if axis < first => Dim::Any,
            Size::Fixed(size) | Size::Example(size) => Dim::Fixed(*size),
            Size::Varies { .. } => Dim::Any,
        });
        let of_varying = |choose: fn(&Size) -> Option<u64>| -> Option<Vec<Dim>> {
            let sizes = shape.iter().enumerate().map(|(axis, size)| {
                let chosen = choose(size).filter(|_| axis >= first);
                chosen.map_or(Dim::Any, Dim::Fixed)
            });
            let sizes: Vec<Dim> = sizes.collect();
            sizes.iter().any(|size| *size != Dim::Any).then_some(sizes)
        };
        Some(TensorSpec {
            name,
            datatype: tensor.datatype?,
            shape: dims.collect(),
            pad: None,
            max_shape: of_varying(|size| match size {
                Size::Varies { max, .. } => *max,
                _ => None,
            }),
            typical_shape: of_varying(|size| match size {
                Size::Varies { example, .. } => *example,
                _ => None,
            })
            .map(TypicalShapes::one),
            min_shape: of_varying(|size| match size {
                Size::Varies { min, .. } => Some(*min).filter(|min| *min > 1),
                _ => None,
            }),
            dim_names: (are_named && told(tensor) > 0).then(|| {
                let names = tensor.dim_names.iter().enumerate();
                let names = names.map(|(axis, name)| name.clone().filter(|_| axis >= first));
                names.collect()
            }),
            example: None,
        })
    };
    inputs.iter().zip(names).map(spec).collect()
}

/// Returns the outputs that a program has answered, under their names.
pub(super) fn output_specs(tried: &[TriedOutput], told: Option<&[Tensor]>) -> Vec<TensorSpec> {
    let told = told.filter(|told| told.len() == tried.len());
    let answered = tried.iter().map(|tried| Tensor {
        name: tried.name.clone(),
        ..Tensor::default()
    });
    let answered: Vec<Tensor> = answered.collect();
    let names = names(told.unwrap_or(&answered), "output");
    let specs = tried
        .iter()
        .zip(names)
        .map(|(tried, name)| TensorSpec::new(name, tried.datatype, tried.shape.clone()));
    specs.collect()
}

/// Returns the names of tensors. Those without one are called after their side, with their place where there are several.
pub(super) fn names(tensors: &[Tensor], side: &str) -> Vec<String> {
    let mut taken: BTreeSet<String> = { tensors.iter() }
        .filter_map(|tensor| tensor.name.clone())
        .collect();
    let name = |(i, tensor): (usize, &Tensor)| {
        if let Some(name) = &tensor.name {
            return name.clone();
        }
        let mut name = if tensors.len() == 1 {
            side.to_owned()
        } else {
            format!("{side}_{i}")
        };
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        name
    };
    tensors.iter().enumerate().map(name).collect()
}

/// Returns the inputs of a registration with [`UNKNOWN`] for what nobody knows, and what that is.
pub(super) fn marked(
    list: &'static str,
    tensors: &[Tensor],
    batches: bool,
) -> (Vec<Value>, Vec<Missing>) {
    let one = list.trim_end_matches('s');
    let mut missing = Vec::new();
    let first = usize::from(batches);
    let names = names(tensors, one);
    let mark = |(i, (tensor, name)): (usize, (&Tensor, String))| {
        let field = format!("{list}[{i}]");
        let miss = match (tensor.datatype, &tensor.shape) {
            (None, None) => Some((field, "tells neither its datatype nor its shape")),
            (None, Some(_)) => Some((field + ".datatype", "does not tell it")),
            (Some(_), None) => Some((field + ".shape", "does not tell it")),
            (Some(_), Some(_)) => None,
        };
        missing.extend(miss.map(|(field, what)| Missing {
            field,
            reason: format!("the file {what}: give --{one} '{}'", sketch(&name, tensor)),
        }));
        let shape = tensor.shape.as_ref().map(|shape| {
            let dims = shape.iter().enumerate().map(|(axis, size)| match size {
                _ if axis < first => json!(-1),
                Size::Fixed(size) | Size::Example(size) => json!(size),
                Size::Varies { .. } => json!(-1),
            });
            Value::Array(dims.collect())
        });
        json!({
            "name": name,
            "datatype": tensor.datatype.map_or(UNKNOWN, Datatype::as_str),
            "shape": shape.unwrap_or_else(|| json!(UNKNOWN)),
        })
    };
    let values = tensors.iter().zip(names).enumerate().map(mark).collect();
    (values, missing)
}

/// Returns a tensor as its flag takes it, with words for what is unknown.
pub(super) fn sketch(name: &str, tensor: &Tensor) -> String {
    let datatype = tensor.datatype.map_or("DATATYPE", Datatype::as_str);
    let sizes = tensor.shape.as_ref().map(|shape| {
        let sizes = shape.iter().map(|size| match size {
            Size::Fixed(size) | Size::Example(size) => size.to_string(),
            Size::Varies { .. } => "-1".to_owned(),
        });
        sizes.collect::<Vec<_>>().join(",")
    });
    format!(
        "{name}={datatype}[{}]",
        sizes.as_deref().unwrap_or("-1,SIZES")
    )
}

/// Returns what a user should know of sizes that are those of a trace's example.
pub(super) fn notes_of_examples(inputs: &[Tensor], batches: bool) -> Vec<String> {
    let first = usize::from(batches);
    let names = names(inputs, "input");
    let of_input = |(tensor, name): (&Tensor, String)| {
        let shape = tensor.shape.as_ref()?;
        let has_examples =
            { shape.iter().skip(first) }.any(|size| matches!(size, Size::Example(_)));
        // Images and tables have fixed sizes as a rule, texts have not.
        let is_text = tensor.datatype.is_some_and(|datatype| !datatype.is_float());
        if !has_examples || !is_text {
            return None;
        }
        let varying = shape.iter().map(|_| "-1").collect::<Vec<_>>().join(",");
        let datatype = tensor.datatype.map_or(UNKNOWN, Datatype::as_str);
        Some(format!(
            "{name} has the sizes with which the program was traced; where others are right, too: --input '{name}={datatype}[{varying}]'"
        ))
    };
    inputs.iter().zip(names).filter_map(of_input).collect()
}

/// Returns what is known of a signature on one line.
pub(super) fn told_text(signature: &Signature) -> String {
    let side = |tensors: &Option<Vec<Tensor>>| match tensors {
        Some(tensors) => tensors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        None => UNKNOWN.to_owned(),
    };
    format!(
        "{} -> {}",
        side(&signature.inputs),
        side(&signature.outputs)
    )
}

/// Returns the first field of a registration that is marked as unknown.
pub(in crate::commands) fn first_unknown(spec: &Map<String, Value>) -> Option<String> {
    spec.iter().find_map(|(field, value)| match value {
        Value::String(text) if text == UNKNOWN => Some(field.clone()),
        Value::Array(tensors) => tensors.iter().enumerate().find_map(|(i, tensor)| {
            let fields = tensor.as_object()?;
            let (part, _) = fields.iter().find(|(_, value)| *value == UNKNOWN)?;
            Some(format!("{field}[{i}].{part}"))
        }),
        _ => None,
    })
}

/// The fields of a registration in the order of its text.
const FIELDS: [&str; 7] = [
    "name",
    "max_batch_size",
    "slo_ms",
    "inputs",
    "outputs",
    "preprocess",
    "postprocess",
];
/// The fields of a tensor in the order of its text.
const TENSOR_FIELDS: [&str; 9] = [
    "name",
    "datatype",
    "shape",
    "pad",
    "max_shape",
    "min_shape",
    "dim_names",
    "typical_shape",
    "example",
];

/// Returns a registration as text, with a line for each field and each tensor.
pub(super) fn text_of(spec: &Map<String, Value>) -> String {
    let fields = ordered(spec, &FIELDS).map(|(field, value)| {
        let value = match value {
            Value::Array(tensors) => {
                let lines = tensors.iter().map(|tensor| match tensor {
                    Value::Object(tensor) => {
                        let fields = ordered(tensor, &TENSOR_FIELDS);
                        let fields =
                            fields.map(|(field, value)| format!("\"{field}\": {}", line_of(value)));
                        format!("    {{{}}}", fields.collect::<Vec<_>>().join(", "))
                    }
                    other => format!("    {other}"),
                });
                format!("[\n{}\n  ]", lines.collect::<Vec<_>>().join(",\n"))
            }
            other => other.to_string(),
        };
        format!("  \"{field}\": {value}")
    });
    format!("{{\n{}\n}}\n", fields.collect::<Vec<_>>().join(",\n"))
}

/// Returns the fields of an object, those with an order first.
fn ordered<'a>(
    object: &'a Map<String, Value>,
    order: &'a [&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let first = order
        .iter()
        .filter_map(|field| object.get_key_value(*field));
    let others = object
        .iter()
        .filter(|(field, _)| !order.contains(&field.as_str()));
    first.chain(others)
}

/// Returns a value with spaces between the elements of a list.
fn line_of(value: &Value) -> String {
    match value {
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(line_of).collect();
            format!("[{}]", elements.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: Option<&str>, datatype: Option<Datatype>, shape: Option<&[Size]>) -> Tensor {
        Tensor {
            name: name.map(str::to_owned),
            datatype,
            shape: shape.map(<[Size]>::to_vec),
            ..Tensor::default()
        }
    }

    fn given(text: &str) -> GivenTensor {
        text.parse().unwrap()
    }

    const VARIES: Size = Size::Varies {
        min: 1,
        max: Some(64),
        example: Some(16),
    };

    #[test]
    fn what_a_user_says_joins_what_the_file_tells_by_name_else_by_place() {
        let told = [
            tensor(
                Some("ids"),
                Some(Datatype::Int64),
                Some(&[Size::Example(2), Size::Example(16)]),
            ),
            tensor(Some("mask"), None, None),
        ];
        let joined = joined(
            "inputs",
            Some(&told),
            &[given("mask=BOOL[-1]"), given("ids=INT64[-1,-1]")],
        );
        let tensors = joined.unwrap().unwrap();
        assert_eq!(tensors[1].datatype, Some(Datatype::Bool));
        let example = |example| Size::Varies {
            min: 1,
            max: None,
            example: Some(example),
        };
        assert_eq!(tensors[0].shape, Some(vec![example(2), example(16)]));
        let renamed = super::joined("inputs", Some(&told[..1]), &[given("tokens=INT64[-1,16]")]);
        assert_eq!(renamed.unwrap().unwrap()[0].name.as_deref(), Some("tokens"));
    }

    #[test]
    fn a_contradiction_with_the_file_names_both() {
        let told = [tensor(
            Some("x"),
            Some(Datatype::Fp32),
            Some(&[VARIES, Size::Fixed(3)]),
        )];
        for (text, problem) in [
            (
                "x=INT64[-1,3]",
                "inputs: \"x\": it is FP32 in the file, not INT64",
            ),
            (
                "x=FP32[-1]",
                "inputs: \"x\": it has 2 dimensions in the file, not 1",
            ),
            (
                "x=FP32[-1,-1]",
                "inputs: \"x\": the program takes 3 in dimension 1 only",
            ),
            (
                "x=FP32[-1,4]",
                "inputs: \"x\": the program takes 3 in dimension 1 only, not 4",
            ),
        ] {
            let error = joined("inputs", Some(&told), &[given(text)]).unwrap_err();
            assert_eq!(format!("{error:#}"), problem);
        }
        let two = [given("x=FP32[-1,3]"), given("y=FP32[1]")];
        let error = joined("inputs", Some(&told), &two).unwrap_err();
        assert_eq!(error.to_string(), "inputs: the program has 1: x");
    }

    #[test]
    fn first_dimensions_are_a_batch_unless_they_are_fixed_or_differ() {
        let with = |sizes: &[Size]| {
            let inputs: Vec<Tensor> = sizes
                .iter()
                .map(|s| tensor(None, None, Some(&[*s])))
                .collect();
            rows_limit(&inputs)
        };
        assert_eq!(with(&[VARIES, Size::Example(2)]), Some(64));
        assert_eq!(with(&[Size::Example(2), Size::Example(2)]), Some(4096));
        assert_eq!(with(&[Size::Example(2), Size::Example(3)]), None);
        assert_eq!(with(&[VARIES, Size::Fixed(2)]), None);
        assert_eq!(rows_limit(&[tensor(None, None, Some(&[]))]), None);
        assert_eq!(rows_limit(&[tensor(None, None, None)]), None);
    }

    #[test]
    fn limits_and_usual_sizes_are_those_of_dimensions_that_vary_beside_the_batch() {
        let told = [tensor(
            None,
            Some(Datatype::Int64),
            Some(&[VARIES, VARIES, Size::Example(3)]),
        )];
        let spec = input_specs(&told, true).unwrap().remove(0);
        assert_eq!(
            serde_json::to_value(spec).unwrap(),
            json!({"name": "input", "datatype": "INT64", "shape": [-1, -1, 3], "max_shape": [-1, 64, -1], "typical_shape": [-1, 16, -1]})
        );
        let spec = input_specs(&told[..1], false).unwrap().remove(0);
        assert_eq!(
            spec.max_shape,
            Some(vec![Dim::Fixed(64), Dim::Fixed(64), Dim::Any])
        );
    }

    #[test]
    fn dimensions_that_share_a_size_are_named_and_small_ones_refused() {
        let two = Size::Varies {
            min: 2,
            max: None,
            example: None,
        };
        let named = |name: &str| Tensor {
            name: Some(name.to_owned()),
            datatype: Some(Datatype::Fp32),
            shape: Some(vec![VARIES, two]),
            dim_names: vec![Some("a_0".to_owned()), Some("a_1".to_owned())],
        };
        let specs = input_specs(&[named("a"), named("b")], true).unwrap();
        assert_eq!(
            serde_json::to_value(&specs[1]).unwrap(),
            json!({"name": "b", "datatype": "FP32", "shape": [-1, -1], "min_shape": [-1, 2], "dim_names": [null, "a_1"]})
        );
        // One alone has nothing to be equal to.
        assert_eq!(input_specs(&[named("a")], true).unwrap()[0].dim_names, None);
    }

    #[test]
    fn what_nobody_knows_is_marked_and_named_with_its_flag() {
        let told = [
            tensor(Some("x"), None, None),
            tensor(None, Some(Datatype::Fp32), None),
        ];
        let (values, missing) = marked("inputs", &told, true);
        assert_eq!(
            values[0],
            json!({"name": "x", "datatype": "?", "shape": "?"})
        );
        let texts: Vec<String> = missing.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "inputs[0]: the file tells neither its datatype nor its shape: give --input 'x=DATATYPE[-1,SIZES]'",
                "inputs[1].shape: the file does not tell it: give --input 'input_1=FP32[-1,SIZES]'",
            ]
        );
        let spec = json!({"name": "m", "inputs": values});
        assert_eq!(
            first_unknown(spec.as_object().unwrap()).as_deref(),
            Some("inputs[0].datatype")
        );
        let spec = json!({"name": "m", "slo_ms": "?"});
        assert_eq!(
            first_unknown(spec.as_object().unwrap()).as_deref(),
            Some("slo_ms")
        );
    }

    #[test]
    fn a_registration_has_a_line_for_each_field_and_tensor() {
        let spec = json!({"slo_ms": 50, "inputs": [{"shape": [-1, 3], "name": "x", "datatype": "FP32"}], "name": "m"});
        assert_eq!(
            text_of(spec.as_object().unwrap()),
            "{\n  \"name\": \"m\",\n  \"slo_ms\": 50,\n  \"inputs\": [\n    {\"name\": \"x\", \"datatype\": \"FP32\", \"shape\": [-1, 3]}\n  ]\n}\n"
        );
    }
}
