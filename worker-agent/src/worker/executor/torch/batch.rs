//! A batch in its three stages. Each stage enqueues work in a stream, records events before and after it, and returns; only the last stage
//! waits, for the last event. Until then the memory that the device reads or writes is held.

use std::{any::Any, ops::Range, sync::Arc, time::Duration};

use packhorse_wire::{ByteRange, TensorHeader};
use tch::Tensor;

use super::{
    device::{BatchBuffers, Device},
    error::TorchError,
    graphs::InputShapes,
    row_padding::RowPadding,
    shim::{
        ALIGNMENT, Graph, HostTensor, RegisteredInputs, SharedInputs, StageStream, StreamEvent,
        header_of,
    },
};
use crate::executor::{
    error::ExecutionError,
    pool::Pooled,
    stages::{
        ComputedBatch, Executed, InputMemory, LoadedBatch, OutputTensor, PreparedBatch,
        RepeatedStage,
    },
};

/// A batch whose inputs are being filled.
pub(super) struct Prepared {
    device: Arc<Device>,
    buffers: Pooled<BatchBuffers>,
    /// The inputs as the program gets them.
    inputs: Vec<BufferedTensor>,
    padding: Option<RowPadding>,
    /// The inputs if they are not in the buffers.
    mapped: Option<MappedInputs>,
}

/// The inputs of a batch in the memory of a gateway.
enum MappedInputs {
    /// The program, on the CPU, reads them there.
    Shared(SharedInputs),
    /// They are copied from there to the CUDA device.
    Registered(RegisteredInputs),
}

/// A batch whose inputs are on the device, or are being copied there.
pub(super) struct Loaded {
    /// The first field, because it must be dropped first: it waits until the device uses no memory of the batch.
    buffers: HeldBuffers,
    layout: Vec<BufferedTensor>,
    inputs: Vec<Tensor>,
    copy_in: Interval,
    padding: Option<RowPadding>,
    /// The memory of the inputs if they are not in the buffers.
    _mapped: Option<MappedInputs>,
}

/// A batch whose outputs are on the device, or are being computed.
pub(super) struct Computed {
    loaded: Loaded,
    outputs: Vec<Tensor>,
    compute: Interval,
}

/// A tensor in a buffer.
struct BufferedTensor {
    header: TensorHeader,
    offset: usize,
}

impl BufferedTensor {
    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.header.byte_len() as usize
    }
}

/// The interval between two events of a stream.
pub(super) struct Interval {
    /// The first event.
    pub(super) start: StreamEvent,
    /// The second event.
    pub(super) end: StreamEvent,
}

impl Interval {
    /// Returns the time between the events, both of which must be complete.
    fn duration(&self) -> Result<Duration, TorchError> {
        self.end.elapsed_since(&self.start)
    }
}

/// The buffers of a batch that is on the device. If the batch is dropped, they are returned only when the device no longer uses them.
struct HeldBuffers {
    device: Arc<Device>,
    buffers: Option<Pooled<BatchBuffers>>,
}

impl HeldBuffers {
    /// Copies the inputs to the device.
    fn copy_to_device(&self, inputs: &[BufferedTensor]) -> Result<Vec<Tensor>, TorchError> {
        let buffers = self.buffers.as_ref().expect("not released");
        let stream = &self.device.streams.copy_in;
        let copy = |input: &BufferedTensor| {
            stream.to_device(buffers.inputs.tensor(input.offset, &input.header)?)
        };
        inputs.iter().map(copy).collect()
    }

    /// Returns the buffers, which the device must no longer use.
    fn release(mut self) -> Pooled<BatchBuffers> {
        self.buffers.take().expect("released once")
    }
}

impl Drop for HeldBuffers {
    fn drop(&mut self) {
        if self.buffers.is_some() {
            self.device.synchronize();
        }
    }
}

/// Places tensors in a buffer, one after the other. Also returns the size of the buffer in bytes.
fn lay_out(headers: impl IntoIterator<Item = TensorHeader>) -> (Vec<BufferedTensor>, usize) {
    let mut end = 0_usize;
    let mut place = |header: TensorHeader| {
        let offset = end.next_multiple_of(ALIGNMENT);
        end = offset + header.byte_len() as usize;
        BufferedTensor { header, offset }
    };
    let tensors = headers.into_iter().map(&mut place).collect();
    (tensors, end)
}

/// Returns the size of the buffer for these inputs, in bytes.
pub(super) fn input_buffer_size(inputs: &[TensorHeader]) -> usize {
    lay_out(inputs.iter().cloned()).1
}

impl Prepared {
    /// Waits for free buffers and prepares a batch in them.
    pub(super) fn new(device: &Arc<Device>, inputs: &[TensorHeader]) -> Result<Self, TorchError> {
        let padding = RowPadding::for_batch(inputs, |rows| {
            let required = device.required_rows(rows);
            let recorded = device.graphs().padded_rows(inputs, required);
            recorded.unwrap_or(required)
        });
        Self::with_padding(device, inputs, padding)
    }

