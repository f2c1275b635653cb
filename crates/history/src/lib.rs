//! A day of every model and device: what was asked of them, how it was answered, and how busy they were.
//!
//! Every ten seconds the gateway adds a [`Block`] with a sample of each model and device. [`History`] keeps the blocks of an hour, and for a day
//! those of minutes, which are the sums of them. A time without a block is a gap: nobody knows what happened, and nothing is made up.
//!
//! Blocks are kept as bytes. A sample of a model is its counts and a histogram of its latencies in at most [`MAX_BUCKETS`] buckets, so that
//! quantiles of any time are those of its requests, within an eighth, and above it where more buckets were needed. 1,000 busy models take less than 64 MiB
//! (`a_day_of_a_thousand_busy_models_fits`), and a limit of bytes holds whatever comes: beyond it the oldest blocks go.
//!
//! Nothing here reads a clock or a file. [`segment`] is the format of the files in which a gateway keeps the blocks over a restart.

mod block;
mod bytes;
mod history;
mod latencies;
mod sample;
pub mod segment;

pub use block::{Block, Mark, MarkKind, Series};
pub use history::{FINE_MS, FINE_SPAN_MS, History, MINUTE_MS, Point, SPAN_MS};
pub use latencies::{Latencies, MAX_BUCKETS};
pub use sample::{DeviceSample, ModelSample, Sample};
