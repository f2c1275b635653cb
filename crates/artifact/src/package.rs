//! The signature of an `AOTInductor` package: how it is called, and the checks of its inputs in the source text beside its code; and the machine
//! that it was compiled for.

use std::{
    collections::BTreeMap,
    io::{Read, Seek},
};

use packhorse_cluster::Datatype;
use serde_json::Value;

use crate::{
    archive::{Archive, ArchiveError},
    call_spec::{names_of_arguments, names_of_results},
    read_sizes::ReadSizes,
    signature::{Signature, Size, Tensor},
};

/// The folder of a package with a folder for each of its programs.
pub(crate) const PROGRAMS: &str = "data/aotinductor/";
/// The largest source text that is read, in bytes: that of a large model has some.
const MAX_SOURCE: u64 = 64 << 20;
/// The largest file of metadata that is read, in bytes.
const MAX_METADATA: u64 = 4 << 20;
/// The key of the metadata under which `packhorse.export` puts the registration.
const REGISTRATION: &str = "packhorse";

/// The machine that a package was compiled for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The kind of device: `cpu` or `cuda`.
    pub device: Option<String>,
    /// The architecture of the CPU, such as `x86_64`.
    pub machine: Option<String>,
    /// The instruction sets of the CPU, such as `AVX512 AVX512_VNNI`.
    pub cpu_isa: Option<String>,
    /// The compute capability of the GPU, such as `90`.
    pub compute_capability: Option<String>,
}

/// A program of a package.
pub(crate) struct Package {
    pub(crate) signature: Signature,
    pub(crate) target: Target,
    /// The registration that its maker put into it.
    pub(crate) registration: Option<String>,
}

/// Reads the package whose members are in this folder of an archive: its program `model`, or that of the most rows.
pub(crate) fn read(
    archive: &mut Archive<impl Read + Seek>,
    folder: &str,
) -> Result<Package, ArchiveError> {
    let programs = format!("{folder}/{PROGRAMS}");
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in archive.names() {
        let inside = member
            .strip_prefix(&programs)
            .and_then(|m| m.split_once('/'));
        if let Some((program, _)) = inside {
            by_name.entry(program).or_default().push(member);
        }
    }
    let of_rows = by_name.keys().filter_map(|name| rows_of(name)).max();
    let members = match of_rows {
        _ if by_name.contains_key("model") => by_name.remove("model"),
        Some(rows) => by_name.remove(&*format!("rows-{rows}")),
        None => by_name.into_values().next(),
    };
    let members = members.unwrap_or_default();
    let only = |end: &str| {
        let mut with_end = members.iter().filter(|member| member.ends_with(end));
        let found = with_end.next().filter(|_| with_end.next().is_none());
        found.map(|member| (*member).to_owned())
    };
    let (source, metadata) = (only(".wrapper.cpp"), only(".wrapper_metadata.json"));
    let metadata = match metadata {
        Some(member) => serde_json::from_slice(&archive.read(&member, MAX_METADATA)?).ok(),
        None => None,
    };
    let mut signature = match source {
        Some(member) => {
            let source = archive.read(&member, MAX_SOURCE)?;
            signature_of(&String::from_utf8_lossy(&source))
        }
        None => Signature::default(),
    };
    if let Some(rows) = of_rows {
        vary_rows(&mut signature, rows);
    }
    let metadata = metadata.unwrap_or(Value::Null);
    let text = |key: &str| {
        let text = metadata.get(key)?.as_str()?;
        let is_shown = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
        is_shown.then(|| text.to_owned())
    };
    Ok(Package {
        target: Target {
            device: text("AOTI_DEVICE_KEY"),
            machine: text("AOTI_MACHINE"),
            cpu_isa: text("AOTI_CPU_ISA"),
            compute_capability: text("AOTI_COMPUTE_CAPABILITY"),
        },
        registration: { metadata.get(REGISTRATION).and_then(Value::as_str) }.map(str::to_owned),
        signature,
    })
}

/// Returns the rows of a program of one of several sizes.
fn rows_of(name: &str) -> Option<u64> {
    name.strip_prefix("rows-")?.parse().ok()
}

/// Has the first dimension vary up to a number of rows, for which, and for fewer, there is a program each.
fn vary_rows(signature: &mut Signature, rows: u64) {
    let tensors = [&mut signature.inputs, &mut signature.outputs];
    for tensor in tensors.into_iter().flatten().flatten() {
        if let Some(first @ Size::Fixed(_)) = tensor.shape.as_mut().and_then(|s| s.first_mut())
            && *first == Size::Fixed(rows)
        {
            *first = Size::Varies {
                min: 1,
                max: Some(rows),
                example: None,
            };
        }
    }
}

