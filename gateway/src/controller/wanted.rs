//! The answers to agents that ask for the wanted state of their node.

use packhorse_cluster::NodeName;

/// The reason why a node does not get its wanted state.
#[derive(Debug, thiserror::Error)]
pub enum WantedError {
    /// No agent holds the lease.
    #[error("no agent holds the lease of node {0}; take the lease first")]
    NotHeld(NodeName),
    /// The agent has not reported its status yet.
    #[error("the node has not reported its status yet; report the status first")]
    NotReported,
}
