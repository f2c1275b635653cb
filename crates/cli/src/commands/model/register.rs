//! `packhorse model register`: uploads a model, registers it, and waits until it is ready.

use std::{
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use packhorse_api::{Changed, ModelRegistration, ModelState, ModelView};
use packhorse_artifact::{Artifact, FileKind, ReadError};
use packhorse_client::{AdminClient, ArtifactFile};
use packhorse_cluster::{
    MinReplicas, ModelName, ModelVersion, Percent, Priority, RateMode, RequestsPerSecond,
};
use packhorse_terminal::{
    context::Context,
    files::{open_regular_file, read_file},
    output,
};
use serde_json::{Map, Value};

use super::{
    beside::{Places, name_tokenizer, read_labels},
    describe::{describe, init_command, name_of, number, read_artifact},
    draft::{UNKNOWN, first_unknown},
    example::add_example,
    signature::SignatureArgs,
    upload::{hash_artifact, upload},
};
use crate::{
    commands::{
        arguments::{parse_on_off, parse_percent, parse_rate},
        consent::ConsentArgs,
    },
    view::model::{print_changed, profiling_text},
};

/// The time between two requests for the model's state.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The number of consecutive polls with the state `unplaced` after which waiting fails. While plans change a model can be unplaced
/// for a moment.
const MAX_UNPLACED_POLLS: u32 = 12;

#[derive(clap::Args)]
#[command(after_help = "\
FILE is a TorchScript file or an AOTInductor package: its signature is read from it, and its outputs are found by running it once, in a worker of
this machine that can read and write nothing else where the kernel has Landlock (--no-trial forbids that). Where it does not tell all, the command says what is missing and how
to say it. Else FILE is SPEC.json, the body of POST /v1/models:
  {\"name\": \"minilm\", \"max_batch_size\": 16, \"slo_ms\": 200, \"rate_rps\": 50,
   \"inputs\": [{\"name\": \"input_ids\", \"datatype\": \"INT64\", \"shape\": [-1, -1]}],
   \"outputs\": [{\"name\": \"embedding\", \"datatype\": \"FP32\", \"shape\": [-1, 384]}]}
If max_batch_size is above 0, shapes begin with the batch dimension, -1.

Examples:
  packhorse model register minilm.pt --slo-ms 200 --wait
  packhorse model register scripted.pt --slo-ms 200 --input 'image=FP32[-1,3,224,224]'
  packhorse model register minilm.json --artifact minilm.pt --wait
  packhorse model register minilm.json --artifact minilm.pt --slo-ms 150 --rate-rps 80
  packhorse model register minilm.json --artifact minilm.pt --example request.json
  packhorse model register minilm.json --artifact minilm.pt --family sentences --accuracy 78.9")]
pub(crate) struct RegisterArgs {
    /// Model's file, or a JSON file with the model's name, signature and SLO
    #[arg(value_name = "FILE|SPEC.json")]
    spec: PathBuf,
    /// Name of the model; replaces that of SPEC.json [default: that of the file, or of the model's folder in a model repository]
    #[arg(long, value_name = "NAME")]
    name: Option<ModelName>,
    /// Version of the model; replaces that of SPEC.json [default: 1]
    #[arg(long, value_name = "N")]
    version: Option<ModelVersion>,
    #[command(flatten)]
    signature: SignatureArgs,
    /// TorchScript or `.pt2` file to upload; without it SPEC.json names an uploaded artifact or a file on the gateway's machine
    #[arg(long, value_name = "FILE")]
    artifact: Option<PathBuf>,
    /// JSON body of an inference request, such as clients send: inputs get its shapes as their usual ones, and its data as their examples, where SPEC.json says none
    #[arg(long, value_name = "REQUEST.json")]
    example: Option<PathBuf>,
    /// Latency objective (SLO) in milliseconds; replaces that of SPEC.json
    #[arg(long, value_name = "MS")]
    slo_ms: Option<f64>,
    /// Reserved rate, in requests per second; replaces that of SPEC.json [default: that of the newest version; none for the first one, which is planned for its measured rate]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate_rps: Option<RequestsPerSecond>,
    /// Rate to plan for beside a reservation: declared, measured, max (the larger of the two) or min; replaces that of SPEC.json [default: that of the newest version; max for the first one]
    #[arg(long, value_name = "MODE")]
    rate_mode: Option<RateMode>,
    /// Priority over other models, 0 to 9: where devices do not suffice, those of a higher one are served first; replaces that of SPEC.json [default: that of the newest version; 5 for the first one]
    #[arg(long, value_name = "N")]
    priority: Option<Priority>,
    /// Least number of devices with replicas, 1 to 16; those beyond the rate are placed where memory is left; replaces that of SPEC.json [default: that of the newest version; 1 for the first one]
    #[arg(long, value_name = "N")]
    min_replicas: Option<MinReplicas>,
    /// Most requests that may wait for the model; replaces that of SPEC.json [default: the gateway's --queue-limit]
    #[arg(long, value_name = "N")]
    queue_limit: Option<u32>,
    /// Longest wait of a request while the model is loaded from its file, in milliseconds, at most 60000; replaces that of SPEC.json [default: the SLO]
    #[arg(long, value_name = "MS")]
    max_cold_wait_ms: Option<u32>,
    /// Keep answers for requests of the same client with the same inputs: on or off; replaces that of SPEC.json [default: off]
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    cache: Option<bool>,
    /// Family that the model is a variant of: the name under which the most accurate variant that can be in time answers; replaces that of SPEC.json
    #[arg(long, value_name = "FAMILY")]
    family: Option<ModelName>,
    /// Percentage of the model's answers that are right; replaces that of SPEC.json
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    accuracy: Option<Percent>,
    /// Wait until the model is ready for requests; fail if it cannot be served
    #[arg(long)]
    wait: bool,
    /// Longest time to wait, in seconds
    #[arg(long, value_name = "S", default_value_t = 600, requires = "wait")]
    timeout_s: u64,
    #[command(flatten)]
    consent: ConsentArgs,
}

impl RegisterArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let is_program = is_program(&self.spec);
        let mut spec = if is_program {
            ensure!(
                self.artifact.is_none(),
                "{} is a program itself: leave out --artifact, or name a JSON file before it",
                self.spec.display()
            );
            self.describe().await?
        } else {
            self.read_spec()?
        };
        self.add_flags(&mut spec)?;
        if let Some(field) = first_unknown(&spec) {
            bail!(
                "{}: {field} is {UNKNOWN:?}, which packhorse model init writes for what nobody knows: write it there, or say it by a flag",
                self.spec.display()
            );
        }
        let admin = context.admin()?;
        let program = if is_program {
            Some(&self.spec)
        } else {
            self.artifact.as_ref()
        };
        let (artifact, told) = match program {
            Some(path) => {
                let told = check_kind(path)?;
                let file = hash_artifact(path).await?;
                name_artifact(&mut spec, &file)?;
                (Some(file), told)
            }
            None => (None, None),
        };
        let places = Places {
            program: program.map(PathBuf::as_path),
            registration: Some(&self.spec),
        };
        read_labels(&mut spec, &places)?;
        // Checked before the upload, so that a mistake in the specification does not cost the transfer of a large file.
        let mut registration: ModelRegistration = serde_json::from_value(Value::Object(spec))
            .with_context(|| format!("{}", self.spec.display()))?;
        let tokenizer = name_tokenizer(&mut registration, &places).await?;
        if let Some(told) = &told {
            check_order(told, &registration).with_context(|| format!("{}", self.spec.display()))?;
        }
        for file in [&artifact, &tokenizer].into_iter().flatten() {
            upload(&admin, file).await?;
        }
        let dry_run = admin.dry_run().register_model(&registration);
        let names = std::iter::once(&registration.name).chain(&registration.family);
        self.consent
            .ask(&names.collect::<Vec<_>>(), dry_run)
            .await?;
        let Changed {
            mut view,
            consequences,
        } = admin.register_model(&registration).await?;
        self.consent.tell(&consequences);
        if self.wait {
            let limit = Duration::from_secs(self.timeout_s);
            view = wait_until_ready(&admin, view, limit).await?;
        }
        print_changed(context, &Changed { view, consequences })
    }

    /// Describes the file that is given in place of a specification.
    async fn describe(&self) -> anyhow::Result<Map<String, Value>> {
        let shown = || self.spec.display().to_string();
        let described = describe(&self.spec, &self.signature).await;
        let described = described.with_context(shown)?;
        if let Some(obstacle) = &described.artifact.obstacle {
            bail!("{} cannot be served: {obstacle}", shown());
        }
        for note in &described.notes {
            output::note(format_args!("note: {note}"));
        }
        if !described.missing.is_empty() {
            let missing: Vec<String> = described.missing.iter().map(ToString::to_string).collect();
            let json = self.spec.with_extension("json");
            bail!(
                "{} does not tell all that a registration needs:\n  {}\nsay it to this command, or write a registration with\n  {}",
                shown(),
                missing.join("\n  "),
                init_command(&self.spec, &described, &json)
            );
        }
        let mut spec = described.spec;
        if let Some(name) = self.name.clone().or_else(|| name_of(&self.spec)) {
            spec.insert("name".to_owned(), name.as_str().into());
        } else {
            bail!(
                "name: that of {} is none that a model may have: give --name",
                shown()
            );
        }
        ensure!(
            spec.contains_key("slo_ms") || self.slo_ms.is_some(),
            "slo_ms: {} says no latency objective: give --slo-ms",
            shown()
        );
        Ok(spec)
    }

    /// Reads a specification.
    fn read_spec(&self) -> anyhow::Result<Map<String, Value>> {
        if let Some(flag) = self.signature.given() {
            bail!(
                "{flag} is for a model's file in place of {}, which says it itself",
                self.spec.display()
            );
        }
        let spec: Value = serde_json::from_slice(&read_file(&self.spec)?)
            .with_context(|| format!("{} is not valid JSON", self.spec.display()))?;
        let Value::Object(spec) = spec else {
            bail!("{}: expected a JSON object", self.spec.display())
        };
        Ok(spec)
    }

    /// Enters what the flags say.
    fn add_flags(&self, spec: &mut Map<String, Value>) -> anyhow::Result<()> {
        if let Some(path) = &self.example {
            let request = serde_json::from_slice(&read_file(path)?)
                .with_context(|| format!("{} is not valid JSON", path.display()))?;
            let notes = add_example(spec, &request);
            for note in notes.with_context(|| format!("{}", path.display()))? {
                output::note(note);
            }
        }
        if let Some(name) = &self.name {
            spec.insert("name".to_owned(), name.as_str().into());
        }
        if let Some(version) = self.version {
            spec.insert("version".to_owned(), version.get().into());
        }
        if let Some(slo_ms) = self.slo_ms {
            spec.insert("slo_ms".to_owned(), number(slo_ms));
        }
        if let Some(rate) = self.rate_rps {
            spec.insert("rate_rps".to_owned(), rate.get().into());
        }
        if let Some(mode) = self.rate_mode {
            spec.insert("rate".to_owned(), mode.as_str().into());
        }
        if let Some(priority) = self.priority {
            spec.insert("priority".to_owned(), u32::from(priority).into());
        }
        if let Some(replicas) = self.min_replicas {
            spec.insert("min_replicas".to_owned(), u32::from(replicas).into());
        }
        if let Some(limit) = self.queue_limit {
            spec.insert("queue_limit".to_owned(), limit.into());
        }
        if let Some(wait) = self.max_cold_wait_ms {
            spec.insert("max_cold_wait_ms".to_owned(), wait.into());
        }
        if let Some(cache) = self.cache {
            spec.insert("cache".to_owned(), cache.into());
        }
        if let Some(family) = &self.family {
            spec.insert("family".to_owned(), family.as_str().into());
        }
        if let Some(accuracy) = self.accuracy {
            spec.insert("accuracy".to_owned(), accuracy.get().into());
        }
        Ok(())
    }
}

