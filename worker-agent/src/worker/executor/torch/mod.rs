//! libtorch: TorchScript programs and packages that were compiled ahead of time, on the CPU or on a CUDA device.

mod artifact;
mod batch;
mod memory;
mod programs;
mod record;
mod shim;
mod sizes;
mod thrown;

use std::{
    fs::File,
    path::Path,
    sync::{Arc, OnceLock},
};

use packhorse_cluster::{ByteCount, Program};
use packhorse_wire::TensorHeader;
use packhorse_worker_agent::handoff::PipelineSettings;
use tch::{Cuda, Tensor};

use batch::Prepared;
use programs::Programs;
pub(super) use record::{record, under_profiler};
use shim::{Buffer, Graph, Lane, Module, Thrown, ThrownKind, Treatment};
use sizes::Graphs;

use super::{
    ExecutionError, Executor, PreparedBatch, Sizes, StartError, Started, pool::Pool, sample,
};

/// Ends the process without running the destructors of libtorch, some of whose threads may be at work.
pub(super) fn exit_now(code: u8) -> ! {
    shim::exit_now(code)
}

/// See [`super::on_terminate`].
pub(super) fn on_terminate(last_words: impl Fn(ExecutionError) + Send + Sync + 'static, code: u8) {
    shim::on_terminate(Box::new(move |thrown| last_words(thrown.into())), code);
}

/// Says how many threads one batch may use. Only the first call of a process counts.
pub(super) fn set_threads(threads: u32) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX).max(1));
    tch::set_num_interop_threads(1);
}

/// What is to be started.
pub(super) struct Start<'a> {
    pub(super) program: &'a Program,
    pub(super) artifact: &'a Path,
    pub(super) cuda_device: Option<u32>,
    /// The largest batch to be served.
    pub(super) batch_size: u32,
    pub(super) sizes: Sizes,
    pub(super) pipeline: PipelineSettings,
}

/// Loads and warms up the program in the fastest form that works: some programs cannot be optimised, a few not even frozen,
/// and some show it only when they run. A package was compiled for the device beforehand and has one form only.
pub(super) fn start(start: &Start<'_>) -> Result<Started, StartError> {
    if let Some(index) = start.cuda_device
        && i64::from(index) >= Cuda::device_count()
    {
        return Err(StartError::passing(format!(
            "libtorch finds no CUDA device {index}"
        )));
    }
    let names = File::open(start.artifact).and_then(|mut file| artifact::programs(&mut file));
    let names =
        names.map_err(|e| StartError::passing(format!("the model file cannot be read: {e}")))?;
    if !names.is_empty() {
        let programs = Programs::named(names, start.program.max_batch_size);
        return start.in_form(&programs, Treatment::Compiled);
    }
    let script = Programs::of(String::new());
    start
        .in_form(&script, Treatment::Optimized)
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be optimised");
            start.in_form(&script, Treatment::Frozen)
        })
        .or_else(|error| {
            tracing::info!(%error, "the program cannot be frozen");
            start.in_form(&script, Treatment::Plain)
        })
}

impl Start<'_> {
    /// With the programs of these names, which only a package has.
    fn in_form(
        &self,
        names: &Programs<String>,
        treatment: Treatment,
    ) -> Result<Started, StartError> {
        self.check_rows(names)?;
        let executor = Torch::load(self, names, treatment)?;
        let sizes = sample::batch_sizes(self.batch_size);
        let (fill, batch_size) = sample::warm_up(&executor, self.program, &sizes)?;
        let mut sizes: Vec<u32> = sizes.into_iter().filter(|s| *s <= batch_size).collect();
        if self.cuda_device.is_some() && self.sizes == Sizes::Every {
            sizes = executor.meet_sizes_between(self.program, &sizes, fill);
        }
        if self.pipeline.graphs {
            executor.record(self.program, &sizes, fill);
        }
        executor.even_buffers()?;
        tracing::info!(program.treatment = ?treatment, "program loaded");
        Ok(Started {
            executor: Arc::new(executor),
            batch_size,
            fill,
        })
    }
}

