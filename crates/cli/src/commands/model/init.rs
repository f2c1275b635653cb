//! `packhorse model init`: writes the registration of a model's file.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use packhorse_artifact::{Artifact, Target};
use packhorse_cluster::ModelName;
use packhorse_terminal::{context::Context, files::write_file, output};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    describe::{Description, describe, name_of, number},
    draft::{Missing, UNKNOWN, text_of, told_text},
    signature::SignatureArgs,
};

#[derive(clap::Args)]
#[command(after_help = "\
The file is TorchScript (.pt) or an AOTInductor package (.pt2). Names, datatypes and sizes are read from it without running it. What
packhorse.export has written has its whole registration in it; of other files the outputs are found by running the program once, in a worker of
this machine that can read and write nothing else where the kernel has Landlock. What nobody knows is asked for, and stands as \"?\" in what is written.

Examples:
  packhorse model init resnet50.pt --slo-ms 100 -o resnet50.json
  packhorse model init scripted.pt --input 'image=FP32[-1,3,224,224]' --slo-ms 100 -o scripted.json
  packhorse model init bert.pt --input 'input_ids=INT64[-1,-1]' --input 'attention_mask=INT64[-1,-1]' -o bert.json
  packhorse model init models/bert/1/model.pt2 -o models/bert/model.json
  packhorse model init resnet50.pt --json")]
pub(crate) struct InitArgs {
    /// Model's file: TorchScript, or an `AOTInductor` package
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File to write the registration to, in place of standard output
    #[arg(short, long, value_name = "MODEL.json")]
    out: Option<PathBuf>,
    /// Replace the file of --out if it is there
    #[arg(long, requires = "out")]
    overwrite: bool,
    /// Name of the model [default: that of the file, or of the model's folder in a model repository]
    #[arg(long, value_name = "NAME")]
    name: Option<ModelName>,
    /// Latency objective (SLO) in milliseconds [default: what the file says]
    #[arg(long, value_name = "MS")]
    slo_ms: Option<f64>,
    #[command(flatten)]
    signature: SignatureArgs,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    format: String,
    told: String,
    device: Option<&'a str>,
    machine: Option<&'a str>,
    cpu_isa: Option<&'a str>,
    compute_capability: Option<&'a str>,
    obstacle: Option<&'a str>,
    registration: &'a Map<String, Value>,
    missing: &'a [Missing],
    notes: &'a [String],
}

impl InitArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(out) = &self.out {
            ensure!(
                self.overwrite || !out.exists(),
                "{} exists: name another file, or replace it with --overwrite",
                out.display()
            );
        }
        let shown = || self.file.display().to_string();
        let described = describe(&self.file, &self.signature).await;
        let Description {
            artifact,
            mut spec,
            mut missing,
            notes,
        } = described.with_context(shown)?;
        if let Some(name) = self.name.clone().or_else(|| name_of(&self.file)) {
            spec.insert("name".to_owned(), name.as_str().into());
        } else {
            spec.insert("name".to_owned(), json!(UNKNOWN));
            missing.push(Missing {
                field: "name".to_owned(),
                reason: "the file's is none that a model may have: give --name".to_owned(),
            });
        }
        if let Some(slo_ms) = self.slo_ms {
            spec.insert("slo_ms".to_owned(), number(slo_ms));
        } else if !spec.contains_key("slo_ms") {
            spec.insert("slo_ms".to_owned(), json!(UNKNOWN));
            missing.push(Missing {
                field: "slo_ms".to_owned(),
                reason: "the latency objective in milliseconds: give --slo-ms".to_owned(),
            });
        }
        let text = text_of(&spec);
        if let Some(out) = &self.out {
            write_file(out, text.as_bytes())?;
        }
        if context.json() {
            return output::print_json(&report(&artifact, &spec, &missing, &notes));
        }
        if self.out.is_none() {
            output::print_bytes(text.as_bytes())?;
        }
        output::note(format_args!(
            "{} is {}: {}",
            shown(),
            artifact.format,
            told_text(&artifact.signature)
        ));
        if let Some(target) = target_text(&artifact.target) {
            output::note(format_args!("compiled for {target}"));
        }
        if let Some(obstacle) = &artifact.obstacle {
            output::note(format_args!("it cannot be served: {obstacle}"));
        }
        if artifact.registration.is_some() {
            output::note("the registration is the one in the file");
        }
        for note in &notes {
            output::note(format_args!("note: {note}"));
        }
        for missing in &missing {
            output::note(format_args!("missing: {missing}"));
        }
        Ok(())
    }
}

fn report<'a>(
    artifact: &'a Artifact,
    registration: &'a Map<String, Value>,
    missing: &'a [Missing],
    notes: &'a [String],
) -> Report<'a> {
    let target = &artifact.target;
    Report {
        format: artifact.format.to_string(),
        told: told_text(&artifact.signature),
        device: target.device.as_deref(),
        machine: target.machine.as_deref(),
        cpu_isa: target.cpu_isa.as_deref(),
        compute_capability: target.compute_capability.as_deref(),
        obstacle: artifact.obstacle.as_deref(),
        registration,
        missing,
        notes,
    }
}

/// Returns the machine that a package was compiled for; `None` if the file does not say.
fn target_text(target: &Target) -> Option<String> {
    let Target {
        device,
        machine,
        cpu_isa,
        compute_capability,
    } = target;
    let mut parts: Vec<String> = [device, machine, cpu_isa]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    parts.extend(
        compute_capability
            .as_ref()
            .map(|c| format!("compute capability {c}")),
    );
    (!parts.is_empty()).then(|| parts.join(", "))
}
