//! What it brings to copy one batch while another computes: for one replica, and with the thesis' four configurations, streams or
//! not and compute shares or not, for two that share a GPU through MPS (its section 4.5.2).

use super::Part;
use crate::{
    host::Host,
    models::{self, Model},
    mps_daemon::MpsDaemon,
    report::Section,
    worker_bench::{self, Bench, Mode},
};

type Environment = Vec<(String, String)>;

pub(crate) struct Streams;

/// Whose inputs are large beside what is computed of them.
const MODEL: &str = "mobilenet_v2";

impl Part for Streams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn about(&self) -> &'static str {
        "what overlapping copies and computation brings, with one replica and with two"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let model = models::make_one(host, MODEL)?;
        let batch_size = if host.quick { 4 } else { 32 };
        let what = format!("{MODEL} at {batch_size}");
        let compare = |section: &mut Section, how: &str, clients: &[Environment]| {
            let run = |streams| together(host, &model, batch_size, streams, clients);
            say(section, &format!("{what}, {how}"), run(false)?, run(true)?);
            anyhow::Ok(())
        };
        compare(section, "one replica", &[Vec::new()])?;
        match MpsDaemon::start(host)? {
            Ok(daemon) => {
                let two = |share| [daemon.client(share), daemon.client(share)];
                compare(section, "two through MPS without shares", &two(None))?;
                compare(section, "two through MPS with half each", &two(Some(50)))
            }
            Err(reason) => {
                section.unavailable(format!("{what}, two through MPS"), reason);
                compare(section, "two that take turns", &[Vec::new(), Vec::new()])
            }
        }
    }
}

fn say(section: &mut Section, what: &str, off: f64, on: f64) {
    section.number(format!("{what}: without streams"), off, "requests/s", None);
    section.number(format!("{what}: with streams"), on, "requests/s", None);
    section.number(format!("{what}: gain of streams"), on / off, "times", None);
}

/// Requests/s of workers with these environments at the same time, added up.
fn together(
    host: &Host,
    model: &Model,
    batch_size: u32,
    streams: bool,
    clients: &[Environment],
) -> anyhow::Result<f64> {
    let bench = |environment| Bench {
        model,
        batch_size,
        mode: Mode::Pipeline { streams },
        environment,
    };
    let benches: Vec<Bench<'_>> = clients.iter().map(|of_one| bench(of_one)).collect();
    let measured = worker_bench::run_together(host, &benches)?;
    Ok(measured.iter().map(|one| one.requests_per_s).sum())
}
