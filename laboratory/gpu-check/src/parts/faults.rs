//! What is left of a device when one of its workers dies, and when one faults on the GPU.
//!
//! A worker that is killed takes nobody with it. A fault under MPS reaches every client of the GPU's server: all replicas of that
//! GPU are started again, and those of other GPUs serve on.

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
use serde::Deserialize;

use super::Part;
use crate::{
    cluster::{Cluster, Demand},
    host::Host,
    models::{self, Model},
    process::now,
    report::{Section, Target},
};

pub(crate) struct Faults;

const READY_LIMIT: Duration = Duration::from_mins(4);
/// Within this a replica that was lost answers again: noticing, the back-off, loading.
const BACK_LIMIT: Duration = Duration::from_mins(1);
/// What the design promises beside the time to load, which is seconds for these models.
const BACK_TARGET_S: f64 = 30.0;
/// What leads a process to an MPS daemon and confines it to a GPU.
const CLIENT: [&str; 3] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
];
const DEMAND: Demand = Demand {
    rate_rps: 1.0,
    slo_ms: 20_000.0,
    max_batch_size: Some(4),
};

/// What `probe.py fault` says.
#[derive(Deserialize)]
struct Fault {
    fault: Option<String>,
}

impl Part for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn about(&self) -> &'static str {
        "what a killed worker and a fault on the GPU take with them"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let victim = models::make_one(host, "bert")?;
        let other = models::make_one(host, "mobilenet_v2")?;
        let mut cluster = Cluster::start(host, "faults", Duration::from_secs(1), &[])?;
        // Apart where there are several devices, so that one is not the fault's.
        let apart = host.devices.len() > 1;
        cluster.set_policy(if apart { "exclusive" } else { "first-fit" })?;
        for model in [&victim, &other] {
            cluster.register(model, DEMAND)?;
            cluster.wait_for_model(model, "ready", READY_LIMIT, |view| serving(view).is_some())?;
        }
        killed(&mut cluster, &victim, &other, section)?;
        faulted(host, &mut cluster, &victim, &other, section)
    }
}

/// The replica that answers.
fn serving(view: &ModelView) -> Option<&ReplicaView> {
    let mut replicas = view.replicas.iter();
    replicas.find(|replica| replica.serving && replica.pid.is_some())
}

fn pid(cluster: &Cluster, model: &Model) -> anyhow::Result<u32> {
    let view = cluster.view(model)?;
    let pid = serving(&view).and_then(|replica| replica.pid);
    pid.with_context(|| format!("{} has no worker", model.name))
}

/// Waits until a model answers from another process than this: how many seconds that took since `lost`.
fn back(cluster: &mut Cluster, model: &Model, before: u32, lost: Instant) -> anyhow::Result<f64> {
    cluster.wait_for_model(model, "back", BACK_LIMIT, |view| {
        serving(view).is_some_and(|replica| replica.pid != Some(before))
    })?;
    ask(cluster, model)?;
    Ok((now() - lost).as_secs_f64())
}

fn ask(cluster: &Cluster, model: &Model) -> anyhow::Result<()> {
    cluster.infer(model, 1, &model.example(1)?.input).map(drop)
}

fn killed(
    cluster: &mut Cluster,
    victim: &Model,
    other: &Model,
    section: &mut Section,
) -> anyhow::Result<()> {
    let (dies, stays) = (pid(cluster, victim)?, pid(cluster, other)?);
    kill(Pid::from_raw(dies.cast_signed()), Signal::SIGKILL).context("kill a worker")?;
    let lost = now();
    let meanwhile = ask(cluster, other);
    let seconds = back(cluster, victim, dies, lost)?;
    section.number(
        "a worker is killed: answers again after",
        seconds,
        "s",
        Some(Target::AtMost(BACK_TARGET_S)),
    );
    let untouched = pid(cluster, other)? == stays;
    section.holds(
        "a worker is killed: its neighbour",
        "answers from the same process",
        meanwhile.is_ok() && untouched,
        outcome(&meanwhile, untouched),
    );
    Ok(())
}

fn outcome(answered: &anyhow::Result<()>, untouched: bool) -> String {
    match (answered, untouched) {
        (Err(e), _) => format!("did not answer: {e:#}"),
        (Ok(()), true) => "answered".to_owned(),
        (Ok(()), false) => "was started again".to_owned(),
    }
}

fn faulted(
    host: &Host,
    cluster: &mut Cluster,
    victim: &Model,
    other: &Model,
    section: &mut Section,
) -> anyhow::Result<()> {
    const WHAT: &str = "a fault on the GPU";
    let (first, second) = (pid(cluster, victim)?, pid(cluster, other)?);
    let device = |view: &ModelView| serving(view).map(|replica| replica.device.clone());
    let home = device(&cluster.view(victim)?);
    let apart = device(&cluster.view(other)?) != home;
    let devices = cluster.devices()?;
    let gpu = devices
        .iter()
        .find(|device| Some(&device.id) == home.as_ref());
    match gpu.and_then(|device| device.gpu.as_ref()) {
        None => {
            section.unavailable(WHAT, "the device is no GPU");
            return Ok(());
        }
        Some(gpu) if !gpu.mps => {
            let reason = gpu.mps_reason.clone();
            section.unavailable(WHAT, reason.unwrap_or_else(|| "no MPS".to_owned()));
            return Ok(());
        }
        Some(_) => {}
    }
    let fault: Fault = host.probe(&["fault"], &environment(first)?)?;
    let Some(said) = fault.fault else {
        bail!("the fault that was to be injected did not come about");
    };
    section.fact("a client of the GPU's MPS server faults", said);
    let lost = now();
    // A neighbour on the same GPU answers when it is back.
    let meanwhile = apart.then(|| ask(cluster, other));
    let seconds = back(cluster, victim, first, lost)?;
    let target = Some(Target::AtMost(BACK_TARGET_S));
    section.number(
        format!("{WHAT}: its replicas answer again after"),
        seconds,
        "s",
        target,
    );
    if let Some(meanwhile) = meanwhile {
        let untouched = pid(cluster, other)? == second;
        section.holds(
            format!("{WHAT}: replicas of another GPU"),
            "answer from the same process",
            meanwhile.is_ok() && untouched,
            outcome(&meanwhile, untouched),
        );
    } else {
        let seconds = back(cluster, other, second, lost)?;
        section.number(
            format!("{WHAT}: its neighbour answers again after"),
            seconds,
            "s",
            target,
        );
        section.unavailable(
            format!("{WHAT}: replicas of another GPU"),
            "there is one GPU",
        );
    }
    Ok(())
}

/// What makes a process a client of the same MPS server as this one.
fn environment(pid: u32) -> anyhow::Result<Vec<(String, String)>> {
    let path = format!("/proc/{pid}/environ");
    let text = fs::read(&path).with_context(|| format!("read {path}"))?;
    let text = String::from_utf8_lossy(&text);
    let all = text.split('\0').filter_map(|entry| entry.split_once('='));
    Ok(all
        .filter(|(name, _)| CLIENT.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}
