//! The recording of a measurement's kernels: one batch of each size is recorded, for its metrics in the profile and for the list of its
//! kernels.

use std::path::PathBuf;

use packhorse_cluster::{DeviceKind, ModelId, ProfileRow};
use packhorse_kernels::{Kernel, KernelTable, KinetoTrace, Recording};
use packhorse_worker_agent::handoff::{ExecutorChoice, Handoff};

use crate::executor::{PreparedBatch, recording};

/// The most kernels in a profile's list, about 2 MB as CSV. Further batch sizes are omitted.
const MAX_KERNELS: usize = 16_384;

/// Records batches until the first failure, on a GPU.
pub(super) struct KernelRecorder<'a> {
    executor: &'a ExecutorChoice,
    trace: PathBuf,
    failed: bool,
    recording: Option<Recording>,
}

impl<'a> KernelRecorder<'a> {
    /// Creates a recorder with temporary files in the hand-over folder.
    pub(super) fn new(executor: &'a ExecutorChoice, handoff: &Handoff) -> Self {
        Self {
            executor,
            trace: handoff.temporary_dir().join("kernels.json"),
            failed: gpu(executor).is_none(),
            recording: None,
        }
    }

    /// Returns false after a failure, and for a program that runs no kernels.
    pub(super) fn is_active(&self) -> bool {
        !self.failed
    }

    /// Records a batch and writes its metrics to the row of its size. A failure is only logged, because a profile is useful without them.
    pub(super) fn record(&mut self, batch: Box<dyn PreparedBatch>, row: &mut ProfileRow) {
        let recorded = recording::record(self.executor, batch, &self.trace)
            .map_err(|e| e.to_string())
            .and_then(|trace| self.add_trace(trace, row));
        if let Err(reason) = recorded {
            self.failed = true;
            tracing::info!(batch.size = row.batch_size, reason, "no kernels recorded");
        }
    }

    fn add_trace(&mut self, mut trace: KinetoTrace, row: &mut ProfileRow) -> Result<(), String> {
        let device = gpu(self.executor).ok_or("a CPU runs no kernels")?;
        let kernels: Vec<Kernel> = trace.kernels.remove(&device).unwrap_or_default();
        let gpu = trace.gpus.get(&device);
        let gpu = *gpu.ok_or("the trace does not describe the GPU")?;
        let mut batch = Recording::new(gpu);
        batch.insert(row.batch_size, kernels.clone());
        let profile = batch.profile(row.batch_size).expect("it was just inserted");
        profile.map_err(|e| e.to_string())?.fill(row);
        let recording = self.recording.get_or_insert_with(|| Recording::new(gpu));
        if recording.kernels() + kernels.len() > MAX_KERNELS {
            let size = row.batch_size;
            tracing::info!(
                batch.size = size,
                "the kernels of this batch size exceed the limit of a profile and are omitted"
            );
        } else {
            recording.insert(row.batch_size, kernels);
        }
        Ok(())
    }

    /// Returns the recorded kernels as CSV; `None` if there are none.
    pub(super) fn into_csv(self, model: &ModelId, device_kind: &DeviceKind) -> Option<String> {
        let recording = self.recording.filter(|recording| recording.kernels() > 0)?;
        let mut table = KernelTable::default();
        table.insert(model.clone(), device_kind.clone(), recording);
        Some(table.to_csv())
    }
}

/// Returns the index of the GPU of a program; `None` if it runs on something else.
fn gpu(executor: &ExecutorChoice) -> Option<u32> {
    match executor {
        ExecutorChoice::Torch { cuda_device, .. } => *cuda_device,
        ExecutorChoice::Simulated { .. } => None,
    }
}
