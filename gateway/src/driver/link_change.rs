//! The changes of the data plane's links, which the control plane follows.

use packhorse_cluster::ReplicaId;
use packhorse_control::LinkState;

/// The link to a replica, and its state; none once the data plane no longer has the replica.
pub type LinkChange = (ReplicaId, Option<LinkState>);
