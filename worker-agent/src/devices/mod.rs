//! What the node has to run replicas on: NVIDIA GPUs, the CPU, or simulated devices. One file per source.

mod cpu;
mod nvidia;
mod simulated;

pub use nvidia::Monitor;

use std::str::FromStr;

use packhorse_api::agent::DeviceReport;
use packhorse_cluster::{ByteCount, DeviceKind, IdError, ProfileTable};

/// A device of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name within the node: an NVIDIA UUID, `cpu0`, `sim0`.
    pub name: String,
    /// What it is, as profiles know it.
    pub kind: DeviceKind,
    /// Memory that replicas may use.
    pub memory: ByteCount,
    /// Streaming multiprocessors of a GPU, threads of a CPU.
    pub multiprocessors: Option<u32>,
    /// What the driver or operating system calls it.
    pub description: String,
    /// What runs programs on it.
    pub backend: Backend,
}

/// What runs programs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// libtorch on the CPU.
    Cpu,
    /// libtorch on an NVIDIA GPU, known by the device's name.
    Cuda,
    /// A clock that follows the profiles.
    Simulated,
}

impl Device {
    /// As the gateway is told of it.
    pub fn report(&self) -> DeviceReport {
        DeviceReport {
            name: self.name.clone(),
            kind: self.kind.clone(),
            memory_bytes: self.memory,
            multiprocessors: self.multiprocessors,
            description: self.description.clone(),
        }
    }
}

/// Which devices to announce: `auto`, `cpu`, `nvidia`, or `simulated:KIND:COUNT`, several separated by commas.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceChoice(Vec<Source>);

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Auto,
    Cpu,
    Nvidia,
    Simulated { kind: DeviceKind, count: u32 },
}

/// The most simulated devices of one kind.
const MAX_SIMULATED: u32 = 256;

/// A text that chooses no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceChoiceError {
    /// It names no source of devices.
    #[error("{0:?} is no device: expected auto, cpu, nvidia or simulated:KIND:COUNT")]
    Unknown(String),
    /// The kind is no name.
    #[error(transparent)]
    Kind(#[from] IdError),
    /// No, or absurdly many devices.
    #[error("{0:?}: expected 1 to {MAX_SIMULATED} simulated devices")]
    Count(String),
    /// A source is named twice, or `auto` beside another.
    #[error("{0:?} cannot stand beside the devices before it")]
    Twice(String),
}

impl FromStr for Source {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<Self, DeviceChoiceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "nvidia" => Ok(Self::Nvidia),
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
                (Source::Auto, _) | (_, Source::Auto) => true,
                (Source::Simulated { kind: a, .. }, Source::Simulated { kind: b, .. }) => a == b,
                (a, b) => a == b,
            };
            if sources.iter().any(clashes) {
                return Err(DeviceChoiceError::Twice(part.trim().to_owned()));
            }
            sources.push(source);
        }
        Ok(Self(sources))
    }
}

/// Why the chosen devices are not there.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// There is no NVIDIA driver, or it does not answer.
    #[error("--devices nvidia: the NVIDIA driver does not answer: {0}")]
    Nvidia(String),
    /// A simulated device follows profiles.
    #[error(
        "--devices simulated:{0}: there is no profile of that kind; give a file that has one with --profiles"
    )]
    NoProfiles(DeviceKind),
}

impl DeviceChoice {
    /// Looks for the chosen devices.
    ///
    /// # Errors
    /// If one that was asked for by name is not there.
    pub fn discover(&self, profiles: &ProfileTable) -> Result<Vec<Device>, DiscoverError> {
        let mut devices: Vec<Device> = Vec::new();
        for source in &self.0 {
            match source {
                Source::Auto => match nvidia::discover() {
                    Ok(gpus) if !gpus.is_empty() => devices.extend(gpus),
                    Ok(_) => devices.push(cpu::discover()),
                    Err(reason) => {
                        tracing::debug!(reason, "no NVIDIA driver");
                        devices.push(cpu::discover());
                    }
                },
                Source::Cpu => devices.push(cpu::discover()),
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
    fn a_choice_that_cannot_be_met_says_what_to_do() {
        for (choice, message) in [
            (
                "gpu",
                "\"gpu\" is no device: expected auto, cpu, nvidia or simulated:KIND:COUNT",
            ),
            (
                "simulated:T4:0",
                "\"0\": expected 1 to 256 simulated devices",
            ),
            (
                "simulated:T4",
                "\"simulated:T4\" is no device: expected auto, cpu, nvidia or simulated:KIND:COUNT",
            ),
            (
                "cpu,auto",
                "\"auto\" cannot stand beside the devices before it",
            ),
            (
                "cpu,cpu",
                "\"cpu\" cannot stand beside the devices before it",
            ),
            (
                "simulated:T4:1",
                "--devices simulated:T4: there is no profile of that kind; give a file that has one with --profiles",
            ),
        ] {
            assert_eq!(names(choice, "").unwrap_err(), message);
        }
    }

    #[test]
    fn every_device_can_be_reported_and_named_in_a_plan() {
        let devices = "auto"
            .parse::<DeviceChoice>()
            .unwrap()
            .discover(&ProfileTable::default());
        for device in devices.unwrap() {
            let id = packhorse_cluster::DeviceId::new("n".parse().unwrap(), &device.name);
            assert_eq!(id.unwrap().local(), device.report().name);
            assert!(device.memory > ByteCount::ZERO);
        }
    }
}
