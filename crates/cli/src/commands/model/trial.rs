//! The trial of a program: a worker of this machine runs it, confined to a folder of its own, and says what it answers.

use std::{env, ffi::OsStr, fs, path::Path, process::Stdio, time::Duration};

use packhorse_api::local_worker::{TrialReply, TrialTask, TriedOutput};
use packhorse_cluster::TensorSpec;
use packhorse_service::Libtorch;
use packhorse_terminal::context;
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};

/// The time after which a program that is tried is killed.
const LIMIT: Duration = Duration::from_mins(1);
/// The most bytes of a reply.
const MAX_REPLY: u64 = 1 << 20;
/// The name of the worker, in the folder of this program.
const WORKER: &str = "packhorse-worker";

/// The variables of the environment that the worker inherits, beside those that begin as [`INHERITED_BEGIN`] says. A program is code of somebody
/// else: it sees no tokens.
const INHERITED: [&str; 4] = ["LANG", "LD_LIBRARY_PATH", "PATH", "TZ"];
/// The beginnings of further ones, which are those of compute libraries.
const INHERITED_BEGIN: [&str; 3] = ["KMP_", "MKL_", "OMP_"];

/// Runs the program in a file with these inputs, and returns its outputs.
///
/// # Errors
/// The reason why they stay unknown, as text for people.
pub(super) async fn try_outputs(
    file: &Path,
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    libtorch: Option<&Path>,
) -> Result<Vec<TriedOutput>, String> {
    let program = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let worker = program.with_file_name(WORKER);
    if !worker.is_file() {
        return Err(format!(
            "there is no {WORKER} beside this program, which would run it"
        ));
    }
    let folder = tempfile::Builder::new()
        .prefix("packhorse-trial-")
        .tempdir()
        .map_err(|e| format!("cannot create a folder for the worker: {e}"))?;
    let artifact = fs::canonicalize(file).map_err(|e| e.to_string())?;
    let task = TrialTask {
        artifact,
        max_batch_size,
        inputs,
    };
    let task_file = folder.path().join("task.json");
    let text = serde_json::to_vec(&task).map_err(|e| e.to_string())?;
    fs::write(&task_file, text).map_err(|e| format!("cannot write the worker's task: {e}"))?;
    let mut command = Command::new(&worker);
    command
        .arg("trial")
        .arg("--task")
        .arg(&task_file)
        .env_clear()
        .envs(env::vars_os().filter(|(name, _)| is_inherited(name)))
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let named = libtorch.and_then(Libtorch::find);
    let installed = || Libtorch::installed(&context::data_home()?);
    if let Some(libtorch) = named.or_else(installed) {
        command.env("LD_LIBRARY_PATH", libtorch.libraries());
    }
    let mut child = command
        .spawn()
        .map_err(|e| format!("{WORKER} does not run: {e}"))?;
    let out = child.stdout.take();
    let reply = async {
        let mut reply = Vec::new();
        if let Some(out) = out {
            out.take(MAX_REPLY).read_to_end(&mut reply).await?;
        }
        child.wait().await?;
        std::io::Result::Ok(reply)
    };
    let reply = timeout(LIMIT, reply).await;
    let reply = reply.map_err(|_| format!("it did not answer within {} s", LIMIT.as_secs()))?;
    let reply = reply.map_err(|e| format!("{WORKER} does not run: {e}"))?;
    match serde_json::from_slice(&reply) {
        Ok(TrialReply::Ran { outputs }) => Ok(outputs),
        Ok(TrialReply::Failed { reason }) => Err(reason),
        Err(_) => Err(format!(
            "{WORKER} ended without a word: packhorse doctor says if it runs"
        )),
    }
}

fn is_inherited(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    INHERITED.contains(&name) || INHERITED_BEGIN.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_tried_sees_no_tokens() {
        for (name, expected) in [
            ("LD_LIBRARY_PATH", true),
            ("OMP_NUM_THREADS", true),
            ("PACKHORSE_TOKEN_FILE", false),
            ("AWS_SECRET_ACCESS_KEY", false),
            ("HOME", false),
        ] {
            assert_eq!(is_inherited(OsStr::new(name)), expected, "{name}");
        }
    }
}
