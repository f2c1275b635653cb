//! A scenario of the thesis with real models: the goodput of three policies, end to end over HTTP.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf, time::Duration};

use anyhow::Context as _;
use packhorse_api::ModelState;
use packhorse_cluster::ProfileTable;
use serde::Deserialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, Demand},
    host::Host,
    models::{self, MAIN_MODELS, Model},
    part::Part,
    report::{Section, Table, Target},
};

pub(crate) struct Goodput;

/// The policies: the baseline, the thesis' best and Packhorse's.
const POLICIES: [&str; 3] = ["exclusive", "wsm-milp", "goodput"];

/// The demand of the scenario.
struct Setting {
    name: &'static str,
    models: &'static [&'static str],
    /// The rate of each model.
    rate_rps: f64,
    slo_ms: f64,
    warmup_s: f64,
    window_s: f64,
}

/// The setting of the thesis' figure 6.1, on all GPUs of the host.
const THESIS: Setting = Setting {
    name: "thesis-6.1",
    models: &[
        "alexnet",
        "densenet121",
        "efficientnet_b7",
        "resnet50",
        "vgg19",
    ],
    rate_rps: 500.0,
    slo_ms: 200.0,
    warmup_s: 1.0,
    window_s: 8.0,
};
/// The setting of `--quick`.
const QUICK: Setting = Setting {
    name: "quick",
    models: &MAIN_MODELS,
    rate_rps: 10.0,
    slo_ms: 500.0,
    warmup_s: 0.5,
    window_s: 2.0,
};

const PROFILED_LIMIT: Duration = Duration::from_mins(6);
const SERVES_LIMIT: Duration = Duration::from_mins(2);
const BENCH_LIMIT: Duration = Duration::from_mins(2);
/// The least goodput of `goodput` over that of another policy: runs differ by about two percent.
const MIN_RATIO: f64 = 0.98;

/// The part of the report of `packhorse-lab bench` that is read.
#[derive(Deserialize)]
struct BenchReport {
    models: Vec<ModelResult>,
    totals: Totals,
    client: Client,
}

#[derive(Deserialize)]
struct ModelResult {
    name: String,
    offered_rps: f64,
    goodput_rps: f64,
}

#[derive(Deserialize)]
struct Totals {
    offered_rps: f64,
    goodput_rps: f64,
}

#[derive(Deserialize)]
struct Client {
    sent: u64,
    sent_late: u64,
    failed: u64,
}

impl Part for Goodput {
    fn name(&self) -> &'static str {
        "goodput"
    }

    fn description(&self) -> &'static str {
        "a scenario of the thesis end to end under exclusive, wsm-milp and goodput"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let setting = if host.quick { &QUICK } else { &THESIS };
        let (models, missing) = models::make_models(host, setting.models)?;
        if !missing.is_empty() {
            for (name, reason) in missing {
                section.unavailable(name, reason);
            }
            return Ok(());
        }
        let profile_time = Duration::from_secs(if host.quick { 1 } else { 20 });
        let mut cluster = Cluster::start(host, "goodput", profile_time, &[])?;
        register_models(&mut cluster, setting, &models)?;
        let profiles = cluster.profiles()?;
        let scenario = write_scenario(host, &cluster, setting, &models, &profiles)?;
        let mut goodput = BTreeMap::new();
        let mut table = Table {
            title: "Requests/s answered within the SLO",
            columns: vec!["policy", "model", "goodput", "offered"],
            rows: Vec::new(),
        };
        for policy in POLICIES {
            if policy == "wsm-milp" && !have_utilization(&profiles) {
                let reason = "the profiles measured here have no SM utilisation";
                section.unavailable(format!("goodput under {policy}"), reason);
                continue;
            }
            if host.is_out_of_time() {
                section.out_of_time(format!("goodput under {policy}"));
                continue;
            }
            match run_scenario(host, &mut cluster, policy, &scenario) {
                Ok(bench) => {
                    add_results(policy, &bench, section, &mut table);
                    goodput.insert(policy, bench.totals.goodput_rps);
                }
                Err(e) => section.failed(format!("goodput under {policy}"), format!("{e:#}")),
            }
        }
        compare_policies(host, &goodput, section);
        section.table(table);
        Ok(())
    }
}

