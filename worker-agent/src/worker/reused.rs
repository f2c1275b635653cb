//! A reused worker: a process that does one measurement, or inspection, after the other, in the hand-over folders that standard input
//! names, one a line.
//!
//! To start a process and to load libtorch takes longer than to measure a small program. What a task leaves behind is freed before the
//! next one. The process ends with its standard input, and with the first task that does not come to an end; an agent gives that task a
//! process of its own.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead as _},
    os::unix::ffi::OsStringExt as _,
    sync::{Arc, Mutex, PoisonError},
};

use packhorse_worker_agent::handoff::{Handoff, ReusedTask, exit_code};

use crate::{
    confinement::Confinement,
    executor::{self, StartError},
    status_reporter::StatusReporter,
};

/// A task with a result: it reports to its agent by itself, unless it fails.
pub(crate) type ResultTask = fn(&Handoff, &StatusReporter) -> Result<(), StartError>;

/// Does the tasks to the end of standard input, and returns the exit code. `own` is the hand-over folder of the process itself. The caller
/// must exit at once.
pub(crate) fn run(own: &Handoff, confine: bool, task: ResultTask) -> u8 {
    own.limit_log();
    let access: ReusedTask = match own.read_task() {
        Ok(access) => access,
        Err(error) => {
            tracing::error!(%error, "no task");
            return exit_code::FAILED;
        }
    };
    if confine {
        Confinement::new(own, [])
            .also_reading(access.reads)
            .also_writing(access.writes)
            .enter();
    }
    let current: Arc<Mutex<Option<StatusReporter>>> = Arc::default();
    let reporting = Arc::clone(&current);
    executor::on_terminate(
        move |error| {
            let reporter = reporting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(reporter) = &*reporter {
                reporter.report_failure(error.to_string(), false);
            }
        },
        exit_code::FAILED,
    );
    for folder in io::stdin().lock().split(b'\n') {
        let Ok(folder) = folder else {
            return exit_code::DONE;
        };
        let handoff = Handoff::new(OsString::from_vec(folder));
        let reporter = StatusReporter::of(&handoff);
        *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(reporter.clone());
        if let Err(StartError { reason, permanent }) = task(&handoff, &reporter) {
            reporter.report_failure(reason, permanent);
        }
        empty(own);
    }
    exit_code::DONE
}

/// Removes what a task has left in the folder for temporary files, such as an unpacked package.
fn empty(own: &Handoff) {
    for entry in fs::read_dir(own.temporary_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = entry.path();
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
            _ => fs::remove_file(&path),
        };
        if let Err(error) = removed {
            tracing::debug!(%error, "a temporary file is left");
        }
    }
}