/// Reads the source text around the code of a program.
fn signature_of(source: &str) -> Signature {
    let mut checks = Checks::default();
    let mut sizes = ReadSizes::default();
    let (mut arguments, mut results) = (None, None);
    let mut outputs = 0;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if let Some(text) = raw_text(line, "in_spec_") {
            arguments = names_of_arguments(text);
        } else if let Some(text) = raw_text(line, "out_spec_") {
            results = names_of_results(text);
        } else if let Some(index) = index_of(line, "inputs_info_[") {
            checks.input(index);
        } else if index_of(line, "outputs_info_[").is_some() {
            outputs += 1;
        } else if let Some(check) = Check::begin(line) {
            let limit = lines.next().unwrap_or_default();
            checks.add(&check, limit);
        } else {
            sizes.line(line);
        }
    }
    let mut inputs = checks.tensors();
    if let (Some(inputs), Some(names)) = (&mut inputs, arguments)
        && inputs.len() == names.len()
    {
        for (input, name) in inputs.iter_mut().zip(names) {
            input.name = name;
        }
    }
    if let Some(inputs) = &mut inputs {
        sizes.name_dims(inputs);
    }
    let results = results.filter(|names| names.len() == outputs);
    let unnamed = || (0..outputs).map(|_| None).collect();
    let names: Vec<Option<String>> = results.unwrap_or_else(unnamed);
    let tensor = |name| Tensor {
        name,
        ..Tensor::default()
    };
    let is_known = outputs > 0 && outputs <= Signature::MAX_TENSORS;
    Signature {
        inputs,
        outputs: is_known.then(|| names.into_iter().map(tensor).collect()),
    }
}

/// Returns the raw text that is assigned to a variable.
fn raw_text<'a>(line: &'a str, variable: &str) -> Option<&'a str> {
    let text = line.strip_prefix(variable)?.trim_start();
    let text = text.strip_prefix("= R\"(")?;
    text.strip_suffix(")\";")
}

/// Returns the number behind these words.
fn index_of(line: &str, words: &str) -> Option<usize> {
    number(line.split_once(words)?.1)
}

/// Returns the number at the beginning of a text.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

/// A message of a check, which the next line ends with the limit.
#[derive(Debug)]
struct Check<'a> {
    input: usize,
    what: &'a str,
}

impl<'a> Check<'a> {
    fn begin(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once("<< \"input_handles[")?;
        let (index, what) = rest.split_once("]: ")?;
        Some(Self {
            input: index.parse().ok()?,
            what,
        })
    }
}

/// What the checks say of the inputs.
#[derive(Debug, Default)]
struct Checks {
    inputs: Vec<Option<Input>>,
}

#[derive(Clone, Debug, Default)]
struct Input {
    datatype: Option<Datatype>,
    sizes: BTreeMap<usize, Range>,
}

/// The sizes of a dimension.
#[derive(Clone, Copy, Debug)]
struct Range {
    min: u64,
    max: Option<u64>,
}

impl Checks {
    /// Returns what is known of an input, unless there are too many.
    fn input(&mut self, index: usize) -> Option<&mut Input> {
        if index >= Signature::MAX_TENSORS {
            return None;
        }
        if self.inputs.len() <= index {
            self.inputs.resize(index + 1, None);
        }
        Some(self.inputs[index].get_or_insert_default())
    }

    fn add(&mut self, check: &Check<'_>, limit: &str) {
        let Some(input) = self.input(check.input) else {
            return;
        };
        if check.what.starts_with("unmatched dtype") {
            input.datatype = limit.split_once("(at::").and_then(|(_, rest)| {
                let (name, _) = rest.split_once(')')?;
                datatype_of(name)
            });
            return;
        }
        let Some(axis) = axis(check.what).filter(|axis| *axis < Signature::MAX_RANK) else {
            return;
        };
        let range = input
            .sizes
            .entry(axis)
            .or_insert(Range { min: 1, max: None });
        let limit_behind = |words: &str| number(limit.split_once(words)?.1);
        if check.what.starts_with("unmatched dim value") {
            if let Some(size) = limit_behind("expected: ") {
                *range = Range {
                    min: size,
                    max: Some(size),
                };
            }
        } else if check.what.starts_with("dim value is too large")
            && let Some(max) = limit_behind("<= ")
        {
            // Beyond it the bound is PyTorch's own.
            range.max = (max < u64::from(u32::MAX)).then_some(max);
        } else if check.what.starts_with("dim value is too small")
            && let Some(min) = limit_behind(">= ")
        {
            range.min = min;
        }
    }

