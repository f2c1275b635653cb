//! Model repositories of Triton: what a `config.pbtxt` says, as a registration of Packhorse.
//!
//! `text_format` reads protobuf's text format into a tree, `config` makes the registration of it. Fields that change answers and that
//! Packhorse does not have are refused by their names and lines; those that say where and how fast a model shall run are left out, each
//! with a notice: Packhorse decides that.

mod config;
mod fields;
mod text_format;

pub use config::{ConfigError, TritonModel, Versions, read};

/// The largest configuration that is read, in bytes.
pub const CONFIG_LIMIT: usize = 1 << 20;
