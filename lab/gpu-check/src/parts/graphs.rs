//! The gain of CUDA graphs, which record a GPU's work for a batch size once and replay it. It is largest for small batches, whose kernels
//! take hardly longer than their launch.

use crate::{
    host::{Backend, Host},
    models,
    part::{NO_GPU, Part},
    report::Section,
    worker_bench::{Bench, Measurement, Mode},
};

pub(crate) struct Graphs;

const MODELS: [&str; 2] = ["resnet50", "mobilenet_v2"];
const BATCH_SIZES: [u32; 2] = [1, 8];

impl Part for Graphs {
    fn name(&self) -> &'static str {
        "graphs"
    }

    fn description(&self) -> &'static str {
        "the gain of CUDA graphs"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("gain of CUDA graphs", NO_GPU);
            return Ok(());
        }
        let (models, missing) = models::make_models(host, &MODELS)?;
        for (name, reason) in missing {
            section.unavailable(name, reason);
        }
        for model in &models {
            for batch_size in BATCH_SIZES {
                let run = |mode| {
                    let bench = Bench {
                        model,
                        batch_size,
                        mode,
                        environment: &[],
                    };
                    bench.run(host)
                };
                let what = format!("{} at {batch_size}: gain of graphs", model.name);
                if host.is_out_of_time() {
                    section.out_of_time(what);
                    continue;
                }
                match (
                    run(Mode::WithoutGraphs),
                    run(Mode::Pipeline { streams: true }),
                ) {
                    (Ok(without), Ok(with)) => add_gain(section, what, &without, &with),
                    (Err(e), _) | (_, Err(e)) => section.failed(what, format!("{e:#}")),
                }
            }
        }
        Ok(())
    }
}

fn add_gain(section: &mut Section, what: String, without: &Measurement, with: &Measurement) {
    match &with.without_graphs {
        None if !with.graphs.is_empty() => {
            let gain = with.requests_per_s / without.requests_per_s;
            section.number(what, gain, "times", None);
        }
        None => section.unavailable(what, "the worker recorded no graph"),
        Some(reason) => section.unavailable(what, reason),
    }
}