/// Returns true if a file is no specification: it does not end in `.json` and does not begin with a brace. Only a regular file can be looked at
/// without reading it away.
fn is_program(path: &Path) -> bool {
    if path.extension().is_some_and(|end| end == "json") {
        return false;
    }
    let mut head = Vec::new();
    let read = open_regular_file(path).and_then(|file| file.take(64).read_to_end(&mut head));
    read.is_ok() && !head.trim_ascii_start().starts_with(b"{")
}

/// Refuses a file of which it is known that it is no program, before it is uploaded. The worker decides on all others.
///
/// Returns what the file tells, if it is known.
///
/// # Errors
/// What the file is, and what to do.
pub(in crate::commands) fn check_kind(path: &Path) -> anyhow::Result<Option<Artifact>> {
    let read = read_artifact(path);
    let obstacle = match &read {
        Ok(artifact) => artifact.obstacle.clone(),
        Err(error) => match error.downcast_ref::<ReadError>() {
            // A simulated device runs no program, and takes any file for one.
            Some(ReadError::Kind(FileKind::Empty)) => None,
            Some(ReadError::Kind(kind)) => Some(kind.to_string()),
            Some(ReadError::Archive(error)) => Some(error.to_string()),
            _ => None,
        },
    };
    match obstacle {
        Some(obstacle) => bail!("{} cannot be served: {obstacle}", path.display()),
        None => Ok(read.ok()),
    }
}

