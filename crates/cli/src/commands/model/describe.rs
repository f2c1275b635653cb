//! From a model's file to its registration, without one that people have written.

use std::{fs::File, io::BufReader, path::Path};

use anyhow::{Context as _, bail, ensure};
use packhorse_artifact::{Artifact, EmbeddedRegistration, Format, Signature, Size, Tensor};
use packhorse_cluster::{ModelName, TensorSpec};
use packhorse_terminal::files::open_regular_file;
use serde_json::{Map, Value, json};

use super::{
    draft::{
        self, DEFAULT_BATCH, Missing, UNKNOWN, input_specs, joined, marked, notes_of_examples,
        output_specs, rows_limit,
    },
    signature::SignatureArgs,
    trial::try_outputs,
};

/// What is known of the registration of a model's file.
#[derive(Debug)]
pub(in crate::commands) struct Description {
    /// The file.
    pub(in crate::commands) artifact: Artifact,
    /// The signature as fields of a registration, and the objective if the file has one; [`UNKNOWN`] for what nobody knows.
    pub(in crate::commands) spec: Map<String, Value>,
    /// What nobody knows.
    pub(in crate::commands) missing: Vec<Missing>,
    /// What a user should know.
    pub(in crate::commands) notes: Vec<String>,
}

/// Reads a model's file for what it is and tells.
///
/// # Errors
/// If it is no program, or is not whole. The error does not name the file.
pub(in crate::commands) fn read_artifact(file: &Path) -> anyhow::Result<Artifact> {
    let file = open_regular_file(file).context("cannot read the file")?;
    Ok(Artifact::read(BufReader::<File>::new(file))?)
}

/// Describes a model's file: by the registration in it, else by what it tells, what its user says, and what its program answers.
///
/// # Errors
/// If it is no program, or its user contradicts it. The error does not name the file.
pub(in crate::commands) async fn describe(
    file: &Path,
    args: &SignatureArgs,
) -> anyhow::Result<Description> {
    args.check()?;
    let artifact = read_artifact(file)?;
    if let Some(registration) = &artifact.registration {
        if let Some(flag) = args.given() {
            bail!(
                "the file has its registration in it: leave {flag} out, or change what packhorse model init writes"
            );
        }
        let spec = spec_of(registration);
        return Ok(Description {
            artifact,
            spec,
            missing: Vec::new(),
            notes: Vec::new(),
        });
    }
    let told = &artifact.signature;
    let inputs = joined("inputs", told.inputs.as_deref(), &args.inputs)?;
    let outputs = joined("outputs", told.outputs.as_deref(), &args.outputs)?;
    let signature = Signature { inputs, outputs };
    let found = find(file, &artifact, signature, args).await?;
    Ok(found.described(artifact))
}

/// What is known of a signature in the end.
struct Found {
    /// The most rows of a batch; `None` if nobody knows if there are batches.
    max_batch_size: Option<u32>,
    inputs: Option<Vec<Tensor>>,
    /// The outputs, or the reason why they are not known.
    outputs: Result<Vec<TensorSpec>, String>,
    told_outputs: Option<Vec<Tensor>>,
    notes: Vec<String>,
}

/// Finds out what neither file nor user says.
async fn find(
    file: &Path,
    artifact: &Artifact,
    signature: Signature,
    args: &SignatureArgs,
) -> anyhow::Result<Found> {
    let Signature { inputs, outputs } = signature;
    let known = inputs.as_deref().unwrap_or_default();
    let limit = if known.is_empty() {
        None
    } else {
        rows_limit(known)
    };
    let rows = match (args.max_batch_size, limit) {
        (Some(rows), Some(limit)) => {
            ensure!(
                rows <= limit,
                "--max-batch-size: {rows} is over the program's limit of {limit}"
            );
            rows
        }
        (Some(rows), None) => {
            ensure!(
                rows == 0 || known.iter().all(|input| input.shape.is_none()),
                "--max-batch-size: the first dimensions of the inputs are no batch: expected 0"
            );
            rows
        }
        (None, Some(limit)) if draft::has_declared_rows(known) => limit,
        (None, Some(limit)) => limit.min(DEFAULT_BATCH),
        (None, None) => 0,
    };
    let mut found = Found {
        max_batch_size: Some(rows),
        outputs: Err("the file does not tell them".to_owned()),
        told_outputs: outputs,
        inputs,
        notes: Vec::new(),
    };
    let known = found.inputs.as_deref().unwrap_or_default();
    let told = found.told_outputs.as_deref();
    if known.is_empty() || input_specs(known, rows > 0).is_none() {
        found.outputs = Err("they are found by a run, once all inputs are known".to_owned());
        if args.max_batch_size.is_none() {
            found.max_batch_size = None;
        }
    } else if let Some(specs) = told.and_then(|told| complete(told, known, rows > 0)) {
        found.outputs = Ok(specs);
    } else if artifact.format == Format::Exported || artifact.obstacle.is_some() {
        // There is nothing that could run.
    } else if args.no_trial {
        found.outputs =
            Err("the file does not tell them, and --no-trial forbids to run it".to_owned());
        if args.max_batch_size.is_none() && !draft::has_declared_rows(known) {
            found.max_batch_size = None;
        }
    } else {
        run(file, args, rows, &mut found).await;
    }
    Ok(found)
}

