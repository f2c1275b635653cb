//! A replica's memory on the device against the memory that plans count for it: the growth of what all processes use, so that CUDA's
//! context, recordings and buffers for copies are included.

use std::{thread, time::Duration};

use anyhow::Context as _;
use packhorse_worker_agent::devices::Monitor;
use serde_json::json;

use crate::{
    cluster::{Cluster, Demand},
    host::{Backend, Host},
    models::{self, MAIN_MODELS, Model},
    part::{NO_GPU, Part},
    process::wait_for,
    report::{Section, Table, Target},
};

pub(crate) struct Memory;

/// The policy whose replicas have the largest batch size that the SLO allows.
const POLICY: &str = "exclusive";
/// The time limit for a model to be measured and to serve.
const READY_LIMIT: Duration = Duration::from_mins(2);
/// The largest part of the real memory by which the planned memory may differ from it.
const LARGEST_ERROR: f64 = 0.1;
/// Requests with all rows that a replica answers before its memory is read.
const REQUESTS: u32 = 3;
/// The time between two readings of the memory in use.
const POLL: Duration = Duration::from_millis(200);
/// Equal readings in a row by which workers that end or start are taken to have done so.
const EQUAL_READINGS: u32 = 10;
/// The time limit for the memory in use to stay the same.
const SETTLED_LIMIT: Duration = Duration::from_mins(1);

const COLUMNS: [&str; 6] = [
    "model",
    "batch",
    "planned MiB",
    "worker's own MiB",
    "real MiB",
    "error",
];

impl Part for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn description(&self) -> &'static str {
        "a replica's real memory against its planned memory"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("real memory", NO_GPU);
            return Ok(());
        }
        let seconds = if host.quick { 1 } else { 5 };
        let mut cluster = Cluster::start(host, self.name(), Duration::from_secs(seconds), &[])?;
        cluster.set_policy(POLICY)?;
        let mut table = Table {
            title: "A replica's memory",
            columns: COLUMNS.to_vec(),
            rows: Vec::new(),
        };
        // One model at a time, so that what is used more is the replica's.
        for name in MAIN_MODELS {
            let Some(model) = models::make_or_report(host, name, section)? else {
                continue;
            };
            if let Err(e) = compare(host, &mut cluster, &model, section, &mut table) {
                section.failed(name, format!("{e:#}"));
            }
            cluster.remove_model(&model)?;
        }
        section.table(table);
        Ok(())
    }
}

fn compare(
    host: &Host,
    cluster: &mut Cluster,
    model: &Model,
    section: &mut Section,
    table: &mut Table,
) -> anyhow::Result<()> {
    let before = settled_mib(host)?;
    let demand = Demand {
        rate_rps: 1.0,
        slo_ms: 20_000.0,
        max_batch_size: None,
    };
    cluster.register_model(model, demand)?;
    cluster.wait_until_measured(&[model], READY_LIMIT)?;
    // A measured model is planned anew, so that its first replica gives way to another.
    settled_mib(host)?;
    let view = cluster.wait_for_model(
        model,
        "ready",
        READY_LIMIT,
        |view| matches!(&view.replicas[..], [replica] if replica.serving),
    )?;
    let replica = view.replicas.first().context("the model has no replica")?;
    let rows = replica.batch_size;
    let row = model.example(1)?.input;
    for _ in 0..REQUESTS {
        cluster.infer(model, rows, &row.repeat(rows as usize))?;
    }
    let real = settled_mib(host)? - before;
    let profiles = cluster.profiles()?;
    let planned = profiles
        .iter()
        .find(|(id, ..)| id.name.as_str() == model.name)
        .and_then(|(.., profile)| profile.memory(rows))
        .context("the profile says no memory")?
        .as_mib_f64();
    let error = (planned - real).abs() / real;
    section.number(
        format!("{} at {rows}: planned memory, error", model.name),
        error,
        "of the real memory",
        host.speed_target(Target::AtMost(LARGEST_ERROR)),
    );
    table.rows.push(vec![
        json!(model.name),
        json!(rows),
        json!(planned),
        json!(
            replica
                .memory_bytes
                .map(packhorse_cluster::ByteCount::as_mib_f64)
        ),
        json!(real),
        json!(error),
    ]);
    Ok(())
}

/// Returns the memory in use on the first device, in MiB, once it stays the same.
fn settled_mib(host: &Host) -> anyhow::Result<f64> {
    let monitor = Monitor::start();
    let (mut last, mut equal) = (None, 0);
    wait_for("the memory in use to settle", SETTLED_LIMIT, || {
        let read = monitor.read(&host.devices[0].name);
        let bytes = read.memory_used_bytes.context("NVML reports no memory")?;
        equal = if last == Some(bytes) { equal + 1 } else { 0 };
        last = Some(bytes);
        if equal < EQUAL_READINGS {
            thread::sleep(POLL);
            return Ok(None);
        }
        Ok(Some(bytes as f64 / f64::from(1 << 20)))
    })
}
