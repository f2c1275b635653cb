//! The recovery after a killed worker, and after a fault on a GPU.
//!
//! A killed worker affects no other. A fault under MPS may affect every client of the GPU's server: all replicas of that GPU are then
//! restarted. After some faults the driver resets only the client that caused it. Replicas of other GPUs continue to serve.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use packhorse_api::{ModelView, ReplicaView};
use packhorse_cluster::DeviceId;
use serde::Deserialize;

use crate::{
    cluster::{Cluster, Demand},
    host::Host,
    models::{self, Model},
    part::{NO_GPU, Part},
    process::now,
    report::{Section, Target},
};

pub(crate) struct Faults;

/// The time limit for a model to be ready.
const READY_LIMIT: Duration = Duration::from_mins(4);
/// The time limit for a lost replica to answer again: detection, back-off and loading.
const RECOVERY_LIMIT: Duration = Duration::from_mins(1);
/// The target of the recovery time in seconds, which includes a few seconds of loading for these models.
const RECOVERY_TARGET_S: f64 = 30.0;
/// The environment variables that connect a process to an MPS daemon and confine it to a GPU.
const CLIENT_VARIABLES: [&str; 3] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
];
/// The faults that `probe.py fault` causes: its name, and a description.
const FAULTS: [(&str, &str); 2] = [
    ("assert", "a client of MPS fails an assertion"),
    ("address", "a client of MPS writes to a wrong address"),
];
const DEMAND: Demand = Demand {
    rate_rps: 1.0,
    slo_ms: 20_000.0,
    max_batch_size: Some(4),
};

/// The output of `probe.py fault`.
#[derive(Deserialize)]
struct Fault {
    fault: Option<String>,
}

impl Part for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn description(&self) -> &'static str {
        "recovery after a killed worker and after a fault on the GPU"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let victim = models::make_model(host, "bert")?;
        let other = models::make_model(host, "mobilenet_v2")?;
        let mut cluster = Cluster::start(host, "faults", Duration::from_secs(1), &[])?;
        // On a host with several devices the models are on different ones, so that one device has no fault.
        let apart = host.devices.len() > 1;
        cluster.set_policy(if apart { "exclusive" } else { "first-fit" })?;
        for model in [&victim, &other] {
            cluster.register_model(model, DEMAND)?;
            cluster.wait_for_model(model, "ready", READY_LIMIT, |view| serving(view).is_some())?;
        }
        // A new measurement may change the plan, and so replace a worker.
        cluster.wait_until_measured(&[&victim, &other], READY_LIMIT)?;
        check_killed_worker(&mut cluster, &victim, &other, section)?;
        if let Some(reason) = reason_against_mps(&cluster, &victim)? {
            section.unavailable("a fault on the GPU", reason);
            return Ok(());
        }
        for (fault, description) in FAULTS {
            check_gpu_fault(
                host,
                &mut cluster,
                [&victim, &other],
                fault,
                description,
                section,
            )?;
        }
        if !apart {
            section.unavailable(
                "a fault on the GPU: replicas of another GPU",
                "the host has only one GPU",
            );
        }
        Ok(())
    }
}

/// Returns a replica that serves.
fn serving(view: &ModelView) -> Option<&ReplicaView> {
    let mut replicas = view.replicas.iter();
    replicas.find(|replica| replica.serving && replica.pid.is_some())
}

fn worker_pid(cluster: &Cluster, model: &Model) -> anyhow::Result<u32> {
    let view = cluster.model_view(model)?;
    let pid = serving(&view).and_then(|replica| replica.pid);
    pid.with_context(|| format!("{} has no worker", model.name))
}

/// Waits until a model answers from another process, and returns the seconds since `lost`.
fn wait_for_recovery(
    cluster: &mut Cluster,
    model: &Model,
    before: u32,
    lost: Instant,
) -> anyhow::Result<f64> {
    cluster.wait_for_model(model, "restarted", RECOVERY_LIMIT, |view| {
        serving(view).is_some_and(|replica| replica.pid != Some(before))
    })?;
    send_request(cluster, model)?;
    Ok((now() - lost).as_secs_f64())
}

fn send_request(cluster: &Cluster, model: &Model) -> anyhow::Result<()> {
    cluster.infer(model, 1, &model.example(1)?.input).map(drop)
}

