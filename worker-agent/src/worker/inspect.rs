//! `packhorse-worker inspect`: prints the operators of a program, from which its profile can be estimated.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use packhorse_cluster::{ArtifactDigest, Program, TensorSpec};
use packhorse_worker_agent::handoff::{Execution, ExecutorChoice, PipelineSettings, exit_code};
use serde::Deserialize;

use crate::executor;

const EXAMPLES: &str = "\
Examples:
  packhorse-worker inspect --model resnet50.pt --signature model.json";

/// The flags of an inspection.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectOptions {
    /// File with the TorchScript program
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// JSON file with the model's `inputs`, `outputs` and `max_batch_size`, such as the file of its registration
    #[arg(long, value_name = "FILE")]
    signature: PathBuf,
}

/// The part of a registration that describes the program.
#[derive(Deserialize)]
struct Signature {
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// Prints the operators, and returns the exit code.
pub(crate) fn inspect(options: &InspectOptions) -> u8 {
    let printed = read(options)
        .and_then(|execution| executor::inspect(&execution))
        .and_then(|graph| writeln!(io::stdout(), "{}", graph.to_json()).map_err(|e| e.to_string()));
    match printed {
        Ok(()) => exit_code::DONE,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "no operators: {reason}");
            exit_code::FAILED
        }
    }
}

fn read(options: &InspectOptions) -> Result<Execution, String> {
    let text = fs::read(&options.signature).map_err(|e| format!("--signature: {e}"))?;
    let signature: Signature =
        serde_json::from_slice(&text).map_err(|e| format!("--signature: {e}"))?;
    Ok(Execution {
        program: Program {
            model: "inspected:1".parse().expect("a model's name"),
            // The digest is not used here.
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: signature.max_batch_size,
            inputs: signature.inputs,
            outputs: signature.outputs,
        },
        executor: ExecutorChoice::Torch {
            artifact: options.model.clone(),
            cuda_device: None,
        },
        threads: 1,
        pipeline: PipelineSettings::default(),
    })
}
