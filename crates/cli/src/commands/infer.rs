//! `packhorse infer`: ask a model, from files, from JSON, or from a picture.

use std::{
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use packhorse_client::InferenceClient;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_protocol::{Form, InferResponse, Limits, ModelMetadata, RequestMessage, Tensor};
use serde_json::{Value, json};

use super::classes::{Class, ClassArgs};
use crate::{
    context::{Context, read_file, read_text, write_file},
    npy, output,
    preprocess::Preprocess,
    values,
};

/// How many elements of an output people are shown.
const SHOWN: usize = 8;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse infer minilm --input input_ids=ids.npy --input attention_mask=mask.npy --output embedding=e.npy
  packhorse infer adder --input a='[[1, 2]]' --input b=@b.json --json
  packhorse infer lite0 --image cat.jpg --resize 256 --crop 224 --mean 0.498 --std 0.502 --top 5 --labels imagenet.txt
  packhorse infer lite0 --image cat.jpg --preprocess lite0.toml --top 5
  packhorse infer minilm --json-request request.json")]
#[group(id = "source", required = true, multiple = true, args = ["input", "image", "json_request"])]
pub(crate) struct InferArgs {
    /// The model's name
    model: ModelName,
    /// The version [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
    /// An input: FILE.npy, or nested lists as JSON, or @FILE with such JSON
    #[arg(long, value_name = "NAME=VALUE")]
    input: Vec<Assignment>,
    /// A picture (JPEG or PNG) for an input
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// The input that --image is for [default: the model's only one]
    #[arg(long, value_name = "NAME", requires = "image")]
    input_name: Option<String>,
    /// Post this Open Inference Protocol request as it is, and print the answer as it is; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "image", "input_name", "preprocess", "preprocessing", "output", "classification", "timeout_ms", "priority"])]
    json_request: Option<PathBuf>,
    /// Save an output as .npy
    #[arg(long, value_name = "NAME=FILE")]
    output: Vec<Assignment>,
    /// Deadline of this request in milliseconds, at most 60000 [default: the model's objective]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout_ms: Option<u64>,
    /// 1 is the most urgent [default: 0, the model's own]
    #[arg(long, value_name = "P", default_value_t = 0, hide_default_value = true)]
    priority: u64,
    #[command(flatten)]
    classes: ClassArgs,
    /// TOML file with the preprocessing of --image; its keys are the names of the flags, which win over it
    #[arg(
        long,
        value_name = "FILE",
        requires = "image",
        help_heading = "Preprocessing of --image"
    )]
    preprocess: Option<PathBuf>,
    #[command(flatten)]
    preprocessing: Preprocess,
}

/// NAME=VALUE.
#[derive(Clone, Debug)]
struct Assignment {
    name: String,
    value: String,
}

impl FromStr for Assignment {
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

impl InferArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let client = context.inference();
        if let Some(path) = &self.json_request {
            return self.post_as_it_is(&client, path).await;
        }
        let metadata = client.model_metadata(&self.model, self.version).await?;
        let request = RequestMessage {
            inputs: self.inputs(&metadata)?,
            output_form: Some(Form::Binary),
            timeout: self.timeout_ms.map(Duration::from_millis),
            priority: self.priority,
            ..RequestMessage::default()
        };
        let (response, latency) = timed(client.infer(&self.model, self.version, &request)).await;
        let response = response?;
        for Assignment { name, value } in &self.output {
            let array = npy::write(find_output(&response, name)?)
                .with_context(|| format!("output {name:?}"))?;
            write_file(Path::new(value), &array)?;
        }
        let classes = self.classes.rank(&response)?;
        if context.json() {
            output::json(&report(&response, latency, classes.as_deref()))
        } else {
            print(&response, latency, classes.as_deref())
        }
    }

    async fn post_as_it_is(&self, client: &InferenceClient, path: &Path) -> anyhow::Result<()> {
        let body = if path == Path::new("-") {
            let mut body = Vec::new();
            std::io::stdin()
                .lock()
                .read_to_end(&mut body)
                .context("cannot read standard input")?;
            body
        } else {
            read_file(path)?
        };
        let answer = client.infer_raw(&self.model, self.version, body).await?;
        output::raw(&answer)?;
        Ok(output::line("")?)
    }

    fn inputs(&self, metadata: &ModelMetadata) -> anyhow::Result<Vec<Tensor>> {
        let mut inputs = Vec::new();
        for input in &self.input {
            inputs.push(read_input(input, metadata)?);
        }
        if let Some(path) = &self.image {
            let name = match (&self.input_name, metadata.inputs.as_slice()) {
                (Some(name), _) => name,
                (None, [only]) => &only.name,
                (None, inputs) => bail!(
                    "the model has {} inputs: name that of the picture with --input-name",
                    inputs.len()
                ),
            };
            inputs.push(self.preprocessing()?.load(path, name)?);
        }
        Ok(inputs)
    }

    fn preprocessing(&self) -> anyhow::Result<Preprocess> {
        let file = match &self.preprocess {
            Some(path) => Preprocess::from_toml(&read_text(path)?)
                .with_context(|| format!("{}", path.display()))?,
            None => Preprocess::default(),
        };
        Ok(self.preprocessing.clone().or(file))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this measures how long a person waits"
)]
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let value = future.await;
    (value, start.elapsed())
}

