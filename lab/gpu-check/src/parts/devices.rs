//! Facts about the host: its GPUs as the driver reports them, PyTorch and MPS.

use std::process::Command;

use packhorse_api::agent::GpuStatus;
use packhorse_worker_agent::devices::{self, Device, Monitor};

use crate::{
    host::{Backend, Host},
    mps_daemon,
    part::Part,
    report::Section,
};

pub(crate) struct Devices;

impl Part for Devices {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn description(&self) -> &'static str {
        "GPUs, driver, PyTorch and MPS, as they report themselves"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let torch = &host.torch;
        section.fact("PyTorch", &torch.version);
        let cuda = match (&torch.cuda, torch.cudnn) {
            (Some(cuda), Some(cudnn)) => format!("{cuda}, cuDNN {cudnn}"),
            (Some(cuda), None) => format!("{cuda}, no GPU in use"),
            (None, _) => "none".to_owned(),
        };
        section.fact("PyTorch's CUDA", cuda);
        let packages = [
            ("torchvision", &torch.torchvision),
            ("transformers", &torch.transformers),
        ];
        for (package, version) in packages {
            match version {
                Some(version) => section.fact(package, version),
                None => section.unavailable(package, "not installed: its models are left out"),
            }
        }
        match mps_daemon::find_program() {
            Ok(path) => section.fact("MPS", path.display().to_string()),
            Err(reason) => section.unavailable("MPS", reason),
        }
        if Command::new("ncu").arg("--version").output().is_ok() {
            section.fact("ncu", "installed");
        } else {
            section.unavailable("ncu", "not on the PATH");
        }
        for device in &host.devices {
            add_device(device, section);
        }
        if host.backend == Backend::Nvidia {
            let monitor = Monitor::start();
            for device in &host.devices {
                add_readings(&monitor.read(&device.name), section);
            }
        }
        Ok(())
    }
}

fn add_device(device: &Device, section: &mut Section) {
    let unit = match device.backend {
        devices::Backend::Cpu => "threads",
        _ => "multiprocessors",
    };
    let count = device.multiprocessors;
    let count = count.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
    let text = format!(
        "{} (kind {}), {:.0} MiB, {unit}: {count}",
        device.description,
        device.kind,
        device.memory.as_mib_f64()
    );
    section.fact(&device.name, text);
}

/// Adds the values of NVML, and those that it does not report.
fn add_readings(gpu: &GpuStatus, section: &mut Section) {
    let label = |what: &str| format!("{} {what}", gpu.device);
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let numbers = [
        ("memory in use", gpu.memory_used_bytes.map(mebibytes), "MiB"),
        ("utilisation", gpu.utilization_pct, "%"),
        ("power", gpu.power_watts, "W"),
        ("power limit", gpu.power_limit_watts, "W"),
        ("temperature", gpu.temperature_celsius.map(f64::from), "°C"),
        ("SM clock", gpu.sm_clock_mhz.map(f64::from), "MHz"),
        ("memory clock", gpu.memory_clock_mhz.map(f64::from), "MHz"),
        (
            "ECC errors, uncorrected",
            gpu.ecc_uncorrected_errors.map(|count| count as f64),
            "",
        ),
    ];
    for (what, value, unit) in numbers {
        match value {
            Some(value) => section.number(label(what), value, unit, None),
            None => section.unavailable(label(what), "NVML does not report it"),
        }
    }
    let reasons = if gpu.throttle_reasons.is_empty() {
        "none".to_owned()
    } else {
        gpu.throttle_reasons.join(", ")
    };
    section.fact(label("throttle reasons"), reasons);
    section.fact(label("processes"), gpu.processes.len().to_string());
}
