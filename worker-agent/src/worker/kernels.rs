//! The kernels of a measurement: one batch of every size is recorded, its metrics go into the profile, and the kernels along with it.

use std::path::PathBuf;

use packhorse_cluster::{DeviceKind, ModelId, ProfileRow};
use packhorse_kernels::{Kernel, KernelTable, KinetoTrace, Recording};
use packhorse_worker_agent::handoff::{ExecutorChoice, Handoff};

use crate::executor::{PreparedBatch, recording};

/// The most kernels that go along with a profile, about 2 MB as CSV: the batch sizes beyond are left out.
const MAX_KERNELS: usize = 16_384;

/// Records batches until it finds that there is nothing to be recorded.
pub(super) struct Recorder<'a> {
    executor: &'a ExecutorChoice,
    trace: PathBuf,
    done: bool,
    recording: Option<Recording>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(executor: &'a ExecutorChoice, handoff: &Handoff) -> Self {
        Self {
            executor,
            trace: handoff.temporary_dir().join("kernels.json"),
            done: false,
            recording: None,
        }
    }

    /// Whether there may be something to record.
    pub(super) fn wants_batches(&self) -> bool {
        !self.done
    }

    /// Records a batch and writes its metrics into the row of its size. A measurement is good without, so that failures are only told.
    pub(super) fn record(&mut self, batch: Box<dyn PreparedBatch>, row: &mut ProfileRow) {
        let recorded = recording::kernels(self.executor, batch, &self.trace)
            .map_err(|e| e.to_string())
            .and_then(|trace| self.take(trace, row));
        if let Err(reason) = recorded {
            self.done = true;
            tracing::info!(batch.size = row.batch_size, reason, "no kernels recorded");
        }
    }

    fn take(&mut self, mut trace: KinetoTrace, row: &mut ProfileRow) -> Result<(), String> {
        let ExecutorChoice::Torch {
            cuda_device: Some(device),
            ..
        } = self.executor
        else {
            return Err("a CPU runs none".to_owned());
        };
        let kernels: Vec<Kernel> = trace.kernels.remove(device).unwrap_or_default();
        let gpu = trace.gpus.get(device);
        let gpu = *gpu.ok_or("the trace does not say what the GPU is")?;
        let mut batch = Recording::new(gpu);
        batch.insert(row.batch_size, kernels.clone());
        let profile = batch.profile(row.batch_size).expect("it was just inserted");
        profile.map_err(|e| e.to_string())?.fill(row);
        let recording = self.recording.get_or_insert_with(|| Recording::new(gpu));
        if recording.kernels() + kernels.len() > MAX_KERNELS {
            let size = row.batch_size;
            tracing::info!(
                batch.size = size,
                "too many kernels to go along with the profile"
            );
        } else {
            recording.insert(row.batch_size, kernels);
        }
        Ok(())
    }

    /// The recorded kernels as CSV, if there are any.
    pub(super) fn into_csv(self, model: &ModelId, device_kind: &DeviceKind) -> Option<String> {
        let recording = self.recording.filter(|recording| recording.kernels() > 0)?;
        let mut table = KernelTable::default();
        table.insert(model.clone(), device_kind.clone(), recording);
        Some(table.to_csv())
    }
}
