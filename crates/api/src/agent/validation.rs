//! The checks of an agent's messages, which the gateway makes before anything else sees them.

use std::{collections::BTreeSet, net::SocketAddr};

use packhorse_cluster::{
    Capacity, ProfileProgress, Program, ReplicaState, ReplicaStatus, Verification,
};

use super::{AgentStatus, GpuStatus, LeaseRequest, ProtocolRange};

/// The most bytes of a Unix socket's path: what Linux takes.
const MAX_LOCAL_PATH: usize = 107;

/// A field of a message that is out of its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// The path of the field, such as `replicas[3].capacity.batch_size`.
    pub field: String,
    /// The violated limit.
    pub problem: String,
}

impl std::fmt::Display for InvalidField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for InvalidField {}

/// Returns the error for a field.
fn invalid(field: impl Into<String>, problem: impl Into<String>) -> InvalidField {
    InvalidField {
        field: field.into(),
        problem: problem.into(),
    }
}

impl LeaseRequest {
    /// The largest number of characters of [`LeaseRequest::nonce`].
    pub const MAX_NONCE: usize = 128;

    /// Checks what gateway and agent must agree on before anything else.
    ///
    /// # Errors
    /// The first field that is out of its limits.
    pub fn validate(&self) -> Result<(), InvalidField> {
        if self
            .protocol
            .highest_common(ProtocolRange::SUPPORTED)
            .is_none()
        {
            let ours = ProtocolRange::SUPPORTED;
            let problem = format!(
                "the agent speaks version {}, this gateway {ours}; update the older one",
                self.protocol
            );
            return Err(invalid("protocol", problem));
        }
        let nonce = self.nonce.as_deref().unwrap_or("0");
        let hexadecimal = nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
        if nonce.is_empty() || nonce.len() > Self::MAX_NONCE || !hexadecimal {
            let max = Self::MAX_NONCE;
            return Err(invalid(
                "nonce",
                format!("expected 1 to {max} hexadecimal digits"),
            ));
        }
        Ok(())
    }
}

impl AgentStatus {
    /// The largest number of batches in flight that a worker may report.
    pub const MAX_IN_FLIGHT: u32 = 1024;

    /// Checks that every field has a value that a working agent can report. The numbers of entries are limited where the message is
    /// received.
    ///
    /// # Errors
    /// The first field that is out of its limits.
    pub fn validate(&self) -> Result<(), InvalidField> {
        let mut replicas = BTreeSet::new();
        for (i, replica) in self.replicas.iter().enumerate() {
            if !replicas.insert(replica.id) {
                let problem = format!("replica {} appears twice", replica.id);
                return Err(invalid(format!("replicas[{i}].id"), problem));
            }
            check_replica(replica)
                .map_err(|e| invalid(format!("replicas[{i}].{}", e.field), e.problem))?;
        }
        let mut profiles = BTreeSet::new();
        for (i, profile) in self.profiles.iter().enumerate() {
            if !profiles.insert((&profile.model, &profile.device_kind)) {
                let problem = format!("the measurement of {} appears twice", profile.model);
                return Err(invalid(format!("profiles[{i}]"), problem));
            }
            if profile.done > profile.total {
                let problem = format!("expected at most total, which is {}", profile.total);
                return Err(invalid(format!("profiles[{i}].done"), problem));
            }
            check_operators(profile.operators.as_deref())
                .map_err(|problem| invalid(format!("profiles[{i}].operators"), problem))?;
        }
        let mut inspections = BTreeSet::new();
        for (i, inspection) in self.inspections.iter().flatten().enumerate() {
            if !inspections.insert(&inspection.model) {
                let problem = format!("the inspection of {} appears twice", inspection.model);
                return Err(invalid(format!("inspections[{i}]"), problem));
            }
            check_operators(inspection.operators.as_deref())
                .map_err(|problem| invalid(format!("inspections[{i}].operators"), problem))?;
        }
        let mut gpus = BTreeSet::new();
        for (i, gpu) in self.gpus.iter().enumerate() {
            if !gpus.insert(&gpu.device) {
                let problem = format!("device {:?} appears twice", gpu.device);
                return Err(invalid(format!("gpus[{i}].device"), problem));
            }
            check_gpu(gpu).map_err(|e| invalid(format!("gpus[{i}].{}", e.field), e.problem))?;
        }
        Ok(())
    }
}

