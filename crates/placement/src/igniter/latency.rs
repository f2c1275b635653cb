//! The analytical latency model of batches that share a device.

use super::coefficients::{Hardware, ModelCoefficients};

/// The prediction for one of the models that share a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prediction {
    /// The latency of a batch including copying in and out, in milliseconds.
    pub(super) latency_ms: f64,
    /// The throughput in requests per second, where copying in overlaps with computing.
    pub(super) throughput: f64,
}

/// A model on a kind of device with one batch size.
#[derive(Clone, Copy)]
pub(super) struct Workload<'a> {
    /// The coefficients of the kind of device.
    pub(super) hardware: &'a Hardware,
    /// The coefficients of the model on it.
    pub(super) model: &'a ModelCoefficients,
    /// The batch size.
    pub(super) batch: u32,
}

impl Workload<'_> {
    /// Returns `k_act`, the time on the multiprocessors alone at full frequency, in milliseconds.
    fn active_ms(&self, share: f64) -> f64 {
        let (k, b) = (&self.model.active, f64::from(self.batch));
        (k[0] * b * b + k[1] * b + k[2]) / (share + k[3]) + k[4]
    }
}

/// Predicts the latency and throughput of workloads that share one device, each given with its share in percent.
pub(super) fn predict(workloads: &[(Workload<'_>, f64)]) -> Vec<Prediction> {
    let Some((first, _)) = workloads.first() else {
        return Vec::new();
    };
    let hardware = first.hardware;
    // The processing ability, in requests per second alone, to which power draw and cache use are proportional.
    let ability: Vec<f64> = workloads
        .iter()
        .map(|(workload, share)| 1e3 * f64::from(workload.batch) / workload.active_ms(*share))
        .collect();
    let models = workloads.iter().map(|(workload, _)| workload.model);
    let with_ability = || models.clone().zip(&ability);
    let drawn: f64 = with_ability()
        .map(|(model, ability)| model.power[0] * ability + model.power[1])
        .sum();
    let cache: Vec<f64> = with_ability()
        .map(|(model, ability)| model.cache[0] * ability + model.cache[1])
        .collect();
    let all_cache: f64 = cache.iter().sum();
    let slowdown = hardware.slowdown(hardware.idle_power + drawn);
    let predict_one = |((workload, share), own_cache): (&(Workload<'_>, f64), &f64)| {
        let model = workload.model;
        let count = workloads.len() as f64;
        let contended = if workloads.len() > 1 {
            model.kernels * (hardware.schedule[0] * count + hardware.schedule[1])
        } else {
            0.0
        };
        let active =
            workload.active_ms(*share) * (1.0 + model.cache_sensitivity * (all_cache - own_cache));
        let computing = (model.schedule + contended + active) * slowdown;
        let batch = f64::from(workload.batch);
        let (copied_in, copied_out) = (
            model.input_bytes * batch / hardware.bus,
            model.output_bytes * batch / hardware.bus,
        );
        Prediction {
            latency_ms: copied_in + computing + copied_out,
            throughput: 1e3 * batch / (computing + copied_out),
        }
    };
    workloads.iter().zip(&cache).map(predict_one).collect()
}
