//! The failures of programs and devices.

use packhorse_cluster::InputShapes;

/// The failure of a batch: it has no outputs. The texts are for the sender of the request: one line, without paths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExecutionError {
    /// The program threw an exception.
    #[error("the model threw: {0}")]
    ModuleThrew(String),
    /// The program's outputs are not as declared.
    #[error("the model answered {0}")]
    WrongOutput(String),
    /// There was not enough memory for the batch.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The batch exceeded the time limit.
    #[error("{0}")]
    TimedOut(String),
    /// The batch was not computed: it waited behind one that exceeded the time limit.
    #[error("{0}")]
    NotBegun(String),
    /// The device failed and cannot compute this or any other batch.
    #[error("the device failed: {0}")]
    DeviceFailed(String),
}

impl ExecutionError {
    /// Appends the batch size at which the error occurred to its text.
    pub(crate) fn at_batch_size(self, size: u32) -> Self {
        self.with(&format!("batch size {size}"))
    }

    /// Appends the shapes of the inputs with which the error occurred to its text.
    pub(crate) fn with_inputs(self, shapes: &InputShapes) -> Self {
        self.with(&format!("inputs of shape {shapes}"))
    }

    /// Appends what was being done to the text.
    fn with(self, what: &str) -> Self {
        let at = |text: String| format!("{text} ({what})");
        match self {
            Self::ModuleThrew(text) => Self::ModuleThrew(at(text)),
            Self::WrongOutput(text) => Self::WrongOutput(at(text)),
            Self::OutOfMemory(text) => Self::OutOfMemory(at(text)),
            Self::TimedOut(text) => Self::TimedOut(at(text)),
            Self::NotBegun(text) => Self::NotBegun(at(text)),
            Self::DeviceFailed(text) => Self::DeviceFailed(at(text)),
        }
    }
}

/// A program that cannot be served or measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct StartError {
    /// The reason as text for people, without paths.
    pub(crate) reason: String,
    /// True if another attempt would fail again.
    pub(crate) permanent: bool,
}

impl StartError {
    /// Creates an error that another attempt would meet again.
    pub(crate) fn permanent(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            permanent: true,
        }
    }

    /// Creates an error that another attempt may not meet.
    pub(crate) fn transient(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            permanent: false,
        }
    }
}

impl From<ExecutionError> for StartError {
    fn from(error: ExecutionError) -> Self {
        let permanent = match error {
            ExecutionError::ModuleThrew(_) | ExecutionError::WrongOutput(_) => true,
            ExecutionError::OutOfMemory(_)
            | ExecutionError::TimedOut(_)
            | ExecutionError::NotBegun(_)
            | ExecutionError::DeviceFailed(_) => false,
        };
        Self {
            reason: error.to_string(),
            permanent,
        }
    }
}

/// A failure to record a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// The batch failed.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The profiler failed.
    #[cfg_attr(
        not(feature = "torch"),
        expect(dead_code, reason = "a simulated device has no profiler")
    )]
    #[error("the profiler failed: {0}")]
    Profiler(String),
    /// The profiler's file cannot be read.
    #[error("the profiler's trace cannot be read: {0}")]
    Trace(String),
    /// The device is simulated.
    #[error("a simulated device runs no kernels")]
    Simulated,
}
