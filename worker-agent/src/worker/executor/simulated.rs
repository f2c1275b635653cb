//! The executor of a simulated device: a batch takes as long as its profile says, slowed by the batches of other workers on the device as
//! in the simulator, and its outputs are zero. It lets whole clusters of real processes and sockets run on a laptop.

mod device;
mod neighbours;
mod weights;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceKind, Dim, ModelId, Profile, ProfileTable, Program, Shape,
    TensorSpec,
};
use packhorse_contention::ComputeDemand;
use packhorse_wire::{MAX_PAYLOAD, TensorHeader};

use self::{device::SimulatedDevice, weights::SimulatedWeights};
use super::{
    error::{ExecutionError, StartError},
    fill::Fill,
    pool::{Pool, Pooled},
    stages::{
        ComputedBatch, Executed, Executor, LoadedBatch, OutputTensor, PreparedBatch, RepeatedStage,
        Weights,
    },
    started::{Started, Verified},
};

/// Reads the program's profile from the table in the task.
///
/// # Errors
/// If the table is malformed or contains no profile of the program.
pub(super) fn read_profile(
    model: &ModelId,
    device_kind: &DeviceKind,
    csv: &str,
) -> Result<Profile, StartError> {
    let table = ProfileTable::from_csv(csv)
        .map_err(|e| StartError::permanent(format!("the simulated device's profiles: {e}")))?;
    table.get(model, device_kind).cloned().ok_or_else(|| {
        StartError::permanent(format!(
            "no profile of {model} on {device_kind} for the simulated device"
        ))
    })
}

/// The options of an executor.
#[derive(Clone)]
pub(super) struct SimulatedOptions {
    /// The program.
    pub(super) program: Program,
    /// The times and the memory of its batches.
    pub(super) profile: Profile,
    /// The part of the device that it may use.
    pub(super) compute_share: Option<ComputeShare>,
    /// The folder of the device.
    pub(super) folder: PathBuf,
    /// The number of batches for which there is memory.
    pub(super) buffers: usize,
    /// The most rows of a batch.
    pub(super) batch_size: u32,
    /// True if the weights may leave the device.
    pub(super) parks: bool,
}

impl SimulatedOptions {
    /// Starts the executor. Weights that may leave are read, and their bytes are the memory of a batch of one row.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(super) fn start(self) -> Result<Started, StartError> {
        Ok(Started {
            executor: Arc::new(SimulatedExecutor::new(&self)?),
            batch_size: self.batch_size,
            fill: Fill::Ones,
            verification: None,
            verified: self.parks.then(|| Arc::new(self) as _),
        })
    }
}

impl Verified for SimulatedOptions {
    fn load_again(&self) -> Result<Started, StartError> {
        self.clone().start()
    }
}

/// An executor that takes its times from a profile.
struct SimulatedExecutor {
    shared: Arc<Shared>,
    buffers: Arc<Pool<Vec<u8>>>,
}

struct Shared {
    program: Program,
    profile: Profile,
    compute_share: Option<ComputeShare>,
    device: Mutex<SimulatedDevice>,
    /// The weights, if they may leave the device.
    weights: Option<SimulatedWeights>,
}

struct SimulatedBatch {
    shared: Arc<Shared>,
    /// The bytes of the inputs, one after the other.
    buffer: Pooled<Vec<u8>>,
    inputs: Vec<TensorHeader>,
}

/// The outputs of a batch, and the time of its computation.
struct SimulatedOutputs {
    outputs: Vec<OutputTensor>,
    compute: Duration,
}

impl SimulatedExecutor {
    fn new(options: &SimulatedOptions) -> Result<Self, StartError> {
        let device = SimulatedDevice::join(&options.folder)
            .map_err(|e| StartError::transient(format!("the simulated device's folder: {e}")))?;
        let weights = options.profile.memory(1).filter(|_| options.parks);
        Ok(Self {
            shared: Arc::new(Shared {
                program: options.program.clone(),
                profile: options.profile.clone(),
                compute_share: options.compute_share,
                device: Mutex::new(device),
                weights: weights.map(SimulatedWeights::read),
            }),
            buffers: Pool::new(vec![Vec::new(); options.buffers]),
        })
    }
}

