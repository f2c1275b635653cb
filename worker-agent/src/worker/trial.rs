//! `packhorse-worker trial`: runs a program of which only the inputs are known, and prints what it answers. The command line has registrations
//! made with it.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use nix::sys::{prctl, signal::Signal};
use packhorse_api::local_worker::{TrialReply, TrialTask, TriedOutput};
use packhorse_cluster::{ArtifactDigest, Program};
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Handoff, Optimize, PipelineSettings, exit_code,
};

use crate::{confinement::Confinement, executor};

/// Tries the program of a task, prints the reply, and returns the exit code. The caller must exit at once.
pub(crate) fn trial(task_file: &Path) -> u8 {
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    // Where memory runs out it goes before whatever serves.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    executor::on_terminate(
        |error| drop(send(&failed(error.to_string()))),
        exit_code::FAILED,
    );
    let (reply, code) = match run(task_file) {
        Ok(outputs) => (TrialReply::Ran { outputs }, exit_code::DONE),
        Err(reason) => (failed(reason), exit_code::FAILED),
    };
    match send(&reply) {
        Ok(()) => code,
        Err(_) => exit_code::FAILED,
    }
}

fn run(task_file: &Path) -> Result<Vec<TriedOutput>, String> {
    let text = fs::read(task_file).map_err(|e| format!("--task: {e}"))?;
    let task: TrialTask = serde_json::from_slice(&text).map_err(|e| format!("--task: {e}"))?;
    let execution = Execution {
        program: Program {
            model: "tried:1".parse().expect("a model's name"),
            // The digest is not used here.
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: task.max_batch_size,
            inputs: task.inputs,
            // They are what is looked for.
            outputs: Vec::new(),
        },
        executor: ExecutorChoice::Torch {
            artifact: task.artifact,
            cuda_device: None,
        },
        device_lock: None,
        threads: 1,
        pipeline: PipelineSettings::default(),
        optimize: Optimize::Off,
        parks: false,
    };
    let folder = task_file.parent().unwrap_or(Path::new("."));
    Confinement::new(&Handoff::new(folder.to_owned()), [&execution]).enter();
    executor::try_outputs(&execution)
}

fn failed(reason: String) -> TrialReply {
    TrialReply::Failed { reason }
}

fn send(reply: &TrialReply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply).expect("replies are JSON");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush())
}
