//! InSS' model of the time of a batch beside other models on its device, and of the time of a request that waits for its batch.
//!
//! A batch of `b` rows of model `i` under a share `ρ` of the multiprocessors takes (section 4.1)
//!
//! ```text
//! t_inf = (d_in + d_out) · b / B                          copying over the bus
//!       + n · (o_sch + int)                               launching n kernels; int = α_s · m + β_s if m ≥ 2 models share the device
//!       + LWR(b, ρ) · (1 + α_cache · Σ l of the others)   computing; l = α_u · ρ + β_u is the use of the L2 cache alone
//! ```
//!
//! with `LWR` a [`LocalRegression`] over measured batches. The latency of a request ([`WaitingRequest`], section 4.2, equation 2) adds
//! the time until its batch is full and until the batches before it are computed.
//!
//! Source: "InSS: An Intelligent Scheduling Orchestrator for Multi-GPU Inference with Spatio-Temporal Sharing", section 4. Its
//! published code (code-InSS/InSS) contains neither the regression nor the profiles.
//!
//! Deviations:
//! - The published code multiplies the launch interference by nothing and leaves the batch out of the copying; the paper's formulas
//!   have the number of kernels and the batch, and those are used here.
//! - The kernel and the width of the regression are not stated: see [`LocalRegression`].
//! - A fitted line may become negative outside the measurements; uses of the cache and delays are at least zero.

use std::time::Duration;

pub use local_regression::{LocalRegression, RegressionError, RegressionPoint};

mod local_regression;

/// The coefficients of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InssDevice {
    /// The bandwidth `B` to and from the device, in bytes per second.
    pub bus_bytes_per_second: f64,
    /// The launch interference per kernel: `α_s` in seconds per model on the device, and `β_s` in seconds.
    pub launch: [f64; 2],
}

impl InssDevice {
    /// Returns the launch interference per kernel in seconds, for a number of models that share the device.
    fn launch_interference(&self, models: usize) -> f64 {
        if models < 2 {
            return 0.0;
        }
        (self.launch[0] * models as f64 + self.launch[1]).max(0.0)
    }
}

/// The coefficients of a model on a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct InssModel {
    /// The bytes of one request's input and output, `d_in + d_out`.
    pub copied_bytes: f64,
    /// The number of kernels of a batch, `n`.
    pub kernels: f64,
    /// The time of launching one kernel alone on the device, `o_sch`, in seconds.
    pub launch: f64,
    /// The time of computing alone, by batch size and share.
    pub running: LocalRegression,
    /// The use of the L2 cache in percent: `α_u` per percent of share, and `β_u`.
    pub cache: [f64; 2],
    /// The slowdown `α_cache` per percent of the cache that the others use.
    pub cache_sensitivity: f64,
}

impl InssModel {
    /// Returns the coefficients of a model of which only times alone are known. It neither slows others nor is slowed: the variant
    /// InSS-ni of the paper's evaluation.
    pub fn without_interference(running: LocalRegression) -> Self {
        Self {
            copied_bytes: 0.0,
            kernels: 0.0,
            launch: 0.0,
            running,
            cache: [0.0; 2],
            cache_sensitivity: 0.0,
        }
    }

    /// Returns the time that a batch takes beside computing, alone on the device, in seconds.
    pub fn fixed_seconds(&self, device: &InssDevice, batch: u32) -> f64 {
        self.copied_bytes * f64::from(batch) / device.bus_bytes_per_second
            + self.kernels * self.launch
    }

    /// Returns the use of the L2 cache under a share in percent, in percent.
    fn cache_use(&self, share: f64) -> f64 {
        (self.cache[0] * share + self.cache[1]).max(0.0)
    }
}

/// A model with a batch size and a share on a device.
#[derive(Clone, Copy, Debug)]
pub struct InssWorkload<'a> {
    /// The coefficients of the model on the kind of device.
    pub model: &'a InssModel,
    /// The rows of a batch.
    pub batch: u32,
    /// The share of the multiprocessors, in percent.
    pub share: f64,
}

/// Returns the time of a batch of each workload while all of them share one device, in seconds.
pub fn inss_seconds(device: &InssDevice, workloads: &[InssWorkload<'_>]) -> Vec<f64> {
    let all_cache: f64 = workloads
        .iter()
        .map(|workload| workload.model.cache_use(workload.share))
        .sum();
    let launch = device.launch_interference(workloads.len());
    let seconds = |workload: &InssWorkload<'_>| {
        let InssWorkload {
            model,
            batch,
            share,
        } = *workload;
        let others = (all_cache - model.cache_use(share)).max(0.0);
        let contention = (1.0 + model.cache_sensitivity * others).max(0.0);
        model.fixed_seconds(device, batch)
            + model.kernels * launch
            + model.running.seconds(batch, share) * contention
    };
    workloads.iter().map(seconds).collect()
}

