//! The outcome of an executor's start.

use std::sync::Arc;

use packhorse_cluster::Verification;

use super::{error::StartError, fill::Fill, stages::Executor};

/// The batch sizes that a GPU runs before the first batch that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarmUpSizes {
    /// The sizes 1, 2, 4, … and the largest, which suffice to find the largest size that fits into memory.
    PowersOfTwo,
    /// All sizes, so that no size runs for the first time while a request waits.
    All,
}

/// A program that was verified on this device and whose weights may leave memory: it is loaded again without being tried once more.
pub(crate) trait Verified: Send + Sync {
    /// Loads the program, and runs it once. What was found of it when it was verified is not told again.
    ///
    /// # Errors
    /// It cannot be loaded any more, or does not run.
    fn load_again(&self) -> Result<Started, StartError>;
}

/// An executor that is ready.
pub(crate) struct Started {
    /// The executor.
    pub(crate) executor: Arc<dyn Executor>,
    /// The largest batch size that fits into memory, at most the requested one.
    pub(crate) batch_size: u32,
    /// The content of synthetic inputs that the program accepts.
    pub(crate) fill: Fill,
    /// The comparison of the answers with those of the program as it is; `None` if it was not wanted, or nothing was rewritten.
    pub(crate) verification: Option<Verification>,
    /// The program as one that may leave memory; `None` if it keeps its weights there.
    pub(crate) verified: Option<Arc<dyn Verified>>,
}
