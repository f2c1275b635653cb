//! The devices of the node: NVIDIA GPUs, the CPU, or simulated devices. One file per source.

mod cpu;
mod nvidia;
mod simulated;

pub use nvidia::Monitor;
pub use simulated::SIMULATED_HOST_LINK_BYTES_PER_SECOND;

use std::str::FromStr;

use packhorse_api::agent::DeviceReport;
use packhorse_cluster::{ByteCount, DeviceKind, DevicePool, IdError, ProfileTable};

/// A device of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The name within the node: an NVIDIA UUID, `cpu0`, `sim0`.
    pub name: String,
    /// The kind, which profiles refer to.
    pub kind: DeviceKind,
    /// The memory that replicas may use.
    pub memory: ByteCount,
    /// The number of streaming multiprocessors of a GPU, or of threads of a CPU; `None` if it is unknown.
    pub multiprocessors: Option<u32>,
    /// The name that the driver or the operating system gives.
    pub description: String,
    /// The backend that runs programs on it.
    pub backend: Backend,
}

/// A backend that runs programs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// libtorch on the CPU.
    Cpu,
    /// libtorch on an NVIDIA GPU, which the device's name identifies.
    Cuda,
    /// A simulation that takes its times from profiles.
    Simulated,
}

/// The number of models of a CPU up to which each has a worker process of its own, also where it has fewer threads.
const OWN_WORKERS: u32 = 8;

/// The speed at which weights on a CPU come back, in bytes per second: they are mapped, not copied. A worker reports what it measures; this is for plans
/// before that.
const MAPPED_BYTES_PER_SECOND: f64 = 50e9;

/// The memory of a process on a CPU that no program has: the libraries, which profiles do not count because processes share them. Measured by
/// `worker-agent/tests/worker/parking.rs`.
const SHARED_BY_PROCESS: ByteCount = ByteCount::new(192 << 20);

/// The memory of a GPU that a process takes before it allocates any: that of its context. libtorch 2.11 with kernels loaded as they are needed takes less;
/// no GPU has been asked yet.
pub const CUDA_CONTEXT: ByteCount = ByteCount::new(512 << 20);

/// The speed at which weights are copied to a GPU, in bytes per second, before a worker has measured it: that of a slot of 16 lanes of the third generation.
const CUDA_HOST_LINK_BYTES_PER_SECOND: f64 = 12e9;

impl Device {
    /// Returns the number of models up to which each has a worker process of its own, unless another is given for CPUs: a process that models share computes one batch at
    /// a time, and processes of their own as many as there are threads. On other devices than CPUs batches compute side by side, so that models share a process
    /// where memory does not suffice for all.
    pub fn own_workers(&self, given: Option<u32>) -> u32 {
        match self.backend {
            Backend::Cpu => {
                given.unwrap_or_else(|| OWN_WORKERS.max(self.multiprocessors.unwrap_or(0)))
            }
            Backend::Cuda | Backend::Simulated => u32::MAX,
        }
    }

    /// Returns the message about the device to the gateway. `own_workers` is what [`Device::own_workers`] takes; `gpu_pools` is true if models of a GPU may share a
    /// process.
    pub fn report(&self, own_workers: Option<u32>, gpu_pools: bool) -> DeviceReport {
        DeviceReport {
            name: self.name.clone(),
            kind: self.kind.clone(),
            memory_bytes: self.memory,
            multiprocessors: self.multiprocessors,
            description: self.description.clone(),
            pool: self.pool(own_workers, gpu_pools),
        }
    }
}

impl Device {
    /// Returns what a process that models share has of the device; `None` if they share none.
    fn pool(&self, own_workers: Option<u32>, gpu_pools: bool) -> Option<DevicePool> {
        let (host_link_bytes_per_second, process) = match self.backend {
            Backend::Cpu => (MAPPED_BYTES_PER_SECOND, SHARED_BY_PROCESS),
            Backend::Simulated => (SIMULATED_HOST_LINK_BYTES_PER_SECOND, ByteCount::new(0)),
            Backend::Cuda if gpu_pools => (CUDA_HOST_LINK_BYTES_PER_SECOND, CUDA_CONTEXT),
            Backend::Cuda => return None,
        };
        Some(DevicePool {
            host_link_bytes_per_second,
            process,
            own_workers: self.own_workers(own_workers),
        })
    }
}

/// The devices to offer: `auto`, `cpu`, `cpu:THREADS`, `nvidia`, `simulated:KIND:COUNT`, separated by commas.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceChoice(Vec<Source>);

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Auto,
    Cpu { threads: Option<u32> },
    Nvidia,
    Simulated { kind: DeviceKind, count: u32 },
}

