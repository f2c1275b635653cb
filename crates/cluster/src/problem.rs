//! What a placement policy is asked.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    ByteCount, Device, DeviceIndex, DeviceObservation, Discipline, ModelId, PlannedReplica,
    Profile, ProfileTable, RequestsPerSecond,
};

/// A model by its place in a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelIndex(pub usize);

/// A model with what is demanded of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandedModel {
    /// Which model.
    pub id: ModelId,
    /// The rate to plan for.
    pub rate: RequestsPerSecond,
    /// The latency objective, end to end at the gateway.
    pub slo: Duration,
    /// The most rows of one batch, at least 1.
    pub max_batch_size: u32,
    /// Bytes of one request's input.
    pub payload: ByteCount,
    /// How long a replica takes from its start until it is ready.
    pub load_time: Duration,
    /// Real compute time over the profile's; 1 where the profile is believed.
    pub latency_scale: f64,
}

/// The way from the gateway to a worker, as placement assumes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// Time for a batch of no bytes.
    pub base: Duration,
    /// Bandwidth, in bytes per second.
    pub bytes_per_second: f64,
}

impl Default for NetworkModel {
    /// What the thesis measured on its cluster: 8.7 ms for 9,633,792 bytes (chapter 6).
    fn default() -> Self {
        Self {
            base: Duration::from_micros(161),
            bytes_per_second: 1.128e9,
        }
    }
}

/// What placement assumes of how requests come and of what a batch costs besides its profiled time. Policies whose papers know
/// nothing of it ignore it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Hand-over of a batch at the gateway, before the network.
    pub router_overhead: Duration,
    /// From a worker back to the client.
    pub return_time: Duration,
    /// A client's own work per request, spent after each gap: clients reach less than the rate that they were given.
    pub client_overhead: Duration,
    /// Coefficient of variation of the gaps between arrivals, without the clients' own work: 1 is Poisson, more is bursty.
    pub burstiness: f64,
    /// How much faster than in proportion a replica slows under a compute share below its utilisation.
    pub mps_exponent: f64,
    /// How long the discipline `fixed-wait` holds an open batch at most.
    pub max_batch_wait: Duration,
}

impl Default for Conditions {
    /// Poisson arrivals from clients that do nothing else, the overheads that the thesis measured, and the exponent fitted to its
    /// measurements under MPS (chapter 6).
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

/// Everything a placement policy may know. Immutable; answered by one [`crate::Plan`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// The devices, in the order that [`DeviceIndex`] counts.
    pub devices: Vec<Device>,
    /// The models, in the order that [`ModelIndex`] counts.
    pub models: Vec<DemandedModel>,
    /// How long batches take and what they need, per model and device kind.
    pub profiles: ProfileTable,
    /// How requests will be dispatched.
    pub discipline: Discipline,
    /// How batches will travel.
    pub network: NetworkModel,
    /// How requests will come, and what batches cost besides computing.
    pub conditions: Conditions,
    /// What runs now, for policies that keep what need not move.
    pub current: Vec<PlannedReplica>,
    /// What was seen of devices that are shared, the oldest first, for policies that learn from it.
    pub observations: Vec<DeviceObservation>,
}

/// Why something is no problem to be solved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// Two models have the same name and version.
    #[error("model {0} is given twice")]
    DuplicateModel(ModelId),
    /// A model's SLO is zero.
    #[error("model {0} has an SLO of zero")]
    ZeroSlo(ModelId),
    /// A model takes batches of no rows only.
    #[error("model {0} has a max_batch_size of 0, which must be at least 1")]
    ZeroBatch(ModelId),
    /// A number that is none, or out of its range.
    #[error("{field} is {value}, which must be {allowed}")]
    Number {
        /// What it is of.
        field: String,
        /// As it would be printed.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Problem {
    /// Checks what the types cannot: that models are distinct, have an objective and take batches, and that bare numbers are within
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

    /// The profile of a model on a device; `None` if it was never measured there, or if there is no such model or device.
    pub fn profile(&self, model: ModelIndex, device: DeviceIndex) -> Option<&Profile> {
        self.profiles.get(
            &self.models.get(model.0)?.id,
            &self.devices.get(device.0)?.kind,
        )
    }

    /// The models with their indices.
    pub fn models(&self) -> impl Iterator<Item = (ModelIndex, &DemandedModel)> {
        self.models
            .iter()
            .enumerate()
            .map(|(i, model)| (ModelIndex(i), model))
    }

    /// The devices with their indices.
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