fn check_operators(operators: Option<&str>) -> Result<(), String> {
    let max = ProfileProgress::MAX_OPERATORS_BYTES;
    match operators.map_or(0, str::len) {
        bytes if bytes > max => Err(format!("expected at most {max} bytes, got {bytes}")),
        _ => Ok(()),
    }
}

fn check_replica(replica: &ReplicaStatus) -> Result<(), InvalidField> {
    match replica.address {
        Some(address) => check_address(address)?,
        None if replica.state == ReplicaState::Ready => {
            return Err(invalid("address", "a ready replica has an address"));
        }
        None => {}
    }
    if let Some(path) = &replica.local_path {
        check_local_path(path)?;
    }
    if replica.pid == Some(0) {
        return Err(invalid("pid", "expected a process id"));
    }
    if let Some(verification) = &replica.verification {
        check_verification(verification)?;
    }
    replica.capacity.as_ref().map_or(Ok(()), check_capacity)
}

fn check_verification(verification: &Verification) -> Result<(), InvalidField> {
    let max = Verification::MAX_DROPPED;
    let count = verification.dropped.len();
    if count > max {
        let problem = format!("expected at most {max} rewritings, got {count}");
        return Err(invalid("verification.dropped", problem));
    }
    let max = Verification::MAX_TEXT;
    let check = |field: &str, text: &str| match text.len() {
        bytes if bytes > max => {
            let problem = format!("expected at most {max} bytes, got {bytes}");
            Err(invalid(format!("verification.{field}"), problem))
        }
        _ => Ok(()),
    };
    check(
        "not_compared",
        verification.not_compared.as_deref().unwrap_or_default(),
    )?;
    for dropped in &verification.dropped {
        check("dropped.rewriting", &dropped.rewriting)?;
        check("dropped.reason", &dropped.reason)?;
    }
    Ok(())
}

fn check_address(address: SocketAddr) -> Result<(), InvalidField> {
    let ip = address.ip();
    if address.port() == 0 {
        return Err(invalid("address", format!("{address} has port 0")));
    }
    if ip.is_unspecified() || ip.is_multicast() {
        let problem = format!("{address} is not the address of one machine");
        return Err(invalid("address", problem));
    }
    Ok(())
}

/// Checks that the gateway may connect to the path. Its owner is looked at when it connects.
fn check_local_path(path: &str) -> Result<(), InvalidField> {
    let is_worker = path.starts_with('/') && path.ends_with("/link.sock");
    if is_worker && path.len() <= MAX_LOCAL_PATH {
        return Ok(());
    }
    let problem = format!(
        "expected an absolute path of at most {MAX_LOCAL_PATH} bytes that ends in /link.sock"
    );
    Err(invalid("local_path", problem))
}

fn check_capacity(capacity: &Capacity) -> Result<(), InvalidField> {
    let within = |field: &str, value: u32, max: u32| {
        let problem = || format!("expected 1 to {max}, got {value}");
        if (1..=max).contains(&value) {
            Ok(())
        } else {
            Err(invalid(format!("capacity.{field}"), problem()))
        }
    };
    within("batch_size", capacity.batch_size, Program::MAX_BATCH_SIZE)?;
    within("in_flight", capacity.in_flight, AgentStatus::MAX_IN_FLIGHT)?;
    within(
        "multiprocessors",
        capacity.multiprocessors.unwrap_or(1),
        u32::MAX,
    )
}

fn check_gpu(gpu: &GpuStatus) -> Result<(), InvalidField> {
    for (field, value) in [
        ("utilization_pct", gpu.utilization_pct),
        ("power_watts", gpu.power_watts),
        ("power_limit_watts", gpu.power_limit_watts),
        ("energy_joules", gpu.energy_joules),
    ] {
        if value.is_some_and(|value| !value.is_finite() || value < 0.0) {
            return Err(invalid(field, "expected a number that is not negative"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
