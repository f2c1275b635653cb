//! The metrics of the cache of predictions.

use std::fmt::Error;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_value;
use crate::prediction_cache::PredictionCache;

impl Collector for PredictionCache {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, kind, value) in [
            (
                "packhorse_prediction_cache_bytes",
                "Memory of the answers that are kept for requests with the same inputs.",
                MetricType::Gauge,
                self.bytes(),
            ),
            (
                "packhorse_prediction_cache_limit_bytes",
                "Memory that kept answers may have together.",
                MetricType::Gauge,
                self.limit(),
            ),
            (
                "packhorse_prediction_cache_evictions_total",
                "Kept answers that gave way to others.",
                MetricType::Counter,
                self.evictions(),
            ),
        ] {
            encode_value(&mut encoder, name, help, kind, &value)?;
        }
        Ok(())
    }
}
