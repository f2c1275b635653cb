//! The signature of TorchScript: the arguments and results of `forward` in its code, and the inputs of a trace.

use std::io::{Read, Seek};

use packhorse_cluster::Datatype;

use crate::{
    archive::{Archive, ArchiveError},
    pickle::{self, Id, Pickle, Value},
    signature::{Format, Signature, Size, Tensor},
};

/// The largest file of code that is read, in bytes.
const MAX_CODE: u64 = 64 << 20;
/// The bytes of the pickled module that are read for the name of its class.
const HEAD: u64 = 4096;
/// The rule that a program keeps to, which ends the description of what it does instead.
const RULE: &str = "a program takes a tensor for each declared input, and returns tensors, numbers, and tuples, lists and dicts of them: \
    wrap the module in one whose forward does, and trace or script that";
/// The depth of nested results up to which their number is read.
const MAX_DEPTH: u32 = 8;

/// A program of TorchScript.
pub(crate) struct Script {
    pub(crate) format: Format,
    pub(crate) signature: Signature,
    /// The reason why it cannot be served.
    pub(crate) obstacle: Option<String>,
}

/// Reads the TorchScript program whose members are in this folder of an archive.
pub(crate) fn read(
    archive: &mut Archive<impl Read + Seek>,
    folder: &str,
) -> Result<Script, ArchiveError> {
    let traced = format!("{folder}/traced_inputs.pkl");
    let is_traced = archive.contains(&traced);
    let mut script = Script {
        format: if is_traced {
            Format::Traced
        } else {
            Format::Scripted
        },
        signature: Signature::default(),
        obstacle: None,
    };
    let head = archive.read_head(&format!("{folder}/data.pkl"), HEAD)?;
    if let Some((member, class)) = class_of(&head) {
        let member = format!("{folder}/code/{member}");
        if archive.contains(&member) {
            let code = archive.read(&member, MAX_CODE)?;
            read_forward(&String::from_utf8_lossy(&code), &class, &mut script);
        }
    }
    if is_traced {
        let bytes = archive.read(&traced, pickle::MAX_BYTES)?;
        add_examples(&mut script.signature, traced_inputs(&bytes));
    }
    Ok(script)
}

/// Returns the file with the code of the pickled module's class, and the name of the class.
fn class_of(pickle: &[u8]) -> Option<(String, String)> {
    let global = pickle.get(2..)?.strip_prefix(b"c")?;
    let mut lines = global.split(|byte| *byte == b'\n');
    let (module, class) = (lines.next()?, lines.next()?);
    let module = str::from_utf8(module).ok()?;
    let class = str::from_utf8(class).ok()?;
    Some((format!("{}.py", module.replace('.', "/")), class.to_owned()))
}

/// Reads the arguments and the result of `forward` in the code of a class.
fn read_forward(code: &str, class: &str, script: &mut Script) {
    let Some((arguments, result)) = forward_of(code, class) else {
        return;
    };
    let mut inputs = Vec::new();
    // The first is the module itself.
    for argument in split(arguments).skip(1) {
        let (declaration, default) = match argument.split_once('=') {
            Some((declaration, _)) => (declaration, true),
            None => (argument, false),
        };
        let Some((name, kind)) = declaration.split_once(':') else {
            return;
        };
        let (name, kind) = (name.trim(), kind.trim());
        if kind != "Tensor" && default {
            // It keeps its default, and so do those that follow.
            break;
        }
        if is_no_tensor(kind) {
            script.obstacle = Some(format!(
                "the argument {name} of its forward is {kind}; {RULE}"
            ));
            return;
        }
        inputs.push(Tensor::named(name));
        if inputs.len() > Signature::MAX_TENSORS {
            return;
        }
    }
    script.signature.inputs = Some(inputs);
    let kind = result.trim();
    match outputs_of(kind, MAX_DEPTH) {
        Outputs::Obstacle => {
            script.obstacle = Some(format!("its forward returns {kind}; {RULE}"));
        }
        Outputs::Number(count) if count <= Signature::MAX_TENSORS => {
            script.signature.outputs = Some(vec![Tensor::default(); count]);
        }
        Outputs::Number(_) | Outputs::Unknown => {}
    }
}

/// The outputs of a program, by the type of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outputs {
    /// So many.
    Number(usize),
    /// The number of a list's elements, the keys of a dict, and what a class of the file has, show when it runs.
    Unknown,
    /// Something that cannot be an output is among them.
    Obstacle,
}

