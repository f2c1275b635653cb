//! The figures that vendors publish of devices.

use packhorse_cluster::{DeviceKind, known_kind};

/// The published figures of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSheet {
    /// The most floating-point operations per second in 32-bit numbers, without tensor cores.
    pub operations_per_s: f64,
    /// The most bytes per second from and to the device's memory.
    pub bytes_per_s: f64,
    /// The streaming multiprocessors.
    pub multiprocessors: u32,
}

/// The kinds with a built-in sheet: TFLOPS in FP32 and GB/s of memory, from NVIDIA's data sheets.
const SHEETS: [(&str, f64, f64); 14] = [
    ("V100-SXM2-16GB", 15.7, 900.0),
    ("V100-SXM2-32GB", 15.7, 900.0),
    ("V100-PCIE-16GB", 14.0, 900.0),
    ("T4", 8.1, 320.0),
    ("A10", 31.2, 600.0),
    ("A100-SXM4-40GB", 19.5, 1555.0),
    ("A100-SXM4-80GB", 19.5, 2039.0),
    ("A100-PCIE-40GB", 19.5, 1555.0),
    ("L4", 30.3, 300.0),
    ("L40S", 91.6, 864.0),
    ("H100-PCIE", 51.0, 2000.0),
    ("H100-SXM5-80GB", 67.0, 3350.0),
    ("H200", 67.0, 4800.0),
    ("GH200-480GB", 67.0, 4000.0),
];

impl DeviceSheet {
    /// Returns the names of the kinds with a built-in sheet.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        SHEETS.iter().map(|sheet| sheet.0)
    }

    /// Returns the sheet of a kind; `None` without a built-in one, as of CPUs, whose kernels and caches the model does not describe.
    pub fn of(kind: &DeviceKind) -> Option<Self> {
        let (_, tera, giga) = SHEETS.iter().find(|sheet| sheet.0 == kind.as_str())?;
        let (_, multiprocessors) = known_kind(kind)?;
        Some(Self {
            operations_per_s: tera * 1e12,
            bytes_per_s: giga * 1e9,
            multiprocessors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sheet_is_of_a_kind_with_known_multiprocessors() {
        for kind in DeviceSheet::kinds() {
            assert!(DeviceSheet::of(&kind.parse().unwrap()).is_some(), "{kind}");
        }
        assert_eq!(DeviceSheet::of(&"cpu-x".parse().unwrap()), None);
    }
}
