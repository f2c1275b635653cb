//! The nodes' GPUs in Prometheus' text format, as their agents last read them.

use std::{
    collections::BTreeMap,
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_api::agent::GpuStatus;
use packhorse_cluster::NodeName;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_samples;

/// The last readings of the agents, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuMetrics(Arc<RwLock<BTreeMap<NodeName, Vec<GpuStatus>>>>);

type ReadGauge = fn(&GpuStatus) -> Option<f64>;

/// The metrics of a GPU. Every sample has exactly one label, `gpu_uuid`: clients of Triton's metrics drop samples with another
/// one. The names that Triton has for these readings are kept verbatim.
const METRICS: [(&str, &str, MetricType, ReadGauge); 15] = [
    (
        "nv_gpu_utilization",
        "Fraction of time in which the GPU computed, 0.0 to 1.0.",
        MetricType::Gauge,
        |gpu| Some(gpu.utilization_pct? / 100.0),
    ),
    (
        "nv_gpu_memory_total_bytes",
        "Memory of the GPU, in bytes.",
        MetricType::Gauge,
        |gpu| gpu.memory_total_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_memory_used_bytes",
        "Memory of the GPU that is in use, in bytes.",
        MetricType::Gauge,
        |gpu| gpu.memory_used_bytes.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_power_usage",
        "Power draw of the GPU, in watts.",
        MetricType::Gauge,
        |gpu| gpu.power_watts,
    ),
    (
        "nv_gpu_power_limit",
        "Power limit of the GPU, in watts.",
        MetricType::Gauge,
        |gpu| gpu.power_limit_watts,
    ),
    (
        "nv_energy_consumption",
        "Energy that the GPU has used since its driver was loaded, in joules.",
        MetricType::Counter,
        |gpu| gpu.energy_joules,
    ),
    (
        "packhorse_gpu_temperature_celsius",
        "Temperature of the GPU, in degrees Celsius.",
        MetricType::Gauge,
        |gpu| gpu.temperature_celsius.map(f64::from),
    ),
    (
        "packhorse_gpu_sm_clock_mhz",
        "Clock of the GPU's multiprocessors, in MHz.",
        MetricType::Gauge,
        |gpu| gpu.sm_clock_mhz.map(f64::from),
    ),
    (
        "packhorse_gpu_memory_clock_mhz",
        "Clock of the GPU's memory, in MHz.",
        MetricType::Gauge,
        |gpu| gpu.memory_clock_mhz.map(f64::from),
    ),
    (
        "packhorse_gpu_throttled",
        "1 while the GPU's clocks are throttled, else 0.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(!gpu.throttle_reasons.is_empty()))),
    ),
    (
        "packhorse_gpu_processes",
        "Number of processes that compute on the GPU.",
        MetricType::Gauge,
        |gpu| Some(gpu.processes.len() as f64),
    ),
    (
        "packhorse_gpu_ecc_corrected_errors",
        "Corrected memory errors since the driver was loaded.",
        MetricType::Counter,
        |gpu| gpu.ecc_corrected_errors.map(|errors| errors as f64),
    ),
    (
        "packhorse_gpu_ecc_uncorrected_errors",
        "Uncorrected memory errors since the driver was loaded.",
        MetricType::Counter,
        |gpu| gpu.ecc_uncorrected_errors.map(|errors| errors as f64),
    ),
    (
        "packhorse_gpu_mps",
        "1 if replicas share the GPU through MPS, 0 if it is shared in time.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(gpu.mps))),
    ),
    (
        "packhorse_gpu_mps_failing",
        "1 if MPS was tried on the GPU and failed, else 0.",
        MetricType::Gauge,
        |gpu| Some(f64::from(u8::from(gpu.mps_reason.is_some()))),
    ),
];

impl GpuMetrics {
    /// Returns the last readings of a node's GPUs.
    pub(super) fn get(&self, node: &NodeName) -> Vec<GpuStatus> {
        let nodes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(node).cloned().unwrap_or_default()
    }

    /// Replaces the readings of a node's GPUs; an empty list removes them.
    pub(super) fn set(&self, node: &NodeName, gpus: Vec<GpuStatus>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if gpus.is_empty() {
            all.remove(node);
        } else {
            all.insert(node.clone(), gpus);
        }
    }
}

impl Collector for GpuMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // A series may appear only once, even if two nodes report the same GPU.
        let gpus: BTreeMap<&str, &GpuStatus> = all
            .values()
            .flatten()
            .map(|gpu| (gpu.device.as_str(), gpu))
            .collect();
        for (name, help, kind, reading) in METRICS {
            let readings = gpus
                .iter()
                .filter_map(|(uuid, gpu)| Some(([("gpu_uuid", *uuid)], reading(gpu)?)));
            encode_samples(&mut encoder, name, help, kind, readings)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;

    fn page(gpus: &GpuMetrics) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(gpus.clone()));
        let mut page = String::new();
        text::encode_registry(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn readings_have_tritons_names_and_one_label_and_what_is_unknown_is_left_out() {
        let gpus = GpuMetrics::default();
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
        let gpus = GpuMetrics::default();
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
