//! The batch sizes that Nexus can give a model on a class of devices.

use std::time::Duration;

use packhorse_cluster::{ByteCount, ModelIndex, Problem};

use crate::{
    candidates::largest_batch, device_classes::DeviceClass, duty_cycle::BatchTimes,
    tolerance::ROUNDING,
};

/// The batches of a model on a class of devices: every integer size up to the saturated one.
pub(super) struct BatchTable {
    /// The SLO in seconds.
    slo: f64,
    /// The times of batches of 1, 2, … up to the saturated batch, in seconds. Not empty.
    latency: Vec<f64>,
    /// The memory of a replica with each of these batch sizes.
    memory: Vec<ByteCount>,
}

/// The batch with which a node of its own serves a residual rate.
pub(super) struct ResidualBatch {
    /// The number of rows.
    pub(super) size: u32,
    /// The duty cycle in seconds.
    pub(super) duty: f64,
    /// The fraction of the duty cycle that the batch takes; above 1 if the node cannot carry the rate.
    pub(super) occupancy: f64,
}

impl BatchTable {
    /// Creates the table; `None` if every batch takes more than half of the SLO or exceeds the memory.
    pub(super) fn new(
        problem: &Problem,
        model: ModelIndex,
        class: &DeviceClass<'_>,
    ) -> Option<Self> {
        let demanded = &problem.models[model.0];
        let profile = problem.profiles.get(&demanded.id, class.kind)?;
        let sizes = 1..=largest_batch(profile, demanded);
        let rows = sizes.map(|size| (profile.latency(size), class.replica_memory(profile, size)));
        let (mut latency, mut memory): (Vec<_>, Vec<_>) = rows.unzip();
        let saturated = latency.iter().zip(&memory).rposition(|(latency, memory)| {
            latency.saturating_mul(2) <= demanded.slo && *memory <= class.memory
        })?;
        latency.truncate(saturated + 1);
        memory.truncate(saturated + 1);
        Some(Self {
            slo: demanded.slo.as_secs_f64(),
            latency: latency.iter().map(Duration::as_secs_f64).collect(),
            memory,
        })
    }

    /// Returns the memory of a replica with a batch size.
    pub(super) fn memory(&self, batch: u32) -> ByteCount {
        self.memory[batch as usize - 1]
    }

    /// Returns the throughput of a node that serves only this model, in requests per second.
    pub(super) fn throughput(&self) -> f64 {
        f64::from(self.largest_batch()) / self.seconds(self.largest_batch())
    }

    /// Returns the residual batch for a rate; `published` selects the wait of the published code.
    pub(super) fn residual_batch(&self, rate: f64, published: bool) -> ResidualBatch {
        let fits = |&size: &u32| {
            let awaited = f64::from(if published { size - 1 } else { size });
            rate > 0.0 && self.seconds(size) + awaited / rate <= self.slo * (1.0 + ROUNDING)
        };
        let size = (1..=self.largest_batch()).rev().find(fits).unwrap_or(1);
        let latency = self.seconds(size);
        let slack = self.slo - latency;
        let fill_time = f64::from(size) / rate;
        let duty = if fill_time < slack { fill_time } else { slack };
        ResidualBatch {
            size,
            duty,
            occupancy: latency / duty,
        }
    }
}

impl BatchTimes for BatchTable {
    /// Returns the saturated batch.
    fn largest_batch(&self) -> u32 {
        u32::try_from(self.latency.len()).expect("batch sizes are 32 bits")
    }

    fn seconds(&self, batch_size: u32) -> f64 {
        self.latency[batch_size as usize - 1]
    }
}
