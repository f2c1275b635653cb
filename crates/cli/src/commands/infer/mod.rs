//! `packhorse infer`: sends an inference request, with inputs from files or JSON, or with pictures and texts as they are.

mod elements;
mod outputs;
mod raw_inputs;
mod report;
mod top_classes;

use std::{
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use packhorse_client::InferenceClient;
use packhorse_cluster::{ModelName, ModelVersion};
use packhorse_protocol::{Form, ModelMetadata, RequestMessage, Tensor};
use packhorse_terminal::{
    context::Context,
    files::{read_file, write_file},
    inputs::{NamedValue, read_input},
    npy, output,
};

use self::{outputs::find_output, raw_inputs::RawInputArgs, top_classes::TopClassesArgs};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse infer minilm --input input_ids=ids.npy --input attention_mask=mask.npy --output embedding=e.npy
  packhorse infer adder --input a='[[1, 2]]' --input b=@b.json --json
  packhorse infer lite0 --image cat.jpg
  packhorse infer lite0 --image cat.jpg --image dog.png --top 3 --json
  packhorse infer minilm --text 'A sentence.' --text 'Another.' --output embedding=e.npy
  packhorse infer minilm --json-request request.json")]
#[group(id = "source", required = true, multiple = true, args = ["input", "image", "text", "json_request"])]
pub(crate) struct InferArgs {
    /// Name of the model
    model: ModelName,
    /// Version of the model [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
    /// Input of the model: FILE.npy, FILE.raw with the bytes of its rows, nested lists as JSON, or FILE.json with such JSON; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    input: Vec<NamedValue>,
    /// Send this Open Inference Protocol request unchanged, and print the response unchanged; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "image", "text", "input_name", "output", "top", "timeout_ms", "priority"])]
    json_request: Option<PathBuf>,
    /// Save an output as an .npy file; may be repeated
    #[arg(long, value_name = "NAME=FILE")]
    output: Vec<NamedValue>,
    /// Time limit of the request in milliseconds, at most 60000 [default: the model's SLO]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout_ms: Option<u64>,
    /// Priority of the request; 1 is the most urgent [default: 0, the model's own]
    #[arg(long, value_name = "P", default_value_t = 0, hide_default_value = true)]
    priority: u64,
    #[command(flatten)]
    raw_inputs: RawInputArgs,
    #[command(flatten)]
    classes: TopClassesArgs,
}

impl InferArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let client = context.inference()?;
        if let Some(path) = &self.json_request {
            return self.send_unchanged(&client, path).await;
        }
        let metadata = client.model_metadata(&self.model, self.version).await?;
        let request = RequestMessage {
            inputs: self.inputs(&metadata)?,
            outputs: self.classes.outputs(&metadata, self.wants_declared())?,
            output_form: Some(Form::Binary),
            timeout: self.timeout_ms.map(Duration::from_millis),
            priority: self.priority,
            ..RequestMessage::default()
        };
        let (response, latency) = timed(client.infer(&self.model, self.version, &request)).await;
        let response = response?;
        for NamedValue { name, value } in &self.output {
            let array = npy::write(find_output(&response, name)?)
                .with_context(|| format!("output {name:?}"))?;
            write_file(Path::new(value), &array)?;
        }
        let classes = top_classes::of_response(&response, &request);
        if context.json() {
            report::print_json(&response, latency, classes.as_deref())
        } else {
            report::print_text(&response, latency, classes.as_deref())
        }
    }

    async fn send_unchanged(&self, client: &InferenceClient, path: &Path) -> anyhow::Result<()> {
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
        let response = client.infer_raw(&self.model, self.version, body).await?;
        output::print_bytes(&response)?;
        Ok(output::print_line("")?)
    }

    /// Returns true if the answer is what the model declares for pictures and texts.
    fn wants_declared(&self) -> bool {
        self.raw_inputs.are_given() && self.output.is_empty()
    }

    fn inputs(&self, metadata: &ModelMetadata) -> anyhow::Result<Vec<Tensor>> {
        let mut inputs = Vec::new();
        for input in &self.input {
            inputs.push(read_input(input, metadata)?);
        }
        inputs.extend(self.raw_inputs.tensors(metadata)?);
        Ok(inputs)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the command reports the latency of its request"
)]
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let value = future.await;
    (value, start.elapsed())
}