fn check_killed_worker(
    cluster: &mut Cluster,
    victim: &Model,
    other: &Model,
    section: &mut Section,
) -> anyhow::Result<()> {
    let (victim_pid, other_pid) = (worker_pid(cluster, victim)?, worker_pid(cluster, other)?);
    kill(Pid::from_raw(victim_pid.cast_signed()), Signal::SIGKILL).context("kill a worker")?;
    let lost = now();
    let answered = send_request(cluster, other);
    let seconds = wait_for_recovery(cluster, victim, victim_pid, lost)?;
    section.number(
        "a worker is killed: answers again after",
        seconds,
        "s",
        Some(Target::AtMost(RECOVERY_TARGET_S)),
    );
    let same_process = worker_pid(cluster, other)? == other_pid;
    section.condition(
        "a worker is killed: its neighbour",
        "answers from the same process",
        answered.is_ok() && same_process,
        describe_outcome(&answered, same_process),
    );
    Ok(())
}

fn describe_outcome(answered: &anyhow::Result<()>, same_process: bool) -> String {
    match (answered, same_process) {
        (Err(e), _) => format!("did not answer: {e:#}"),
        (Ok(()), true) => "answered".to_owned(),
        (Ok(()), false) => "was restarted".to_owned(),
    }
}

/// Returns the reason why the GPU of a model is not shared through MPS; `None` if it is.
fn reason_against_mps(cluster: &Cluster, model: &Model) -> anyhow::Result<Option<String>> {
    let device = device_of(cluster, model)?;
    let devices = cluster.devices()?;
    let found = devices
        .iter()
        .find(|found| Some(&found.id) == device.as_ref());
    Ok(match found.and_then(|device| device.gpu.as_ref()) {
        None => Some(NO_GPU.to_owned()),
        Some(gpu) if !gpu.mps => {
            let reason = gpu.mps_reason.clone();
            Some(reason.unwrap_or_else(|| "no MPS".to_owned()))
        }
        Some(_) => None,
    })
}

fn device_of(cluster: &Cluster, model: &Model) -> anyhow::Result<Option<DeviceId>> {
    let view = cluster.model_view(model)?;
    Ok(serving(&view).map(|replica| replica.device.clone()))
}

/// Causes a fault in another client of the first model's MPS server, and measures when each model answers again.
fn check_gpu_fault(
    host: &Host,
    cluster: &mut Cluster,
    models: [&Model; 2],
    fault: &str,
    description: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let [victim, other] = models;
    let is_apart = device_of(cluster, victim)? != device_of(cluster, other)?;
    let before = [worker_pid(cluster, victim)?, worker_pid(cluster, other)?];
    let environment = mps_environment(before[0])?;
    let fault: Fault = host.run_probe(&["fault", fault], &environment)?;
    let Some(message) = fault.fault else {
        bail!("the injected fault had no effect");
    };
    section.fact(description, message);
    let faulted = now();
    // A replica of another GPU answers at once, the others perhaps only after their restart.
    let answered_apart = is_apart.then(|| send_request(cluster, other));
    let affected = if is_apart { 1 } else { 2 };
    for (model, before) in models.into_iter().zip(before).take(affected) {
        let seconds = wait_for_answer(cluster, model, faulted)?;
        let process = if worker_pid(cluster, model)? == before {
            "the same process"
        } else {
            "a new process"
        };
        section.number(
            format!(
                "{description}: {} answers, from {process}, after",
                model.name
            ),
            seconds,
            "s",
            Some(Target::AtMost(RECOVERY_TARGET_S)),
        );
    }
    if let Some(answered) = answered_apart {
        let same_process = worker_pid(cluster, other)? == before[1];
        section.condition(
            format!("{description}: replicas of another GPU"),
            "answer from the same process",
            answered.is_ok() && same_process,
            describe_outcome(&answered, same_process),
        );
    }
    Ok(())
}

/// Sends requests until one is answered, and returns the seconds since `lost`.
fn wait_for_answer(cluster: &mut Cluster, model: &Model, lost: Instant) -> anyhow::Result<f64> {
    let what = format!("{} to answer", model.name);
    let mut refusal = String::new();
    let answered = cluster.wait_while_running(&what, RECOVERY_LIMIT, |cluster| {
        let outcome = send_request(cluster, model);
        refusal = outcome
            .as_ref()
            .err()
            .map_or_else(String::new, |e| format!("{e:#}"));
        Ok(outcome.ok())
    });
    answered.with_context(|| format!("the last request failed: {refusal}"))?;
    Ok((now() - lost).as_secs_f64())
}

/// Returns the environment of a client of the same MPS server as a process.
fn mps_environment(pid: u32) -> anyhow::Result<Vec<(String, String)>> {
    let path = format!("/proc/{pid}/environ");
    let text = fs::read(&path).with_context(|| format!("read {path}"))?;
    let text = String::from_utf8_lossy(&text);
    let all = text.split('\0').filter_map(|entry| entry.split_once('='));
    Ok(all
        .filter(|(name, _)| CLIENT_VARIABLES.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}
