//! How much of what libtorch could do the worker does: its pipeline, saturated, against a loop that does nothing but compute.

use super::Part;
use crate::{
    host::Host,
    models::{self, Model, SORTS},
    report::{Section, Target},
    worker_bench::{Bench, Mode},
};

pub(crate) struct Throughput;

const BATCH_SIZES: [u32; 2] = [8, 32];
/// What receiving, copying and answering may cost.
const TARGET: f64 = 0.97;

impl Part for Throughput {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn about(&self) -> &'static str {
        "the saturated worker against a tight loop of libtorch"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let (models, missing) = models::make(host, &SORTS)?;
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
                match ratio(host, model, batch_size) {
                    Ok([worker, tight]) => {
                        section.number(format!("{what}: tight loop"), tight, "requests/s", None);
                        let target = host.judged(Target::AtLeast(TARGET));
                        section.number(format!("{what}: worker"), worker / tight, "of it", target);
                    }
                    Err(e) => section.failed(what, format!("{e:#}")),
                }
            }
        }
        Ok(())
    }
}

/// Requests/s of the worker and of the loop, one right after the other.
fn ratio(host: &Host, model: &Model, batch_size: u32) -> anyhow::Result<[f64; 2]> {
    let mut measured = [0.0; 2];
    let streams = host.pipeline().streams;
    let ways = [Mode::Pipeline { streams }, Mode::Tight];
    for (value, mode) in measured.iter_mut().zip(ways) {
        let bench = Bench {
            model,
            batch_size,
            mode,
            environment: &[],
        };
        *value = bench.run(host)?.requests_per_s;
    }
    Ok(measured)
}