/// Refuses a registration that names the program's arguments in another order than the program: inputs are handed over by their order.
///
/// # Errors
/// The order of the program's arguments.
pub(in crate::commands) fn check_order(
    artifact: &Artifact,
    registration: &ModelRegistration,
) -> anyhow::Result<()> {
    let arguments = artifact.signature.inputs.as_deref().unwrap_or_default();
    let arguments: Option<Vec<&str>> = { arguments.iter() }
        .map(|argument| argument.name.as_deref())
        .collect();
    let arguments = arguments.unwrap_or_default();
    let inputs: Vec<&str> = { registration.inputs.iter() }
        .map(|input| input.name.as_str())
        .collect();
    let same_names = BTreeSet::from_iter(&arguments) == BTreeSet::from_iter(&inputs);
    ensure!(
        arguments == inputs || !same_names,
        "inputs: they are {}, and the program takes {}: write them in its order, in which they are handed over",
        inputs.join(", "),
        arguments.join(", ")
    );
    Ok(())
}

/// Enters a model file into a registration.
pub(in crate::commands) fn name_artifact(
    spec: &mut Map<String, Value>,
    file: &ArtifactFile,
) -> anyhow::Result<()> {
    let digest = file.digest().to_string();
    ensure!(
        !spec.contains_key("artifact_path"),
        "the specification has the field artifact_path: remove it or --artifact"
    );
    if let Some(other) = spec.insert("artifact".to_owned(), digest.clone().into()) {
        ensure!(
            other == digest,
            "the specification names the artifact {other}, but the file of --artifact is {digest}"
        );
    }
    Ok(())
}

