//! The output of a placement policy, and its only validity check.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    ByteCount, ComputeShare, DeviceIndex, ModelId, ModelIndex, PlannedReplica, Problem,
    RequestsPerSecond, Shortfall,
};

/// The goodput and latency that a plan forecasts for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelForecast {
    /// Requests per second answered within the SLO, by the policy's own estimate.
    pub goodput: RequestsPerSecond,
    /// The latency that the policy expects, if it estimates one.
    pub latency: Option<Duration>,
    /// The reason why the model is not, or not fully, served.
    pub shortfall: Option<Shortfall>,
}

/// An immutable list of replicas with a forecast per model.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The name of the policy that made the plan.
    pub policy: &'static str,
    /// The replicas, ordered by model, then device.
    pub replicas: Vec<PlannedReplica>,
    /// One forecast per model of the problem, in its order.
    pub models: Vec<ModelForecast>,
}

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A replica names a model or device that the problem does not have.
    #[error("replica {replica} names a model or device that does not exist")]
    Dangling {
        /// The replica's index in the plan.
        replica: usize,
    },
    /// The number of forecasts is not the number of models.
    #[error("the plan has {forecasts} forecasts for {models} models")]
    Forecasts {
        /// The number of forecasts.
        forecasts: usize,
        /// The number of models.
        models: usize,
    },
    /// A batch size of 0, or above the model's limit.
    #[error("{model} on device {device}: batch size {batch_size} is not between 1 and {limit}")]
    BatchSize {
        /// The model.
        model: ModelId,
        /// The device's index.
        device: usize,
        /// The planned batch size.
        batch_size: u32,
        /// The model's largest batch size.
        limit: u32,
    },
    /// The model has no profile on the device's kind.
    #[error("{model} has no profile on {kind}")]
    MissingProfile {
        /// The model.
        model: ModelId,
        /// The device's kind.
        kind: String,
    },
    /// A full batch alone takes longer than the SLO.
    #[error(
        "{model} on device {device}: a batch of {batch_size} takes {latency:?}, longer than the SLO of {slo:?}"
    )]
    Slo {
        /// The model.
        model: ModelId,
        /// The device's index.
        device: usize,
        /// The planned batch size.
        batch_size: u32,
        /// The time of the batch in the profile.
        latency: Duration,
        /// The model's latency objective.
        slo: Duration,
    },
    /// The replicas of a device need more memory than it has.
    #[error("device {device}: its replicas need {used} of memory, but it has {capacity}")]
    Memory {
        /// The device's index.
        device: usize,
        /// The memory that the device's replicas need.
        used: ByteCount,
        /// The memory of the device.
        capacity: ByteCount,
    },
    /// The compute shares of a device add up to more than 100 %.
    #[error("device {device}: compute shares add up to {sum} %, more than 100 %")]
    ComputeShare {
        /// The device's index.
        device: usize,
        /// The sum of the shares, in percent.
        sum: f64,
    },
}

impl Plan {
    /// Creates a plan without replicas, with the same shortfall for each model.
    pub fn empty(policy: &'static str, problem: &Problem, shortfall: &Shortfall) -> Self {
        let forecast = ModelForecast {
            goodput: RequestsPerSecond::ZERO,
            latency: None,
            shortfall: Some(shortfall.clone()),
        };
        Self {
            policy,
            replicas: Vec::new(),
            models: vec![forecast; problem.models.len()],
        }
    }

    /// Returns the number of models with a replica.
    pub fn placed_models(&self) -> usize {
        let models: BTreeSet<ModelIndex> = self.replicas.iter().map(|r| r.model).collect();
        models.len()
    }

    /// Returns every rule that this plan breaks for the given problem; empty for a valid plan. Tests, the simulator and the gateway
    /// all use this check.
    pub fn violations(&self, problem: &Problem) -> Vec<Violation> {
        // The sum of decimal shares may be above 100 by rounding only.
        const ROUNDING: f64 = 1e-6;
        let mut violations = Vec::new();
        if self.models.len() != problem.models.len() {
            violations.push(Violation::Forecasts {
                forecasts: self.models.len(),
                models: problem.models.len(),
            });
        }
        let mut used: BTreeMap<DeviceIndex, (ByteCount, f64)> = BTreeMap::new();
        let mut workers = BTreeSet::new();
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
            // Replicas that share a worker have its memory and its share together.
            let is_first = replica
                .backbone
                .is_none_or(|backbone| workers.insert((replica.device, backbone)));
            let memory = match (replica.backbone, replica.pool) {
                (_, Some(place)) => place.resident_bytes(),
                (Some(_), None) => replica.memory,
                (None, None) => profile.memory(replica.batch_size),
            };
            on_device.0 = on_device.0.saturating_add(memory.unwrap_or_default());
            if is_first {
                on_device.1 += replica.compute_share.map_or(0.0, ComputeShare::get);
            }
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