/// A request that waits in the queue of its model: the terms of InSS' equation 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitingRequest {
    /// The requests in the queue, this one included (`W`), at least 1.
    pub queued: u32,
    /// The batch size `b`, at least 1.
    pub batch: u32,
    /// The rate at which further requests arrive, in requests per second.
    pub rate: f64,
    /// The time until the device is done with the batches that it computes now (`exec`), in seconds.
    pub busy: f64,
    /// The time of a batch (`t_inf`), in seconds.
    pub batch_seconds: f64,
}

impl WaitingRequest {
    /// Returns the time from the request's arrival to its answer. It is infinite if the batch is never filled.
    ///
    /// If at least a batch is queued, that is `exec + ceil(W / b) · t_inf`; otherwise it is `max(exec, (b − W) / λ) + t_inf`.
    pub fn latency_seconds(&self) -> f64 {
        if self.queued >= self.batch {
            let batches = self.queued.div_ceil(self.batch.max(1));
            return self.busy + f64::from(batches) * self.batch_seconds;
        }
        let missing = f64::from(self.batch - self.queued);
        self.busy.max(missing / self.rate) + self.batch_seconds
    }

    /// Returns the latency as a duration; the longest one if it is too long or infinite.
    pub fn latency(&self) -> Duration {
        Duration::try_from_secs_f64(self.latency_seconds()).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    /// A model that takes 10 ms whatever the batch and share.
    fn constant(seconds: f64) -> LocalRegression {
        LocalRegression::new(vec![RegressionPoint {
            batch: 1,
            share: 100.0,
            seconds,
        }])
        .unwrap()
    }

    fn model() -> InssModel {
        InssModel {
            copied_bytes: 1e6,
            kernels: 100.0,
            launch: 1e-5,
            running: constant(0.010),
            cache: [0.2, 5.0],
            cache_sensitivity: 0.01,
        }
    }

    const DEVICE: InssDevice = InssDevice {
        bus_bytes_per_second: 1e10,
        launch: [5e-6, -4e-6],
    };

    #[test]
    fn a_batch_alone_is_copied_launched_and_computed() {
        let model = model();
        let alone = InssWorkload {
            model: &model,
            batch: 8,
            share: 50.0,
        };
        // 8 MB at 10 GB/s are 0.8 ms, 100 kernels of 10 us are 1 ms, and computing takes 10 ms.
        assert!(close(inss_seconds(&DEVICE, &[alone])[0], 0.011_8));
    }

    #[test]
    fn neighbours_cost_launches_and_cache() {
        let model = model();
        let workload = |share| InssWorkload {
            model: &model,
            batch: 8,
            share,
        };
        let seconds = inss_seconds(&DEVICE, &[workload(50.0), workload(25.0)]);
        // Two models: 100 kernels wait 2 · 5 − 4 = 6 us more each. The neighbours use 0.2 · 25 + 5 = 10 % and 0.2 · 50 + 5 = 15 %
        // of the cache, each percent of which costs 1 %.
        assert!(close(seconds[0], 0.011_8 + 0.000_6 + 0.001_0));
        assert!(close(seconds[1], 0.011_8 + 0.000_6 + 0.001_5));
        // Three models: 11 us a kernel.
        let three = inss_seconds(&DEVICE, &[workload(50.0), workload(25.0), workload(25.0)]);
        assert!(close(three[0], 0.011_8 + 0.001_1 + 0.002_0));
    }

    #[test]
    fn lines_below_zero_count_as_zero() {
        let mut odd = model();
        odd.cache = [0.2, -50.0];
        let workload = InssWorkload {
            model: &odd,
            batch: 1,
            share: 50.0,
        };
        let device = InssDevice {
            launch: [0.0, -1e-3],
            ..DEVICE
        };
        let seconds = inss_seconds(&device, &[workload, workload]);
        assert!(close(seconds[0], 0.000_1 + 0.001 + 0.010));
    }

    #[test]
    fn a_request_waits_for_its_batch_to_fill_or_for_those_before_it() {
        let first = WaitingRequest {
            queued: 1,
            batch: 5,
            rate: 100.0,
            busy: 0.015,
            batch_seconds: 0.020,
        };
        // Four more arrive in 40 ms, when the device has long been free.
        assert!(close(first.latency_seconds(), 0.060));
        // The last one of a batch waits for the device only.
        let last = WaitingRequest { queued: 5, ..first };
        assert!(close(last.latency_seconds(), 0.035));
        // Eleven requests are three batches.
        let behind = WaitingRequest {
            queued: 11,
            ..first
        };
        assert!(close(behind.latency_seconds(), 0.075));
        let never = WaitingRequest { rate: 0.0, ..first };
        assert_eq!(never.latency(), Duration::MAX);
    }
}
