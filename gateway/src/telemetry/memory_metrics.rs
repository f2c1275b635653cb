//! The metrics of the memory budget.

use std::fmt::Error;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_value;
use crate::memory::MemoryBudget;

impl Collector for MemoryBudget {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, bytes) in [
            (
                "packhorse_memory_used_bytes",
                "Memory that requests hold, from a request's first byte to the last byte of its answer.",
                self.used(),
            ),
            (
                "packhorse_memory_kept_bytes",
                "Memory that no request holds and that is kept for bodies that workers of this host read; requests may not hold it otherwise.",
                self.kept(),
            ),
            (
                "packhorse_memory_budget_bytes",
                "Memory that requests may hold together.",
                self.limit(),
            ),
        ] {
            encode_value(&mut encoder, name, help, MetricType::Gauge, &bytes)?;
        }
        Ok(())
    }
}