/// Runs the program with batches, and, where it takes none and its user wants none, without.
async fn run(file: &Path, args: &SignatureArgs, rows: u32, found: &mut Found) {
    let known = found.inputs.as_deref().unwrap_or_default();
    let told = found.told_outputs.as_deref();
    let libtorch = args.libtorch.as_deref();
    let mut tried = Err(String::new());
    if let Some(specs) = input_specs(known, rows > 0) {
        tried = try_outputs(file, rows, specs, libtorch).await;
    }
    if let Err(of_batches) = &tried
        && rows > 0
        && args.max_batch_size.is_none()
        && let Some(specs) = input_specs(known, false)
    {
        let alone = try_outputs(file, 0, specs, libtorch).await;
        if alone.is_ok() {
            found
                .notes
                .push(format!("requests do not share batches: {of_batches}"));
            found.max_batch_size = Some(0);
            tried = alone;
        } else {
            found.max_batch_size = None;
        }
    }
    found.outputs = match tried {
        Ok(tried) => Ok(output_specs(&tried, told)),
        Err(reason) => Err(format!("a run of the program does not tell them: {reason}")),
    };
}

/// Returns the outputs of a registration if the file or its user says all of them.
fn complete(outputs: &[Tensor], inputs: &[Tensor], batches: bool) -> Option<Vec<TensorSpec>> {
    let fits = |tensor: &Tensor| {
        let first = tensor.shape.as_ref().and_then(|shape| shape.first());
        !batches || matches!(first, Some(Size::Varies { .. }))
    };
    if outputs.is_empty() || inputs.is_empty() || !outputs.iter().all(fits) {
        return None;
    }
    let mut outputs = outputs.to_vec();
    let names = draft::names(&outputs, "output");
    for (output, name) in outputs.iter_mut().zip(names) {
        output.name = Some(name);
    }
    let specs = input_specs(&outputs, batches)?.into_iter();
    // Outputs have neither limits nor usual sizes.
    let specs = specs.map(|spec| TensorSpec {
        max_shape: None,
        min_shape: None,
        dim_names: None,
        typical_shape: None,
        ..spec
    });
    Some(specs.collect())
}

impl Found {
    fn described(self, artifact: Artifact) -> Description {
        let Self {
            max_batch_size,
            inputs,
            outputs,
            told_outputs,
            mut notes,
        } = self;
        let mut spec = Map::new();
        let mut missing = Vec::new();
        let batches = max_batch_size.is_some_and(|rows| rows > 0);
        let mut set = |field: &str, value: Value| drop(spec.insert(field.to_owned(), value));
        set(
            "max_batch_size",
            max_batch_size.map_or(json!(UNKNOWN), |rows| json!(rows)),
        );
        if let Some(inputs) = &inputs {
            if let Some(specs) = input_specs(inputs, batches) {
                set("inputs", json!(specs));
                notes.extend(notes_of_examples(inputs, batches));
            } else {
                let (values, unknown) = marked("inputs", inputs, batches);
                set("inputs", values.into());
                missing.extend(unknown);
            }
        } else {
            set("inputs", json!(UNKNOWN));
            missing.push(Missing {
                field: "inputs".to_owned(),
                reason:
                    "the file does not tell them: give --input 'NAME=DATATYPE[-1,SIZES]' for each"
                        .to_owned(),
            });
        }
        match outputs {
            Ok(specs) => set("outputs", json!(specs)),
            Err(reason) => {
                let marks = told_outputs.map(|told| marked("outputs", &told, batches).0);
                set(
                    "outputs",
                    marks.map_or_else(|| json!(UNKNOWN), Value::Array),
                );
                missing.push(Missing {
                    field: "outputs".to_owned(),
                    reason: format!("{reason}; --output says them"),
                });
            }
        }
        if max_batch_size.is_none() && missing.is_empty() {
            missing.push(Missing {
                field: "max_batch_size".to_owned(),
                reason: "nobody knows if requests may share batches: give --max-batch-size, 0 if they may not".to_owned(),
            });
        }
        Description {
            artifact,
            spec,
            missing,
            notes,
        }
    }
}

