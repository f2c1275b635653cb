//! The log on standard error.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing_subscriber::{
    EnvFilter, filter::ParseError, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// The flags of the log.
#[derive(Clone, Debug, Args)]
pub struct LogOptions {
    /// Format of the log on standard error
    #[arg(long, env = "PACKHORSE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Log filter: a level (error, warn, info, debug, trace), or target=level pairs separated by commas
    #[arg(
        long,
        env = "PACKHORSE_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text
    Text,
    /// One JSON object per line
    Json,
}

/// A log that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is malformed.
    #[error("--log: not a log filter")]
    Filter(#[source] ParseError),
}

impl LogOptions {
    /// Starts the log of this process. Must be called once.
    ///
    /// # Errors
    /// If the filter is malformed.
    pub fn start(&self) -> Result<(), LogError> {
        let filter = EnvFilter::try_new(&self.log).map_err(LogError::Filter)?;
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            // A line that cannot be written, as on a full disk, is lost; saying so there would end the process.
            .log_internal_errors(false)
            .with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry().with(filter);
        match self.log_format {
            LogFormat::Text => registry.with(layer).init(),
            LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        }
        Ok(())
    }
}
