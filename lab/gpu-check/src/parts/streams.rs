//! The gain of copying one batch while another computes: for one replica, and for two that share a GPU through MPS in the thesis' four
//! configurations, with or without streams and compute shares (its section 4.5.2).

use crate::{
    host::Host,
    models::{self, Model},
    mps_daemon::MpsDaemon,
    part::Part,
    report::Section,
    worker_bench::{self, Bench, Mode},
};

type Environment = Vec<(String, String)>;

pub(crate) struct Streams;

/// The model, whose inputs are large relative to its computation.
const MODEL: &str = "mobilenet_v2";

impl Part for Streams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn description(&self) -> &'static str {
        "the gain of overlapping copies and computation, with one replica and with two"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let model = models::make_model(host, MODEL)?;
        let batch_size = if host.quick { 4 } else { 32 };
        let what = format!("{MODEL} at {batch_size}");
        let compare = |section: &mut Section, how: &str, clients: &[Environment]| {
            let run = |streams| total_throughput(host, &model, batch_size, streams, clients);
            add_gain(section, &format!("{what}, {how}"), run(false)?, run(true)?);
            anyhow::Ok(())
        };
        compare(section, "one replica", &[Vec::new()])?;
        match MpsDaemon::start(host)? {
            Ok(daemon) => {
                let two = |share| {
                    [
                        daemon.client_environment(share),
                        daemon.client_environment(share),
                    ]
                };
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

fn add_gain(section: &mut Section, what: &str, without: f64, with: f64) {
    section.number(
        format!("{what}: without streams"),
        without,
        "requests/s",
        None,
    );
    section.number(format!("{what}: with streams"), with, "requests/s", None);
    section.number(
        format!("{what}: gain of streams"),
        with / without,
        "times",
        None,
    );
}

/// Returns the sum of the requests/s of workers that run at the same time, one per environment.
fn total_throughput(
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
    let benches: Vec<Bench<'_>> = clients.iter().map(|client| bench(client)).collect();
    let measured = worker_bench::run_together(host, &benches)?;
    Ok(measured.iter().map(|one| one.requests_per_s).sum())
}
