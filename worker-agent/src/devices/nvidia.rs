//! NVIDIA GPUs, through NVML, which is loaded at run time: without a driver there are no GPUs.

use std::sync::Arc;

use nvml_wrapper::{
    Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::ProcessInfo,
};
use packhorse_api::agent::{GpuProcess, GpuStatus};
use packhorse_cluster::{ByteCount, DeviceKind, known_kind};

use super::{Backend, Device};

/// Returns all GPUs of this machine, each MIG instance as a device of its own.
///
/// # Errors
/// The reason why no GPU can be found, as text.
pub(super) fn discover() -> Result<Vec<Device>, String> {
    let nvml = Nvml::init().map_err(|e| e.to_string())?;
    let count = nvml.device_count().map_err(|e| e.to_string())?;
    let mut devices = Vec::new();
    for index in 0..count {
        devices.extend(gpu_devices(&nvml, index).map_err(|e| format!("GPU {index}: {e}"))?);
    }
    Ok(devices)
}

/// Returns the GPU with this index, or its MIG instances.
fn gpu_devices(nvml: &Nvml, index: u32) -> Result<Vec<Device>, NvmlError> {
    let gpu = nvml.device_by_index(index)?;
    if !gpu.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Ok(vec![device(&gpu)?]);
    }
    // NVML fails for a number without an instance, and some drivers fail to return the count.
    let instances = (0..gpu.mig_device_count().unwrap_or(0))
        .filter_map(|number| gpu.mig_device_by_index(number).ok());
    instances.map(|instance| mig_instance(&instance)).collect()
}

