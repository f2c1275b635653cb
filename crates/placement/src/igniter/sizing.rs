//! The batch size and the smallest share of a model alone on a device.

use super::{
    coefficients::{Hardware, ModelCoefficients},
    latency::{Workload, predict},
};
use crate::tolerance::round_up;

/// The largest batch size with which the coefficients were measured.
pub(super) const MAX_BATCH: u32 = 32;

/// The fraction of a dedicated device's throughput that is planned.
const PLANNED_THROUGHPUT: f64 = 0.9;

/// The batch size and the share of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchAndShare {
    /// The batch size.
    pub(super) batch: u32,
    /// The share in percent, a multiple of the device's unit.
    pub(super) share: f64,
}

/// Returns the batch that arrives within `limit` milliseconds, at most `most`, and the smallest share that computes it within the limit.
/// `None` if no share computes even one request in time.
pub(super) fn size_for_rate(
    hardware: &Hardware,
    model: &ModelCoefficients,
    limit: f64,
    rate: f64,
    most: u32,
) -> Option<BatchAndShare> {
    let per_ms = rate / 1e3;
    let arrived =
        (limit * per_ms * hardware.bus / (hardware.bus + model.input_bytes * per_ms)).ceil();
    let arrived = arrived.clamp(1.0, f64::from(most)) as u32;
    (1..=arrived).rev().find_map(|batch| {
        let b = f64::from(batch);
        let k = &model.active;
        let copying = b * (model.input_bytes + model.output_bytes) / hardware.bus;
        let left = limit - model.schedule - copying - k[4];
        let share = (k[0] * b * b + k[1] * b + k[2]) / left - k[3];
        let units = round_up(share / hardware.share_unit).max(1.0);
        (left > 0.0).then_some(BatchAndShare {
            batch,
            share: units * hardware.share_unit,
        })
    })
}

/// Returns the largest batch up to `most` that a whole device computes within `limit` milliseconds, and the rate to plan for it.
pub(super) fn size_for_whole_device(
    hardware: &Hardware,
    model: &ModelCoefficients,
    limit: f64,
    most: u32,
) -> Option<(BatchAndShare, f64)> {
    (1..=most).rev().find_map(|batch| {
        let workload = Workload {
            hardware,
            model,
            batch,
        };
        let alone = predict(&[(workload, 100.0)])[0];
        let whole = BatchAndShare {
            batch,
            share: 100.0,
        };
        (alone.latency_ms <= limit).then(|| (whole, (PLANNED_THROUGHPUT * alone.throughput).ceil()))
    })
}