    fn tensors(self) -> Option<Vec<Tensor>> {
        if self.inputs.is_empty() {
            return None;
        }
        let tensor = |input: Option<Input>| {
            let Input { datatype, sizes } = input?;
            let rank = sizes.last_key_value().map_or(0, |(axis, _)| axis + 1);
            let size = |axis| match sizes.get(&axis) {
                Some(range) if Some(range.min) == range.max => Size::Fixed(range.min),
                range => Size::Varies {
                    min: range.map_or(1, |range| range.min),
                    max: range.and_then(|range| range.max),
                    example: None,
                },
            };
            // Without the check of its datatype there is none of its sizes.
            let shape = datatype.map(|_| (0..rank).map(size).collect());
            Some(Tensor {
                datatype,
                shape,
                ..Tensor::default()
            })
        };
        self.inputs.into_iter().map(tensor).collect()
    }
}

/// Returns the dimension that a check is about.
fn axis(what: &str) -> Option<usize> {
    number(what.split_once(" at ")?.1)
}

fn datatype_of(name: &str) -> Option<Datatype> {
    Some(match name {
        "kBool" => Datatype::Bool,
        "kByte" => Datatype::Uint8,
        "kUInt16" => Datatype::Uint16,
        "kUInt32" => Datatype::Uint32,
        "kUInt64" => Datatype::Uint64,
        "kChar" => Datatype::Int8,
        "kShort" => Datatype::Int16,
        "kInt" => Datatype::Int32,
        "kLong" => Datatype::Int64,
        "kHalf" => Datatype::Fp16,
        "kBFloat16" => Datatype::Bf16,
        "kFloat" => Datatype::Fp32,
        "kDouble" => Datatype::Fp64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
    inputs_info_[0].name = "arg1_1";
    inputs_info_[1].name = "arg2_1";
    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[\"mask\"]", "children_spec": [{"type": null, "context": null, "children_spec": []}]}]}])";
    out_spec_ = R"([1, {"type": null, "context": null, "children_spec": []}])";
    outputs_info_[0].name = "output0";
        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg1_1_expected_dtype << "(at::kLong), "
    if (arg1_1_size[0] < 2) {
        ss << "input_handles[0]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 8, " << "but got: "
        ss << "input_handles[0]: unmatched dim value at 2, "
           << "expected: 16, " << "but got: " << arg1_1_size[2]
        ss << "input_handles[0]: unmatched stride value at 2, "
           << "expected: 1, " << "but got: " << arg1_1_stride[2]
        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << arg2_1_expected_dtype << "(at::kBFloat16), "
"#;

    #[test]
    fn checks_and_the_call_are_the_signature() {
        let signature = signature_of(SOURCE);
        let inputs = signature.inputs.unwrap();
        let varies = |min, max| Size::Varies {
            min,
            max,
            example: None,
        };
        assert_eq!(
            inputs[0],
            Tensor {
                datatype: Some(Datatype::Int64),
                shape: Some(vec![varies(2, Some(8)), varies(1, None), Size::Fixed(16)]),
                ..Tensor::default()
            }
        );
        assert_eq!(
            inputs[1],
            Tensor {
                name: Some("mask".to_owned()),
                datatype: Some(Datatype::Bf16),
                shape: Some(Vec::new()),
                ..Tensor::default()
            }
        );
        assert_eq!(signature.outputs, Some(vec![Tensor::default()]));
    }

    #[test]
    fn absurd_numbers_and_cut_texts_are_no_panic_and_take_no_memory() {
        for (end, _) in SOURCE.char_indices() {
            signature_of(&SOURCE[..end]);
        }
        let text = "inputs_info_[99999999999999999999].x\ninputs_info_[4000000000].x\n\
            ss << \"input_handles[5000000]: unmatched dtype, \"\n(at::kLong)\n\
            ss << \"input_handles[0]: unmatched dim value at 900000000, \"\n<< \"expected: 3, \"\n\
            ss << \"input_handles[0]: dim value is too large at 0, \"\n<< \"<= 99999999999999999999999, \"\n";
        let inputs = signature_of(text).inputs.unwrap();
        assert_eq!(inputs.len(), 1);
        assert_eq!(inputs[0].shape, None);
    }

    #[test]
    fn programs_of_several_sizes_vary_in_their_rows() {
        let mut signature = Signature {
            inputs: Some(vec![Tensor {
                shape: Some(vec![Size::Fixed(8), Size::Fixed(8)]),
                ..Tensor::default()
            }]),
            outputs: None,
        };
        vary_rows(&mut signature, 8);
        let shape = signature.inputs.unwrap().remove(0).shape.unwrap();
        assert!(matches!(shape[0], Size::Varies { max: Some(8), .. }));
        assert_eq!(shape[1], Size::Fixed(8));
    }
}
