//! NVIDIA GPUs, as NVML sees them. The library is loaded at run time: without a driver there are none.

use nvml_wrapper::{Nvml, error::NvmlError};
use packhorse_cluster::{ByteCount, DeviceKind, known_kind};

use super::{Backend, Device};

/// All GPUs of this machine; or why none can be seen.
pub(super) fn discover() -> Result<Vec<Device>, String> {
    let nvml = Nvml::init().map_err(|e| e.to_string())?;
    let count = nvml.device_count().map_err(|e| e.to_string())?;
    (0..count)
        .map(|index| device(&nvml, index).map_err(|e| format!("GPU {index}: {e}")))
        .collect()
}

fn device(nvml: &Nvml, index: u32) -> Result<Device, NvmlError> {
    let gpu = nvml.device_by_index(index)?;
    let description = gpu.name()?;
    let kind = DeviceKind::from_nvml_name(&description);
    let multiprocessors = match known_kind(&kind) {
        Some((_, multiprocessors)) => Some(multiprocessors),
        None => count_multiprocessors(&gpu),
    };
    Ok(Device {
        name: gpu.uuid()?,
        memory: ByteCount::new(gpu.memory_info()?.total),
        multiprocessors,
        kind,
        description,
        backend: Backend::Cuda,
    })
}

/// NVML counts cores; how many make a multiprocessor depends on the architecture.
/// Source: CUDA C++ Programming Guide, "Compute Capabilities", arithmetic instructions (32-bit floating-point cores).
fn count_multiprocessors(gpu: &nvml_wrapper::Device<'_>) -> Option<u32> {
    let capability = gpu.cuda_compute_capability().ok()?;
    let cores_each = match (capability.major, capability.minor) {
        (7, _) | (6 | 8, 0) => 64,
        (5.., _) => 128,
        _ => return None,
    };
    Some(gpu.num_cores().ok()? / cores_each)
}
