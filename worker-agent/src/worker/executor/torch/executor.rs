//! The executor that runs a loaded program.

use std::sync::Arc;

use packhorse_cluster::{ByteCount, Program};
use packhorse_mapped::View;
use packhorse_wire::TensorHeader;

use super::{
    batch::{Prepared, input_buffer_size},
    device::{BatchBuffers, Code, Device, Streams},
    error::TorchError,
    options::StartOptions,
    programs::Programs,
    record_graphs::record,
    shim::{self, Buffer, Module, Optimization, RegisteredMemory, Rewriting},
    together,
    weights::RegionWeights,
};
use crate::{
    executor::{
        error::{ExecutionError, StartError},
        fill::Fill,
        stages::{Executed, Executor, InputMemory, PreparedBatch, Weights},
        synthetic,
    },
    process_memory,
};

/// Runs a program with libtorch.
pub(super) struct TorchExecutor {
    /// The device with the program.
    pub(super) device: Arc<Device>,
    buffers: usize,
    /// True if runs are recorded.
    records: bool,
    /// The most rows of batches that run together; 0 if none do.
    most_rows_together: u32,
    /// The program whose code checks the relations of its inputs' sizes itself nowhere, with a name for each of those.
    unchecked: Option<Program>,
    /// The memory before the program was loaded that the process shares with others of the same libraries.
    shared_before: Option<ByteCount>,
}

impl TorchExecutor {
    /// Loads the programs with these names, which only a package has, and allocates the buffers. `shared_before` is the resident memory of
    /// the process before anything was loaded.
    ///
    /// # Errors
    /// If a program cannot be loaded or has another number of inputs than declared, or there is not enough memory.
    pub(super) fn load(
        options: &StartOptions<'_>,
        names: &Programs<String>,
        rewriting: &Rewriting,
        shared_before: Option<ByteCount>,
    ) -> Result<Self, StartError> {
        let load_error = |error: TorchError| {
            let format = match rewriting.optimization {
                Optimization::Compiled => "an AOTInductor package",
                _ => "TorchScript",
            };
            let reason = format!("cannot be loaded as {format}: {}", error.summary());
            StartError {
                reason,
                permanent: !error.is_transient(),
            }
        };
        let (program, cuda_device) = (options.program, options.cuda_device);
        let weights = if options.parks {
            let weights = RegionWeights::new(cuda_device);
            // It serves all the same.
            let unless = |error: TorchError| {
                tracing::warn!(
                    error = error.summary(),
                    "the program keeps its weights in memory"
                );
            };
            weights.map_err(unless).ok()
        } else {
            None
        };
        let load = |name: String| {
            let load = || Module::load(options.artifact, &name, cuda_device, rewriting);
            let mut module = match &weights {
                Some(weights) => weights.load(load),
                None => load(),
            }?;
            module.declare(&program.outputs)?;
            Ok(module)
        };
        let programs = names.clone().try_map(load).map_err(load_error)?;
        for module in programs.iter() {
            check_arity(program, module.arity().map_err(load_error)?)?;
        }
        let streams = Streams::new(cuda_device, options.pipeline.streams);
        let streams = streams.map_err(ExecutionError::from)?;
        let rows = options.batch_size;
        let code = Code::Programs(programs);
        let is_compiled = matches!(rewriting.optimization, Optimization::Compiled);
        let unchecked = is_compiled.then(|| program.clone().with_assumed_dim_names());
        let executor = Self::with_code(options, code, weights, streams, rows, shared_before)?;
        Ok(Self {
            unchecked,
            ..executor
        })
    }

    /// Allocates the buffers for a model whose code is loaded, for batches of this many rows. They grow with larger ones.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn with_code(
        options: &StartOptions<'_>,
        code: Code,
        weights: Option<RegionWeights>,
        streams: Streams,
        rows: u32,
        shared_before: Option<ByteCount>,
    ) -> Result<Self, StartError> {
        let pinned = options.cuda_device.is_some();
        let inputs = synthetic::input_headers(options.program, rows)?;
        let largest = input_buffer_size(&inputs);
        let buffers = options.pipeline.buffers();
        let allocate = || -> Result<BatchBuffers, TorchError> {
            Ok(BatchBuffers {
                inputs: Buffer::new(largest, pinned)?,
                outputs: Buffer::new(0, pinned)?,
            })
        };
        let allocated = (0..buffers).map(|_| allocate()).collect::<Result<_, _>>();
        let allocated = allocated.map_err(ExecutionError::from)?;
        let device = Device::new(code, weights, options.cuda_device, streams, allocated);
        Ok(Self {
            device: Arc::new(device),
            buffers,
            records: options.pipeline.graphs,
            most_rows_together: 0,
            unchecked: None,
            shared_before,
        })
    }

    /// Returns the executor with batches of this many rows, of all programs with the same backbone, that run together.
    pub(super) fn joining(self, most_rows_together: u32) -> Self {
        Self {
            most_rows_together,
            ..self
        }
    }

    /// Returns the operators that were rewritten to oneDNN's.
    pub(super) fn rewritten(&self) -> Vec<String> {
        let programs = self.device.programs();
        let modules = programs.into_iter().flat_map(Programs::iter);
        modules
            .flat_map(|module| module.rewritten().unwrap_or_default())
            .collect()
    }

    /// Returns the names of the tensors in the dict that the program answers while no output is declared; none if it answers no dict.
    pub(super) fn answered(&self) -> Vec<String> {
        let module = self
            .device
            .programs()
            .and_then(|programs| programs.iter().next());
        module
            .and_then(|module| module.answered().ok())
            .unwrap_or_default()
    }

    /// Returns true if the executor records runs.
    pub(super) fn records(&self) -> bool {
        self.records
    }

    /// Returns true if a run is recorded.
    pub(super) fn has_recorded(&self) -> bool {
        !self.device.graphs().is_empty()
    }

    /// Stops to pad batches to recorded sizes.
    pub(super) fn stop_padding(&self) {
        self.device.graphs_mut().stop_padding();
    }

    /// Drops all recordings for this reason, and records nothing any more.
    pub(super) fn refuse_recordings(&self, reason: String) {
        self.device.graphs_mut().refuse(reason);
        self.release_memory();
    }

    /// Enlarges all buffers to the size of the largest, because a device pauses while memory is pinned.
    pub(super) fn equalize_buffers(&self) -> Result<(), ExecutionError> {
        let mut all: Vec<_> = (0..self.buffers)
            .map(|_| self.device.buffers.acquire())
            .collect();
        let largest = |size: fn(&BatchBuffers) -> usize| all.iter().map(|b| size(b)).max();
        let inputs = largest(|buffers| buffers.inputs.size()).unwrap_or(0);
        let outputs = largest(|buffers| buffers.outputs.size()).unwrap_or(0);
        for buffers in &mut all {
            buffers.inputs.reserve(inputs)?;
            buffers.outputs.reserve(outputs)?;
        }
        self.device.keep_inputs(inputs);
        Ok(())
    }
}

