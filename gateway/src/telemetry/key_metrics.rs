//! The requests of each API key, in Prometheus' text format.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_samples;
use crate::keys::{KeyCounts, Keyring, RESPONSE_CLASSES};

/// The number of keys with series of their own: the first that are used. The others share the series `other`.
const MAX_SERIES: usize = 256;
/// The label of the keys without series of their own.
const OTHER: &str = "other";

/// The metrics of the keys.
#[derive(Clone, Debug)]
pub(super) struct KeyMetrics {
    keys: Keyring,
    /// The keys that were used; true if they have series of their own. A key keeps its place, so that no counter goes back.
    has_series: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl KeyMetrics {
    pub(super) fn new(keys: Keyring) -> Self {
        Self {
            keys,
            has_series: Arc::default(),
        }
    }

    /// Returns the counts by identity and name of the key.
    fn counts(&self) -> BTreeMap<(String, String), KeyCounts> {
        let mut has_series = self
            .has_series
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut counts: BTreeMap<_, KeyCounts> = BTreeMap::new();
        for (id, name, used) in self.keys.counts() {
            let named = has_series.values().filter(|named| **named).count();
            let own = *has_series.entry(id.clone()).or_insert(named < MAX_SERIES);
            let labels = if own {
                (id, name)
            } else {
                (OTHER.to_owned(), String::new())
            };
            counts.entry(labels).or_default().add(&used);
        }
        counts
    }
}

impl Collector for KeyMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counts = self.counts();
        let requests = counts.iter().flat_map(|(key, counts)| {
            let codes = RESPONSE_CLASSES.iter().zip(counts.requests);
            codes.map(|(code, requests)| {
                let [id, name] = labels(key);
                ([id, name, ("code", *code)], requests)
            })
        });
        encode_samples(
            &mut encoder,
            "packhorse_key_requests_total",
            "Inference requests by API key and class of status; the keys after the first 256 that are used count as `other`.",
            MetricType::Counter,
            requests,
        )?;
        let times = counts.iter();
        encode_samples(
            &mut encoder,
            "packhorse_key_request_seconds_total",
            "Total time of inference requests until the head of their answer by API key, in seconds.",
            MetricType::Counter,
            times.map(|(key, counts)| (labels(key), counts.nanos as f64 / 1e9)),
        )
    }
}

fn labels((key, name): &(String, String)) -> [(&'static str, &str); 2] {
    [("key", key), ("name", name)]
}
