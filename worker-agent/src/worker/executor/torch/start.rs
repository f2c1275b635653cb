//! The start of an executor: it loads the program, optimises it as far as possible, and warms it up.

use std::{fs::File, io};

use packhorse_artifact::FileKind;

use super::{
    attempt::{Start, configure},
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
    let start = look_at(options)?;
    if start.is_package() {
        start.unverified(Optimization::Compiled)
    } else {
        verify::start_script(&start)
    }
}

/// Finds out what is in the file, and loads nothing yet.
///
/// # Errors
/// If the file is no program, or the device is not there.
pub(super) fn look_at<'a>(options: &'a StartOptions<'a>) -> Result<Start<'a>, StartError> {
    configure(options)?;
    let unreadable =
        |e: io::Error| StartError::transient(format!("the model file cannot be read: {e}"));
    let kind = File::open(options.artifact).and_then(FileKind::recognise);
    if let Some(kind) = kind.map_err(unreadable)? {
        return Err(StartError::permanent(kind.to_string()));
    }
    let names = File::open(options.artifact).and_then(package::program_names);
    let names = names.map_err(unreadable)?;
    Ok(Start {
        options,
        names: if names.is_empty() {
            Programs::from_single(String::new())
        } else {
            Programs::from_names(names, options.program.max_batch_size)
        },
        shared_before: process_memory::shared(),
    })
}