/// Registers one model after the other, each when the one before is measured and started, because a replica that warms up would disturb
/// the measurement.
fn register_models(
    cluster: &mut Cluster,
    setting: &Setting,
    models: &[Model],
) -> anyhow::Result<()> {
    let demand = Demand {
        rate_rps: setting.rate_rps,
        slo_ms: setting.slo_ms,
        max_batch_size: None,
    };
    for model in models {
        cluster.register_model(model, demand)?;
        cluster.wait_for_model(model, "known", PROFILED_LIMIT, |view| {
            matches!(view.state, ModelState::Ready | ModelState::Unplaced)
        })?;
        // Until then its profile is estimated.
        cluster.wait_until_measured(&[model], PROFILED_LIMIT)?;
    }
    Ok(())
}

fn have_utilization(profiles: &ProfileTable) -> bool {
    let mut rows = profiles.iter().flat_map(|(.., profile)| profile.rows());
    rows.any(|row| row.sm_utilization.is_some())
}

/// Writes the scenario with the measured profiles, and returns its path.
fn write_scenario(
    host: &Host,
    cluster: &Cluster,
    setting: &Setting,
    models: &[Model],
    profiles: &ProfileTable,
) -> anyhow::Result<PathBuf> {
    let folder = cluster.folder();
    fs::write(folder.join("profiles.csv"), profiles.to_csv()).context("write the profiles")?;
    let path = folder.join("scenario.toml");
    fs::write(&path, scenario_toml(host, setting, models)).context("write the scenario")?;
    Ok(path)
}

fn scenario_toml(host: &Host, setting: &Setting, models: &[Model]) -> String {
    let mut text = format!(
        "name = \"{}\"\nprofiles = [\"profiles.csv\"]\n",
        setting.name
    );
    let mut add = |line: String| writeln!(text, "{line}").expect("writing to a string cannot fail");
    for device in &host.devices {
        add(format!(
            "[[devices]]\nkind = \"{}\"\ncount = 1",
            device.kind
        ));
        add(format!("memory_mib = {:.0}", device.memory.as_mib_f64()));
    }
    for model in models {
        let input = &model.registration.inputs[0];
        let elements: i64 = input.dims().iter().skip(1).product();
        let payload = elements.unsigned_abs() * input.datatype.width().unwrap_or(1) as u64;
        add(format!("[[models]]\nname = \"{}\"", model.name));
        add(format!(
            "rate_rps = {:?}\nslo_ms = {:?}",
            setting.rate_rps, setting.slo_ms
        ));
        add(format!("payload_bytes = {payload}"));
    }
    add("[simulation]".to_owned());
    add(format!(
        "warmup_s = {:?}\nwindow_s = {:?}",
        setting.warmup_s, setting.window_s
    ));
    text
}

fn run_scenario(
    host: &Host,
    cluster: &mut Cluster,
    policy: &str,
    scenario: &std::path::Path,
) -> anyhow::Result<BenchReport> {
    cluster.roll_out_policy(policy, SERVES_LIMIT)?;
    cluster.bench(host, scenario, BENCH_LIMIT)
}

fn add_results(policy: &str, bench: &BenchReport, section: &mut Section, table: &mut Table) {
    let label = |what: &str| format!("{what} under {policy}");
    section.number(
        label("goodput"),
        bench.totals.goodput_rps,
        "requests/s",
        None,
    );
    let offered = bench.totals.offered_rps;
    section.number(
        label("answered in time"),
        bench.totals.goodput_rps / offered,
        "of all",
        None,
    );
    if bench.client.sent_late > 0 {
        let late = bench.client.sent_late as f64 / bench.client.sent as f64;
        section.number(label("sent late by the client"), late, "of all", None);
    }
    section.condition(
        label("requests that failed"),
        "none",
        bench.client.failed == 0,
        bench.client.failed.to_string(),
    );
    for model in &bench.models {
        let row = [
            json!(policy),
            json!(model.name),
            json!(model.goodput_rps),
            json!(model.offered_rps),
        ];
        table.rows.push(row.to_vec());
    }
}

/// Adds the goodput of `goodput` over that of each other policy.
fn compare_policies(host: &Host, goodput: &BTreeMap<&str, f64>, section: &mut Section) {
    let Some(ours) = goodput.get("goodput") else {
        return;
    };
    for (policy, theirs) in goodput.iter().filter(|(policy, _)| **policy != "goodput") {
        let target = host.speed_target(Target::AtLeast(MIN_RATIO));
        section.number(
            format!("goodput's over {policy}'s"),
            ours / theirs,
            "",
            target,
        );
    }
}
