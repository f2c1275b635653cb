//! The throughput of the saturated worker relative to a loop of libtorch that only computes.

use crate::{
    host::{Backend, Host},
    models::{self, MAIN_MODELS, Model},
    part::Part,
    report::{Section, Target, median},
    worker_bench::{Bench, Mode, Turn},
};

pub(crate) struct Throughput;

const BATCH_SIZES: [u32; 2] = [8, 32];
/// The number of turns; odd.
const TURNS: u32 = 3;
/// The target of the worker's throughput over the loop's: receiving, copying and answering may cost 3 %.
const TARGET: f64 = 0.97;

impl Part for Throughput {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn description(&self) -> &'static str {
        "the saturated worker against a tight loop of libtorch"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let (models, missing) = models::make_models(host, &MAIN_MODELS)?;
        for (name, reason) in missing {
            section.unavailable(name, reason);
        }
        let sizes = if host.quick {
            &BATCH_SIZES[..1]
        } else {
            &BATCH_SIZES
        };
        for model in &models {
            for &batch_size in sizes {
                let what = format!("{} at {batch_size}", model.name);
                if host.is_out_of_time() {
                    section.out_of_time(what);
                    continue;
                }
                for graphs in [true, false] {
                    let what = match (host.backend, graphs) {
                        (Backend::Cpu, true) => continue,
                        (Backend::Nvidia, false) => format!("{what} without graphs"),
                        _ => what.clone(),
                    };
                    match measure(host, model, batch_size, graphs) {
                        Ok((tight, worker)) => {
                            let target = host.speed_target(Target::AtLeast(TARGET));
                            section.number(format!("{what}: loop"), tight, "requests/s", None);
                            section.number(format!("{what}: worker"), worker, "of it", target);
                        }
                        Err(e) => section.failed(what, format!("{e:#}")),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the requests/s of the loop, and the throughput of the worker relative to it: the medians of several turns in one process, because
/// the thread that launches kernels is up to twice as fast in one process as in the next on some virtual machines.
fn measure(
    host: &Host,
    model: &Model,
    batch_size: u32,
    graphs: bool,
) -> anyhow::Result<(f64, f64)> {
    let turns = if host.quick { 1 } else { TURNS };
    let bench = Bench {
        model,
        batch_size,
        mode: Mode::InTurn { turns, graphs },
        environment: &[],
    };
    let measured = bench.run(host)?.turns;
    anyhow::ensure!(!measured.is_empty(), "the worker reports no turns");
    let median_of = |value: fn(&Turn) -> f64| median(measured.iter().map(value).collect());
    let ratio = median_of(|turn| turn.requests_per_s / turn.tight_requests_per_s);
    Ok((median_of(|turn| turn.tight_requests_per_s), ratio))
}