/// The most simulated devices of one kind.
const MAX_SIMULATED: u32 = 256;

/// The most threads of a CPU.
const MAX_THREADS: u32 = 4096;

/// A malformed choice of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceChoiceError {
    /// An entry is no source of devices.
    #[error(
        "{0:?} is not a device: expected auto, cpu, cpu:THREADS, nvidia or simulated:KIND:COUNT"
    )]
    Unknown(String),
    /// The kind of a simulated device is malformed.
    #[error(transparent)]
    Kind(#[from] IdError),
    /// The number of simulated devices is out of range.
    #[error("{0:?}: expected 1 to {MAX_SIMULATED} simulated devices")]
    Count(String),
    /// The number of a CPU's threads is out of range.
    #[error("{0:?}: expected 1 to {MAX_THREADS} threads")]
    Threads(String),
    /// A source occurs twice, or `auto` together with another.
    #[error("{0:?} cannot be combined with the devices before it")]
    Conflict(String),
}

impl FromStr for Source {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<Self, DeviceChoiceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu { threads: None }),
            "nvidia" => Ok(Self::Nvidia),
            _ if text.starts_with("cpu:") => {
                let count = &text["cpu:".len()..];
                let threads = count
                    .parse()
                    .ok()
                    .filter(|threads| (1..=MAX_THREADS).contains(threads))
                    .ok_or_else(|| DeviceChoiceError::Threads(count.to_owned()))?;
                Ok(Self::Cpu {
                    threads: Some(threads),
                })
            }
            _ => {
                let unknown = || DeviceChoiceError::Unknown(text.to_owned());
                let (kind, count) = text
                    .strip_prefix("simulated:")
                    .and_then(|rest| rest.split_once(':'))
                    .ok_or_else(unknown)?;
                let count = count
                    .parse()
                    .ok()
                    .filter(|count| (1..=MAX_SIMULATED).contains(count))
                    .ok_or_else(|| DeviceChoiceError::Count(count.to_owned()))?;
                Ok(Self::Simulated {
                    kind: kind.parse()?,
                    count,
                })
            }
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<Self, DeviceChoiceError> {
        let mut sources: Vec<Source> = Vec::new();
        for part in text.split(',') {
            let source: Source = part.trim().parse()?;
            let clashes = |other: &Source| match (other, &source) {
                (Source::Auto, _)
                | (_, Source::Auto)
                | (Source::Cpu { .. }, Source::Cpu { .. }) => true,
                (Source::Simulated { kind: a, .. }, Source::Simulated { kind: b, .. }) => a == b,
                (a, b) => a == b,
            };
            if sources.iter().any(clashes) {
                return Err(DeviceChoiceError::Conflict(part.trim().to_owned()));
            }
            sources.push(source);
        }
        Ok(Self(sources))
    }
}

/// A failure to find the chosen devices.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The NVIDIA driver is not installed, or does not answer.
    #[error("--devices nvidia: the NVIDIA driver does not answer: {0}")]
    Nvidia(String),
    /// There is no profile for a simulated device.
    #[error(
        "--devices simulated:{0}: there is no profile of this kind; give a file with one by --profiles"
    )]
    NoProfiles(DeviceKind),
}

