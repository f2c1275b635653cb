//! Profiles of the thesis' models on this host's first device, measured by the worker, compared with the thesis' V100.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use packhorse_cluster::{ByteCount, ModelId, Percent, Profile, ProfileRow, ProfileTable, Program};
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Handoff, Optimize, ProfileTask, WorkerReport,
};
use serde_json::{Value, json};

use crate::{
    host::{Backend, Host},
    models::{self, MAIN_MODELS, Model, OTHER_MODELS},
    part::Part,
    process::{RunningProgram, wait_for},
    report::{Section, Table},
};

pub(crate) struct Profiles;

const THESIS: &str = include_str!("../../../../profiles/v100-thesis.csv");
const THESIS_KIND: &str = "V100-SXM2-16GB";
/// The time limit for loading, warming up and the last batch size, in addition to the time in which batch sizes are begun.
const FINISH_LIMIT: Duration = Duration::from_mins(2);
/// The shortest time in which batch sizes of one model are begun.
const SHORTEST_TIME: Duration = Duration::from_secs(3);
/// The longest time in which batch sizes of one model are begun.
const LONGEST_TIME: Duration = Duration::from_secs(20);
/// The time in which batch sizes of one small model are begun.
const QUICK_TIME: Duration = Duration::from_secs(2);
/// The time for making a model, and for its worker to start and load it.
const START_TIME: Duration = Duration::from_secs(6);

impl Part for Profiles {
    fn name(&self) -> &'static str {
        "profiles"
    }

    fn description(&self) -> &'static str {
        "latency, memory and occupancy of the thesis' models, compared with its V100"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let others: &[&str] = if host.quick { &[] } else { &OTHER_MODELS };
        let names: Vec<&'static str> = MAIN_MODELS.iter().chain(others).copied().collect();
        let thesis = ProfileTable::from_csv(THESIS).context("read the thesis' profiles")?;
        let mut table = Table {
            title: "Comparison with the thesis' V100 (PyTorch 2.4, FP32, eager)",
            columns: COLUMNS.to_vec(),
            rows: Vec::new(),
        };
        let mut measured = ProfileTable::default();
        let path = csv_path(&host.report);
        for (index, &name) in names.iter().enumerate() {
            let Some(model) = models::make_or_report(host, name, section)? else {
                continue;
            };
            let time_limit = time_for_one(host.time_left(), names.len() - index, host.quick);
            match measure_once(host, &model, time_limit) {
                Ok(profile) => {
                    section.number(
                        format!("{name}: batch sizes measured"),
                        profile.whole().len() as f64,
                        "",
                        None,
                    );
                    let kind = THESIS_KIND.parse().expect("a kind");
                    let theirs = thesis.get(&name.parse()?, &kind);
                    table.rows.extend(
                        profile
                            .whole()
                            .iter()
                            .map(|row| comparison_row(name, row, theirs)),
                    );
                    measured.insert(name.parse()?, host.devices[0].kind.clone(), profile);
                    // After every model, so that a check that is ended keeps what it has measured.
                    fs::write(&path, measured.to_csv())
                        .with_context(|| format!("write {}", path.display()))?;
                }
                Err(e) => section.failed(name, format!("{e:#}")),
            }
        }
        section.table(table);
        section.fact(
            "profiles for packhorse plan and simulate",
            path.display().to_string(),
        );
        Ok(())
    }
}

/// Returns the path of the measured profiles, which lie beside the report.
fn csv_path(report: &Path) -> PathBuf {
    let stem = report.file_stem().unwrap_or_default().to_string_lossy();
    report.with_file_name(format!("{stem}-profiles.csv"))
}

/// Returns the time in which batch sizes of one model are begun: an equal part of what is left, less what starting the worker takes.
fn time_for_one(left: Duration, models: usize, quick: bool) -> Duration {
    if quick {
        return QUICK_TIME;
    }
    let share = left / u32::try_from(models).expect("few models");
    share
        .saturating_sub(START_TIME)
        .clamp(SHORTEST_TIME, LONGEST_TIME)
}

/// Returns the profile that an earlier run with the same work folder measured, or measures it and keeps it there.
fn measure_once(host: &Host, model: &Model, time_limit: Duration) -> anyhow::Result<Profile> {
    let (id, kind) = (model.name.parse()?, &host.devices[0].kind);
    let kept = model.profile_file();
    let earlier = fs::read_to_string(&kept)
        .ok()
        .and_then(|csv| ProfileTable::from_csv(&csv).ok())
        .and_then(|table| table.get(&id, kind).cloned());
    if let Some(profile) = earlier {
        return Ok(profile);
    }
    let profile = measure(host, model, time_limit)?;
    let mut table = ProfileTable::default();
    table.insert(id, kind.clone(), profile.clone());
    fs::write(&kept, table.to_csv()).with_context(|| format!("write {}", kept.display()))?;
    Ok(profile)
}

