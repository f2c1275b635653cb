//! A program that was verified, and is loaded again without being tried once more: the same file on the same device with the same libtorch, rewritten in
//! the same way, has the same weights and gives the same answers.

use std::{path::PathBuf, sync::Arc};

use packhorse_cluster::Program;
use packhorse_worker_agent::handoff::{Optimize, PipelineSettings};

use super::{
    executor::TorchExecutor,
    options::StartOptions,
    programs::Programs,
    seal_weights::{self, Parkable},
    shim::Rewriting,
};
use crate::{
    executor::{
        error::StartError,
        fill::Fill,
        stages::Executor as _,
        started::{Started, Verified, WarmUpSizes},
        synthetic,
    },
    process_memory,
};

/// A program with all that its verification has found.
pub(super) struct VerifiedProgram {
    program: Program,
    artifact: PathBuf,
    cuda_device: Option<u32>,
    threads: u32,
    optimize: Optimize,
    pipeline: PipelineSettings,
    names: Programs<String>,
    rewriting: Rewriting,
    batch_size: u32,
    fill: Fill,
    /// The sizes of the batches whose runs were recorded.
    recorded: Vec<u32>,
    proof: Parkable,
}

impl VerifiedProgram {
    /// Creates a program that was started with these options and this rewriting, and takes batches of a size with synthetic inputs of this content.
    pub(super) fn new(
        options: &StartOptions<'_>,
        names: &Programs<String>,
        rewriting: &Rewriting,
        (batch_size, fill): (u32, Fill),
        recorded: Vec<u32>,
        proof: Parkable,
    ) -> Self {
        Self {
            program: options.program.clone(),
            artifact: options.artifact.to_owned(),
            cuda_device: options.cuda_device,
            threads: options.threads,
            optimize: options.optimize,
            pipeline: options.pipeline,
            names: names.clone(),
            rewriting: rewriting.clone(),
            batch_size,
            fill,
            recorded,
            proof,
        }
    }
}

impl Verified for VerifiedProgram {
    fn load_again(&self) -> Result<Started, StartError> {
        let options = StartOptions {
            program: &self.program,
            artifact: &self.artifact,
            cuda_device: self.cuda_device,
            threads: self.threads,
            batch_size: self.batch_size,
            sizes: WarmUpSizes::PowersOfTwo,
            optimize: self.optimize,
            parks: true,
            pipeline: self.pipeline,
        };
        let shared_before = process_memory::shared();
        let executor = TorchExecutor::load(&options, &self.names, &self.rewriting, shared_before)?;
        synthetic::run_batch(&executor, &self.program, self.batch_size, self.fill)?;
        if !self.recorded.is_empty() {
            executor.record(&self.program, &self.recorded, self.fill);
        }
        executor.equalize_buffers()?;
        seal_weights::seal_again(&executor, self.proof);
        tracing::info!("program loaded again");
        Ok(Started {
            executor: Arc::new(executor),
            batch_size: self.batch_size,
            fill: self.fill,
            verification: None,
            verified: None,
        })
    }
}