impl DeviceChoice {
    /// Finds the chosen devices.
    ///
    /// # Errors
    /// If a source that was chosen by name has no devices.
    pub fn discover(&self, profiles: &ProfileTable) -> Result<Vec<Device>, DiscoverError> {
        let mut devices: Vec<Device> = Vec::new();
        for source in &self.0 {
            match source {
                Source::Auto => match nvidia::discover() {
                    Ok(gpus) if !gpus.is_empty() => devices.extend(gpus),
                    Ok(_) => devices.push(cpu::discover(None)),
                    Err(reason) => {
                        tracing::debug!(reason, "no NVIDIA driver");
                        devices.push(cpu::discover(None));
                    }
                },
                Source::Cpu { threads } => devices.push(cpu::discover(*threads)),
                Source::Nvidia => {
                    devices.extend(nvidia::discover().map_err(DiscoverError::Nvidia)?);
                }
                Source::Simulated { kind, count } => {
                    if profiles.iter().all(|(_, profiled, _)| profiled != kind) {
                        return Err(DiscoverError::NoProfiles(kind.clone()));
                    }
                    let first = devices
                        .iter()
                        .filter(|device| device.backend == Backend::Simulated)
                        .count();
                    devices.extend(simulated::devices(kind, first, *count));
                }
            }
        }
        Ok(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(choice: &str, profiles: &str) -> Result<Vec<String>, String> {
        let choice: DeviceChoice = choice
            .parse()
            .map_err(|e: DeviceChoiceError| e.to_string())?;
        let csv = format!("{}\n{profiles}", ProfileTable::CSV_HEADER);
        let devices = choice.discover(&ProfileTable::from_csv(&csv).unwrap());
        let devices = devices.map_err(|e| e.to_string())?;
        Ok(devices.into_iter().map(|device| device.name).collect())
    }

    #[test]
    fn devices_of_several_sources_have_distinct_names() {
        let profiles = "m,T4,1,,1,,,,,\nm,mine,1,,1,,,,,\n";
        assert_eq!(
            names("cpu,simulated:T4:2,simulated:mine:1", profiles).unwrap(),
            ["cpu0", "sim0", "sim1", "sim2"]
        );
    }

    #[test]
    fn an_impossible_choice_is_refused_with_advice() {
        for (choice, message) in [
            (
                "gpu",
                "\"gpu\" is not a device: expected auto, cpu, cpu:THREADS, nvidia or simulated:KIND:COUNT",
            ),
            ("cpu:0", "\"0\": expected 1 to 4096 threads"),
            ("cpu:two", "\"two\": expected 1 to 4096 threads"),
            (
                "cpu,cpu:1",
                "\"cpu:1\" cannot be combined with the devices before it",
            ),
            (
                "simulated:T4:0",
                "\"0\": expected 1 to 256 simulated devices",
            ),
            (
                "simulated:T4",
                "\"simulated:T4\" is not a device: expected auto, cpu, cpu:THREADS, nvidia or simulated:KIND:COUNT",
            ),
            (
                "cpu,auto",
                "\"auto\" cannot be combined with the devices before it",
            ),
            (
                "cpu,cpu",
                "\"cpu\" cannot be combined with the devices before it",
            ),
            (
                "simulated:T4:1",
                "--devices simulated:T4: there is no profile of this kind; give a file with one by --profiles",
            ),
        ] {
            assert_eq!(names(choice, "").unwrap_err(), message);
        }
    }

    #[test]
    fn a_cpu_offers_all_its_threads_or_as_many_as_told() {
        let threads = |choice: &str| {
            let choice: DeviceChoice = choice.parse().unwrap();
            let devices = choice.discover(&ProfileTable::default()).unwrap();
            devices[0].multiprocessors
        };
        let all = std::thread::available_parallelism().unwrap().get();
        assert_eq!(threads("cpu"), u32::try_from(all).ok());
        assert_eq!(threads("cpu:1"), Some(1));
    }

    #[test]
    fn as_many_models_as_threads_have_processes_of_their_own_but_at_least_eight() {
        let cpu = |threads| Device {
            name: "cpu0".to_owned(),
            kind: "cpu-x".parse().unwrap(),
            memory: ByteCount::new(1 << 30),
            multiprocessors: threads,
            description: String::new(),
            backend: Backend::Cpu,
        };
        for (threads, given, expected) in [
            (Some(2), None, 8),
            (Some(64), None, 64),
            (None, None, 8),
            (Some(64), Some(0), 0),
        ] {
            let pool = cpu(threads).report(given, false).pool.unwrap();
            assert_eq!(pool.own_workers, expected, "{threads:?} {given:?}");
        }
    }

    #[test]
    fn models_of_a_simulated_device_share_a_process_only_where_memory_is_short_and_those_of_a_gpu_where_they_may()
     {
        let device = |backend| Device {
            name: "sim0".to_owned(),
            kind: "T4".parse().unwrap(),
            memory: ByteCount::new(16 << 30),
            multiprocessors: Some(40),
            description: String::new(),
            backend,
        };
        let pool = device(Backend::Simulated)
            .report(Some(4), false)
            .pool
            .unwrap();
        assert_eq!(
            (pool.process, pool.own_workers),
            (ByteCount::new(0), u32::MAX)
        );
        assert_eq!(device(Backend::Cuda).report(None, false).pool, None);
        let pool = device(Backend::Cuda).report(None, true).pool.unwrap();
        assert_eq!((pool.process, pool.own_workers), (CUDA_CONTEXT, u32::MAX));
    }

    #[test]
    fn every_device_can_be_reported_and_named_in_a_plan() {
        let devices = "auto"
            .parse::<DeviceChoice>()
            .unwrap()
            .discover(&ProfileTable::default());
        for device in devices.unwrap() {
            let id = packhorse_cluster::DeviceId::new("n".parse().unwrap(), &device.name);
            assert_eq!(id.unwrap().local(), device.report(None, false).name);
            assert!(device.memory > ByteCount::ZERO);
        }
    }
}
