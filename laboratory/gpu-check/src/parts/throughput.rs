//! The throughput of the saturated worker relative to a loop of libtorch that only computes.

use crate::{
    host::Host,
    models::{self, MAIN_MODELS, Model},
    part::Part,
    report::{Section, Target},
    worker_bench::{Bench, Mode},
};

pub(crate) struct Throughput;

const BATCH_SIZES: [u32; 2] = [8, 32];
/// The number of runs of each; odd.
const ROUNDS: u32 = 3;
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
                match measure(host, model, batch_size) {
                    Ok([worker, tight]) => {
                        section.number(format!("{what}: tight loop"), tight, "requests/s", None);
                        let target = host.speed_target(Target::AtLeast(TARGET));
                        section.number(format!("{what}: worker"), worker / tight, "of it", target);
                    }
                    Err(e) => section.failed(what, format!("{e:#}")),
                }
            }
        }
        Ok(())
    }
}

/// Returns the requests/s of the worker and of the loop: the medians of several runs in turn, because the thread that launches kernels is up
/// to twice as fast in one process as in the next on some virtual machines.
fn measure(host: &Host, model: &Model, batch_size: u32) -> anyhow::Result<[f64; 2]> {
    let streams = host.pipeline().streams;
    let worker_and_loop = [Mode::Pipeline { streams }, Mode::Tight];
    let mut measured = [Vec::new(), Vec::new()];
    for _ in 0..if host.quick { 1 } else { ROUNDS } {
        for (values, mode) in measured.iter_mut().zip(worker_and_loop) {
            let bench = Bench {
                model,
                batch_size,
                mode,
                environment: &[],
            };
            values.push(bench.run(host)?.requests_per_s);
        }
    }
    Ok(measured.map(median))
}

/// Returns the middle value of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
