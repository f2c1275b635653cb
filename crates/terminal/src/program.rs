//! The run of a command: one thread, and errors with advice on standard error.

use std::{future::Future, io, process::ExitCode};

use crate::{context::Context, output};

/// Runs a command to its end and returns the status to end with: success, or that of its error.
pub fn run(
    context: &Context,
    command: impl Future<Output = anyhow::Result<()>>,
    status: impl Fn(&anyhow::Error) -> ExitCode,
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(command);
            // A thread that waits for a file of a broken file system does not delay the end.
            runtime.shutdown_background();
            outcome
        }
        Err(e) => Err(e.into()),
    };
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    {
        // The reader of our results has closed the pipe, for instance `head`.
        return ExitCode::SUCCESS;
    }
    output::note(format_args!("error: {error:#}"));
    if let Some(hint) = context.hint(&error) {
        output::note(format_args!("hint: {hint}"));
    }
    status(&error)
}