fn check_arity(program: &Program, (required, accepted): (usize, usize)) -> Result<(), StartError> {
    let declared = program.inputs.len();
    if (required..=accepted).contains(&declared) {
        return Ok(());
    }
    let expected = if required == accepted {
        required.to_string()
    } else {
        format!("{required} to {accepted}")
    };
    Err(StartError::permanent(format!(
        "the program takes {expected} arguments; {declared} inputs are declared"
    )))
}

impl Executor for TorchExecutor {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let program = self.unchecked.as_ref();
        if let Some(unequal) = program.and_then(|program| {
            program.unequal_dims(|input, axis| inputs[input].shape().dims()[axis])
        }) {
            return Err(ExecutionError::ModuleThrew(format!(
                "a package reads memory beyond such inputs: {unequal}; where they may differ, the registration names them apart (dim_names)"
            )));
        }
        Ok(Box::new(Prepared::new(&self.device, inputs)?))
    }

    fn prepare_memory(&self, mapped: View) -> Arc<dyn InputMemory> {
        match self.device.cuda_index {
            Some(index) => Arc::new(RegisteredMemory::new(mapped, index)),
            None => Arc::new(mapped),
        }
    }

    fn run_together(
        &self,
        batches: Vec<Box<dyn PreparedBatch>>,
    ) -> Vec<Result<Executed, ExecutionError>> {
        together::run_together(batches)
    }

    fn most_rows_together(&self) -> u32 {
        self.most_rows_together
    }

    /// Returns the memory of the executor so far. On the CPU it is the largest resident memory of the process without what was shared with
    /// other workers before the program was loaded: weights, activations, and what libtorch itself takes in every process, which is most of it
    /// for a small model. On a CUDA device it is the most memory that libtorch's allocator has held, without the CUDA context.
    fn memory(&self, _batch_size: u32) -> Option<ByteCount> {
        match self.device.cuda_index {
            Some(index) => shim::cuda_peak_memory(index).map(ByteCount::new),
            None => Some(process_memory::peak_resident()?.saturating_sub(self.shared_before?)),
        }
    }

    fn multiprocessors(&self) -> Option<u32> {
        shim::cuda_multiprocessors(self.device.cuda_index?)
    }

    fn weights(&self) -> Option<&dyn Weights> {
        let weights: &dyn Weights = self.device.weights.as_ref()?;
        (weights.bytes() > 0).then_some(weights)
    }

    fn forget_recordings(&self) {
        if self.records {
            self.device.graphs_mut().forget();
        }
    }

    fn record(&self, program: &Program, sizes: &[u32], fill: Fill) {
        if self.records && !self.device.graphs().is_refused() {
            // The recorded runs have memory of their own, so that the memory of the runs before is not needed any more.
            self.release_memory();
            record(&self.device, program, sizes, fill);
            // The device may have memory for a recording, but not for the copies to and from its inputs and outputs.
            let largest = *sizes.last().expect("a size has run");
            if let Err(error) = synthetic::run_batch(self, program, largest, fill) {
                let reason = error.to_string();
                tracing::info!(reason, "the recorded CUDA graphs are not used");
                self.forget_recordings();
                self.release_memory();
                self.device.graphs_mut().set_failure(reason);
            }
        }
    }

    fn recorded_sizes(&self) -> Result<Vec<u32>, String> {
        let graphs = self.device.graphs();
        let sizes = graphs.batch_sizes().map(<[u32]>::to_vec);
        sizes.map_err(str::to_owned)
    }

    fn release_memory(&self) {
        if self.device.cuda_index.is_some() {
            shim::release_cuda_memory();
        }
    }
}