/// Returns the outputs of a result of this type.
fn outputs_of(kind: &str, depth: u32) -> Outputs {
    let within = |begin: &str| kind.strip_prefix(begin)?.strip_suffix(']');
    if depth == 0 {
        return Outputs::Unknown;
    }
    if let Some(elements) = within("Tuple[") {
        let elements = split(elements).map(|element| outputs_of(element.trim(), depth - 1));
        return elements.fold(Outputs::Number(0), |sum, next| match (sum, next) {
            (Outputs::Number(sum), Outputs::Number(next)) => {
                Outputs::Number(sum.saturating_add(next))
            }
            (Outputs::Obstacle, _) | (_, Outputs::Obstacle) => Outputs::Obstacle,
            _ => Outputs::Unknown,
        });
    }
    if let Some(element) = within("List[").or_else(|| within("Dict[str, ")) {
        return match outputs_of(element.trim(), depth - 1) {
            Outputs::Obstacle => Outputs::Obstacle,
            Outputs::Number(_) | Outputs::Unknown => Outputs::Unknown,
        };
    }
    match kind {
        "Tensor" | "int" | "float" | "bool" => Outputs::Number(1),
        // It may be a tensor.
        _ if kind.starts_with("Optional[") => Outputs::Number(1),
        _ if is_no_tensor(kind) => Outputs::Obstacle,
        _ => Outputs::Unknown,
    }
}

/// Returns true for a type of TorchScript whose values are no tensors. What is optional may be one.
fn is_no_tensor(kind: &str) -> bool {
    const PLAIN: [&str; 8] = [
        "int", "float", "bool", "str", "complex", "number", "NoneType", "Device",
    ];
    let is_container = ["Dict[", "List[", "Tuple["]
        .iter()
        .any(|begin| kind.starts_with(begin));
    is_container || PLAIN.contains(&kind)
}

/// Returns the arguments and the result in the definition of a class's `forward`.
fn forward_of<'a>(code: &'a str, class: &str) -> Option<(&'a str, &'a str)> {
    let begins = |line: &str| {
        let rest = line
            .strip_prefix("class ")
            .and_then(|l| l.strip_prefix(class));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    let mut at = 0;
    let mut body = None;
    for line in code.split_inclusive('\n') {
        at += line.len();
        if begins(line) {
            body = code.get(at..);
            break;
        }
    }
    let body = body?;
    let body = &body[..body.find("\nclass ").unwrap_or(body.len())];
    let (_, rest) = body.split_once("  def forward(")?;
    let (arguments, rest) = until_closed(rest)?;
    let (_, rest) = rest.split_once("->")?;
    let (result, _) = rest.split_once(":\n")?;
    Some((arguments, result))
}

/// Returns what is before the bracket that closes, and what is behind it.
fn until_closed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, c) in outside_strings(text) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return Some((&text[..at], &text[at + 1..])),
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns what commas separate, but for those within brackets and strings.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let mut commas = Vec::new();
    for (at, c) in outside_strings(text) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => commas.push(at),
            _ => {}
        }
    }
    let mut begin = 0;
    let parts = commas.into_iter().chain([text.len()]).map(move |end| {
        let part = &text[begin..end];
        begin = end + 1;
        part
    });
    parts.filter(|part| !part.trim().is_empty())
}

/// Returns the characters that are not within a string, with their places.
fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    let mut escaped = false;
    text.char_indices().filter(move |(_, c)| {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if *c == '\\' => escaped = true,
            Some(open) if *c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(*c),
            None => return true,
        }
        false
    })
}

/// Returns the tensors with which `forward` was traced.
fn traced_inputs(bytes: &[u8]) -> Option<Vec<Tensor>> {
    let pickle = Pickle::read(bytes).ok()?;
    let methods = untagged(&pickle, pickle.root());
    let Value::Dict(methods) = methods else {
        return None;
    };
    let forward = Value::Text("forward".to_owned());
    let (_, inputs) = { methods.iter() }.find(|(name, _)| *pickle.value(*name) == forward)?;
    let Value::List(inputs) = untagged(&pickle, pickle.value(*inputs)) else {
        return None;
    };
    if inputs.len() > Signature::MAX_TENSORS {
        return None;
    }
    inputs.iter().map(|input| tensor(&pickle, *input)).collect()
}

/// Returns what a tag with its type is around.
fn untagged<'a>(pickle: &'a Pickle, value: &'a Value) -> &'a Value {
    match pickle.call_of(value, "torch.jit._pickle restore_type_tag") {
        Some([inner, ..]) => pickle.value(*inner),
        _ => value,
    }
}

/// Returns the datatype and shape of a pickled tensor.
fn tensor(pickle: &Pickle, id: Id) -> Option<Tensor> {
    let arguments = pickle.call_of(pickle.value(id), "torch._utils _rebuild_tensor_v2")?;
    let [storage, _, sizes, ..] = arguments else {
        return None;
    };
    let Value::Persistent(storage) = pickle.value(*storage) else {
        return None;
    };
    let [_, class, ..] = pickle.list(*storage)? else {
        return None;
    };
    let datatype = match pickle.value(*class) {
        Value::Global(class) => datatype_of_storage(class),
        _ => None,
    };
    let sizes = pickle.list(*sizes)?;
    if sizes.len() > Signature::MAX_RANK {
        return None;
    }
    let sizes = sizes.iter().map(|size| {
        let size = u64::try_from(pickle.integer(*size)?).ok()?;
        Some(Size::Example(size))
    });
    Some(Tensor {
        datatype,
        shape: Some(sizes.collect::<Option<_>>()?),
        ..Tensor::default()
    })
}

