//! What a `config.pbtxt` says, as a registration.
//!
//! Source: `ModelConfig` of Triton's protocol, and the conventions of its PyTorch backend.

use serde_json::{Map, Value, json};

use crate::{
    CONFIG_LIMIT,
    fields::Message,
    text_format::{self, Field, TextError},
};

/// The objective of a model whose configuration has no time limit, in milliseconds.
const DEFAULT_SLO_MS: f64 = 100.0;
/// The largest objective of a registration, in milliseconds.
const MAX_SLO_MS: f64 = 60_000.0;
/// The largest batch of a registration.
const MAX_BATCH_SIZE: i64 = 4096;
/// The platforms and backends whose files are programs of PyTorch.
const PLATFORMS: [&str; 3] = ["pytorch_libtorch", "torch_aoti", "pytorch_aoti"];
const BACKENDS: [&str; 3] = ["pytorch", "torch_aoti", "pytorch_aoti"];

/// The fields that say where and how fast a model shall run, which is decided here for all models together.
const LEFT_OUT: [(&str, &str); 7] = [
    (
        "instance_group",
        "how many replicas run, and where, is planned",
    ),
    ("optimization", "workers optimise by themselves"),
    ("model_warmup", "workers warm up by themselves"),
    ("model_operations", "workers load no further libraries"),
    ("metric_tags", "metrics have labels of their own"),
    ("model_metrics", "metrics have labels of their own"),
    ("cc_model_filenames", "there is one file per version"),
];
/// The fields that change what a model answers, or how it is asked, and the reason why they are refused.
const REFUSED: [(&str, &str); 6] = [
    (
        "ensemble_scheduling",
        "an ensemble of models is not served: ask its models one after the other",
    ),
    (
        "sequence_batching",
        "sequences are not batched by their ids: give state as inputs and outputs, which `packhorse.export` does",
    ),
    (
        "batch_input",
        "inputs that Triton makes of a batch are not made",
    ),
    ("batch_output", "outputs are not scattered by other inputs"),
    ("model_repository_agents", "agents of Triton do not run"),
    (
        "runtime",
        "a model in Python is not served: export it with `packhorse export`",
    ),
];

/// A model of a repository of Triton.
#[derive(Clone, Debug, PartialEq)]
pub struct TritonModel {
    /// The registration without version and artifact, as a `model.json` has it.
    pub registration: Map<String, Value>,
    /// The name of the file in the folder of a version, if it has one of its own.
    pub file_name: Option<String>,
    /// The versions that are served.
    pub versions: Versions,
    /// What of the configuration is left out, and what stands in place of what it does not say.
    pub notices: Vec<String>,
}

/// The versions of a model that are served, of those that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Versions {
    /// All.
    All,
    /// So many of the highest.
    Latest(usize),
    /// These.
    Of(Vec<u32>),
}

impl Versions {
    /// Returns the served ones among those that there are, in ascending order.
    #[must_use]
    pub fn among(&self, there: &[u32]) -> Vec<u32> {
        let mut there = there.to_vec();
        there.sort_unstable();
        match self {
            Self::All => {}
            Self::Latest(count) => {
                let first = there.len().saturating_sub(*count);
                there.drain(..first);
            }
            Self::Of(versions) => there.retain(|version| versions.contains(version)),
        }
        there
    }
}

