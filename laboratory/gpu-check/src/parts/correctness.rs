//! Whether what comes back over HTTP, through gateway, agent and worker, is what eager PyTorch computes on the same device.

use std::time::Duration;

use super::Part;
use crate::{
    cluster::{Cluster, Demand},
    host::{Backend, FP32_ONLY, Host},
    models::{self, EXAMPLE_ROWS, Model, OTHERS, SORTS},
    report::{Section, Target},
};

pub(crate) struct Correctness {
    name: &'static str,
    about: &'static str,
    models: &'static [&'static str],
    /// Whether they are also looked at as small ones.
    quick: bool,
}

pub(crate) const CORRECTNESS: Correctness = Correctness {
    name: "correctness",
    about: "answers over HTTP against eager PyTorch on the same device",
    models: &SORTS,
    quick: true,
};

pub(crate) const MODELS: Correctness = Correctness {
    name: "models",
    about: "the same for the other models of the thesis",
    models: &OTHERS,
    quick: false,
};
/// Loading a model for the first time compiles or finds its kernels.
const READY_LIMIT: Duration = Duration::from_mins(4);
/// An objective that is not in the way, and a rate that wants the largest batches.
const DEMAND: Demand = Demand {
    rate_rps: 1.0,
    slo_ms: 20_000.0,
    max_batch_size: Some(EXAMPLE_ROWS[1]),
};

/// How far an answer may be from PyTorch's, as part of the largest number in it. Both compute in FP32; a GPU has several algorithms for a
/// convolution, and which one is taken depends on what it is merged with.
fn tolerance(backend: Backend) -> f64 {
    match backend {
        Backend::Nvidia => 1e-3,
        Backend::Cpu => 1e-4,
    }
}

impl Part for Correctness {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.quick && !self.quick {
            section.unavailable("all of them", "not with --quick");
            return Ok(());
        }
        let seconds = if host.quick { 1 } else { 5 };
        let mut cluster =
            Cluster::start(host, self.name, Duration::from_secs(seconds), &[FP32_ONLY])?;
        // One after the other: all together they may be more than fit.
        for &name in self.models {
            if host.is_out_of_time() {
                section.out_of_time(name);
                continue;
            }
            let (models, missing) = models::make(host, &[name])?;
            let Some(model) = models.first() else {
                let reason = missing.get(name).cloned().unwrap_or_default();
                section.unavailable(name, reason);
                continue;
            };
            cluster.register(model, DEMAND)?;
            if let Err(e) = compare(host, &mut cluster, model, section) {
                section.failed(name, format!("{e:#}"));
            }
            cluster.remove(model)?;
        }
        Ok(())
    }
}

fn compare(
    host: &Host,
    cluster: &mut Cluster,
    model: &Model,
    section: &mut Section,
) -> anyhow::Result<()> {
    cluster.wait_for_model(model, "ready", READY_LIMIT, |view| {
        view.replicas.iter().any(|replica| replica.serving)
    })?;
    for rows in EXAMPLE_ROWS {
        let example = model.example(rows)?;
        let answer = cluster.infer(model, rows, &example.input)?;
        section.number(
            format!("{}, {rows} rows: largest difference", model.name),
            difference(&answer, &example.output),
            "of the largest answer",
            Some(Target::AtMost(tolerance(host.backend))),
        );
    }
    Ok(())
}

/// The largest difference as part of the largest number in `expected`; infinite if they cannot be compared.
fn difference(answer: &[f32], expected: &[f32]) -> f64 {
    if answer.len() != expected.len() {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let pairs = answer.iter().zip(expected);
    let differences = pairs.map(|(a, b)| f64::from((a - b).abs()));
    // What is no number is as far off as can be.
    let differences = differences.map(|x| if x.is_nan() { f64::INFINITY } else { x });
    differences.fold(0.0, f64::max) / f64::from(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_relative_to_the_largest_answer() {
        assert!((difference(&[1.0, -4.0], &[1.5, -5.0]) - 0.2).abs() < 1e-9);
        assert!(difference(&[2.0], &[2.0]).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_be_compared_is_never_close() {
        assert!(difference(&[2.0], &[2.0, 3.0]).is_infinite());
        assert!(difference(&[1.0, f32::NAN, 2.0], &[1.0, 1.0, 2.0]).is_infinite());
    }
}
