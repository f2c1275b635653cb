//! Two replicas that share a GPU through MPS: the multiprocessors of a share, and the slowdown of each replica by the other, with shares of
//! 50 % each and of 25 and 75 %.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;

use crate::{
    host::{Backend, Host},
    models,
    mps_daemon::MpsDaemon,
    part::{NO_GPU, Part},
    process::RunningProgram,
    report::{Section, Table},
};

pub(crate) struct Mps;

const MODEL: &str = "resnet50";
/// The shares of the two replicas, in percent; 100/100 is without limits.
const SHARES: &str = "100/100,50/50,25/75";
/// The time limit of the measurement.
const LIMIT: Duration = Duration::from_mins(5);
/// The largest number of multiprocessors that a share may lack: the hardware allocates them in groups and rounds down.
const GRANULARITY: f64 = 8.0;

const COLUMNS: [&str; 6] = [
    "share %",
    "beside %",
    "ms alone",
    "ms together",
    "slowdown",
    "slowdown against the whole device",
];

/// The part of the output of `packhorse-lab profile pairs` about one replica that is read.
#[derive(Deserialize)]
struct Member {
    compute_share_pct: f64,
    alone_ms: Option<f64>,
    latency_ms: f64,
    slowdown: Option<f64>,
}

#[derive(Deserialize)]
struct Granted {
    multiprocessors: u32,
}

impl Part for Mps {
    fn name(&self) -> &'static str {
        "mps"
    }

    fn description(&self) -> &'static str {
        "two replicas that share the device, with 50/50 and 25/75 %"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("multiprocessors of a share", NO_GPU);
            // On a CPU a compute share is a share of the threads.
            return measure_pairs(host, &[], section);
        }
        match MpsDaemon::start(host)? {
            Ok(daemon) => {
                check_multiprocessors(host, &daemon, section)?;
                measure_pairs(host, &daemon.client_environment(None), section)
            }
            Err(reason) => {
                section.unavailable("multiprocessors of a share", &reason);
                section.unavailable("two replicas by 50/50 and 25/75", reason);
                Ok(())
            }
        }
    }
}

/// Checks the number of multiprocessors of each share, as the driver reports it to a client.
fn check_multiprocessors(
    host: &Host,
    daemon: &MpsDaemon,
    section: &mut Section,
) -> anyhow::Result<()> {
    let granted = |share| -> anyhow::Result<f64> {
        let granted: Granted =
            host.run_probe(&["multiprocessors"], &daemon.client_environment(share))?;
        Ok(f64::from(granted.multiprocessors))
    };
    let all = granted(None)?;
    section.number("multiprocessors without a limit", all, "", None);
    for share in [25, 50, 75] {
        let count = granted(Some(share))?;
        let expected = all * f64::from(share) / 100.0;
        section.number(format!("multiprocessors at {share} %"), count, "", None);
        section.condition(
            format!("multiprocessors at {share} %: took effect"),
            "at most the share, and at most 8 fewer",
            count <= expected.ceil() && count >= expected - GRANULARITY,
            format!("{count} of {expected:.0}"),
        );
    }
    Ok(())
}

/// Measures both replicas alone and together.
fn measure_pairs(
    host: &Host,
    environment: &[(String, String)],
    section: &mut Section,
) -> anyhow::Result<()> {
    let model = models::make_model(host, MODEL)?;
    let folder = host.create_folder("pairs")?;
    let mut files = model.registration_file().into_os_string();
    files.push("=");
    files.push(model.artifact());
    let mut pairs = host.program("packhorse-lab");
    pairs.args(["profile", "pairs", "--json"]).arg(files);
    let device = match host.backend {
        Backend::Nvidia => format!("cuda:{}", host.devices[0].name),
        Backend::Cpu => "cpu".to_owned(),
    };
    pairs.args(["--device", &device]);
    pairs.args(["--batch-sizes", if host.quick { "4" } else { "8" }]);
    pairs.args(["--shares", if host.quick { "50/50" } else { SHARES }]);
    let (runs, seconds) = if host.quick { ("1", "0.5") } else { ("3", "1") };
    pairs.args(["--runs", runs, "--seconds", seconds]);
    pairs.envs(environment.iter().cloned());
    let printed = RunningProgram::start("pairs", &mut pairs, &folder)?.finish(LIMIT)?;
    let measured: Vec<[Member; 2]> =
        serde_json::from_str(&printed).context("read what packhorse-lab profile pairs printed")?;
    add_slowdowns(&measured, section);
    Ok(())
}

fn add_slowdowns(measured: &[[Member; 2]], section: &mut Section) {
    let mut table = Table {
        title: "Two replicas of resnet50 on one device",
        columns: COLUMNS.to_vec(),
        rows: Vec::new(),
    };
    let without_limit = measured.iter().flatten();
    let without_limit = without_limit.filter(|member| member.compute_share_pct >= 100.0);
    let whole_device_ms = without_limit
        .filter_map(|member| member.alone_ms)
        .reduce(f64::min);
    for [a, b] in measured {
        for (which, member, neighbour) in [("first", a, b), ("second", b, a)] {
            let (share, other) = (member.compute_share_pct, neighbour.compute_share_pct);
            table.rows.push(vec![
                json!(share),
                json!(other),
                json!(member.alone_ms),
                json!(member.latency_ms),
                json!(member.slowdown),
                json!(whole_device_ms.map(|alone| member.latency_ms / alone)),
            ]);
            let what = format!("{share} % beside {other} %: slowdown of the {which}");
            match member.slowdown {
                Some(slowdown) => section.number(what, slowdown, "times", None),
                None => section.failed(what, "it was not measured alone"),
            }
        }
    }
    section.table(table);
}
