//! A device with a loaded program: the code, streams and buffers that the stages of all batches use.

use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tch::Tensor;

use super::{
    error::{TorchError, TorchErrorKind},
    graphs::{Graphs, InputShapes},
    programs::Programs,
    shim::{Backbone, BatchOf, Buffer, Graph, Module, StageStream},
    weights::{Lease, RegionWeights},
};
use crate::executor::pool::Pool;

/// A device with a loaded program.
pub(super) struct Device {
    /// The loaded code. It runs only with a [`Lease`] of its weights.
    code: Code,
    /// Its weights, if they may leave memory. The code is dropped before them.
    pub(super) weights: Option<RegionWeights>,
    /// The recorded runs.
    graphs: RwLock<Graphs>,
    /// The index of the CUDA device; `None` is the CPU.
    pub(super) cuda_index: Option<u32>,
    /// True if programs may get inputs in the host memory of another process itself, and not copies: the device is the CPU, and no run writes
    /// to them or keeps one.
    pub(super) only_reads_inputs: bool,
    /// The streams of the stages.
    pub(super) streams: Streams,
    /// The size to which a buffer for inputs on the CPU returns after a batch, in bytes: that of the largest planned batch.
    kept_inputs: AtomicUsize,
    /// The buffers for batches in flight.
    pub(super) buffers: Arc<Pool<BatchBuffers>>,
}

/// The loaded code of a model.
pub(super) enum Code {
    /// The programs of its file.
    Programs(Programs<Module>),
    /// One of the programs with a backbone.
    OfBackbone {
        /// All programs with the backbone.
        backbone: Arc<Backbone>,
        /// The index of the model's.
        program: usize,
    },
}

/// The streams of the three stages. They work at the same time, unless all are the same stream.
#[derive(Clone)]
pub(super) struct Streams {
    pub(super) copy_in: Arc<StageStream>,
    pub(super) compute: Arc<StageStream>,
    pub(super) copy_out: Arc<StageStream>,
}

/// The host memory of one batch.
pub(super) struct BatchBuffers {
    /// The memory of the inputs.
    pub(super) inputs: Buffer,
    /// The memory of the outputs, on a CUDA device. Outputs on the CPU are answered from where the program has left them.
    pub(super) outputs: Buffer,
}

impl Streams {
    /// Creates three streams, or a single one for all stages.
    pub(super) fn new(cuda_device: Option<u32>, separate: bool) -> Result<Self, TorchError> {
        let compute = Arc::new(StageStream::new(cuda_device)?);
        let copy_stream = || -> Result<_, TorchError> {
            if separate {
                Ok(Arc::new(StageStream::new(cuda_device)?))
            } else {
                Ok(Arc::clone(&compute))
            }
        };
        Ok(Self {
            copy_in: copy_stream()?,
            copy_out: copy_stream()?,
            compute,
        })
    }
}

impl Device {
    /// Creates a device without recorded runs.
    pub(super) fn new(
        code: Code,
        weights: Option<RegionWeights>,
        cuda_index: Option<u32>,
        streams: Streams,
        buffers: Vec<BatchBuffers>,
    ) -> Self {
        let only_reads = match &code {
            Code::Programs(programs) => programs.iter().all(Module::only_reads_inputs),
            Code::OfBackbone { .. } => false,
        };
        Self {
            code,
            weights,
            graphs: RwLock::default(),
            cuda_index,
            only_reads_inputs: only_reads && cuda_index.is_none(),
            streams,
            kept_inputs: AtomicUsize::new(usize::MAX),
            buffers: Pool::new(buffers),
        }
    }

    /// Has buffers for inputs on the CPU return to this size after a batch, in bytes.
    pub(super) fn keep_inputs(&self, size: usize) {
        self.kept_inputs.store(size, Relaxed);
    }

    /// Gives the memory of a batch's inputs back beyond what is kept.
    pub(super) fn shrink(&self, buffers: &mut BatchBuffers) -> Result<(), TorchError> {
        if self.cuda_index.is_some() {
            return Ok(());
        }
        buffers.inputs.shrink_to(self.kept_inputs.load(Relaxed))
    }