impl Start<'_> {
    fn check_rows(&self, names: &Programs<String>) -> Result<(), StartError> {
        let Some(most) = names.most_rows() else {
            return Ok(());
        };
        if most == 0 {
            let reason = "the package has no program that is named model, or rows-1 and the like";
            return Err(StartError::permanent(reason));
        }
        let declared = self.program.max_batch_size;
        if most < u64::from(declared) {
            return Err(StartError::permanent(format!(
                "the package takes batches of up to {most} rows; {declared} are declared"
            )));
        }
        Ok(())
    }
}

/// Runs a program with libtorch.
struct Torch {
    device: Arc<Device>,
    buffers: usize,
    /// The process' memory before the program was loaded.
    resident_before: Option<ByteCount>,
}

/// What the stages of all batches work with.
struct Device {
    programs: Programs<Module>,
    /// By the shapes of the inputs; or why there are none.
    graphs: OnceLock<Result<Graphs, String>>,
    /// Its index; none is the CPU.
    cuda: Option<u32>,
    lanes: Lanes,
    buffers: Arc<Pool<Buffers>>,
}

/// What a device does at the same time.
struct Lanes {
    copy_in: Arc<Lane>,
    compute: Arc<Lane>,
    copy_out: Arc<Lane>,
}

/// Memory of the host for one batch.
struct Buffers {
    inputs: Buffer,
    /// On a CUDA device. What is computed on the CPU is answered from where it is.
    outputs: Buffer,
}

impl Lanes {
    fn new(cuda_device: Option<u32>, streams: bool) -> Result<Self, Thrown> {
        let compute = Arc::new(Lane::new(cuda_device)?);
        let another = || -> Result<_, Thrown> {
            if streams {
                Ok(Arc::new(Lane::new(cuda_device)?))
            } else {
                Ok(Arc::clone(&compute))
            }
        };
        Ok(Self {
            copy_in: another()?,
            copy_out: another()?,
            compute,
        })
    }
}

impl Device {
    /// Runs the program, by a recording where there is one for inputs of these shapes.
    fn run(&self, lane: &Lane, inputs: &[Tensor]) -> Result<Vec<Tensor>, Thrown> {
        if let Some(Ok(graphs)) = self.graphs.get() {
            let shapes: Vec<_> = inputs.iter().map(Tensor::size).collect();
            if let Some(graph) = graphs.by_shapes.get(&shapes) {
                return graph.replay(lane, inputs);
            }
        }
        self.module(inputs)?.forward(lane, inputs)
    }

    /// The program for inputs of these rows.
    fn module(&self, inputs: &[Tensor]) -> Result<&Module, Thrown> {
        let rows = inputs
            .first()
            .and_then(|input| input.size().first().copied());
        let rows = u64::try_from(rows.unwrap_or(1)).unwrap_or(1);
        self.programs.for_rows(rows).ok_or_else(|| Thrown {
            text: format!("{rows} rows are more than the package takes"),
            kind: ThrownKind::Exception,
        })
    }

    fn record(&self, inputs: &[Tensor], beside: Option<&Graph>) -> Result<Graph, Thrown> {
        Graph::record(self.module(inputs)?, &self.lanes.compute, inputs, beside)
    }

    /// Waits until the device has done all it was told. Where it fails, it does nothing any more either.
    fn settle(&self) {
        let Lanes {
            copy_in,
            compute,
            copy_out,
        } = &self.lanes;
        for lane in [copy_in, compute, copy_out] {
            let _ = lane.mark().and_then(|mark| mark.wait());
        }
    }
}

