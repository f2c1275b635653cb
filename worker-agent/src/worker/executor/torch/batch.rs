//! The stages of a batch. Every stage tells a lane of the device what to do, sets marks around it, and goes on; only the last one
//! waits, for the last mark. What the device reads or writes is held until then.

use std::{ops::Range, sync::Arc};

use packhorse_cluster::Shape;
use packhorse_wire::TensorHeader;
use tch::Tensor;

use super::{
    Buffers, Device,
    shim::{Graph, HostTensor, Lane, Mark, Thrown, ThrownKind, header_of},
};
use crate::executor::{
    ComputedBatch, Executed, ExecutionError, LoadedBatch, OutputTensor, PreparedBatch, Repeated,
    pool::Taken,
};

/// Where a tensor begins in a buffer is a multiple of this.
const ALIGNMENT: usize = 64;

pub(super) struct Prepared {
    device: Arc<Device>,
    buffers: Taken<Buffers>,
    /// As the program gets them.
    inputs: Vec<Place>,
    padded: Option<Rows>,
}

/// A tensor in a buffer.
struct Place {
    header: TensorHeader,
    start: usize,
}

impl Place {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.header.byte_len() as usize
    }
}

struct Loaded {
    /// The first to be dropped.
    held: Held,
    places: Vec<Place>,
    inputs: Vec<Tensor>,
    copied_in: Span,
    padded: Option<Rows>,
}

struct Computed {
    loaded: Loaded,
    outputs: Vec<Tensor>,
    took: Span,
}

/// What a lane did, between two marks.
struct Span(Mark, Mark);

/// The buffers of a batch. Where it comes to nothing, they are given back only when the device has done with them.
struct Held {
    device: Arc<Device>,
    buffers: Option<Taken<Buffers>>,
}

impl Held {
    /// The inputs on the device, or on their way.
    fn bring(&self, inputs: &[Place]) -> Result<Vec<Tensor>, Thrown> {
        let buffers = self.buffers.as_ref().expect("not released");
        let tensor = |place: &Place| buffers.inputs.tensor(place.start, &place.header);
        let lane = &self.device.lanes.copy_in;
        let bring = |place| lane.bring(&tensor(place)?);
        inputs.iter().map(bring).collect()
    }

    /// The device has done with them.
    fn release(mut self) -> Taken<Buffers> {
        self.buffers.take().expect("released once")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.buffers.is_some() {
            self.device.settle();
        }
    }
}

/// One behind the other; with the size of the whole.
fn places(headers: impl IntoIterator<Item = TensorHeader>) -> (Vec<Place>, usize) {
    let mut end = 0_usize;
    let mut place = |header: TensorHeader| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + header.byte_len() as usize;
        Place { header, start }
    };
    let places = headers.into_iter().map(&mut place).collect();
    (places, end)
}

/// How many rows a batch has, and how many the program gets: the rest is its first row again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    of_batch: u64,
    given: u64,
}

impl Rows {
    /// `None` where both are the same, or the inputs have no rows in common.
    fn padded(device: &Device, inputs: &[TensorHeader]) -> Option<Self> {
        let rows = |input: &TensorHeader| input.shape().dims().first().copied();
        let of_batch = rows(inputs.first()?)?;
        let given = device.programs.rows_given(of_batch);
        let common = inputs.iter().all(|input| rows(input) == Some(of_batch));
        (given != of_batch && of_batch > 0 && common).then_some(Self { of_batch, given })
    }

    /// The same tensor with the rows that are given.
    fn header(self, header: &TensorHeader) -> Result<TensorHeader, Thrown> {
        let dims = header.shape().dims().iter().map(|d| d.cast_signed());
        let mut dims: Vec<i64> = dims.collect();
        dims[0] = self.given.cast_signed();
        let too_large = |e: &dyn std::fmt::Display| Thrown {
            text: e.to_string(),
            kind: ThrownKind::Exception,
        };
        let shape = Shape::new(&dims).map_err(|e| too_large(&e))?;
        TensorHeader::new(header.datatype(), shape).map_err(|e| too_large(&e))
    }

