//! libtorch: TorchScript programs and packages that were compiled ahead of time, on the CPU or on a CUDA device.

mod artifact;
mod memory;
mod shim;
mod thrown;

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use packhorse_cluster::{ByteCount, Program};
use packhorse_wire::TensorHeader;
use tch::{Cuda, Device, Tensor};

use shim::{HostTensor, Module, Thrown, Treatment};

use super::{Executed, ExecutionError, Executor, OutputTensor, PreparedBatch, StartError, sample};

/// Ends the process without running the destructors of libtorch, some of whose threads may be at work.
pub(super) fn exit_now(code: u8) -> ! {
    shim::exit_now(code)
}

/// Says how many threads one batch may use. Only the first call of a process counts.
pub(super) fn set_threads(threads: u32) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX).max(1));
    tch::set_num_interop_threads(1);
}

/// Loads and warms up the program in the fastest form that works: some programs cannot be optimised, a few not even frozen,
/// and some show it only when they run. A package was compiled for the device beforehand and has one form only.
pub(super) fn start(
    program: &Program,
    artifact: &Path,
    cuda_device: Option<u32>,
    batch_size: u32,
) -> Result<Arc<dyn Executor>, StartError> {
    if let Some(index) = cuda_device
        && i64::from(index) >= Cuda::device_count()
    {
        return Err(StartError::passing(format!(
            "libtorch finds no CUDA device {index}"
        )));
    }
    let is_package = File::open(artifact).and_then(|mut file| artifact::is_package(&mut file));
    let is_package = is_package
        .map_err(|e| StartError::passing(format!("the model file cannot be read: {e}")))?;
    let start_as = |treatment| -> Result<Arc<dyn Executor>, StartError> {
        let executor = Torch::load(program, artifact, cuda_device, treatment)?;
        sample::warm_up(&executor, program, &sample::batch_sizes(batch_size))?;
        tracing::info!(program.treatment = ?treatment, "program loaded");
        Ok(Arc::new(executor))
    };
    if is_package {
        return start_as(Treatment::Compiled);
    }
    start_as(Treatment::Optimized)
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be optimised");
            start_as(Treatment::Frozen)
        })
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be frozen");
            start_as(Treatment::Plain)
        })
}

/// Runs a program with libtorch.
struct Torch {
    module: Arc<Module>,
    cuda_device: Option<u32>,
    /// A batch of one row is computed as two rows. PyTorch compiles programs with a variable dimension for sizes from 2: what it knows
    /// of 0 and 1 is only that they are special.
    doubles_single_rows: bool,
    /// The process' memory before the program was loaded.
    resident_before: Option<ByteCount>,
}

struct TorchBatch {
    module: Arc<Module>,
    cuda_device: Option<u32>,
    inputs: Vec<HostTensor>,
    doubled: bool,
}

impl Torch {
    fn load(
        program: &Program,
        artifact: &Path,
        cuda_device: Option<u32>,
        treatment: Treatment,
    ) -> Result<Self, StartError> {
        let resident_before = memory::resident();
        let cannot_load = |thrown: Thrown| {
            let out_of_memory = thrown.kind == shim::ThrownKind::OutOfMemory;
            let form = match treatment {
                Treatment::Compiled => "an AOTInductor package",
                Treatment::Plain | Treatment::Frozen | Treatment::Optimized => "TorchScript",
            };
            let reason = format!("cannot be loaded as {form}: {}", thrown.summary());
            StartError {
                reason,
                permanent: !out_of_memory,
            }
        };
        let module = Module::load(artifact, cuda_device, treatment).map_err(cannot_load)?;
        let (required, accepted) = module.arity().map_err(cannot_load)?;
        let given = program.inputs.len();
        if given < required || given > accepted {
            let takes = if required == accepted {
                required.to_string()
            } else {
                format!("{required} to {accepted}")
            };
            return Err(StartError::permanent(format!(
                "the program takes {takes} arguments; {given} inputs are declared"
            )));
        }
        Ok(Self {
            module: Arc::new(module),
            cuda_device,
            doubles_single_rows: treatment == Treatment::Compiled && program.max_batch_size > 1,
            resident_before,
        })
    }
}

impl Executor for Torch {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let is_single = |input: &TensorHeader| input.shape().dims().first() == Some(&1);
        let doubled = self.doubles_single_rows && inputs.iter().all(is_single);
        let inputs = inputs
            .iter()
            .map(HostTensor::empty)
            .collect::<Result<_, _>>()?;
        Ok(Box::new(TorchBatch {
            module: Arc::clone(&self.module),
            cuda_device: self.cuda_device,
            inputs,
            doubled,
        }))
    }

    /// On the CPU: by how much the process has grown at its largest since just before the program was loaded. Weights,
    /// activations, and what libtorch itself first touched for them.
    /// On a CUDA device: the most that libtorch's allocator held; the context comes on top.
    fn memory(&self, _batch_size: u32) -> Option<ByteCount> {
        match self.cuda_device {
            Some(index) => shim::cuda_peak_memory(index).map(ByteCount::new),
            None => Some(memory::peak_resident()?.saturating_sub(self.resident_before?)),
        }
    }
}

impl PreparedBatch for TorchBatch {
    fn input_mut(&mut self, index: usize) -> &mut [u8] {
        self.inputs[index].bytes_mut()
    }

    fn run(self: Box<Self>) -> Result<Executed, ExecutionError> {
        let Self {
            module,
            cuda_device,
            inputs,
            doubled,
        } = *self;
        let mut stage = Stopwatch::start();
        let inputs = inputs
            .into_iter()
            .map(|input| {
                let input = to_device(input.into_tensor(), cuda_device)?;
                if doubled {
                    return Ok(Tensor::f_cat(&[&input, &input], 0)?);
                }
                Ok(input)
            })
            .collect::<Result<Vec<_>, Thrown>>()?;
        let copy_in = stage.lap();
        let outputs = module.forward(&inputs)?;
        drop(inputs);
        if let Some(index) = cuda_device {
            Cuda::synchronize(i64::from(index));
        }
        let compute = stage.lap();
        let outputs = outputs
            .into_iter()
            .map(|output| {
                let output = if doubled {
                    output.f_narrow(0, 0, 1)?
                } else {
                    output
                };
                let (header, bytes) = HostTensor::from_output(output)?;
                let bytes = Box::new(bytes);
                Ok(OutputTensor { header, bytes })
            })
            .collect::<Result<Vec<_>, Thrown>>()?;
        Ok(Executed {
            outputs,
            copy_in,
            compute,
            copy_out: stage.lap(),
        })
    }
}

fn to_device(tensor: Tensor, cuda_device: Option<u32>) -> Result<Tensor, Thrown> {
    match cuda_device {
        Some(index) => Ok(tensor.f_to_device(Device::Cuda(index as usize))?),
        None => Ok(tensor),
    }
}

/// Time from lap to lap.
struct Stopwatch(Instant);

#[expect(
    clippy::disallowed_methods,
    reason = "an executor measures the stages of its batches"
)]
impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now - self.0;
        self.0 = now;
        lap
    }
}
