//! `packhorse-worker inspect`: prints the operators of a program, from which its profile can be estimated. `packhorse-worker operators`
//! reports them to an agent.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use clap::Args;
use nix::sys::{prctl, signal::Signal};
use packhorse_cluster::{ArtifactDigest, ProfileProgress, Program, TensorSpec};
use packhorse_estimator::OperatorGraph;
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Handoff, Optimize, PipelineSettings, WorkerReport, exit_code,
};
use serde::{Deserialize, Serialize};

use crate::{
    clock::now,
    confinement::Confinement,
    executor::{self, StartError},
    status_reporter::StatusReporter,
};

/// The time after which a process that inspects a program before its measurement is killed.
const LIMIT: Duration = Duration::from_secs(20);
/// The time between two looks at that process.
const POLL: Duration = Duration::from_millis(5);
/// The niceness of a process that inspects a program for an agent: about a tenth of the processor time of one that serves.
const NICENESS: i32 = 10;

const EXAMPLES: &str = "\
Examples:
  packhorse-worker inspect --model resnet50.pt --signature model.json";

/// The flags of an inspection.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectOptions {
    /// File with the TorchScript program
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// JSON file with the model's `inputs`, `outputs` and `max_batch_size`, such as the file of its registration
    #[arg(long, value_name = "FILE")]
    signature: PathBuf,

    /// End when the process ends that has started this one
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

/// The part of a registration that describes the program.
#[derive(Serialize, Deserialize)]
struct Signature {
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// Prints the operators, and returns the exit code.
pub(crate) fn inspect(options: &InspectOptions) -> u8 {
    if options.end_with_parent {
        let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    }
    let printed = read(options)
        .and_then(|execution| executor::inspect(&execution))
        .and_then(|graph| writeln!(io::stdout(), "{}", graph.to_json()).map_err(|e| e.to_string()));
    match printed {
        Ok(()) => exit_code::DONE,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "no operators: {reason}");
            exit_code::FAILED
        }
    }
}

fn read(options: &InspectOptions) -> Result<Execution, String> {
    let text = fs::read(&options.signature).map_err(|e| format!("--signature: {e}"))?;
    let signature: Signature =
        serde_json::from_slice(&text).map_err(|e| format!("--signature: {e}"))?;
    Ok(Execution {
        program: Program {
            model: "inspected:1".parse().expect("a model's name"),
            // The digest is not used here.
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: signature.max_batch_size,
            inputs: signature.inputs,
            outputs: signature.outputs,
        },
        executor: ExecutorChoice::Torch {
            artifact: options.model.clone(),
            cuda_device: None,
        },
        device_lock: None,
        threads: 1,
        pipeline: PipelineSettings::default(),
        optimize: Optimize::Off,
        parks: false,
    })
}

/// Reports the operators of the program in the hand-over folder to the agent, and returns the exit code. The caller must exit at once.
pub(crate) fn report(handoff: &Handoff, confine: bool) -> u8 {
    let reporter = StatusReporter::new(handoff);
    handoff.limit_log();
    let outcome = read_task(handoff).and_then(|execution| {
        if confine {
            Confinement::new(handoff, [&execution]).enter();
        }
        report_operators(&execution, handoff, &reporter)
    });
    match outcome {
        Ok(()) => exit_code::DONE,
        Err(StartError { reason, permanent }) => {
            reporter.report_failure(reason, permanent);
            exit_code::FAILED
        }
    }
}

/// Makes one inspection of a process that makes others, too, like [`report`].
///
/// # Errors
/// The reason why the operators cannot be known.
pub(crate) fn report_reused(
    handoff: &Handoff,
    reporter: &StatusReporter,
) -> Result<(), StartError> {
    report_operators(&read_task(handoff)?, handoff, reporter)
}

fn read_task(handoff: &Handoff) -> Result<Execution, StartError> {
    let execution = handoff.read_task();
    execution.map_err(|e| StartError::permanent(e.to_string()))
}

fn report_operators(
    execution: &Execution,
    handoff: &Handoff,
    reporter: &StatusReporter,
) -> Result<(), StartError> {
    let operators = here(execution, handoff).map_err(StartError::permanent)?;
    reporter.report_result(WorkerReport::Inspected { operators });
    Ok(())
}

/// Returns the operators of a program as JSON.
///
/// # Errors
/// The reason why they are not known, as text for people.
pub(crate) fn here(execution: &Execution, _handoff: &Handoff) -> Result<String, String> {
    limited(&executor::inspect(execution)?)
}

/// Has this process give way to those that serve: it gets what processor time they leave, and is killed before them where memory runs out.
pub(crate) fn yield_to_others() {
    let _ = rustix::process::nice(NICENESS);
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

/// Returns the operators as JSON, unless it is larger than an agent may report.
fn limited(graph: &OperatorGraph) -> Result<String, String> {
    let operators = graph.to_json();
    if operators.len() > ProfileProgress::MAX_OPERATORS_BYTES {
        return Err(format!("they are {} bytes", operators.len()));
    }
    Ok(operators)
}

/// Returns the operators of a program as JSON, as a process of its own finds them, so that a program at which libtorch crashes or does not
/// come to an end can be measured all the same. It ends before this returns, and with it the memory that it takes.
///
/// # Errors
/// The reason why they are not known, as text for people.
pub(crate) fn in_own_process(execution: &Execution, handoff: &Handoff) -> Result<String, String> {
    let ExecutorChoice::Torch { artifact, .. } = &execution.executor else {
        return Err("a simulated program has no operators".to_owned());
    };
    let folder = handoff.temporary_dir();
    let (signature, found) = (folder.join("signature.json"), folder.join("operators.json"));
    let operators = write_signature(&execution.program, &signature)
        .and_then(|()| run(artifact, &signature, &found))
        .and_then(|()| fs::read_to_string(&found))
        .map_err(|e| e.to_string());
    for file in [signature, found] {
        let _ = fs::remove_file(file);
    }
    let graph = OperatorGraph::from_json(&operators?).map_err(|e| e.to_string())?;
    limited(&graph)
}

fn write_signature(program: &Program, file: &Path) -> io::Result<()> {
    let signature = Signature {
        max_batch_size: program.max_batch_size,
        inputs: program.inputs.clone(),
        outputs: program.outputs.clone(),
    };
    fs::write(
        file,
        serde_json::to_vec(&signature).expect("a signature is JSON"),
    )
}

/// Runs `packhorse-worker inspect`, which writes to `found`. What it has to say of a failure goes to the log of this process.
fn run(artifact: &Path, signature: &Path, found: &Path) -> io::Result<()> {
    let mut child = Command::new(env::current_exe()?)
        .args(["inspect", "--end-with-parent", "--model"])
        .arg(artifact)
        .arg("--signature")
        .arg(signature)
        .stdin(Stdio::null())
        .stdout(fs::File::create(found)?)
        .spawn()?;
    let ended = wait(&mut child);
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ended
}

fn wait(child: &mut Child) -> io::Result<()> {
    let deadline = now() + LIMIT;
    while now() < deadline {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("its process ended: {status}"))),
            None => thread::sleep(POLL),
        }
    }
    let limit = LIMIT.as_secs();
    Err(io::Error::other(format!("not found within {limit} s")))
}
