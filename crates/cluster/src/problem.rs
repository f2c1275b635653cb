//! The input of a placement policy.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    ByteCount, Device, DeviceIndex, DeviceObservation, Discipline, MinReplicas, ModelId,
    ModelIndex, PlannedReplica, Priority, Profile, ProfileTable, RequestsPerSecond,
};

/// A model with the demand to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandedModel {
    /// The model's name and version.
    pub id: ModelId,
    /// The request rate to plan for.
    pub rate: RequestsPerSecond,
    /// The part of the rate that is measured, which no plan for others may take from the model; none where nothing is measured, and
    /// the rate counts as it is.
    pub need: Option<RequestsPerSecond>,
    /// The priority of what the model needs and reserves over what other models do.
    pub priority: Priority,
    /// The least number of devices that the model has replicas on, where memory is left.
    pub min_replicas: MinReplicas,
    /// The latency objective (SLO), end to end at the gateway.
    pub slo: Duration,
    /// The largest number of rows in one batch, at least 1.
    pub max_batch_size: u32,
    /// The size of one request's input, in bytes.
    pub payload: ByteCount,
    /// The time from a replica's start until it is ready.
    pub load_time: Duration,
    /// The real compute time over the profile's; 1 where the profile is taken as it is.
    pub latency_scale: f64,
    /// The bytes of the weights; `None` if unknown, and the memory of the profile counts.
    pub weights: Option<ByteCount>,
}

/// The network from the gateway to a worker, as placement assumes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// The transfer time of a batch of no bytes.
    pub base: Duration,
    /// The bandwidth, in bytes per second.
    pub bytes_per_second: f64,
}

impl Default for NetworkModel {
    /// Returns the values that the thesis measured on its cluster: 8.7 ms for 9,633,792 bytes (chapter 6).
    fn default() -> Self {
        Self {
            base: Duration::from_micros(161),
            bytes_per_second: 1.128e9,
        }
    }
}

/// The assumptions of placement about arrivals and about the time of a batch besides its profiled time. Policies whose papers have no
/// such assumptions ignore them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// The time that the gateway takes to hand over a batch, before the network.
    pub router_overhead: Duration,
    /// The time from a worker back to the client.
    pub return_time: Duration,
    /// A client's own work per request, spent after each gap between arrivals: clients reach less than their configured rate.
    pub client_overhead: Duration,
    /// The coefficient of variation of the gaps between arrivals, without the clients' own work: 1 is Poisson, more is bursty.
    pub burstiness: f64,
    /// The exponent by which a replica slows under a compute share below its utilisation; 1 is proportional.
    pub mps_exponent: f64,
    /// The longest time that the discipline `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
}

impl Default for Conditions {
    /// Returns Poisson arrivals from clients without work of their own, the overheads that the thesis measured, and the exponent fitted
    /// to its measurements under MPS (chapter 6).
    fn default() -> Self {
        Self {
            router_overhead: Duration::from_micros(500),
            return_time: Duration::from_micros(361),
            client_overhead: Duration::ZERO,
            burstiness: 1.0,
            mps_exponent: 1.6,
            max_batch_wait: Duration::from_millis(100),
        }
    }
}

/// The whole input of a placement policy. It is immutable, and a policy returns one [`crate::Plan`] for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// The devices, indexed by [`DeviceIndex`].
    pub devices: Vec<Device>,
    /// The models, indexed by [`ModelIndex`].
    pub models: Vec<DemandedModel>,
    /// The measured times and memory of batches, per model and device kind.
    pub profiles: ProfileTable,
    /// The dispatch discipline.
    pub discipline: Discipline,
    /// The network from the gateway to the workers.
    pub network: NetworkModel,
    /// The assumptions about arrivals and overheads.
    pub conditions: Conditions,
    /// The replicas that run now, for policies that avoid moving replicas.
    pub current: Vec<PlannedReplica>,
    /// Observations of devices, oldest first, for policies that learn from them.
    pub observations: Vec<DeviceObservation>,
}

/// The error for an invalid problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// Two models have the same name and version.
    #[error("model {0} is given twice")]
    DuplicateModel(ModelId),
    /// A model's SLO is zero.
    #[error("the SLO of model {0} must be above 0, but is 0")]
    ZeroSlo(ModelId),
    /// A model's `max_batch_size` is zero.
    #[error("max_batch_size of model {0} must be at least 1, but is 0")]
    ZeroBatch(ModelId),
    /// A number is NaN, infinite or out of its range.
    #[error("{field} must be {allowed}, but is {value}")]
    Number {
        /// The field, with its model or device.
        field: String,
        /// The number, as printed.
        value: String,
        /// The allowed range.
        allowed: &'static str,
    },
}

impl Problem {
    /// Checks what the types cannot: that models are distinct, have an SLO and a batch size, and that plain numbers are within
    /// their ranges.
    pub fn validate(&self) -> Result<(), ProblemError> {
        let mut seen = BTreeSet::new();
        for model in &self.models {
            if !seen.insert(&model.id) {
                return Err(ProblemError::DuplicateModel(model.id.clone()));
            }
            if model.slo.is_zero() {
                return Err(ProblemError::ZeroSlo(model.id.clone()));
            }
            if model.max_batch_size == 0 {
                return Err(ProblemError::ZeroBatch(model.id.clone()));
            }
            let field = || format!("latency_scale of model {}", model.id);
            check_positive(field, model.latency_scale)?;
        }
        for (index, device) in self.devices() {
            let field = || format!("cost_per_hour of device {}", index.0);
            check_not_negative(field, device.cost_per_hour.unwrap_or_default())?;
        }
        let field = || "bytes_per_second of the network".to_owned();
        check_positive(field, self.network.bytes_per_second)?;
        let field = || "the burstiness of arrivals".to_owned();
        check_not_negative(field, self.conditions.burstiness)?;
        let field = || "the MPS exponent".to_owned();
        check_not_negative(field, self.conditions.mps_exponent)
    }

    /// Returns the profile of a model on a device; `None` if the model was not measured on that kind, or if there is no such model or
    /// device.
    pub fn profile(&self, model: ModelIndex, device: DeviceIndex) -> Option<&Profile> {
        self.profiles.get(
            &self.models.get(model.0)?.id,
            &self.devices.get(device.0)?.kind,
        )
    }

    /// Returns the models with their indices.
    pub fn models(&self) -> impl Iterator<Item = (ModelIndex, &DemandedModel)> {
        self.models
            .iter()
            .enumerate()
            .map(|(i, model)| (ModelIndex(i), model))
    }

    /// Returns the devices with their indices.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceIndex, &Device)> {
        self.devices
            .iter()
            .enumerate()
            .map(|(i, device)| (DeviceIndex(i), device))
    }
}

fn check_positive(field: impl FnOnce() -> String, value: f64) -> Result<(), ProblemError> {
    let right = value.is_finite() && value > 0.0;
    check(right, field, value, "a number above 0")
}

fn check_not_negative(field: impl FnOnce() -> String, value: f64) -> Result<(), ProblemError> {
    let right = value.is_finite() && value >= 0.0;
    check(right, field, value, "a number of at least 0")
}

fn check(
    right: bool,
    field: impl FnOnce() -> String,
    value: f64,
    allowed: &'static str,
) -> Result<(), ProblemError> {
    if right {
        return Ok(());
    }
    Err(ProblemError::Number {
        field: field(),
        value: value.to_string(),
        allowed,
    })
}
