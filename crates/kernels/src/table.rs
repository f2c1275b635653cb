//! The recorded kernels of models as a table in CSV, one kernel per row. Workers write it, and the command line draws it.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, DeviceKind, ModelId, Time};
use serde::{Deserialize, Serialize};

use crate::{Gpu, Kernel, KernelProfile, KernelProfileError, Launch, MAX_KERNELS};

/// The largest size of a kernel's name in a table, in bytes: names of templates can have thousands.
const MAX_NAME: usize = 120;

/// The kernels of a model on a GPU: one batch per batch size, with times from the start of the batch's first kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    gpu: Gpu,
    batches: BTreeMap<u32, Vec<Kernel>>,
}

impl Recording {
    /// Creates a recording without kernels.
    pub fn new(gpu: Gpu) -> Self {
        let batches = BTreeMap::new();
        Self { gpu, batches }
    }

    /// Sets the kernels of a batch size. Their times are changed to count from the first kernel's start, and names are truncated to 120
    /// bytes.
    pub fn insert(&mut self, batch_size: u32, mut kernels: Vec<Kernel>) {
        let first = kernels.iter().map(|kernel| kernel.start).min();
        for kernel in &mut kernels {
            let start = kernel.start.saturating_since(first.unwrap_or_default());
            kernel.start = Time::ZERO + start;
            kernel
                .name
                .truncate(kernel.name.floor_char_boundary(MAX_NAME));
        }
        kernels.sort_by_key(|kernel| kernel.start);
        self.batches.insert(batch_size, kernels);
    }

    /// Returns the GPU that ran the kernels.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the batch sizes in ascending order, each with its kernels, ordered by start.
    pub fn batches(&self) -> impl Iterator<Item = (u32, &[Kernel])> {
        self.batches
            .iter()
            .map(|(size, kernels)| (*size, kernels.as_slice()))
    }

    /// Returns the number of kernels of all batch sizes.
    pub fn kernels(&self) -> usize {
        self.batches.values().map(Vec::len).sum()
    }

    /// Returns the use of the GPU by the kernels of a batch size; `None` without a recording of it.
    ///
    /// # Errors
    /// The errors of [`KernelProfile::new`].
    pub fn profile(&self, batch_size: u32) -> Option<Result<KernelProfile, KernelProfileError>> {
        let kernels = self.batches.get(&batch_size)?;
        Some(KernelProfile::new(&self.gpu, kernels))
    }
}

/// The recordings of models, by model and kind of device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTable {
    recordings: BTreeMap<(ModelId, DeviceKind), Recording>,
}

/// The error for a text that is not a table of kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelTableError {
    /// A line cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// The line number, from 1.
        line: u64,
        /// The problem in that line.
        problem: String,
    },
    /// There are too many kernels.
    #[error("the table has more than {MAX_KERNELS} kernels")]
    TooMany,
}

#[derive(Serialize, Deserialize)]
struct CsvRow {
    model: String,
    device_kind: String,
    compute_capability: String,
    multiprocessors: u32,
    batch_size: u32,
    start_ns: u64,
    duration_ns: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    registers_per_thread: u32,
    shared_memory_bytes: u64,
    kernel: String,
}

impl CsvRow {
    fn new(key: &(ModelId, DeviceKind), gpu: &Gpu, batch_size: u32, kernel: &Kernel) -> Self {
        let (grid, block) = (kernel.launch.grid, kernel.launch.block);
        Self {
            model: key.0.to_string(),
            device_kind: key.1.to_string(),
            compute_capability: gpu.capability().to_string(),
            multiprocessors: gpu.multiprocessors(),
            batch_size,
            start_ns: kernel.start.as_nanos(),
            duration_ns: u64::try_from(kernel.duration.as_nanos()).unwrap_or(u64::MAX),
            grid_x: grid[0],
            grid_y: grid[1],
            grid_z: grid[2],
            block_x: block[0],
            block_y: block[1],
            block_z: block[2],
            registers_per_thread: kernel.launch.registers_per_thread,
            shared_memory_bytes: kernel.launch.shared_memory.as_u64(),
            kernel: kernel.name.clone(),
        }
    }

    fn gpu(&self) -> Result<Gpu, crate::GpuError> {
        Gpu::new(self.compute_capability.parse()?, self.multiprocessors)
    }

    fn into_kernel(self) -> Kernel {
        Kernel {
            name: self.kernel,
            launch: Launch {
                grid: [self.grid_x, self.grid_y, self.grid_z],
                block: [self.block_x, self.block_y, self.block_z],
                registers_per_thread: self.registers_per_thread,
                shared_memory: ByteCount::new(self.shared_memory_bytes),
            },
            start: Time::from_nanos(self.start_ns),
            duration: std::time::Duration::from_nanos(self.duration_ns),
        }
    }
}

impl KernelTable {
    /// Adds a recording, or replaces the present one of the same model and kind.
    pub fn insert(&mut self, model: ModelId, kind: DeviceKind, recording: Recording) {
        self.recordings.insert((model, kind), recording);
    }