fn datatype_of_storage(class: &str) -> Option<Datatype> {
    Some(match class.strip_prefix("torch ")? {
        "BoolStorage" => Datatype::Bool,
        "ByteStorage" => Datatype::Uint8,
        "CharStorage" => Datatype::Int8,
        "ShortStorage" => Datatype::Int16,
        "IntStorage" => Datatype::Int32,
        "LongStorage" => Datatype::Int64,
        "HalfStorage" => Datatype::Fp16,
        "BFloat16Storage" => Datatype::Bf16,
        "FloatStorage" => Datatype::Fp32,
        "DoubleStorage" => Datatype::Fp64,
        _ => return None,
    })
}

/// Gives inputs the datatypes and shapes of a trace, if it has as many.
fn add_examples(signature: &mut Signature, traced: Option<Vec<Tensor>>) {
    let Some(traced) = traced else {
        return;
    };
    match &mut signature.inputs {
        Some(inputs) if inputs.len() == traced.len() => {
            for (input, traced) in inputs.iter_mut().zip(traced) {
                (input.datatype, input.shape) = (traced.datatype, traced.shape);
            }
        }
        Some(_) => {}
        None => signature.inputs = Some(traced),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_code(code: &str) -> Script {
        let mut script = Script {
            format: Format::Scripted,
            signature: Signature::default(),
            obstacle: None,
        };
        read_forward(code, "Net", &mut script);
        script
    }

    #[test]
    fn the_arguments_of_the_class_itself_are_read_and_not_those_of_others() {
        let code = "class Other(Module):\n  def forward(self: A,\n    y: Tensor) -> Tensor:\n    return y\n\
            class Net(Module):\n  __parameters__ = []\n  def forward(self: __torch__.Net,\n    input_ids: Tensor,\n    \
            mask: Tensor) -> Tuple[Tensor, Tensor]:\n    return (input_ids, mask)\n  def other(self: A, z: Tensor) -> int:\n    return 1\n";
        let script = read_code(code);
        let names = ["input_ids", "mask"].map(Tensor::named).to_vec();
        assert_eq!(script.signature.inputs, Some(names));
        assert_eq!(script.signature.outputs.unwrap().len(), 2);
        assert_eq!(script.obstacle, None);
    }

    #[test]
    fn what_no_request_can_have_is_an_obstacle_unless_it_has_a_default() {
        let forward = |arguments: &str, result: &str| {
            read_code(&format!(
                "class Net(Module):\n  def forward(self: N,\n    {arguments}) -> {result}:\n    pass\n"
            ))
        };
        let script = forward(
            "x: Tensor,\n    mode: str=\"a, b) -> c:\", n: int=3",
            "Tensor",
        );
        assert_eq!(script.signature.inputs.unwrap().len(), 1);
        assert_eq!(script.obstacle, None);
        for (arguments, result, words) in [
            (
                "x: List[Tensor]",
                "Tensor",
                "the argument x of its forward is List[Tensor]",
            ),
            ("x: Dict[str, Tensor]", "Tensor", "is Dict[str, Tensor]"),
            ("x: Tensor", "Dict[int, Tensor]", "returns Dict[int"),
            (
                "x: Tensor",
                "Tuple[Tensor, List[Tuple[str, Tensor]]]",
                "its forward returns Tuple",
            ),
            ("x: Tensor", "NoneType", "returns NoneType"),
        ] {
            let obstacle = forward(arguments, result).obstacle.unwrap();
            assert!(obstacle.contains(words), "{obstacle}");
        }
        for (result, outputs) in [
            ("List[Tensor]", None),
            ("Dict[str, Tensor]", None),
            ("Tuple[Dict[str, Tensor], List[Dict[str, Tensor]]]", None),
            ("__torch__.Answer", None),
            ("Tuple[Tensor, Tuple[Tensor, int], bool]", Some(4)),
            ("float", Some(1)),
        ] {
            let script = forward("x: Tensor", result);
            assert_eq!(script.obstacle, None);
            let count = script.signature.outputs.map(|outputs| outputs.len());
            assert_eq!(count, outputs, "{result}");
        }
    }

    #[test]
    fn code_that_is_cut_off_tells_nothing_and_is_no_panic() {
        let code = "class Net(Module):\n  def forward(self: N,\n    x: Tensor=\"é(\\\"\",\n    y: Tensor) -> Tensor:\n    pass\n";
        for (end, _) in code.char_indices() {
            read_code(&code[..end]);
        }
        assert_eq!(read_code(code).signature.inputs.unwrap().len(), 2);
    }

    #[test]
    fn the_class_of_a_module_is_in_the_file_of_its_python_module() {
        let found = class_of(b"\x80\x02c__torch__.torch.nn.modules.container\nSequential\nq\x00");
        let file = "__torch__/torch/nn/modules/container.py".to_owned();
        assert_eq!(found, Some((file, "Sequential".to_owned())));
        assert_eq!(class_of(b"\x80\x02}q\x00"), None);
    }
}