fn read_input(input: &Assignment, metadata: &ModelMetadata) -> anyhow::Result<Tensor> {
    let Assignment { name, value } = input;
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
        .with_context(|| format!("input {name:?}: expected FILE.npy, @FILE, or JSON"))?;
    let known = || {
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
            "input {name:?}: the model has no such input, but {}",
            known()
        )
    })?;
    // The protocol's own reader judges the numbers.
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
        .expect("one input went in");
    Ok(tensor.in_form(Form::Binary))
}

/// The lengths of nested lists, judged by the first of each.
fn shape_of(data: &Value) -> Vec<usize> {
    let mut shape = Vec::new();
    let mut level = Some(data);
    while let Some(Value::Array(list)) = level {
        shape.push(list.len());
        level = list.first();
    }
    shape
}

/// An output by its name.
pub(super) fn find_output<'a>(
    response: &'a InferResponse,
    name: &str,
) -> anyhow::Result<&'a Tensor> {
    let found = response.outputs.iter().find(|output| output.name() == name);
    let known = || {
        response
            .outputs
            .iter()
            .map(Tensor::name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    found.with_context(|| format!("the model has no output {name:?}, but {}", known()))
}

/// The answer as programs read it: the protocol's, with what we know besides.
fn report(response: &InferResponse, latency: Duration, classes: Option<&[Vec<Class>]>) -> Value {
    let outputs = response.outputs.iter().map(|output| {
        json!({
            "name": output.name(), "datatype": output.datatype(), "shape": output.shape(), "data": values::all(output),
        })
    });
    let mut report = json!({
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": outputs.collect::<Vec<_>>(),
        "latency_ms": latency.as_secs_f64() * 1e3,
    });
    if let Some(classes) = classes {
        report["classes"] = json!(classes);
    }
    report
}

fn print(
    response: &InferResponse,
    latency: Duration,
    classes: Option<&[Vec<Class>]>,
) -> anyhow::Result<()> {
    let InferResponse {
        model_name,
        model_version,
        ..
    } = response;
    output::line(format!(
        "{model_name} version {model_version} answered in {:.1} ms",
        latency.as_secs_f64() * 1e3
    ))?;
    if let Some(rows) = classes {
        for (i, row) in rows.iter().enumerate() {
            let mut table = output::table(&[]);
            for class in row {
                let label = class
                    .label
                    .clone()
                    .unwrap_or_else(|| format!("class {}", class.index));
                table.add_row([format!("{:.4}", class.score), label]);
            }
            if rows.len() > 1 {
                output::line(format!("row {i}:"))?;
            }
            output::table_or(&table, "no classes")?;
        }
        return Ok(());
    }
    let mut table = output::table(&["OUTPUT", "DATATYPE", "SHAPE", "VALUES"]);
    for output in &response.outputs {
        let mut shown: Vec<String> = values::first(output, SHOWN)
            .iter()
            .map(Value::to_string)
            .collect();
        if output.shape().elements() > SHOWN as u64 {
            shown.push("…".to_owned());
        }
        table.add_row([
            output.name().to_owned(),
            output.datatype().to_string(),
            output.shape().to_string(),
            shown.join(" "),
        ]);
    }
    Ok(output::table_or(&table, "no outputs")?)
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
    fn what_is_no_input_is_named() {
        for (datatype, value, expected) in [
            ("UINT8", "[256]", "256"),
            ("FP32", "[[1, 2], [3]]", "list"),
            ("FP32", "cat.jpg", "expected FILE.npy, @FILE, or JSON"),
            ("FP32", "@no-such-file", "no-such-file"),
        ] {
            let error = format!("{:#}", input(datatype, value).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!("=1".parse::<Assignment>().is_err() && "x".parse::<Assignment>().is_err());
    }
}