    /// Returns the recording of a model on a kind of device.
    pub fn get(&self, model: &ModelId, kind: &DeviceKind) -> Option<&Recording> {
        self.recordings.get(&(model.clone(), kind.clone()))
    }

    /// Returns all recordings, ordered by model, then kind.
    pub fn iter(&self) -> impl Iterator<Item = (&ModelId, &DeviceKind, &Recording)> {
        self.recordings
            .iter()
            .map(|((model, kind), recording)| (model, kind, recording))
    }

    /// Returns true if there are no recordings.
    pub fn is_empty(&self) -> bool {
        self.recordings.is_empty()
    }

    /// Writes the table as CSV with a header; the text is empty if there are no kernels. [`KernelTable::from_csv`] reads it.
    pub fn to_csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for (key, recording) in &self.recordings {
            for (size, kernels) in recording.batches() {
                for kernel in kernels {
                    writer
                        .serialize(CsvRow::new(key, &recording.gpu, size, kernel))
                        .expect("numbers and names are CSV cells");
                }
            }
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("names are UTF-8")
    }

    /// Reads a table in CSV.
    ///
    /// # Errors
    /// Names the first line that cannot be read, or that has another GPU than earlier lines of the same model and kind of device.
    pub fn from_csv(text: &str) -> Result<Self, KernelTableError> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let mut table = Self::default();
        for (index, row) in reader.deserialize::<CsvRow>().enumerate() {
            if index == MAX_KERNELS {
                return Err(KernelTableError::TooMany);
            }
            let error = |problem: &dyn std::fmt::Display| KernelTableError::Line {
                line: index as u64 + 2,
                problem: problem.to_string(),
            };
            let row = row.map_err(|e| error(&e))?;
            let model = row.model.parse().map_err(|e| error(&e))?;
            let kind = row.device_kind.parse().map_err(|e| error(&e))?;
            let gpu = row.gpu().map_err(|e| error(&e))?;
            let recordings = &mut table.recordings;
            let recording = recordings.entry((model, kind));
            let recording = recording.or_insert_with(|| Recording::new(gpu));
            if recording.gpu != gpu {
                return Err(error(
                    &"compute_capability or multiprocessors differ from earlier lines of this model and device_kind",
                ));
            }
            let batch = recording.batches.entry(row.batch_size).or_default();
            batch.push(row.into_kernel());
        }
        for recording in table.recordings.values_mut() {
            for (size, kernels) in std::mem::take(&mut recording.batches) {
                recording.insert(size, kernels);
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn kernel(name: &str, start: u64) -> Kernel {
        Kernel {
            name: name.to_owned(),
            launch: Launch {
                grid: [40, 2, 1],
                block: [256, 1, 1],
                registers_per_thread: 32,
                shared_memory: ByteCount::new(1024),
            },
            start: Time::from_nanos(start),
            duration: Duration::from_nanos(1500),
        }
    }

    fn table() -> KernelTable {
        let mut recording = Recording::new(Gpu::new("7.0".parse().unwrap(), 80).unwrap());
        recording.insert(
            1,
            vec![kernel("relu", 9000), kernel("gemm<float, 4>", 7000)],
        );
        recording.insert(4, vec![kernel("gemm \"x\"", 123)]);
        let mut table = KernelTable::default();
        table.insert("m:2".parse().unwrap(), "V100".parse().unwrap(), recording);
        table
    }

    #[test]
    fn a_written_table_is_read_unchanged() {
        let table = table();
        assert_eq!(KernelTable::from_csv(&table.to_csv()), Ok(table));
        let empty = KernelTable::default();
        assert_eq!(KernelTable::from_csv(&empty.to_csv()), Ok(empty));
    }

    #[test]
    fn times_of_a_batch_count_from_its_first_kernel() {
        let table = table();
        let (.., recording) = table.iter().next().unwrap();
        let (_, kernels) = recording.batches().next().unwrap();
        let starts: Vec<_> = kernels
            .iter()
            .map(|kernel| (kernel.name.as_str(), kernel.start.as_nanos()))
            .collect();
        assert_eq!(starts, [("gemm<float, 4>", 0), ("relu", 2000)]);
        assert_eq!(recording.kernels(), 3);
        // 80 blocks of 256 threads, eight to a multiprocessor: 10 of 80.
        let profile = recording.profile(4).unwrap().unwrap();
        assert_eq!(
            profile.sm_utilization.max(),
            packhorse_cluster::Percent::clamped(12.5)
        );
        assert_eq!(recording.profile(2), None);
    }

    #[test]
    fn the_first_line_that_cannot_be_read_is_named() {
        let csv = table().to_csv();
        for (from, to, problem) in [
            (
                "7.0,80",
                "7.0,0",
                "line 2: the number of multiprocessors must be at least 1",
            ),
            (
                "7.0,80,4",
                "7.0,40,4",
                "line 4: compute_capability or multiprocessors differ from earlier lines of this model and device_kind",
            ),
        ] {
            let error = KernelTable::from_csv(&csv.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.to_string(), problem);
        }
        let error = KernelTable::from_csv(&csv.replacen(",1500,", ",soon,", 1)).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