async fn wait_until_ready(
    admin: &AdminClient,
    registered: ModelView,
    limit: Duration,
) -> anyhow::Result<ModelView> {
    let (name, version) = (registered.name.clone(), registered.version);
    let spinner = output::spinner();
    let mut last = progress_text(&registered);
    let mut unplaced = 0;
    let ready = async {
        let mut model = registered;
        loop {
            last = progress_text(&model);
            spinner.set_message(last.clone());
            unplaced = if model.state == ModelState::Unplaced {
                unplaced + 1
            } else {
                0
            };
            match model.state {
                ModelState::Ready => return Ok(model),
                ModelState::Failed => return Err(not_ready(&model)),
                ModelState::Unplaced if unplaced > MAX_UNPLACED_POLLS => {
                    return Err(not_ready(&model));
                }
                _ => {}
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            model = admin.model(&name, Some(version)).await?;
        }
    };
    let outcome = tokio::time::timeout(limit, ready).await;
    spinner.finish_and_clear();
    outcome.unwrap_or_else(|_| {
        Err(anyhow!(
            "{name} is not ready after {} s; its last state: {last}",
            limit.as_secs()
        ))
    })
}

/// Returns the error of a model that will not become ready.
fn not_ready(model: &ModelView) -> anyhow::Error {
    let reason = model
        .reason
        .as_deref()
        .unwrap_or("the gateway gives no reason");
    anyhow!(
        "{} cannot be served (state {}): {reason}",
        model.name,
        output::state_name(&model.state)
    )
}

fn progress_text(model: &ModelView) -> String {
    if model.state == ModelState::Profiling && !model.profiling.is_empty() {
        let texts: Vec<String> = model.profiling.iter().map(profiling_text).collect();
        return format!("profiling on {}", texts.join(", "));
    }
    let state = output::state_name(&model.state);
    model
        .reason
        .as_ref()
        .map_or(state.clone(), |reason| format!("{state}: {reason}"))
}
