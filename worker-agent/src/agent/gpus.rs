//! The readings of this node's GPUs in every status.

use std::collections::BTreeMap;

use packhorse_api::agent::GpuStatus;
use packhorse_worker_agent::devices::{Backend, Device, Monitor};
use tokio::sync::watch;

use crate::mps::{GpuSharing, Mps};

/// The GPUs of this node.
#[derive(Clone, Debug)]
pub(super) struct Gpus {
    names: Vec<String>,
    monitor: Monitor,
    sharing: BTreeMap<String, watch::Receiver<GpuSharing>>,
}

impl Gpus {
    /// Starts to monitor the GPUs among the devices.
    pub(super) fn new(devices: &[Device], mps: &Mps) -> Self {
        let gpus = devices
            .iter()
            .filter(|device| device.backend == Backend::Cuda);
        let names: Vec<String> = gpus.map(|device| device.name.clone()).collect();
        Self {
            monitor: if names.is_empty() {
                Monitor::default()
            } else {
                Monitor::start()
            },
            names,
            sharing: mps.subscribe(),
        }
    }

    /// Reads the current state of all GPUs. A GPU unknown to the driver is included without readings.
    pub(super) async fn read(&self) -> Vec<GpuStatus> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let (names, monitor) = (self.names.clone(), self.monitor.clone());
        let read = move || names.iter().map(|name| monitor.read(name)).collect();
        let read = tokio::task::spawn_blocking(read).await;
        let mut gpus: Vec<GpuStatus> = read.unwrap_or_default();
        for gpu in &mut gpus {
            let sharing = self.sharing.get(&gpu.device);
            (gpu.mps, gpu.mps_reason) = match sharing.map(|sharing| sharing.borrow().clone()) {
                Some(GpuSharing::Mps) => (true, None),
                Some(GpuSharing::TimeSliced(failure)) => (false, Some(failure.to_string())),
                Some(GpuSharing::Starting) | None => (false, None),
            };
        }
        gpus
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::ByteCount;

    use super::*;

    #[tokio::test]
    async fn a_gpu_without_a_driver_is_there_without_readings() {
        let device = |name: &str, backend| Device {
            name: name.to_owned(),
            kind: "T4".parse().unwrap(),
            memory: ByteCount::new(1),
            multiprocessors: None,
            description: String::new(),
            backend,
        };
        let devices = [
            device("GPU-none", Backend::Cuda),
            device("cpu0", Backend::Cpu),
        ];
        let gpus = Gpus::new(&devices, &Mps::default()).read().await;
        let expected = GpuStatus {
            device: "GPU-none".to_owned(),
            ..GpuStatus::default()
        };
        assert_eq!(gpus, [expected]);
    }
}