impl Torch {
    fn load(
        start: &Start<'_>,
        names: &Programs<String>,
        treatment: Treatment,
    ) -> Result<Self, StartError> {
        let resident_before = memory::resident();
        let cannot_load = |thrown: Thrown| {
            let passing = matches!(
                thrown.kind,
                ThrownKind::OutOfMemory | ThrownKind::DeviceFailed
            );
            let form = match treatment {
                Treatment::Compiled => "an AOTInductor package",
                Treatment::Plain | Treatment::Frozen | Treatment::Optimized => "TorchScript",
            };
            let reason = format!("cannot be loaded as {form}: {}", thrown.summary());
            StartError {
                reason,
                permanent: !passing,
            }
        };
        let (program, cuda_device) = (start.program, start.cuda_device);
        let load = |name: String| Module::load(start.artifact, &name, cuda_device, treatment);
        let programs = names.clone().try_map(load).map_err(cannot_load)?;
        for module in programs.iter() {
            check_arity(program, module.arity().map_err(cannot_load)?)?;
        }
        let pinned = cuda_device.is_some();
        let largest = batch::input_size(&sample::inputs(program, start.batch_size)?);
        let buffers = start.pipeline.buffers();
        let set = || -> Result<Buffers, Thrown> {
            Ok(Buffers {
                inputs: Buffer::new(largest, pinned)?,
                outputs: Buffer::new(0, pinned)?,
            })
        };
        let sets = (0..buffers).map(|_| set()).collect::<Result<_, _>>();
        let lanes = Lanes::new(cuda_device, start.pipeline.streams);
        Ok(Self {
            device: Arc::new(Device {
                programs,
                graphs: OnceLock::new(),
                cuda: cuda_device,
                lanes: lanes.map_err(ExecutionError::from)?,
                buffers: Pool::new(sets.map_err(ExecutionError::from)?),
            }),
            buffers,
            resident_before,
        })
    }

    /// Makes all buffers as large as the largest has become: a device stands still while memory is pinned.
    fn even_buffers(&self) -> Result<(), ExecutionError> {
        let mut all: Vec<_> = (0..self.buffers)
            .map(|_| self.device.buffers.take())
            .collect();
        let largest = |size: fn(&Buffers) -> usize| all.iter().map(|b| size(b)).max();
        let inputs = largest(|buffers| buffers.inputs.size()).unwrap_or(0);
        let outputs = largest(|buffers| buffers.outputs.size()).unwrap_or(0);
        for buffers in &mut all {
            buffers.inputs.reserve(inputs)?;
            buffers.outputs.reserve(outputs)?;
        }
        Ok(())
    }
}

fn check_arity(program: &Program, (required, accepted): (usize, usize)) -> Result<(), StartError> {
    let given = program.inputs.len();
    if (required..=accepted).contains(&given) {
        return Ok(());
    }
    let takes = if required == accepted {
        required.to_string()
    } else {
        format!("{required} to {accepted}")
    };
    Err(StartError::permanent(format!(
        "the program takes {takes} arguments; {given} inputs are declared"
    )))
}

impl Executor for Torch {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        Ok(Box::new(Prepared::new(&self.device, inputs)?))
    }

    /// On the CPU: by how much the process has grown at its largest since just before the program was loaded. Weights,
    /// activations, and what libtorch itself first touched for them.
    /// On a CUDA device: the most that libtorch's allocator held; the context comes on top.
    fn memory(&self, _batch_size: u32) -> Option<ByteCount> {
        match self.device.cuda {
            Some(index) => shim::cuda_peak_memory(index).map(ByteCount::new),
            None => Some(memory::peak_resident()?.saturating_sub(self.resident_before?)),
        }
    }

    fn multiprocessors(&self) -> Option<u32> {
        shim::cuda_multiprocessors(self.device.cuda?)
    }

    fn graphs(&self) -> Result<Vec<u32>, String> {
        match self.device.graphs.get() {
            Some(Ok(graphs)) => Ok(graphs.batch_sizes.clone()),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("not asked for".to_owned()),
        }
    }

    fn release_memory(&self) {
        if self.device.cuda.is_some() {
            shim::release_cuda_memory();
        }
    }
}