/// The reason why a model of a repository of Triton is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is too large.
    #[error("config.pbtxt has more than {CONFIG_LIMIT} bytes")]
    Size,
    /// A line says what cannot be read or is not supported.
    #[error("config.pbtxt, line {line}: {problem}")]
    Line {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Something is missing.
    #[error("config.pbtxt: {0}")]
    Missing(&'static str),
}

impl From<TextError> for ConfigError {
    fn from(TextError { line, problem }: TextError) -> Self {
        Self::Line { line, problem }
    }
}

/// Reads the configuration of the model in a folder of this name.
///
/// # Errors
/// For text that is no configuration, and for what is not served, by its name and line.
pub fn read(text: &str, folder: &str) -> Result<TritonModel, ConfigError> {
    if text.len() > CONFIG_LIMIT {
        return Err(ConfigError::Size);
    }
    let fields = text_format::parse(text)?;
    let config = Message::new("", &fields);
    let mut notices = Vec::new();
    check_fields(config, &mut notices)?;
    if let Some((name, line)) = config.text("name")?
        && name != folder
        && !name.is_empty()
    {
        return Err(line_error(
            line,
            format!("name: it is {name:?}, but the folder is {folder:?}"),
        ));
    }
    check_platform(config)?;
    let max_batch_size = match config.number("max_batch_size")? {
        Some((size, _)) if (0..=MAX_BATCH_SIZE).contains(&size) => size,
        Some((_, line)) => {
            return Err(line_error(
                line,
                format!("max_batch_size: expected 0 to {MAX_BATCH_SIZE}"),
            ));
        }
        None => 0,
    };
    let has_batch = max_batch_size > 0;
    let mut inputs = tensors(config, "input", has_batch, &mut notices)?;
    let mut outputs = tensors(config, "output", has_batch, &mut notices)?;
    if inputs.is_empty() {
        return Err(ConfigError::Missing("there is no input"));
    }
    if outputs.is_empty() {
        return Err(ConfigError::Missing("there is no output"));
    }
    by_position(&mut inputs);
    by_position(&mut outputs);
    let slo_ms = slo_ms(config, &mut notices)?;
    let mut registration = Map::new();
    let entries = [
        ("max_batch_size", json!(max_batch_size)),
        ("slo_ms", json!(slo_ms)),
        ("inputs", Value::Array(inputs)),
        ("outputs", Value::Array(outputs)),
    ];
    registration.extend(entries.map(|(name, value)| (name.to_owned(), value)));
    if let Some(cache) = config.message("response_cache")? {
        registration.insert("cache".to_owned(), cache.flag("enable")?.into());
    }
    Ok(TritonModel {
        registration,
        file_name: file_name(config)?,
        versions: versions(config)?,
        notices,
    })
}

fn line_error(line: usize, problem: String) -> ConfigError {
    ConfigError::Line { line, problem }
}

/// Refuses fields that change answers, and notes those that are left out.
fn check_fields(config: Message<'_>, notices: &mut Vec<String>) -> Result<(), ConfigError> {
    const READ: [&str; 12] = [
        "name",
        "platform",
        "backend",
        "max_batch_size",
        "input",
        "output",
        "version_policy",
        "dynamic_batching",
        "default_model_filename",
        "parameters",
        "model_transaction_policy",
        "response_cache",
    ];
    let mut noted: Vec<&str> = Vec::new();
    for field in config.fields() {
        let name = field.name.as_str();
        let of = |list: &'static [(&str, &str)]| list.iter().find(|(of, _)| *of == name);
        if let Some((_, reason)) = of(&REFUSED) {
            return Err(config.error(field, reason).into());
        } else if let Some((_, reason)) = of(&LEFT_OUT) {
            if !noted.contains(&name) {
                noted.push(name);
                notices.push(format!("{name} is left out: {reason}"));
            }
        } else if !READ.contains(&name) {
            return Err(config.error(field, "there is no such field").into());
        }
    }
    for (parameter, _) in config.messages("parameters")? {
        let key = parameter.text("key")?.map_or("", |(key, _)| key);
        notices.push(format!(
            "the parameter {key} is left out: workers choose how they run a program"
        ));
    }
    if let Some(policy) = config.message("model_transaction_policy")?
        && policy.flag("decoupled")?
    {
        let field = policy.one("decoupled")?;
        let line = field.map_or(1, |field| field.line);
        return Err(line_error(
            line,
            "model_transaction_policy.decoupled: a request has one answer".to_owned(),
        ));
    }
    Ok(())
}

/// Refuses models of other runtimes.
fn check_platform(config: Message<'_>) -> Result<(), ConfigError> {
    let mut is_known = false;
    for (field, known) in [("platform", &PLATFORMS), ("backend", &BACKENDS)] {
        let Some((name, line)) = config.text(field)?.filter(|(name, _)| !name.is_empty()) else {
            continue;
        };
        if !known.contains(&name) {
            return Err(line_error(
                line,
                format!(
                    "{field}: {name:?} is not served: programs of PyTorch are ({})",
                    known.join(", ")
                ),
            ));
        }
        is_known = true;
    }
    if is_known {
        Ok(())
    } else {
        Err(ConfigError::Missing(
            "it says neither platform nor backend: expected platform: \"pytorch_libtorch\"",
        ))
    }
}

/// Returns the inputs or the outputs.
fn tensors(
    config: Message<'_>,
    side: &str,
    has_batch: bool,
    notices: &mut Vec<String>,
) -> Result<Vec<Value>, ConfigError> {
    const READ: [&str; 10] = [
        "name",
        "data_type",
        "dims",
        "format",
        "reshape",
        "is_shape_tensor",
        "allow_ragged_batch",
        "optional",
        "label_filename",
        "is_non_linear_format_io",
    ];
    const FLAGS: [(&str, &str); 3] = [
        ("is_shape_tensor", "shapes are no inputs"),
        (
            "allow_ragged_batch",
            "rows of different sizes are filled up by `pad` of a model.json",
        ),
        ("optional", "every input is required"),
    ];
    let mut tensors = Vec::new();
    for (tensor, line) in config.messages(side)? {
        for field in tensor.fields() {
            if !READ.contains(&field.name.as_str()) {
                return Err(tensor.error(field, "there is no such field").into());
            }
        }
        for (flag, reason) in FLAGS {
            if let Some(field) = tensor.one(flag)?
                && tensor.flag(flag)?
            {
                return Err(tensor.error(field, reason).into());
            }
        }
        let Some((name, _)) = tensor.text("name")?.filter(|(name, _)| !name.is_empty()) else {
            return Err(line_error(line, format!("{side}: the name is missing")));
        };
        let datatype = datatype(tensor, line)?;
        let shape = shape(tensor, has_batch, line)?;
        if let Some((labels, _)) = tensor.text("label_filename")? {
            notices.push(format!(
                "the labels of {name} ({labels}) are left out: clients name classes by their numbers"
            ));
        }
        tensors.push(json!({"name": name, "datatype": datatype, "shape": shape}));
    }
    Ok(tensors)
}

/// Returns the datatype of a tensor by the protocol's name.
fn datatype(tensor: Message<'_>, line: usize) -> Result<&'static str, ConfigError> {
    const TYPES: [(&str, &str); 14] = [
        ("TYPE_BOOL", "BOOL"),
        ("TYPE_UINT8", "UINT8"),
        ("TYPE_INT8", "INT8"),
        ("TYPE_INT16", "INT16"),
        ("TYPE_INT32", "INT32"),
        ("TYPE_INT64", "INT64"),
        ("TYPE_FP16", "FP16"),
        ("TYPE_BF16", "BF16"),
        ("TYPE_FP32", "FP32"),
        ("TYPE_FP64", "FP64"),
        ("TYPE_UINT16", "UINT16"),
        ("TYPE_UINT32", "UINT32"),
        ("TYPE_UINT64", "UINT64"),
        ("TYPE_STRING", ""),
    ];
    let path = tensor.path("data_type");
    let Some((word, line)) = tensor.word("data_type")? else {
        return Err(line_error(line, format!("{path}: it is missing")));
    };
    match TYPES.iter().find(|(triton, _)| *triton == word) {
        Some((_, datatype)) if !datatype.is_empty() => Ok(datatype),
        Some(_) => Err(line_error(
            line,
            format!("{path}: PyTorch has no tensors of {word}"),
        )),
        None => Err(line_error(
            line,
            format!("{path}: there is no type {word}: expected one such as TYPE_FP32"),
        )),
    }
}

/// Returns the shape of a tensor, with the batch that Triton does not write.
fn shape(tensor: Message<'_>, has_batch: bool, line: usize) -> Result<Vec<i64>, ConfigError> {
    let dims = tensor.numbers("dims")?;
    if dims.is_empty() {
        let path = tensor.path("dims");
        return Err(line_error(line, format!("{path}: it is missing")));
    }
    if dims.iter().any(|dim| *dim == 0 || *dim < -1) {
        let path = tensor.path("dims");
        return Err(line_error(
            line,
            format!("{path}: expected sizes from 1 on, or -1 for one that varies"),
        ));
    }
    let batch = has_batch.then_some(-1);
    let whole = |dims: &[i64]| batch.into_iter().chain(dims.iter().copied()).collect();
    let Some(reshape) = tensor.one("reshape")? else {
        return Ok(whole(&dims));
    };
    let inner = tensor.message("reshape")?;
    let shape = inner.map(|inner| inner.numbers("shape")).transpose()?;
    let shape = shape.unwrap_or_default();
    if shape == dims {
        return Ok(whole(&dims));
    }
    let problem = format!(
        "tensors of {dims:?} are not reshaped to {shape:?}: export the model with the shape that its clients use"
    );
    Err(tensor.error(reshape, problem).into())
}

/// Puts tensors that are named by position (`INPUT__0`) into the order of their positions, which is that of the program.
fn by_position(tensors: &mut [Value]) {
    let position = |tensor: &Value| {
        let name = tensor["name"].as_str()?;
        let (_, number) = name.split_once("__")?;
        number.parse::<u32>().ok()
    };
    if tensors.iter().all(|tensor| position(tensor).is_some()) {
        tensors.sort_by_key(position);
    }
}

/// Returns the objective: the time after which Triton would end a request that still waits, if it is said.
fn slo_ms(config: Message<'_>, notices: &mut Vec<String>) -> Result<f64, ConfigError> {
    const READ: [&str; 7] = [
        "preferred_batch_size",
        "max_queue_delay_microseconds",
        "preserve_ordering",
        "priority_levels",
        "default_priority_level",
        "default_queue_policy",
        "priority_queue_policy",
    ];
    let mut timeout = None;
    if let Some(batching) = config.message("dynamic_batching")? {
        for field in batching.fields() {
            let name = field.name.as_str();
            if !READ.contains(&name) {
                return Err(batching.error(field, "there is no such field").into());
            }
        }
        if batching.one("max_queue_delay_microseconds")?.is_some()
            || !batching.numbers("preferred_batch_size")?.is_empty()
        {
            notices.push(
                "the batch sizes and the delay of dynamic_batching are left out: batches are formed by deadline".to_owned(),
            );
        }
        if let Some(policy) = batching.message("default_queue_policy")? {
            timeout = policy.number("default_timeout_microseconds")?;
        }
    }
    match timeout {
        Some((micros, line)) if micros > 0 => {
            let slo_ms = micros as f64 / 1e3;
            if slo_ms > MAX_SLO_MS {
                return Err(line_error(
                    line,
                    format!(
                        "default_timeout_microseconds: expected at most {:.0}",
                        MAX_SLO_MS * 1e3
                    ),
                ));
            }
            Ok(slo_ms)
        }
        _ => {
            notices.push(format!(
                "slo_ms is {DEFAULT_SLO_MS}: dynamic_batching has no default_queue_policy with default_timeout_microseconds"
            ));
            Ok(DEFAULT_SLO_MS)
        }
    }
}

/// Returns the name of the program's file, which is one in the folder of a version.
fn file_name(config: Message<'_>) -> Result<Option<String>, ConfigError> {
    let Some((name, line)) = config.text("default_model_filename")? else {
        return Ok(None);
    };
    if name.is_empty() || name.contains(['/', '\0']) || name == ".." || name == "." {
        return Err(line_error(
            line,
            format!("default_model_filename: {name:?} is not the name of a file"),
        ));
    }
    Ok(Some(name.to_owned()))
}

fn versions(config: Message<'_>) -> Result<Versions, ConfigError> {
    let Some(policy) = config.message("version_policy")? else {
        return Ok(Versions::Latest(1));
    };
    let choice: Vec<&Field> = policy.fields().iter().collect();
    let [field] = choice[..] else {
        return Err(ConfigError::Missing(
            "version_policy: expected one of latest, all and specific",
        ));
    };
    match field.name.as_str() {
        "all" => Ok(Versions::All),
        "latest" => {
            let latest = policy.message("latest")?;
            let count = latest.map(|latest| latest.number("num_versions"));
            let count = count.transpose()?.flatten().map_or(1, |(count, _)| count);
            usize::try_from(count)
                .ok()
                .filter(|count| *count > 0)
                .map(Versions::Latest)
                .ok_or_else(|| {
                    let problem = "num_versions: expected a number above 0";
                    policy.error(field, problem).into()
                })
        }
        "specific" => {
            let specific = policy.message("specific")?;
            let numbers = specific.map(|specific| specific.numbers("versions"));
            let numbers = numbers.transpose()?.unwrap_or_default();
            let versions = numbers.into_iter().map(u32::try_from).collect();
            let versions: Result<Vec<u32>, _> = versions;
            versions.map(Versions::Of).map_err(|_| {
                let problem = "versions: expected numbers above 0";
                policy.error(field, problem).into()
            })
        }
        _ => Err(policy.error(field, "there is no such policy").into()),
    }
}

#[cfg(test)]
mod tests;