fn device(gpu: &nvml_wrapper::Device<'_>) -> Result<Device, NvmlError> {
    let description = gpu.name()?;
    let kind = DeviceKind::from_nvml_name(&description);
    let multiprocessors = match known_kind(&kind) {
        Some((_, multiprocessors)) => Some(multiprocessors),
        None => count_multiprocessors(gpu),
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

/// Returns a MIG instance, which is a device for CUDA. Its kind differs from that of the whole GPU, because its performance does.
fn mig_instance(instance: &nvml_wrapper::Device<'_>) -> Result<Device, NvmlError> {
    let attributes = instance.attributes()?;
    let description = mig_name(&instance.name()?, attributes.gpu_instance_slice_count);
    Ok(Device {
        name: instance.uuid()?,
        memory: ByteCount::new(instance.memory_info()?.total),
        multiprocessors: Some(attributes.multiprocessor_count),
        kind: DeviceKind::from_nvml_name(&description),
        description,
        backend: Backend::Cuda,
    })
}

/// Returns the name of an instance: some drivers return its own name, others that of its GPU.
fn mig_name(name: &str, slices: u32) -> String {
    if name.contains(" MIG ") {
        name.to_owned()
    } else {
        format!("{name} MIG {slices}g")
    }
}

/// Returns the number of multiprocessors. NVML counts cores, whose number per multiprocessor depends on the architecture.
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

/// A reader of the current state of GPUs. Without a driver its readings are empty.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Option<Arc<Nvml>>);

impl Monitor {
    /// Connects to the driver, if there is one.
    pub fn start() -> Self {
        match Nvml::init() {
            Ok(nvml) => Self(Some(Arc::new(nvml))),
            Err(e) => {
                tracing::warn!(error = %e, "GPUs are not monitored");
                Self(None)
            }
        }
    }

    /// Reads the state of the GPU with this UUID. Readings that the driver does not support, for instance on an older GPU or a MIG
    /// instance, are omitted.
    pub fn read(&self, uuid: &str) -> GpuStatus {
        let gpu = self
            .0
            .as_ref()
            .and_then(|nvml| nvml.device_by_uuid(uuid).ok());
        let readings = gpu.map(|gpu| readings(&gpu)).unwrap_or_default();
        GpuStatus {
            device: uuid.to_owned(),
            ..readings
        }
    }
}

fn readings(gpu: &nvml_wrapper::Device<'_>) -> GpuStatus {
    // An instance has no clocks and no temperature of its own. Its power is omitted, because the GPU's would count once per instance.
    let board = gpu.mig_parent_device().ok();
    let board = board.as_ref().unwrap_or(gpu);
    let memory = gpu.memory_info().ok();
    let ecc = |kind| gpu.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let mut processes = gpu.running_compute_processes().unwrap_or_default();
    processes.extend(gpu.mps_running_compute_processes().unwrap_or_default());
    let throttle_reasons = board.current_throttle_reasons();
    GpuStatus {
        utilization_pct: gpu
            .utilization_rates()
            .ok()
            .map(|rates| f64::from(rates.gpu)),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        power_watts: gpu.power_usage().ok().map(from_milli),
        power_limit_watts: gpu.enforced_power_limit().ok().map(from_milli),
        energy_joules: gpu
            .total_energy_consumption()
            .ok()
            .map(|milli| milli as f64 / 1000.0),
        temperature_celsius: board.temperature(TemperatureSensor::Gpu).ok(),
        sm_clock_mhz: board.clock_info(Clock::SM).ok(),
        memory_clock_mhz: board.clock_info(Clock::Memory).ok(),
        throttle_reasons: throttle_reasons.map_or_else(|_| Vec::new(), throttle_names),
        ecc_corrected_errors: ecc(MemoryError::Corrected),
        ecc_uncorrected_errors: ecc(MemoryError::Uncorrected),
        processes: unique_processes(processes),
        ..GpuStatus::default()
    }
}

fn from_milli(value: u32) -> f64 {
    f64::from(value) / 1000.0
}

/// Returns the names of the reasons for low clocks, except idleness.
fn throttle_names(reasons: ThrottleReasons) -> Vec<String> {
    const NAMES: [(ThrottleReasons, &str); 8] = [
        (
            ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
            "application clocks",
        ),
        (ThrottleReasons::SW_POWER_CAP, "power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (
            ThrottleReasons::SW_THERMAL_SLOWDOWN,
            "software thermal slowdown",
        ),
        (
            ThrottleReasons::HW_THERMAL_SLOWDOWN,
            "hardware thermal slowdown",
        ),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display clocks"),
    ];
    let names = NAMES.iter().filter(|(reason, _)| reasons.contains(*reason));
    names.map(|(_, name)| (*name).to_owned()).collect()
}

/// Returns the processes by ascending id, without duplicates: NVML may list MPS clients twice.
fn unique_processes(mut processes: Vec<ProcessInfo>) -> Vec<GpuProcess> {
    processes.sort_by_key(|process| process.pid);
    processes.dedup_by_key(|process| process.pid);
    let process = |process: ProcessInfo| GpuProcess {
        pid: process.pid,
        memory_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    processes.into_iter().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_for_low_clocks_have_names_and_idleness_is_none() {
        let reasons = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::GPU_IDLE;
        assert_eq!(
            throttle_names(reasons),
            ["power cap", "hardware thermal slowdown"]
        );
        assert!(throttle_names(ThrottleReasons::GPU_IDLE).is_empty());
    }

    #[test]
    fn an_instance_is_never_taken_for_its_whole_gpu() {
        let whole = "NVIDIA A100-SXM4-40GB";
        assert_eq!(mig_name(whole, 1), "NVIDIA A100-SXM4-40GB MIG 1g");
        let own = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
        assert_eq!(mig_name(own, 1), own);
        let kind = DeviceKind::from_nvml_name(&mig_name(whole, 1));
        assert_eq!(known_kind(&kind), None);
        assert_eq!(kind.as_str(), "NVIDIA-A100-SXM4-40GB-MIG-1g");
    }

    #[test]
    fn a_process_is_listed_once() {
        let process = |pid, used_gpu_memory| ProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let processes = unique_processes(vec![
            process(7, UsedGpuMemory::Used(5)),
            process(3, UsedGpuMemory::Unavailable),
            process(7, UsedGpuMemory::Used(5)),
        ]);
        let seen: Vec<(u32, Option<u64>)> = processes
            .iter()
            .map(|process| (process.pid, process.memory_bytes))
            .collect();
        assert_eq!(seen, [(3, None), (7, Some(5))]);
    }
}
