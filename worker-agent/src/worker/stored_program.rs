//! A program that may leave memory altogether, with its weights, and is loaded again from its file when it is asked for.
//!
//! A batch that was taken from it keeps what that needs, so that a batch under way is computed whatever happens here.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_cluster::{ByteCount, Program};
use packhorse_mapped::View;
use packhorse_wire::TensorHeader;

use crate::executor::{
    Executed, ExecutionError, Executor, Fill, InputMemory, PreparedBatch, StartError, Weights,
};

/// A program that was loaded from its file.
pub(crate) struct FromFile {
    /// The program.
    pub(crate) executor: Arc<dyn Executor>,
    /// The time that loading it took.
    pub(crate) took: Duration,
}

/// Loads a program once more.
pub(crate) type LoadAgain = Box<dyn Fn() -> Result<FromFile, StartError> + Send + Sync>;

/// A program, in memory or in its file only.
pub(crate) struct StoredProgram {
    /// The program while it is in memory.
    loaded: RwLock<Option<Arc<dyn Executor>>>,
    load_again: LoadAgain,
    /// Held by the one that loads it again, for whom the others wait.
    loading: Mutex<()>,
    /// The bytes that come free when its weights leave the device.
    bytes: AtomicU64,
    /// The time to load it from its file, in nanoseconds.
    load_nanos: AtomicU64,
}

impl StoredProgram {
    /// Creates a program that was just loaded.
    pub(crate) fn new(program: FromFile, load_again: LoadAgain) -> Self {
        let new = Self {
            loaded: RwLock::new(None),
            load_again,
            loading: Mutex::default(),
            bytes: AtomicU64::new(0),
            load_nanos: AtomicU64::new(nanos(program.took)),
        };
        new.enter(program);
        new
    }

    /// Returns the program, which is loaded from its file first if it is nowhere else.
    ///
    /// # Errors
    /// It cannot be loaded, or not any more.
    pub(crate) fn loaded(&self) -> Result<Arc<dyn Executor>, StartError> {
        if let Some(executor) = self.in_memory() {
            return Ok(executor);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executor) = self.in_memory() {
            return Ok(executor);
        }
        let program = (self.load_again)()?;
        let executor = Arc::clone(&program.executor);
        self.enter(program);
        Ok(executor)
    }

    /// Returns true if it is in its file only.
    pub(crate) fn is_cold(&self) -> bool {
        self.in_memory().is_none()
    }

    /// Returns the time to load it from its file: between the last time and those before.
    pub(crate) fn file_load_time(&self) -> Duration {
        Duration::from_nanos(self.load_nanos.load(Relaxed))
    }

    /// Takes it out of memory, if its weights are not on the device and may leave. What is returned ends with its last batch.
    pub(crate) fn leave(&self) -> Option<Arc<dyn Executor>> {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let weights = loaded.as_ref().and_then(|executor| executor.weights());
        let may_leave = weights.is_some_and(|weights| !weights.is_resident());
        may_leave.then(|| loaded.take()).flatten()
    }

    fn enter(&self, program: FromFile) {
        let before = self.load_nanos.load(Relaxed);
        self.load_nanos
            .store(before / 2 + nanos(program.took) / 2, Relaxed);
        self.note_bytes(&*program.executor);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(program.executor);
    }

    fn in_memory(&self) -> Option<Arc<dyn Executor>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone()
    }

    /// Calls a function with the weights, if the program is in memory and has any that may leave.
    fn with_weights<T>(&self, call: impl FnOnce(&dyn Weights) -> T) -> Option<T> {
        Some(call(self.in_memory()?.weights()?))
    }

    fn note_bytes(&self, executor: &dyn Executor) -> u64 {
        let bytes = executor.weights().map_or(0, Weights::bytes);
        self.bytes.store(bytes, Relaxed);
        bytes
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Executor for StoredProgram {
    fn prepare(&self, inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let executor = self.loaded();
        let executor = executor.map_err(|error| ExecutionError::NotBegun(error.reason))?;
        executor.prepare(inputs)
    }

    fn prepare_memory(&self, mapped: View) -> Arc<dyn InputMemory> {
        match self.in_memory() {
            Some(executor) => executor.prepare_memory(mapped),
            // A GPU gets copies of it.
            None => Arc::new(mapped),
        }
    }

    fn run_together(
        &self,
        batches: Vec<Box<dyn PreparedBatch>>,
    ) -> Vec<Result<Executed, ExecutionError>> {
        match self.in_memory() {
            Some(executor) => executor.run_together(batches),
            None => batches.into_iter().map(PreparedBatch::run).collect(),
        }
    }

    fn most_rows_together(&self) -> u32 {
        let executor = self.in_memory();
        executor.map_or(0, |executor| executor.most_rows_together())
    }

    fn memory(&self, batch_size: u32) -> Option<ByteCount> {
        self.in_memory()?.memory(batch_size)
    }

    fn multiprocessors(&self) -> Option<u32> {
        self.in_memory()?.multiprocessors()
    }

    fn weights(&self) -> Option<&dyn Weights> {
        Some(self)
    }

    fn forget_recordings(&self) {
        if let Some(executor) = self.in_memory() {
            executor.forget_recordings();
        }
    }

    fn record(&self, program: &Program, sizes: &[u32], fill: Fill) {
        if let Some(executor) = self.in_memory() {
            executor.record(program, sizes, fill);
        }
    }

    fn recorded_sizes(&self) -> Result<Vec<u32>, String> {
        let executor = self.in_memory();
        executor.map_or(Ok(Vec::new()), |executor| executor.recorded_sizes())
    }

    fn release_memory(&self) {
        if let Some(executor) = self.in_memory() {
            executor.release_memory();
        }
    }
}

impl Weights for StoredProgram {
    fn bytes(&self) -> u64 {
        match self.in_memory() {
            Some(executor) => self.note_bytes(&*executor),
            None => self.bytes.load(Relaxed),
        }
    }

    fn load_time(&self) -> Duration {
        let time = self.with_weights(|weights| weights.load_time());
        time.unwrap_or_default()
    }

    fn is_resident(&self) -> bool {
        let executor = self.in_memory();
        executor.is_some_and(|executor| executor.weights().is_none_or(Weights::is_resident))
    }

    fn restore(&self) -> Result<(), ExecutionError> {
        let executor = self.loaded();
        let executor = executor.map_err(|error| ExecutionError::NotBegun(error.reason))?;
        executor.weights().map_or(Ok(()), Weights::restore)
    }

    fn park(&self) {
        self.with_weights(|weights| weights.park());
    }

    fn try_park(&self) -> bool {
        let left = self.with_weights(|weights| weights.try_park());
        left.unwrap_or(false)
    }
}
