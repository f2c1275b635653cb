//! The analytical latency model: how long batches take that share a device.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ComputeShare, DeviceIndex, PlannedReplica, Problem};

use super::{
    Igniter,
    coefficients::{Hardware, IgniterCoefficients, ModelCoefficients},
};
use crate::{PolicyOptions, PredictError, Predictor};

/// What the model says of one of the loads of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prediction {
    /// Of a batch, copying in and out included, in milliseconds.
    pub(super) latency_ms: f64,
    /// Requests per second; copying in overlaps with computing.
    pub(super) throughput: f64,
}

impl Predictor for Igniter {
    /// Source: iGniter, equations 1 to 11. A replica without a limit has all of the device.
    fn latencies(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let none = IgniterCoefficients::default();
        let coefficients = options.igniter_coefficients.as_ref().unwrap_or(&none);
        let mut devices: BTreeMap<DeviceIndex, Vec<usize>> = BTreeMap::new();
        let mut loads = Vec::new();
        for (number, replica) in replicas.iter().enumerate() {
            let model = &problem.models[replica.model.0].id;
            let kind = &problem.devices[replica.device.0].kind;
            let (hardware, known) =
                coefficients
                    .workload(model, kind)
                    .ok_or_else(|| PredictError::Unknown {
                        replica: number,
                        model: model.clone(),
                        kind: kind.clone(),
                        missing: "iGniter coefficients",
                    })?;
            let workload = Workload {
                hardware,
                model: known,
                batch: replica.batch_size,
            };
            let share = replica.compute_share.unwrap_or(ComputeShare::WHOLE);
            loads.push((workload, share.get()));
            devices.entry(replica.device).or_default().push(number);
        }
        let mut latencies = vec![Duration::ZERO; replicas.len()];
        for numbers in devices.values() {
            let together: Vec<_> = numbers.iter().map(|&number| loads[number]).collect();
            for (&number, prediction) in numbers.iter().zip(predict(&together)) {
                latencies[number] = Duration::from_secs_f64(prediction.latency_ms / 1e3);
            }
        }
        Ok(latencies)
    }
}

/// A model on a kind of device, in batches of one size.
#[derive(Clone, Copy)]
pub(super) struct Workload<'a> {
    pub(super) hardware: &'a Hardware,
    pub(super) model: &'a ModelCoefficients,
    pub(super) batch: u32,
}

impl Workload<'_> {
    /// `k_act`: time on the multiprocessors by itself at full frequency, in milliseconds.
    fn active(&self, share: f64) -> f64 {
        let (k, b) = (&self.model.active, f64::from(self.batch));
        (k[0] * b * b + k[1] * b + k[2]) / (share + k[3]) + k[4]
    }
}

/// With shares in percent, all on one device.
pub(super) fn predict(loads: &[(Workload<'_>, f64)]) -> Vec<Prediction> {
    let Some((first, _)) = loads.first() else {
        return Vec::new();
    };
    let hardware = first.hardware;
    // Requests per second by itself: what power and cache use grow with.
    let ability: Vec<f64> = loads
        .iter()
        .map(|(load, share)| 1e3 * f64::from(load.batch) / load.active(*share))
        .collect();
    let with_ability = || loads.iter().map(|(load, _)| load.model).zip(&ability);
    let drawn: f64 = with_ability()
        .map(|(model, ability)| model.power[0] * ability + model.power[1])
        .sum();
    let cache: Vec<f64> = with_ability()
        .map(|(model, ability)| model.cache[0] * ability + model.cache[1])
        .collect();
    let all_cache: f64 = cache.iter().sum();
    let slowdown = hardware.slowdown(hardware.idle_power + drawn);
    let one = |((load, share), own_cache): (&(Workload<'_>, f64), &f64)| {
        let model = load.model;
        let count = loads.len() as f64;
        let contended = if loads.len() > 1 {
            model.kernels * (hardware.schedule[0] * count + hardware.schedule[1])
        } else {
            0.0
        };
        let active =
            load.active(*share) * (1.0 + model.cache_sensitivity * (all_cache - own_cache));
        let computing = (model.schedule + contended + active) * slowdown;
        let batch = f64::from(load.batch);
        let (copied_in, copied_out) = (
            model.input_bytes * batch / hardware.bus,
            model.output_bytes * batch / hardware.bus,
        );
        Prediction {
            latency_ms: copied_in + computing + copied_out,
            throughput: 1e3 * batch / (computing + copied_out),
        }
    };
    loads.iter().zip(&cache).map(one).collect()
}
