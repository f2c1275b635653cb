//! What batch sizes Nexus may give a model on a class of devices.

use packhorse_cluster::{ByteCount, ModelIndex, Problem};

use super::ROUNDING;
use crate::classes::Class;

/// A model on a class of devices: every integer batch up to the saturated one.
pub(super) struct Sizes {
    slo: f64,
    /// Of batches of 1, 2, … up to the saturated batch, in seconds. Not empty.
    latency: Vec<f64>,
    memory: Vec<ByteCount>,
}

/// What a residual rate asks of a node of its own.
pub(super) struct Demand {
    pub(super) batch: u32,
    /// In seconds.
    pub(super) duty: f64,
    pub(super) occupancy: f64,
}

impl Sizes {
    /// `None` if no batch leaves a request the time to wait for another one, or has the memory.
    pub(super) fn new(problem: &Problem, model: ModelIndex, class: &Class<'_>) -> Option<Self> {
        let demanded = &problem.models[model.0];
        let profile = problem.profiles.get(&demanded.id, class.kind)?;
        let profiled = profile.whole().iter().map(|row| row.batch_size).max()?;
        let slo = demanded.slo.as_secs_f64();
        let sizes = 1..=profiled.min(demanded.max_batch_size).max(1);
        // A replica whose memory was never measured may have a whole device.
        let rows = sizes.map(|b| {
            let latency = profile.latency(b);
            (latency, profile.memory(b).unwrap_or(class.memory))
        });
        let (mut latency, mut memory): (Vec<_>, Vec<_>) = rows.unzip();
        let saturated = latency.iter().zip(&memory).rposition(|(latency, memory)| {
            latency.saturating_mul(2) <= demanded.slo && *memory <= class.memory
        })?;
        latency.truncate(saturated + 1);
        memory.truncate(saturated + 1);
        Some(Self {
            slo,
            latency: latency
                .iter()
                .map(std::time::Duration::as_secs_f64)
                .collect(),
            memory,
        })
    }

    /// The saturated batch.
    pub(super) fn saturated(&self) -> u32 {
        u32::try_from(self.latency.len()).expect("batch sizes are 32 bits")
    }

    pub(super) fn latency(&self, batch: u32) -> f64 {
        self.latency[batch as usize - 1]
    }

    pub(super) fn memory(&self, batch: u32) -> ByteCount {
        self.memory[batch as usize - 1]
    }

    /// Requests per second of a node that does nothing else.
    pub(super) fn throughput(&self) -> f64 {
        f64::from(self.saturated()) / self.latency(self.saturated())
    }

    /// The residual batch of a rate, below the throughput of a whole node.
    pub(super) fn demand(&self, rate: f64, published: bool) -> Demand {
        let fits = |&batch: &u32| {
            let waits = f64::from(if published { batch - 1 } else { batch });
            rate > 0.0 && self.latency(batch) + waits / rate <= self.slo * (1.0 + ROUNDING)
        };
        let batch = (1..=self.saturated()).rev().find(fits).unwrap_or(1);
        let latency = self.latency(batch);
        let slack = self.slo - latency;
        let fills = f64::from(batch) / rate;
        let duty = if fills < slack { fills } else { slack };
        Demand {
            batch,
            duty,
            occupancy: latency / duty,
        }
    }
}
