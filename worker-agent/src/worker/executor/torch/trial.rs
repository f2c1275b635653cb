//! The trial of a program of which only the inputs are known.

use packhorse_api::local_worker::TriedOutput;

use super::{options::StartOptions, shim::Optimization, start::look_at};
use crate::executor::verification;

/// Loads the program as it is in its file, and returns what it answers.
///
/// # Errors
/// The reason why it cannot be run, or why its rows are not those of a batch, as text for people.
pub(in crate::executor) fn try_outputs(
    options: &StartOptions<'_>,
) -> Result<Vec<TriedOutput>, String> {
    let start = look_at(options).map_err(|e| e.reason)?;
    let optimization = if start.is_package() {
        Optimization::Compiled
    } else {
        Optimization::Plain
    };
    let executor = start.load(&optimization.into()).map_err(|e| e.reason)?;
    let mut outputs = verification::try_outputs(&executor, options.program, options.batch_size)?;
    for (output, name) in outputs.iter_mut().zip(executor.answered()) {
        output.name = Some(name);
    }
    Ok(outputs)
}
