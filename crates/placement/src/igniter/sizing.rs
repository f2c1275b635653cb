//! Batch size and least share of a model by itself.

use super::{
    coefficients::{Hardware, ModelCoefficients},
    latency::{Workload, predict},
};

/// The largest batch that the coefficients were measured with.
pub(super) const LARGEST_BATCH: u32 = 32;

/// How much of a dedicated device's throughput is planned.
const PLANNED: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    pub(super) batch: u32,
    /// In percent, a multiple of the device's unit.
    pub(super) share: f64,
}

/// The batch that arrives within `limit` milliseconds, and the least share that computes it within as many. `None` if not even
/// one request can be.
pub(super) fn size(
    hardware: &Hardware,
    model: &ModelCoefficients,
    limit: f64,
    rate: f64,
    most: u32,
) -> Option<Size> {
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
        let units = (share / hardware.share_unit - 1e-9).ceil().max(1.0);
        (left > 0.0).then_some(Size {
            batch,
            share: units * hardware.share_unit,
        })
    })
}

/// The largest batch that all of a device computes within `limit` milliseconds, and the rate to plan for it.
pub(super) fn whole_device(
    hardware: &Hardware,
    model: &ModelCoefficients,
    limit: f64,
    most: u32,
) -> Option<(Size, f64)> {
    (1..=most).rev().find_map(|batch| {
        let workload = Workload {
            hardware,
            model,
            batch,
        };
        let alone = predict(&[(workload, 100.0)])[0];
        let whole = Size {
            batch,
            share: 100.0,
        };
        (alone.latency_ms <= limit).then(|| (whole, (PLANNED * alone.throughput).ceil()))
    })
}
