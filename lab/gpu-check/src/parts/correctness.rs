//! Comparison of answers over HTTP, through gateway, agent and worker, with eager PyTorch on the same device.

use std::time::Duration;

use crate::{
    cluster::{Cluster, Demand},
    host::{Backend, FP32_ONLY, Host},
    models::{self, EXAMPLE_ROWS, MAIN_MODELS, Model, OTHER_MODELS},
    part::Part,
    report::{Section, Target},
};

pub(crate) struct Correctness {
    name: &'static str,
    description: &'static str,
    models: &'static [&'static str],
    /// True if the part also runs with `--quick`, with small models.
    quick: bool,
}

pub(crate) const CORRECTNESS: Correctness = Correctness {
    name: "correctness",
    description: "answers over HTTP against eager PyTorch on the same device",
    models: &MAIN_MODELS,
    quick: true,
};

pub(crate) const MODELS: Correctness = Correctness {
    name: "models",
    description: "answers of the thesis' other models over HTTP against eager PyTorch",
    models: &OTHER_MODELS,
    quick: false,
};
/// The time limit for a model to be ready, as loading it the first time compiles or selects its kernels.
const READY_LIMIT: Duration = Duration::from_mins(4);
/// The demand of a model, with an SLO that every batch meets.
const DEMAND: Demand = Demand {
    rate_rps: 1.0,
    slo_ms: 20_000.0,
    max_batch_size: Some(EXAMPLE_ROWS[1]),
};

/// Returns the largest allowed difference between an answer and PyTorch's, relative to the largest number in the answer. Both compute in
/// FP32, but a GPU has several algorithms for a convolution, and the choice depends on the fusion of kernels.
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

    fn description(&self) -> &'static str {
        self.description
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        if host.quick && !self.quick {
            section.unavailable("all models", "skipped with --quick");
            return Ok(());
        }
        let seconds = if host.quick { 1 } else { 5 };
        let mut cluster =
            Cluster::start(host, self.name, Duration::from_secs(seconds), &[FP32_ONLY])?;
        // One model at a time, since all together may not fit into memory.
        for &name in self.models {
            let Some(model) = models::make_or_report(host, name, section)? else {
                continue;
            };
            cluster.register_model(&model, DEMAND)?;
            if let Err(e) = compare(host, &mut cluster, &model, section) {
                section.failed(name, format!("{e:#}"));
            }
            cluster.remove_model(&model)?;
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

/// Returns the largest difference relative to the largest number in `expected`; infinite if the lengths differ or a number is NaN.
fn difference(answer: &[f32], expected: &[f32]) -> f64 {
    if answer.len() != expected.len() {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let pairs = answer.iter().zip(expected);
    let differences = pairs.map(|(a, b)| f64::from((a - b).abs()));
    // A NaN counts as an infinite difference.
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
    fn different_lengths_and_nan_are_infinitely_different() {
        assert!(difference(&[2.0], &[2.0, 3.0]).is_infinite());
        assert!(difference(&[1.0, f32::NAN, 2.0], &[1.0, 1.0, 2.0]).is_infinite());
    }
}