impl Executor for SimulatedExecutor {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let mut buffer = self.buffers.acquire();
        let bytes: u64 = inputs.iter().map(TensorHeader::byte_len).sum();
        buffer.resize(bytes as usize, 0);
        Ok(Box::new(SimulatedBatch {
            shared: Arc::clone(&self.shared),
            buffer,
            inputs: inputs.to_vec(),
        }))
    }

    fn memory(&self, batch_size: u32) -> Option<ByteCount> {
        self.shared.profile.memory(batch_size)
    }

    fn weights(&self) -> Option<&dyn Weights> {
        let weights = self.shared.weights.as_ref()?;
        Some(weights)
    }
}

impl PreparedBatch for SimulatedBatch {
    fn input_mut(&mut self, index: usize) -> &mut [u8] {
        let len = |input: &TensorHeader| input.byte_len() as usize;
        let start = self.inputs[..index].iter().map(len).sum();
        let end = start + len(&self.inputs[index]);
        &mut self.buffer[start..end]
    }

    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
        Ok(self)
    }
}

impl SimulatedBatch {
    /// Waits for as long as the device computes the batch.
    fn simulate(&self) -> Result<SimulatedOutputs, ExecutionError> {
        let Shared {
            program,
            profile,
            compute_share,
            device,
            weights,
        } = &*self.shared;
        let first = self.inputs.first().map(TensorHeader::shape);
        let rows = first
            .filter(|_| program.batches())
            .map_or(1, |shape| shape.dims()[0]);
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let outputs = program
            .outputs
            .iter()
            .map(|spec| zeros(spec, first))
            .collect::<Result<Vec<_>, _>>()?;
        let demand = ComputeDemand::new(profile, rows, *compute_share);
        let _held = weights.as_ref().map(SimulatedWeights::hold);
        let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
        let compute = device.compute(profile.latency(rows), demand).map_err(|e| {
            ExecutionError::DeviceFailed(format!("the simulated device's folder: {e}"))
        })?;
        Ok(SimulatedOutputs { outputs, compute })
    }
}

impl LoadedBatch for SimulatedBatch {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        Ok(Box::new(self.simulate()?))
    }

    fn repeat(
        &self,
        stage: RepeatedStage,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError> {
        let mut times = 0;
        while go_on() {
            if stage == RepeatedStage::Compute {
                self.simulate()?;
            }
            times += 1;
        }
        Ok(times)
    }
}

impl ComputedBatch for SimulatedOutputs {
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError> {
        Ok(Executed {
            outputs: self.outputs,
            copy_in: Duration::ZERO,
            compute: self.compute,
            copy_out: Duration::ZERO,
        })
    }
}

/// Returns zeros of the declared shape. A variable dimension has the size of the first input's dimension of the same index, else 1.
fn zeros(spec: &TensorSpec, first_input: Option<&Shape>) -> Result<OutputTensor, ExecutionError> {
    let size = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Any => first_input
            .and_then(|shape| shape.dims().get(axis))
            .map_or(1, |size| size.cast_signed()),
        Dim::Fixed(_) => i64::from(*dim),
    };
    let dims: Vec<i64> = spec.shape.iter().enumerate().map(size).collect();
    let too_large = |e: &dyn std::fmt::Display| {
        ExecutionError::OutOfMemory(format!("output {:?}: {e}", spec.name))
    };
    let shape = Shape::new(&dims).map_err(|e| too_large(&e))?;
    let header = TensorHeader::new(spec.datatype, shape).map_err(|e| too_large(&e))?;
    if header.byte_len() > MAX_PAYLOAD {
        return Err(too_large(&format!("more than {MAX_PAYLOAD} bytes")));
    }
    let bytes = Box::new(vec![0_u8; header.byte_len() as usize]);
    Ok(OutputTensor { header, bytes })
}
