//! What a placement policy answers, and the one judge of it.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    ByteCount, ComputeShare, DeviceIndex, ModelId, ModelIndex, Problem, RequestsPerSecond,
};

/// A replica as planned: one model on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedReplica {
    /// Which model of the problem.
    pub model: ModelIndex,
    /// On which device of the problem.
    pub device: DeviceIndex,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// Where a policy shares a device in time: how often this replica has its turn.
    pub duty_cycle: Option<Duration>,
}

/// What a plan promises a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelForecast {
    /// Requests per second answered within the SLO, by the policy's own estimate.
    pub goodput: RequestsPerSecond,
    /// The latency it expects, where it estimates one.
    pub latency: Option<Duration>,
    /// Why the model is not, or not fully, served.
    pub shortfall: Option<String>,
}

/// An immutable list of replicas with what they promise per model.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The policy that made it.
    pub policy: &'static str,
    /// The replicas, ordered by model, then device.
    pub replicas: Vec<PlannedReplica>,
    /// One forecast per model of the problem, in its order.
    pub models: Vec<ModelForecast>,
}

/// Something a plan must not do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A replica names a model or device that the problem does not have.
    #[error("replica {replica} names a model or device that does not exist")]
    Dangling {
        /// Its place in the plan.
        replica: usize,
    },
    /// The forecasts are not one per model.
    #[error("{forecasts} forecasts for {models} models")]
    Forecasts {
        /// How many forecasts.
        forecasts: usize,
        /// How many models.
        models: usize,
    },
    /// A batch of no rows, or of more than the model takes.
    #[error("{model} on device {device}: batch size {batch_size} is not between 1 and {limit}")]
    BatchSize {
        /// The model.
        model: ModelId,
        /// The device's index.
        device: usize,
        /// The planned batch size.
        batch_size: u32,
        /// The model's largest.
        limit: u32,
    },
    /// The model was never measured on that kind of device.
    #[error("{model} has no profile on {kind}")]
    MissingProfile {
        /// The model.
        model: ModelId,
        /// The device's kind.
        kind: String,
    },
    /// A full batch alone takes longer than the SLO.
    #[error(
        "{model} on device {device}: a batch of {batch_size} takes {latency:?}, over the SLO of {slo:?}"
    )]
    Slo {
        /// The model.
        model: ModelId,
        /// The device's index.
        device: usize,
        /// The planned batch size.
        batch_size: u32,
        /// What the profile says.
        latency: Duration,
        /// The objective.
        slo: Duration,
    },
    /// The replicas of a device need more memory than it has.
    #[error("device {device}: {used} of memory planned, {capacity} there")]
    Memory {
        /// The device's index.
        device: usize,
        /// What its replicas need.
        used: ByteCount,
        /// What it has.
        capacity: ByteCount,
    },
    /// The compute shares of a device add up to more than the whole.
    #[error("device {device}: compute shares add up to {sum} %")]
    ComputeShare {
        /// The device's index.
        device: usize,
        /// The sum in percent.
        sum: f64,
    },
}

impl Plan {
    /// A plan without a replica, for when nothing can be placed.
    pub fn empty(policy: &'static str, problem: &Problem, shortfall: &str) -> Self {
        let forecast = ModelForecast {
            goodput: RequestsPerSecond::ZERO,
            latency: None,
            shortfall: Some(shortfall.to_owned()),
        };
        Self {
            policy,
            replicas: Vec::new(),
            models: vec![forecast; problem.models.len()],
        }
    }

    /// Everything this plan does that no plan may, judged against the problem it answers. Empty for a sound plan. The same
    /// judge serves tests, the simulator and the gateway.
    pub fn violations(&self, problem: &Problem) -> Vec<Violation> {
        // Shares are sums of decimal numbers: a plan is not wrong for their rounding.
        const ROUNDING: f64 = 1e-6;
        let mut violations = Vec::new();
        if self.models.len() != problem.models.len() {
            violations.push(Violation::Forecasts {
                forecasts: self.models.len(),
                models: problem.models.len(),
            });
        }
        let mut used: BTreeMap<DeviceIndex, (ByteCount, f64)> = BTreeMap::new();
        for (i, replica) in self.replicas.iter().enumerate() {
            let (Some(model), Some(device)) = (
                problem.models.get(replica.model.0),
                problem.devices.get(replica.device.0),
            ) else {
                violations.push(Violation::Dangling { replica: i });
                continue;
            };
            if replica.batch_size == 0 || replica.batch_size > model.max_batch_size {
                violations.push(Violation::BatchSize {
                    model: model.id.clone(),
                    device: replica.device.0,
                    batch_size: replica.batch_size,
                    limit: model.max_batch_size,
                });
                continue;
            }
            let Some(profile) = problem.profile(replica.model, replica.device) else {
                violations.push(Violation::MissingProfile {
                    model: model.id.clone(),
                    kind: device.kind.to_string(),
                });
                continue;
            };
            let latency = profile.latency(replica.batch_size);
            if latency > model.slo {
                violations.push(Violation::Slo {
                    model: model.id.clone(),
                    device: replica.device.0,
                    batch_size: replica.batch_size,
                    latency,
                    slo: model.slo,
                });
            }
            let on_device = used.entry(replica.device).or_default();
            on_device.0 = on_device
                .0
                .saturating_add(profile.memory(replica.batch_size).unwrap_or_default());
            on_device.1 += replica.compute_share.map_or(0.0, ComputeShare::get);
        }
        for (device, (memory, sum)) in used {
            let capacity = problem.devices[device.0].memory;
            if memory > capacity {
                violations.push(Violation::Memory {
                    device: device.0,
                    used: memory,
                    capacity,
                });
            }
            if sum > 100.0 + ROUNDING {
                violations.push(Violation::ComputeShare {
                    device: device.0,
                    sum,
                });
            }
        }
        violations
    }
}
