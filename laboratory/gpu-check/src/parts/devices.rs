//! What the host has: its GPUs as the driver tells, PyTorch, MPS.

use std::process::Command;

use packhorse_api::agent::GpuStatus;
use packhorse_worker_agent::devices::{self, Device, Monitor};

use super::Part;
use crate::{
    host::{Backend, Host},
    mps_daemon,
    report::Section,
};

pub(crate) struct Devices;

impl Part for Devices {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn about(&self) -> &'static str {
        "GPUs, driver, PyTorch and MPS, as they say themselves"
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
        match mps_daemon::find() {
            Ok(path) => section.fact("MPS", path.display().to_string()),
            Err(reason) => section.unavailable("MPS", reason),
        }
        if Command::new("ncu").arg("--version").output().is_ok() {
            section.fact("ncu", "there");
        } else {
            section.unavailable("ncu", "not on the PATH");
        }
        for device in &host.devices {
            describe(device, section);
        }
        if host.backend == Backend::Nvidia {
            let monitor = Monitor::start();
            for device in &host.devices {
                readings(&monitor.read(&device.name), section);
            }
        }
        Ok(())
    }
}

fn describe(device: &Device, section: &mut Section) {
    let what = match device.backend {
        devices::Backend::Cpu => "threads",
        _ => "multiprocessors",
    };
    let count = device.multiprocessors;
    let count = count.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
    let text = format!(
        "{} (kind {}), {:.0} MiB, {what}: {count}",
        device.description,
        device.kind,
        device.memory.as_mib_f64()
    );
    section.fact(&device.name, text);
}

/// What NVML tells and what it does not.
fn readings(gpu: &GpuStatus, section: &mut Section) {
    let of = |what: &str| format!("{} {what}", gpu.device);
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
            Some(value) => section.number(of(what), value, unit, None),
            None => section.unavailable(of(what), "NVML does not tell"),
        }
    }
    let reasons = if gpu.throttle_reasons.is_empty() {
        "none".to_owned()
    } else {
        gpu.throttle_reasons.join(", ")
    };
    section.fact(of("throttle reasons"), reasons);
    section.fact(of("processes"), gpu.processes.len().to_string());
}
