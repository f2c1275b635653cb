//! The start of an executor: it loads the program, optimises it as far as possible, and warms it up.

use std::{fs::File, io};

use super::{
    attempt::{Start, configure},
    file_kind::FileKind,
    options::StartOptions,
    package,
    programs::Programs,
    shim::Optimization,
    verify,
};
use crate::{
    executor::{error::StartError, started::Started},
    process_memory,
};

/// Loads and warms up the program with the strongest optimization that works: some programs cannot be optimised, a few not even frozen, and
/// some fail only when they run or answer something else. A package was compiled for its device beforehand and is not optimised further.
pub(in crate::executor) fn start(options: &StartOptions<'_>) -> Result<Started, StartError> {
    configure(options)?;
    let unreadable =
        |e: io::Error| StartError::transient(format!("the model file cannot be read: {e}"));
    let kind = File::open(options.artifact).and_then(FileKind::recognise);
    if let Some(kind) = kind.map_err(unreadable)? {
        return Err(StartError::permanent(kind.to_string()));
    }
    let names = File::open(options.artifact).and_then(package::program_names);
    let names = names.map_err(unreadable)?;
    let is_package = !names.is_empty();
    let start = Start {
        options,
        names: if is_package {
            Programs::from_names(names, options.program.max_batch_size)
        } else {
            Programs::from_single(String::new())
        },
        shared_before: process_memory::shared(),
    };
    if is_package {
        start.unverified(Optimization::Compiled)
    } else {
        verify::start_script(&start)
    }
}