    /// How many of a tensor's bytes are the batch's.
    fn bytes(self, all: usize) -> usize {
        all / self.given as usize * self.of_batch as usize
    }

    /// Writes the first row of a tensor to where rows lack.
    fn fill(self, tensor: &mut [u8]) {
        let row = tensor.len() / self.given as usize;
        let (batch, lacking) = tensor.split_at_mut(self.bytes(tensor.len()));
        for other in lacking.chunks_exact_mut(row.max(1)) {
            other.copy_from_slice(&batch[..row]);
        }
    }
}

/// So much memory do the inputs of a batch take.
pub(super) fn input_size(inputs: &[TensorHeader]) -> usize {
    places(inputs.iter().cloned()).1
}

impl Prepared {
    pub(super) fn new(device: &Arc<Device>, inputs: &[TensorHeader]) -> Result<Self, Thrown> {
        let padded = Rows::padded(device, inputs);
        let given = inputs.iter().map(|input| match padded {
            Some(rows) => rows.header(input),
            None => Ok(input.clone()),
        });
        let given: Vec<TensorHeader> = given.collect::<Result<_, _>>()?;
        let (inputs, size) = places(given);
        let mut buffers = device.buffers.take();
        buffers.inputs.reserve(size)?;
        Ok(Self {
            device: Arc::clone(device),
            buffers,
            inputs,
            padded,
        })
    }
}

impl Prepared {
    /// Records a run with these inputs, in the memory of another recording if there is one; with their shapes.
    pub(super) fn record(self, beside: Option<&Graph>) -> Result<(Vec<Vec<i64>>, Graph), Thrown> {
        let held = Held {
            device: self.device,
            buffers: Some(self.buffers),
        };
        let inputs = held.bring(&self.inputs)?;
        held.device.lanes.copy_in.mark()?.wait()?;
        let graph = held.device.record(&inputs, beside)?;
        Ok((inputs.iter().map(Tensor::size).collect(), graph))
    }
}

impl PreparedBatch for Prepared {
    fn input_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.inputs[index].range();
        let len = self
            .padded
            .map_or(range.len(), |rows| rows.bytes(range.len()));
        self.buffers.inputs.bytes_mut(range.start, len)
    }

    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
        let Self {
            device,
            mut buffers,
            inputs,
            padded,
        } = *self;
        if let Some(rows) = padded {
            for Range { start, end } in inputs.iter().map(Place::range) {
                rows.fill(buffers.inputs.bytes_mut(start, end - start));
            }
        }
        let held = Held {
            device,
            buffers: Some(buffers),
        };
        let lane = &held.device.lanes.copy_in;
        let began = lane.mark()?;
        let brought = held.bring(&inputs)?;
        let copied_in = Span(began, lane.mark()?);
        Ok(Box::new(Loaded {
            held,
            places: inputs,
            inputs: brought,
            copied_in,
            padded,
        }))
    }
}

impl LoadedBatch for Loaded {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        let loaded = *self;
        let device = &loaded.held.device;
        let lane = &device.lanes.compute;
        lane.follow(&loaded.copied_in.1)?;
        let began = lane.mark()?;
        let outputs = device.run(lane, &loaded.inputs)?;
        let took = Span(began, lane.mark()?);
        Ok(Box::new(Computed {
            loaded,
            outputs,
            took,
        }))
    }

    fn repeat(
        &self,
        what: Repeated,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, ExecutionError> {
        let device = &self.held.device;
        let lane = match what {
            Repeated::CopyIn => &device.lanes.copy_in,
            Repeated::Compute => &device.lanes.compute,
        };
        lane.follow(&self.copied_in.1)?;
        // One is waited for while the device has the next.
        let mut before: Option<Mark> = None;
        let mut times = 0;
        while go_on() {
            match what {
                Repeated::CopyIn => drop(self.held.bring(&self.places)?),
                Repeated::Compute => drop(device.run(lane, &self.inputs)?),
            }
            times += 1;
            if let Some(mark) = before.replace(lane.mark()?) {
                mark.wait()?;
            }
        }
        if let Some(mark) = before {
            mark.wait()?;
        }
        Ok(times)
    }
}

