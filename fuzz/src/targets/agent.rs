//! The messages of agents, as the gateway reads them.

use packhorse_api::agent::{AgentStatus, LeaseRequest};
use serde::{Serialize, de::DeserializeOwned};

/// The status of a node.
pub(crate) fn status(input: &[u8]) {
    if let Some(status) = read::<AgentStatus>(input)
        && status.validate().is_ok()
    {
        for replica in &status.replicas {
            assert!(replica.address.is_none_or(|address| address.port() != 0));
            assert!(
                replica
                    .capacity
                    .is_none_or(|capacity| capacity.batch_size > 0)
            );
        }
    }
}

/// The request of a lease.
pub(crate) fn lease(input: &[u8]) {
    if let Some(lease) = read::<LeaseRequest>(input)
        && lease.validate().is_ok()
    {
        let nonce = lease.nonce.unwrap_or_default();
        assert!(nonce.len() <= LeaseRequest::MAX_NONCE);
    }
}

/// Reads a message. One that is accepted is read again as it is written.
fn read<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(input: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(input).ok()?;
    let written = serde_json::to_string(&message).expect("a message can be written");
    let again: T = serde_json::from_str(&written).expect("a written message can be read");
    assert_eq!(again, message);
    Some(message)
}
