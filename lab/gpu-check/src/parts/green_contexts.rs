//! Green contexts: parts of the multiprocessors within one process. They would let a share change without a new process, which MPS cannot.

use serde::Deserialize;

use crate::{
    host::{Backend, Host},
    part::{NO_GPU, Part},
    report::{Section, Target},
};

pub(crate) struct GreenContexts;

/// The longest time for making a part and running the first kernel in it, in milliseconds.
const CHANGE_LIMIT_MS: f64 = 100.0;

#[derive(Deserialize)]
struct Contexts {
    parts: Vec<Context>,
}

/// A part of the multiprocessors; the first is all of them, which needs no making.
#[derive(Deserialize)]
struct Context {
    multiprocessors: u32,
    product_ms: f64,
    make_ms: Option<f64>,
    change_ms: Option<f64>,
}

impl Part for GreenContexts {
    fn name(&self) -> &'static str {
        "green-contexts"
    }

    fn description(&self) -> &'static str {
        "the time to change a share of the multiprocessors without a new process"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.backend == Backend::Cpu {
            section.unavailable("change of a share", NO_GPU);
            return Ok(());
        }
        let contexts: Contexts = host.run_probe(&["green-contexts"], &host.first_device())?;
        for part in &contexts.parts {
            let count = part.multiprocessors;
            section.number(
                format!("{count} multiprocessors: a product of 4096 x 4096 matrices"),
                part.product_ms,
                "ms",
                None,
            );
            if let (Some(make), Some(change)) = (part.make_ms, part.change_ms) {
                section.number(
                    format!("{count} multiprocessors: make them a part"),
                    make,
                    "ms",
                    None,
                );
                section.number(
                    format!("{count} multiprocessors: make, enter, first product"),
                    make + change,
                    "ms",
                    Some(Target::AtMost(CHANGE_LIMIT_MS)),
                );
            }
        }
        Ok(())
    }
}