/// Returns the fields of a registration that a file has in it.
fn spec_of(registration: &EmbeddedRegistration) -> Map<String, Value> {
    let mut spec = Map::new();
    spec.insert(
        "max_batch_size".to_owned(),
        registration.max_batch_size.into(),
    );
    if let Some(slo_ms) = registration.slo_ms {
        spec.insert("slo_ms".to_owned(), number(slo_ms));
    }
    spec.insert("inputs".to_owned(), json!(registration.inputs));
    spec.insert("outputs".to_owned(), json!(registration.outputs));
    if let Value::Object(processing) = json!(registration.processing) {
        spec.extend(processing);
    }
    spec
}

/// Returns a number that is whole if it can be.
pub(super) fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < f64::from(u32::MAX) {
        json!(number as i64)
    } else {
        json!(number)
    }
}

/// Returns the name of a model that is its file's, or that of its folder in a model repository.
pub(super) fn name_of(file: &Path) -> Option<ModelName> {
    let is_version = |folder: &Path| {
        let name = folder.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.parse::<u32>().is_ok())
    };
    let whole = std::path::absolute(file).ok()?;
    let stem = whole.file_stem()?.to_str()?;
    let version = whole.parent().filter(|folder| is_version(folder));
    let name = match version.and_then(Path::parent) {
        Some(model) if stem == "model" => model.file_name()?.to_str()?,
        _ => stem,
    };
    name.parse().ok()
}

/// Returns the command that writes a registration in which what is missing can be filled in.
pub(in crate::commands) fn init_command(
    file: &Path,
    description: &Description,
    output: &Path,
) -> String {
    let mut words = vec!["packhorse model init".to_owned(), quoted(file)];
    let is_missing = |field: &str| {
        { description.missing.iter() }.any(|missing| missing.field.starts_with(field))
    };
    let signature = &description.artifact.signature;
    if is_missing("inputs") {
        let inputs = signature.inputs.as_deref().unwrap_or_default();
        for (input, name) in inputs.iter().zip(draft::names(inputs, "input")) {
            if input.datatype.is_none() || input.shape.is_none() {
                words.push(format!("--input '{}'", draft::sketch(&name, input)));
            }
        }
        if signature.inputs.is_none() {
            words.push("--input 'NAME=DATATYPE[-1,SIZES]'".to_owned());
        }
    } else if is_missing("outputs") {
        let unnamed = [Tensor::default()];
        let outputs = signature.outputs.as_deref().unwrap_or(&unnamed);
        for (output, name) in outputs.iter().zip(draft::names(outputs, "output")) {
            words.push(format!("--output '{}'", draft::sketch(&name, output)));
        }
    }
    if is_missing("max_batch_size") {
        words.push("--max-batch-size N".to_owned());
    }
    words.push(format!("-o {}", quoted(output)));
    words.join(" ")
}

/// Returns a path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_after_its_file_or_its_folder_in_a_repository() {
        for (file, name) in [
            ("/a/resnet50.pt", Some("resnet50")),
            ("/models/bert/1/model.pt", Some("bert")),
            ("/models/model.pt2", Some("model")),
            ("/models/bert/1/other.pt", Some("other")),
            ("/a/has space.pt", None),
        ] {
            let found = name_of(Path::new(file));
            assert_eq!(found.as_ref().map(ModelName::as_str), name, "{file}");
        }
    }

    #[test]
    fn a_path_is_quoted_where_a_shell_would_divide_it() {
        assert_eq!(quoted(Path::new("a/b.pt")), "a/b.pt");
        assert_eq!(quoted(Path::new("it's a.pt")), r"'it'\''s a.pt'");
    }

    #[test]
    fn whole_numbers_are_written_without_a_point() {
        assert_eq!(number(50.0).to_string(), "50");
        assert_eq!(number(0.5).to_string(), "0.5");
    }
}