    /// Returns the recorded runs.
    pub(super) fn graphs(&self) -> RwLockReadGuard<'_, Graphs> {
        self.graphs.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded runs, to change them.
    pub(super) fn graphs_mut(&self) -> RwLockWriteGuard<'_, Graphs> {
        self.graphs.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a lease of the weights, which are brought back first if they are not in memory.
    pub(super) fn lease(&self) -> Result<Lease<'_>, TorchError> {
        match &self.weights {
            Some(weights) => weights.lease(),
            None => Ok(Lease::of_fixed()),
        }
    }

    /// Runs the program in a stream, by replaying a graph if there is one for inputs of these shapes.
    pub(super) fn run(
        &self,
        _weights: &Lease<'_>,
        stream: &StageStream,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, TorchError> {
        let outputs = self.begin_run(stream, inputs);
        if let (Some(weights), Some(_)) = (&self.weights, self.cuda_index) {
            weights.note_run(stream)?;
        }
        outputs
    }

    fn begin_run(
        &self,
        stream: &StageStream,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, TorchError> {
        let graphs = self.graphs();
        if !graphs.is_empty() {
            let shapes: InputShapes = inputs.iter().map(Tensor::size).collect();
            if let Some(graph) = graphs.for_shapes(&shapes) {
                return graph.replay(stream, inputs);
            }
        }
        match &self.code {
            Code::Programs(programs) => module(programs, inputs)?.forward(stream, inputs),
            Code::OfBackbone { backbone, program } => {
                let program = *program;
                let mut outputs = backbone.forward(stream, &[BatchOf { program, inputs }])?;
                Ok(outputs.pop().expect("one batch was run"))
            }
        }
    }

    /// Records a run with these inputs. The graph shares the memory of `pool_owner`.
    pub(super) fn record(
        &self,
        inputs: &[Tensor],
        pool_owner: Option<&Graph>,
    ) -> Result<Graph, TorchError> {
        let Code::Programs(programs) = &self.code else {
            return Err(TorchError {
                text: "programs with a shared backbone are not recorded".to_owned(),
                kind: TorchErrorKind::Exception,
            });
        };
        let module = module(programs, inputs)?;
        Graph::record(module, &self.streams.compute, inputs, pool_owner)
    }

    /// Returns the number of rows that the program for a batch of `rows` rows gets at least.
    pub(super) fn required_rows(&self, rows: u64) -> u64 {
        let programs = self.programs();
        programs.map_or(rows, |programs| programs.padded_rows(rows))
    }

    /// Returns the programs of the model's file; `None` if it shares its code.
    pub(super) fn programs(&self) -> Option<&Programs<Module>> {
        match &self.code {
            Code::Programs(programs) => Some(programs),
            Code::OfBackbone { .. } => None,
        }
    }

    /// Returns the backbone and the index of the model's program.
    ///
    /// # Panics
    /// If the model does not share its code.
    pub(super) fn backbone(&self) -> (&Arc<Backbone>, usize) {
        match &self.code {
            Code::OfBackbone { backbone, program } => (backbone, *program),
            Code::Programs(_) => panic!("a model with code of its own"),
        }
    }

    /// Waits until the streams have done all their work. A device that fails does none any more, either.
    pub(super) fn synchronize(&self) {
        let Streams {
            copy_in,
            compute,
            copy_out,
        } = &self.streams;
        for stream in [copy_in, compute, copy_out] {
            let _ = stream
                .record_event()
                .and_then(|event| event.wait_until_complete());
        }
    }
}

/// Returns the program for inputs with this number of rows.
fn module<'a>(programs: &'a Programs<Module>, inputs: &[Tensor]) -> Result<&'a Module, TorchError> {
    let rows = inputs
        .first()
        .and_then(|input| input.size().first().copied());
    let rows = u64::try_from(rows.unwrap_or(1)).unwrap_or(1);
    programs.for_rows(rows).ok_or_else(|| TorchError {
        text: format!("{rows} rows are more than the package accepts"),
        kind: TorchErrorKind::Exception,
    })
}