impl ComputedBatch for Computed {
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError> {
        let mut batch = *self;
        let device = Arc::clone(&batch.loaded.held.device);
        let lane = &device.lanes.copy_out;
        lane.follow(&batch.took.1)?;
        let began = lane.mark()?;
        let straight = batch.straight_outputs(lane)?;
        let headers: Vec<TensorHeader> =
            straight.iter().map(header_of).collect::<Result<_, _>>()?;
        let places = if device.cuda.is_none() {
            None
        } else {
            Some(copy_to_host(
                lane,
                &mut batch.loaded.held,
                &straight,
                &headers,
            )?)
        };
        let copied_out = Span(began, lane.mark()?);
        copied_out.1.wait()?;
        let time_of = |span: &Span| span.1.since(&span.0);
        let copy_in = time_of(&batch.loaded.copied_in)?;
        let compute = time_of(&batch.took)?;
        let buffers = batch.loaded.held.release();
        Ok(Executed {
            outputs: match places {
                Some(places) => in_buffer(places, buffers),
                None => in_own_memory(straight, headers),
            },
            copy_in,
            compute,
            copy_out: time_of(&copied_out)?,
        })
    }
}

impl Computed {
    /// The outputs without gaps, and without the rows that the program was given beside the batch's.
    fn straight_outputs(&self, lane: &Lane) -> Result<Vec<Tensor>, Thrown> {
        let straighten = |output: &Tensor| match self.loaded.padded {
            Some(rows) => lane.straighten(&output.f_narrow(0, 0, rows.of_batch.cast_signed())?),
            None => lane.straighten(output),
        };
        self.outputs.iter().map(straighten).collect()
    }
}

/// Has the outputs copied into the batch's buffer for them.
fn copy_to_host(
    lane: &Lane,
    held: &mut Held,
    outputs: &[Tensor],
    headers: &[TensorHeader],
) -> Result<Vec<Place>, Thrown> {
    let (places, size) = places(headers.iter().cloned());
    let buffers = held.buffers.as_mut().expect("not released");
    buffers.outputs.reserve(size)?;
    for (output, place) in outputs.iter().zip(&places) {
        let host = buffers.outputs.tensor(place.start, &place.header)?;
        lane.copy(&host, output)?;
    }
    Ok(places)
}

/// Outputs in the buffer of their batch, which goes back to the pool when the last of them is dropped.
fn in_buffer(places: Vec<Place>, buffers: Taken<Buffers>) -> Vec<OutputTensor> {
    struct InBuffer(Arc<Taken<Buffers>>, Range<usize>);
    impl AsRef<[u8]> for InBuffer {
        fn as_ref(&self) -> &[u8] {
            self.0.outputs.bytes(self.1.start, self.1.len())
        }
    }
    let buffers = Arc::new(buffers);
    let output = |place: Place| OutputTensor {
        bytes: Box::new(InBuffer(Arc::clone(&buffers), place.range())),
        header: place.header,
    };
    places.into_iter().map(output).collect()
}

/// Outputs where the program has left them.
fn in_own_memory(outputs: Vec<Tensor>, headers: Vec<TensorHeader>) -> Vec<OutputTensor> {
    let output = |(tensor, header): (Tensor, TensorHeader)| OutputTensor {
        bytes: Box::new(HostTensor::new(tensor, &header).expect("it was straightened on the CPU")),
        header,
    };
    outputs.into_iter().zip(headers).map(output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_lack_are_the_first_one_again() {
        let rows = Rows {
            of_batch: 2,
            given: 4,
        };
        let mut tensor = *b"abcdxxxx";
        assert_eq!(rows.bytes(tensor.len()), 4);
        rows.fill(&mut tensor);
        assert_eq!(&tensor, b"abcdabab");
        rows.fill(&mut []);
    }
}
