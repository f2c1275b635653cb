//! An executor without a device: a batch takes as long as its profile says and answers zeros. Whole clusters of real processes
//! and sockets run with it on a laptop.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::{
    ByteCount, DeviceKind, Dim, ModelId, Profile, ProfileTable, Program, Shape, TensorSpec,
};
use packhorse_wire::{MAX_PAYLOAD, TensorHeader};

use super::{
    ComputedBatch, Executed, ExecutionError, Executor, LoadedBatch, OutputTensor, PreparedBatch,
    Repeated, StartError,
    pool::{Pool, Taken},
};

/// A sleeping thread may wake up so much late: the rest is waited for awake.
const WAKE_UP_SLACK: Duration = Duration::from_micros(300);

/// Where the program's profile stands in the table that came with the task.
pub(super) fn profile(
    model: &ModelId,
    device_kind: &DeviceKind,
    csv: &str,
) -> Result<Profile, StartError> {
    let table = ProfileTable::from_csv(csv)
        .map_err(|e| StartError::permanent(format!("the simulated device's profiles: {e}")))?;
    table.get(model, device_kind).cloned().ok_or_else(|| {
        StartError::permanent(format!(
            "no profile of {model} on {device_kind} to simulate"
        ))
    })
}

/// Takes its time from a profile.
pub(super) struct Simulated {
    shared: Arc<Shared>,
    buffers: Arc<Pool<Vec<u8>>>,
}

struct Shared {
    program: Program,
    profile: Profile,
}

struct SimulatedBatch {
    shared: Arc<Shared>,
    /// The inputs, one after the other.
    buffer: Taken<Vec<u8>>,
    inputs: Vec<TensorHeader>,
}

/// Its outputs, and how long they took.
struct SimulatedOutputs {
    outputs: Vec<OutputTensor>,
    compute: Duration,
}

impl Simulated {
    pub(super) fn new(program: &Program, profile: Profile, buffers: usize) -> Self {
        let program = program.clone();
        Self {
            shared: Arc::new(Shared { program, profile }),
            buffers: Pool::new(vec![Vec::new(); buffers]),
        }
    }
}

impl Executor for Simulated {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let mut buffer = self.buffers.take();
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
    #[expect(
        clippy::disallowed_methods,
        reason = "an executor is what takes real time"
    )]
    fn take_time(&self) -> Result<SimulatedOutputs, ExecutionError> {
        let Shared { program, profile } = &*self.shared;
        let started = Instant::now();
        let first = self.inputs.first().map(TensorHeader::shape);
        let rows = first
            .filter(|_| program.batches())
            .map_or(1, |shape| shape.dims()[0]);
        let latency = profile.latency(u32::try_from(rows).unwrap_or(u32::MAX));
        let outputs = program
            .outputs
            .iter()
            .map(|spec| output(spec, first))
            .collect::<Result<Vec<_>, _>>()?;
        thread::sleep(latency.saturating_sub(WAKE_UP_SLACK));
        while started.elapsed() < latency {
            std::hint::spin_loop();
        }
        let compute = started.elapsed();
        Ok(SimulatedOutputs { outputs, compute })
    }
}

impl LoadedBatch for SimulatedBatch {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        Ok(Box::new(self.take_time()?))
    }

    fn repeat(
        &self,
        what: Repeated,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError> {
        let mut times = 0;
        while go_on() {
            if what == Repeated::Compute {
                self.take_time()?;
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

/// Zeros of the declared shape. A variable dimension is as large as the first input's at the same place, else 1.
fn output(spec: &TensorSpec, first_input: Option<&Shape>) -> Result<OutputTensor, ExecutionError> {
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
        return Err(too_large(&format!("over {MAX_PAYLOAD} bytes")));
    }
    let bytes = Box::new(vec![0_u8; header.byte_len() as usize]);
    Ok(OutputTensor { header, bytes })
}