    /// Waits for free buffers and prepares a batch whose run will be recorded.
    pub(super) fn to_record(
        device: &Arc<Device>,
        inputs: &[TensorHeader],
    ) -> Result<Self, TorchError> {
        let padding = RowPadding::for_batch(inputs, |rows| device.required_rows(rows));
        Self::with_padding(device, inputs, padding)
    }

    fn with_padding(
        device: &Arc<Device>,
        inputs: &[TensorHeader],
        padding: Option<RowPadding>,
    ) -> Result<Self, TorchError> {
        let padded = inputs.iter().map(|input| match padding {
            Some(padding) => padding.padded_header(input),
            None => Ok(input.clone()),
        });
        let padded: Vec<TensorHeader> = padded.collect::<Result<_, _>>()?;
        let (inputs, size) = lay_out(padded);
        let mut buffers = device.buffers.acquire();
        buffers.inputs.reserve(size)?;
        Ok(Self {
            device: Arc::clone(device),
            buffers,
            inputs,
            padding,
            mapped: None,
        })
    }

    /// Records a run with these inputs, in the memory of `pool_owner` if there is one. Also returns the inputs' shapes.
    pub(super) fn record(
        self,
        pool_owner: Option<&Graph>,
    ) -> Result<(InputShapes, Graph), TorchError> {
        let buffers = HeldBuffers {
            device: self.device,
            buffers: Some(self.buffers),
        };
        let inputs = buffers.copy_to_device(&self.inputs)?;
        let stream = &buffers.device.streams.copy_in;
        stream.record_event()?.wait_until_complete()?;
        let graph = buffers.device.record(&inputs, pool_owner)?;
        Ok((inputs.iter().map(Tensor::size).collect(), graph))
    }
}

impl PreparedBatch for Prepared {
    fn input_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.inputs[index].range();
        let len = self
            .padding
            .map_or(range.len(), |padding| padding.batch_bytes(range.len()));
        self.buffers.inputs.bytes_mut(range.start, len)
    }

    fn map_inputs(&mut self, memory: &Arc<dyn InputMemory>, ranges: &[ByteRange]) -> bool {
        if self.padding.is_some() {
            return false;
        }
        let headers = self.inputs.iter().map(|input| &input.header);
        self.mapped = if self.device.cuda_index.is_some() {
            let memory: Arc<dyn Any + Send + Sync> = Arc::<dyn InputMemory>::clone(memory);
            // A connection that was opened while the program was in its file only has memory that no device knows.
            let Ok(memory) = memory.downcast() else {
                return false;
            };
            RegisteredInputs::find(memory, ranges, headers).map(MappedInputs::Registered)
        } else if self.device.only_reads_inputs {
            SharedInputs::find(memory, ranges, headers.cloned().collect()).map(MappedInputs::Shared)
        } else {
            None
        };
        self.mapped.is_some()
    }

    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
        Ok(Box::new((*self).load()?))
    }
}

impl Prepared {
    /// Copies the inputs to the device, or enqueues the copies.
    pub(super) fn load(self) -> Result<Loaded, TorchError> {
        let Self {
            device,
            mut buffers,
            inputs: layout,
            padding,
            mapped,
        } = self;
        if let Some(padding) = padding {
            for Range { start, end } in layout.iter().map(BufferedTensor::range) {
                padding.fill(buffers.inputs.bytes_mut(start, end - start));
            }
        }
        // Declared after `mapped`, so that it is dropped first after an error.
        let buffers = HeldBuffers {
            device,
            buffers: Some(buffers),
        };
        let stream = &buffers.device.streams.copy_in;
        let start = stream.record_event()?;
        let inputs = match &mapped {
            Some(MappedInputs::Shared(inputs)) => inputs.tensors()?,
            Some(MappedInputs::Registered(inputs)) => {
                inputs.copy_to_device(stream, layout.iter().map(|input| &input.header))?
            }
            None => buffers.copy_to_device(&layout)?,
        };
        let end = stream.record_event()?;
        Ok(Loaded {
            buffers,
            layout,
            inputs,
            copy_in: Interval { start, end },
            padding,
            _mapped: mapped,
        })
    }
}

impl Loaded {
    /// Returns the device that the batch is on.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.buffers.device
    }

    /// Returns the inputs on the device.
    pub(super) fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    /// Lets a stream wait until the inputs are on the device.
    pub(super) fn wait_in(&self, stream: &StageStream) -> Result<(), TorchError> {
        stream.wait_event(&self.copy_in.end)
    }

    /// Returns the batch with its outputs.
    pub(super) fn computed(self, outputs: Vec<Tensor>, compute: Interval) -> Computed {
        Computed {
            loaded: self,
            outputs,
            compute,
        }
    }
}

