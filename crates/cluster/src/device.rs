//! The devices that replicas run on.

use serde::{Deserialize, Serialize};

use crate::{ByteCount, DeviceKind, NodeName};

/// The index of a device in a [`crate::Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub usize);

/// A device that replicas run on: a GPU, the CPU, or a simulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The kind of the device, as profiles name it.
    pub kind: DeviceKind,
    /// The memory that replicas may use.
    pub memory: ByteCount,
    /// The streaming multiprocessors of a GPU or the threads of a CPU; `None` if unknown.
    pub multiprocessors: Option<u32>,
    /// The node that has the device.
    pub node: NodeName,
    /// The price of one hour in US dollars; `None` if unknown.
    pub cost_per_hour: Option<f64>,
    /// The pool of models that share the device; `None` if each replica has a worker process of its own.
    pub pool: Option<DevicePool>,
}

/// The properties of a device whose models can share one worker process, which copies weights to the device as they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DevicePool {
    /// The bandwidth from the node's memory to the device, in bytes per second.
    pub host_link_bytes_per_second: f64,
    /// The device memory of the process without models, in bytes.
    #[serde(rename = "process_bytes")]
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub process: ByteCount,
    /// The number of models up to which each rather has a worker process of its own.
    pub own_workers: u32,
}

/// Device kinds with built-in data: short name, NVML name, memory in MiB as NVML reports it (nominal for the V100, as the
/// thesis counts it), multiprocessors.
const KNOWN: [(&str, &str, u64, u32); 14] = [
    ("V100-SXM2-16GB", "Tesla V100-SXM2-16GB", 16_384, 80),
    ("V100-SXM2-32GB", "Tesla V100-SXM2-32GB", 32_768, 80),
    ("V100-PCIE-16GB", "Tesla V100-PCIE-16GB", 16_384, 80),
    ("T4", "Tesla T4", 15_360, 40),
    ("A10", "NVIDIA A10", 23_028, 72),
    ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", 40_960, 108),
    ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", 81_920, 108),
    ("A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB", 40_960, 108),
    ("L4", "NVIDIA L4", 23_034, 58),
    ("L40S", "NVIDIA L40S", 46_068, 142),
    ("H100-PCIE", "NVIDIA H100 PCIe", 81_559, 114),
    ("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3", 81_559, 132),
    ("H200", "NVIDIA H200", 143_771, 132),
    ("GH200-480GB", "NVIDIA GH200 480GB", 97_871, 132),
];

/// Returns the memory and the multiprocessors of a kind with built-in data.
pub fn known_kind(kind: &DeviceKind) -> Option<(ByteCount, u32)> {
    let (_, _, mib, multiprocessors) = KNOWN.iter().find(|known| known.0 == kind.as_str())?;
    Some((ByteCount::from_mib(*mib)?, *multiprocessors))
}

/// The price of one GPU hour in US dollars: AWS' on-demand list price in us-east-1 early in 2025, per GPU of the smallest instance
/// that has it. All prices are of one seller at one time, so that they can be compared.
const COSTS: [(&str, f64); 8] = [
    ("V100-SXM2-16GB", 3.06),
    ("V100-SXM2-32GB", 3.90),
    ("T4", 0.526),
    ("A100-SXM4-40GB", 4.10),
    ("A100-SXM4-80GB", 5.12),
    ("L4", 0.8048),
    ("L40S", 1.861),
    ("H100-SXM5-80GB", 12.29),
];

/// Returns the price of one hour of a kind in US dollars, if it has a built-in list price.
pub fn known_cost_per_hour(kind: &DeviceKind) -> Option<f64> {
    let (_, cost) = COSTS.iter().find(|known| known.0 == kind.as_str())?;
    Some(*cost)
}

impl DeviceKind {
    /// Returns the kind of an NVIDIA GPU from its NVML name: the built-in short name if there is one, else the NVML name with
    /// every character that a name must not contain replaced by `-`.
    pub fn from_nvml_name(name: &str) -> Self {
        match KNOWN.iter().find(|known| known.1 == name) {
            Some(known) => Self::slug("", known.0),
            None => Self::slug("", name),
        }
    }

    /// Returns the kind of a CPU from the model name that its operating system reports: `cpu-` and a slug.
    pub fn from_cpu_model_name(name: &str) -> Self {
        Self::slug(
            "cpu-",
            &name.replace("(R)", "").replace("(TM)", "").to_lowercase(),
        )
    }

    fn slug(prefix: &str, name: &str) -> Self {
        let mut slug = prefix.to_owned();
        for c in name.chars() {
            let c = if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') {
                c
            } else {
                '-'
            };
            if c != '-' || !(slug.is_empty() || slug.ends_with('-')) {
                slug.push(c);
            }
        }
        let slug = slug.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let slug = slug.get(..slug.len().min(128)).unwrap_or_default();
        let text = if slug.is_empty() { "unknown" } else { slug };
        text.parse()
            .expect("a slug is a name: checked characters, first one alphanumeric, at most 128")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_kinds_have_short_names() {
        assert_eq!(
            DeviceKind::from_nvml_name("Tesla V100-SXM2-16GB").as_str(),
            "V100-SXM2-16GB"
        );
        assert_eq!(DeviceKind::from_nvml_name("NVIDIA H200").as_str(), "H200");
        assert_eq!(
            DeviceKind::from_nvml_name("NVIDIA RTX 6000 Ada").as_str(),
            "NVIDIA-RTX-6000-Ada"
        );
        assert_eq!(
            DeviceKind::from_cpu_model_name("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
                .as_str(),
            "cpu-intel-xeon-platinum-8481c-cpu-2.70ghz"
        );
        assert_eq!(DeviceKind::from_cpu_model_name("").as_str(), "cpu");
    }

    #[test]
    fn costs_are_of_kinds_with_a_data_sheet() {
        for (name, cost) in COSTS {
            let kind: DeviceKind = name.parse().unwrap();
            assert!(known_kind(&kind).is_some() && cost > 0.0, "{name}");
            assert_eq!(known_cost_per_hour(&kind), Some(cost));
        }
        assert_eq!(known_cost_per_hour(&"abacus".parse().unwrap()), None);
    }

    proptest! {
        #[test]
        fn any_name_becomes_a_kind(name in ".{0,200}") {
            let _ = DeviceKind::from_nvml_name(&name);
            let _ = DeviceKind::from_cpu_model_name(&name);
        }
    }
}