/// Measures a model on the first device with the worker.
fn measure(host: &Host, model: &Model, time_limit: Duration) -> anyhow::Result<Profile> {
    let folder = host.create_folder("profile")?;
    let handoff = Handoff::new(&folder);
    let given = &model.registration;
    let id: ModelId = model.name.parse()?;
    let kind = host.devices[0].kind.clone();
    handoff.write_task(&ProfileTask {
        execution: Execution {
            program: Program {
                model: id.clone(),
                artifact: format!("sha256:{}", "0".repeat(64)).parse()?,
                max_batch_size: given.max_batch_size,
                inputs: given.inputs.clone(),
                outputs: given.outputs.clone(),
            },
            executor: ExecutorChoice::Torch {
                artifact: model.artifact(),
                cuda_device: (host.backend == Backend::Nvidia).then_some(0),
            },
            device_lock: None,
            threads: host.threads(),
            pipeline: host.pipeline(),
            optimize: Optimize::default(),
            parks: false,
        },
        device_kind: kind.clone(),
        time_limit_ms: time_limit.as_millis() as u64,
        inspect: false,
    })?;
    fs::create_dir(handoff.temporary_dir()).context("make the worker's folder")?;
    let mut worker = host.program("packhorse-worker");
    worker
        .args(["profile", "--dir"])
        .arg(&folder)
        .envs(host.worker_environment())
        .env("TMPDIR", handoff.temporary_dir());
    let mut worker = RunningProgram::start("worker", &mut worker, &folder)?;
    wait_for("the measurement", time_limit + FINISH_LIMIT, || {
        worker.exit_status()
    })?;
    let status = handoff.read_status()?;
    match status.map(|status| status.phase) {
        Some(WorkerReport::Measured { csv, .. }) => {
            let table = ProfileTable::from_csv(&csv).context("read the measurement")?;
            let profile = table.get(&id, &kind).cloned();
            profile.context("the measurement has another model or device kind")
        }
        Some(WorkerReport::Failed { reason, .. }) => bail!(reason),
        _ => bail!("the worker ended: {}", worker.last_log_line()),
    }
}

/// The columns of the comparison.
const COLUMNS: [&str; 11] = [
    "model",
    "batch",
    "ms",
    "ms V100",
    "faster",
    "MiB",
    "MiB V100",
    "occupancy %",
    "occupancy % V100",
    "SM %",
    "SM % V100",
];

/// Returns a row of the comparison: the measured values and those of the thesis for the same batch size.
fn comparison_row(name: &str, ours: &ProfileRow, theirs: Option<&Profile>) -> Vec<Value> {
    let same = |row: &&ProfileRow| row.batch_size == ours.batch_size;
    let theirs = theirs.and_then(|profile| profile.whole().iter().find(same));
    let ms = |row: &ProfileRow| row.latency.as_secs_f64() * 1e3;
    let mib = |row: &ProfileRow| row.memory.map(ByteCount::as_mib_f64);
    let percent = |percent: Option<Percent>| percent.map(Percent::get);
    let thesis_percent =
        |value: fn(&ProfileRow) -> Option<Percent>| percent(theirs.and_then(value));
    vec![
        json!(name),
        json!(ours.batch_size),
        json!(ms(ours)),
        json!(theirs.map(ms)),
        json!(theirs.map(|theirs| ms(theirs) / ms(ours))),
        json!(mib(ours)),
        json!(theirs.and_then(mib)),
        json!(percent(ours.achieved_occupancy)),
        json!(thesis_percent(|row| row.achieved_occupancy)),
        json!(percent(ours.sm_utilization)),
        json!(thesis_percent(|row| row.sm_utilization)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_the_thesis_row_of_its_batch_size_if_there_is_one() {
        let thesis = ProfileTable::from_csv(THESIS).unwrap();
        let kind = THESIS_KIND.parse().unwrap();
        let v100 = thesis.get(&"alexnet".parse().unwrap(), &kind).unwrap();
        let mut row = v100.whole()[0];
        row.latency /= 2;
        let line = comparison_row("alexnet", &row, Some(v100));
        assert_eq!(line.len(), COLUMNS.len());
        assert_eq!(line[1], 4);
        assert!((line[3].as_f64().unwrap() - 1.427_679).abs() < 1e-5);
        assert!((line[4].as_f64().unwrap() - 2.0).abs() < 1e-5);
        assert_eq!(line[10], 47.07);
        row.batch_size = 5;
        assert_eq!(comparison_row("alexnet", &row, Some(v100))[3], Value::Null);
    }

    #[test]
    fn models_share_the_time_that_is_left() {
        let seconds = Duration::from_secs;
        assert_eq!(time_for_one(seconds(208), 13, false), seconds(10));
        assert_eq!(time_for_one(seconds(1200), 13, false), LONGEST_TIME);
        assert_eq!(time_for_one(seconds(10), 13, false), SHORTEST_TIME);
        assert_eq!(time_for_one(seconds(1200), 3, true), QUICK_TIME);
    }

    #[test]
    fn every_model_of_the_thesis_is_measured() {
        let thesis = ProfileTable::from_csv(THESIS).unwrap();
        let mut theirs: Vec<String> = thesis
            .iter()
            .map(|(model, ..)| model.name.to_string())
            .collect();
        theirs.sort();
        let mut ours = [&MAIN_MODELS[..], &OTHER_MODELS].concat();
        ours.sort_unstable();
        assert_eq!(ours, theirs);
    }
}