impl LoadedBatch for Loaded {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        let device = self.device();
        let stream = &device.streams.compute;
        self.wait_in(stream)?;
        // Before the time begins that counts as computing.
        let weights = device.lease()?;
        let start = stream.record_event()?;
        let outputs = device.run(&weights, stream, &self.inputs)?;
        let end = stream.record_event()?;
        drop(weights);
        Ok(Box::new(self.computed(outputs, Interval { start, end })))
    }

    fn repeat(
        &self,
        stage: RepeatedStage,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError> {
        let device = &self.buffers.device;
        let stream = match stage {
            RepeatedStage::CopyIn => &device.streams.copy_in,
            RepeatedStage::Compute => &device.streams.compute,
        };
        stream.wait_event(&self.copy_in.end)?;
        let weights = device.lease()?;
        // The device has one repetition enqueued while this thread waits for the one before it.
        let mut previous: Option<StreamEvent> = None;
        let mut times = 0;
        while go_on() {
            match stage {
                RepeatedStage::CopyIn => drop(self.buffers.copy_to_device(&self.layout)?),
                RepeatedStage::Compute => drop(device.run(&weights, stream, &self.inputs)?),
            }
            times += 1;
            if let Some(event) = previous.replace(stream.record_event()?) {
                event.wait_until_complete()?;
            }
        }
        if let Some(event) = previous {
            event.wait_until_complete()?;
        }
        Ok(times)
    }
}

impl ComputedBatch for Computed {
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError> {
        let mut batch = *self;
        let device = Arc::clone(&batch.loaded.buffers.device);
        let stream = &device.streams.copy_out;
        stream.wait_event(&batch.compute.end)?;
        let start = stream.record_event()?;
        let outputs = batch.contiguous_outputs(stream)?;
        let headers: Vec<TensorHeader> = outputs.iter().map(header_of).collect::<Result<_, _>>()?;
        let layout = if device.cuda_index.is_none() {
            None
        } else {
            let buffers = &mut batch.loaded.buffers;
            Some(copy_to_host(stream, buffers, &outputs, &headers)?)
        };
        let end = stream.record_event()?;
        end.wait_until_complete()?;
        let copy_in = batch.loaded.copy_in.duration()?;
        let compute = batch.compute.duration()?;
        let copy_out = Interval { start, end }.duration()?;
        // The inputs are handles of the buffer's memory.
        drop(std::mem::take(&mut batch.loaded.inputs));
        let mut buffers = batch.loaded.buffers.release();
        device.shrink(&mut buffers)?;
        Ok(Executed {
            outputs: match layout {
                Some(layout) => buffered_outputs(layout, buffers),
                None => unbuffered_outputs(outputs, headers),
            },
            copy_in,
            compute,
            copy_out,
        })
    }
}

impl Computed {
    /// Returns the outputs without gaps and without the rows of the padding.
    fn contiguous_outputs(&self, stream: &StageStream) -> Result<Vec<Tensor>, TorchError> {
        let contiguous = |output: &Tensor| match self.loaded.padding {
            Some(padding) => stream.contiguous(&output.f_narrow(0, 0, padding.batch_rows())?),
            None => stream.contiguous(output),
        };
        self.outputs.iter().map(contiguous).collect()
    }
}

/// Copies the outputs to the batch's output buffer.
fn copy_to_host(
    stream: &StageStream,
    held: &mut HeldBuffers,
    outputs: &[Tensor],
    headers: &[TensorHeader],
) -> Result<Vec<BufferedTensor>, TorchError> {
    let (layout, size) = lay_out(headers.iter().cloned());
    let buffers = held.buffers.as_mut().expect("not released");
    buffers.outputs.reserve(size)?;
    for (output, place) in outputs.iter().zip(&layout) {
        let host = buffers.outputs.tensor(place.offset, &place.header)?;
        stream.copy(&host, output)?;
    }
    Ok(layout)
}

/// Returns outputs in their batch's buffer, which returns to the pool when the last of them is dropped.
fn buffered_outputs(
    layout: Vec<BufferedTensor>,
    buffers: Pooled<BatchBuffers>,
) -> Vec<OutputTensor> {
    struct BufferedBytes(Arc<Pooled<BatchBuffers>>, Range<usize>);
    impl AsRef<[u8]> for BufferedBytes {
        fn as_ref(&self) -> &[u8] {
            self.0.outputs.bytes(self.1.start, self.1.len())
        }
    }
    let buffers = Arc::new(buffers);
    let output = |tensor: BufferedTensor| OutputTensor {
        bytes: Box::new(BufferedBytes(Arc::clone(&buffers), tensor.range())),
        header: tensor.header,
    };
    layout.into_iter().map(output).collect()
}

/// Returns outputs in the memory where the program has left them.
fn unbuffered_outputs(outputs: Vec<Tensor>, headers: Vec<TensorHeader>) -> Vec<OutputTensor> {
    let output = |(tensor, header): (Tensor, TensorHeader)| OutputTensor {
        bytes: Box::new(HostTensor::new(tensor, &header).expect("contiguous and on the CPU")),
        header,
    };
    outputs.into_iter().zip(headers).map(output).collect()
}
