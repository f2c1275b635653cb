//! The nodes' GPUs in Prometheus' text format, as their agents last read them.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_api::agent::GpuStatus;
use packhorse_cluster::NodeName;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

/// What the agents last said of their GPUs, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Gpus(Arc<RwLock<BTreeMap<NodeName, Vec<GpuStatus>>>>);

type Reading = fn(&GpuStatus) -> Option<f64>;

/// Every sample has exactly one label, `gpu_uuid`: clients of Triton's metrics drop what has another. The names that Triton has for
/// these readings are kept verbatim.
const METRICS: [(&str, &str, MetricType, Reading); 15] = [
    (
        "nv_gpu_utilization",
        "Part of the time in which the GPU computed, 0.0 to 1.0.",
        MetricType::Gauge,
        |gpu| Some(gpu.utilization_pct? / 100.0),
    ),
    (
        "nv_gpu_memory_total_bytes",
        "Memory of the GPU.",
        MetricType::Gauge,
        |gpu| gpu.memory_total_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_memory_used_bytes",
        "Memory of the GPU that is in use.",
        MetricType::Gauge,
        |gpu| gpu.memory_used_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_power_usage",
        "Power that the GPU takes, in watts.",
        MetricType::Gauge,
        |gpu| gpu.power_watts,
    ),
    (
        "nv_gpu_power_limit",
        "Power that the GPU may take, in watts.",
        MetricType::Gauge,
        |gpu| gpu.power_limit_watts,
    ),
    (
        "nv_energy_consumption",
        "Energy that the GPU took since its driver was loaded, in joules.",
        MetricType::Counter,
        |gpu| gpu.energy_joules,
    ),
    (
        "packhorse_gpu_temperature_celsius",
        "Temperature of the GPU.",
        MetricType::Gauge,
        |gpu| gpu.temperature_celsius.map(f64::from),
    ),
    (
        "packhorse_gpu_sm_clock_mhz",
        "Clock of the GPU's multiprocessors.",
        MetricType::Gauge,
        |gpu| gpu.sm_clock_mhz.map(f64::from),
    ),
    (
        "packhorse_gpu_memory_clock_mhz",
        "Clock of the GPU's memory.",
        MetricType::Gauge,
        |gpu| gpu.memory_clock_mhz.map(f64::from),
    ),
    (
        "packhorse_gpu_throttled",
        "1 while something keeps the GPU's clocks down.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(!gpu.throttle_reasons.is_empty()))),
    ),
    (
        "packhorse_gpu_processes",
        "Processes that compute on the GPU.",
        MetricType::Gauge,
        |gpu| Some(gpu.processes.len() as f64),
    ),
    (
        "packhorse_gpu_ecc_corrected_errors",
        "Memory errors since the driver was loaded that were corrected.",
        MetricType::Counter,
        |gpu| gpu.ecc_corrected_errors.map(|errors| errors as f64),
    ),
    (
        "packhorse_gpu_ecc_uncorrected_errors",
        "Memory errors since the driver was loaded that could not be corrected.",
        MetricType::Counter,
        |gpu| gpu.ecc_uncorrected_errors.map(|errors| errors as f64),
    ),
    (
        "packhorse_gpu_mps",
        "1 where replicas share the GPU through MPS, 0 where they take turns.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(gpu.mps))),
    ),
    (
        "packhorse_gpu_mps_failing",
        "1 where MPS was tried in vain.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(gpu.mps_reason.is_some()))),
    ),
];

impl Gpus {
    /// Replaces what is known of a node's GPUs; none removes them.
    pub(super) fn set(&self, node: &NodeName, gpus: Vec<GpuStatus>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if gpus.is_empty() {
            all.remove(node);
        } else {
            all.insert(node.clone(), gpus);
        }
    }
}

impl Collector for Gpus {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // A series must be there once only, even should two nodes claim the same GPU.
        let gpus: BTreeMap<&str, &GpuStatus> = all
            .values()
            .flatten()
            .map(|gpu| (gpu.device.as_str(), gpu))
            .collect();
        for (name, help, kind, reading) in METRICS {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (uuid, gpu) in &gpus {
                if let Some(value) = reading(gpu) {
                    let labels = [("gpu_uuid", *uuid)];
                    // As a gauge whatever its type: the encoder's counters get another name.
                    metric.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;

    fn page(gpus: &Gpus) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(gpus.clone()));
        let mut page = String::new();
        text::encode_registry(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn readings_have_tritons_names_and_one_label_and_what_is_unknown_is_left_out() {
        let gpus = Gpus::default();
        let gpu = GpuStatus {
            device: "GPU-1".to_owned(),
            utilization_pct: Some(25.0),
            memory_used_bytes: Some(3 << 30),
            power_watts: Some(71.5),
            throttle_reasons: vec!["power cap".to_owned()],
            ..GpuStatus::default()
        };
        gpus.set(&"n".parse().unwrap(), vec![gpu]);
        let page = page(&gpus);
        for line in [
            "# TYPE nv_gpu_utilization gauge",
            "nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.25",
            "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"} 3221225472.0",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 71.5",
            "# TYPE nv_energy_consumption counter",
            "packhorse_gpu_throttled{gpu_uuid=\"GPU-1\"} 1.0",
            "packhorse_gpu_mps{gpu_uuid=\"GPU-1\"} 0.0",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line} is not in\n{page}"
            );
        }
        assert!(!page.contains("nv_energy_consumption{"));
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.clone().count() > 5);
        for sample in samples {
            assert_eq!(sample.matches("=\"").count(), 1, "{sample}");
        }
    }

    #[test]
    fn a_gpu_that_two_nodes_claim_has_one_series() {
        let gpus = Gpus::default();
        let gpu = GpuStatus {
            device: "GPU-1".to_owned(),
            utilization_pct: Some(1.0),
            ..GpuStatus::default()
        };
        gpus.set(&"a".parse().unwrap(), vec![gpu.clone()]);
        gpus.set(&"b".parse().unwrap(), vec![gpu]);
        assert_eq!(page(&gpus).matches("nv_gpu_utilization{").count(), 1);
        gpus.set(&"a".parse().unwrap(), vec![]);
        gpus.set(&"b".parse().unwrap(), vec![]);
        assert!(!page(&gpus).contains("gpu_uuid"));
    }
}
