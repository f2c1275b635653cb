//! The speed of copies to the device in the worker's pipeline, relative to the largest possible speed, which is that of copying only one
//! pinned buffer.

use anyhow::Context as _;
use serde::Deserialize;

use crate::{
    host::{Backend, Host},
    models,
    part::{NO_GPU, Part},
    report::{Section, Target},
    worker_bench::{Bench, Mode},
};

pub(crate) struct Copies;

/// The batch size: 64 images are 38.5 MB.
const BATCH_SIZE: u32 = 64;
/// The target of the pipeline's speed over the largest speed.
const TARGET: f64 = 0.9;

#[derive(Deserialize)]
struct Bandwidth {
    bytes_per_s: f64,
}

impl Part for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn description(&self) -> &'static str {
        "the worker's copies to the device against the bandwidth of pinned memory"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("copies to the device", NO_GPU);
            return Ok(());
        }
        let model = models::make_model(host, "resnet50")?;
        let bench = Bench {
            model: &model,
            batch_size: if host.quick { 8 } else { BATCH_SIZE },
            mode: Mode::Pipeline { streams: true },
            environment: &[],
        };
        let measured = bench.run(host)?;
        let ours = measured
            .h2d_bytes_per_s
            .context("the worker does not report the speed of its copies")?;
        let size = measured.input_bytes.to_string();
        let pinned: Bandwidth = host.run_probe(&["copies", "cuda", &size], &host.first_device())?;
        section.number(
            "pinned memory to the device",
            pinned.bytes_per_s,
            "bytes/s",
            None,
        );
        section.number(
            "the worker's copies, while it computes",
            ours,
            "bytes/s",
            None,
        );
        let target = host.speed_target(Target::AtLeast(TARGET));
        section.number(
            "the worker's copies",
            ours / pinned.bytes_per_s,
            "of pinned",
            target,
        );
        Ok(())
    }
}
