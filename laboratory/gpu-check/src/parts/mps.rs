//! How two replicas share a GPU through MPS: which multiprocessors a share comes to, and how much slower each is beside the other
//! than alone, under shares of one half each and of a quarter and three.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;

use super::Part;
use crate::{
    host::{Backend, Host},
    models,
    mps_daemon::MpsDaemon,
    process::Running,
    report::{Section, Table},
};

pub(crate) struct Mps;

const MODEL: &str = "resnet50";
/// Those of the two, in percent; the first are without limits.
const SHARES: &str = "100/100,50/50,25/75";
const LIMIT: Duration = Duration::from_mins(5);
/// The hardware gives out multiprocessors in twos, fours or more, and rounds down: so many a share may fall short.
const GRANULARITY: f64 = 8.0;

const COLUMNS: [&str; 6] = [
    "share %",
    "beside %",
    "ms alone",
    "ms together",
    "slowdown",
    "slowdown against the whole device",
];

/// What we read of what `packhorse profile pairs` prints of one of two.
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

    fn about(&self) -> &'static str {
        "two replicas that share the device, by halves and by quarters"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("multiprocessors of a share", "the device is no GPU");
            // There a share is one of the threads.
            return pairs(host, &[], section);
        }
        match MpsDaemon::start(host)? {
            Ok(daemon) => {
                multiprocessors(host, &daemon, section)?;
                pairs(host, &daemon.client(None), section)
            }
            Err(reason) => {
                section.unavailable("multiprocessors of a share", &reason);
                section.unavailable("two replicas by 50/50 and 25/75", reason);
                Ok(())
            }
        }
    }
}

/// Which multiprocessors took effect, as the driver tells a client.
fn multiprocessors(host: &Host, daemon: &MpsDaemon, section: &mut Section) -> anyhow::Result<()> {
    let granted = |share| -> anyhow::Result<f64> {
        let granted: Granted = host.probe(&["multiprocessors"], &daemon.client(share))?;
        Ok(f64::from(granted.multiprocessors))
    };
    let all = granted(None)?;
    section.number("multiprocessors without a limit", all, "", None);
    for share in [25, 50, 75] {
        let count = granted(Some(share))?;
        let asked = all * f64::from(share) / 100.0;
        section.number(format!("multiprocessors at {share} %"), count, "", None);
        section.holds(
            format!("multiprocessors at {share} %: took effect"),
            "no more than the share, and little less",
            count <= asked.ceil() && count >= asked - GRANULARITY,
            format!("{count} of {asked:.0}"),
        );
    }
    Ok(())
}

/// Both replicas alone and beside each other.
fn pairs(
    host: &Host,
    environment: &[(String, String)],
    section: &mut Section,
) -> anyhow::Result<()> {
    let model = models::make_one(host, MODEL)?;
    let folder = host.folder("pairs")?;
    let mut files = model.registration_file().into_os_string();
    files.push("=");
    files.push(model.artifact());
    let mut pairs = host.program("packhorse");
    pairs.args(["profile", "pairs", "--json"]).arg(files);
    let device = match host.backend {
        Backend::Nvidia => format!("cuda:{}", host.devices[0].name),
        Backend::Cpu => "cpu".to_owned(),
    };
    pairs.args(["--device", &device]);
    pairs.args(["--batch-sizes", if host.quick { "4" } else { "8" }]);
    pairs.args(["--shares", if host.quick { "50/50" } else { SHARES }]);
    if host.quick {
        pairs.args(["--runs", "1", "--seconds", "0.5"]);
    }
    pairs.envs(environment.iter().cloned());
    let printed = Running::start("pairs", &mut pairs, &folder)?.finish(LIMIT)?;
    let measured: Vec<[Member; 2]> =
        serde_json::from_str(&printed).context("read what packhorse profile pairs printed")?;
    say(&measured, section);
    Ok(())
}

fn say(measured: &[[Member; 2]], section: &mut Section) {
    let mut table = Table {
        title: "Two replicas of resnet50 on one device",
        columns: COLUMNS.to_vec(),
        rows: Vec::new(),
    };
    let whole = measured.iter().flatten();
    let whole = whole.filter(|of| of.compute_share_pct >= 100.0);
    let whole_ms = whole.filter_map(|of| of.alone_ms).reduce(f64::min);
    for [a, b] in measured {
        for (which, of, beside) in [("first", a, b), ("second", b, a)] {
            let (share, other) = (of.compute_share_pct, beside.compute_share_pct);
            table.rows.push(vec![
                json!(share),
                json!(other),
                json!(of.alone_ms),
                json!(of.latency_ms),
                json!(of.slowdown),
                json!(whole_ms.map(|whole| of.latency_ms / whole)),
            ]);
            let what = format!("{share} % beside {other} %: slowdown of the {which}");
            match of.slowdown {
                Some(slowdown) => section.number(what, slowdown, "times", None),
                None => section.failed(what, "it was not measured alone"),
            }
        }
    }
    section.table(table);
}
