//! The agent's half of fencing: which grants of a lease it obeys.
//!
//! The agent remembers, across its own restarts, the cluster that it obeys and the highest epoch that it has seen there. The
//! gateway's half is in `control`.

use packhorse_cluster::ClusterId;
use serde::{Deserialize, Serialize};

use crate::Event;

/// The cluster that an agent obeys, and the highest epoch that it has seen there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The cluster; none before the first that had an identity.
    pub cluster_id: Option<ClusterId>,
    /// The highest epoch.
    pub highest_epoch: u64,
}

/// The reason why a grant is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceError {
    /// The gateway is of another cluster, and has not proved that it may take the node over.
    Unproven,
    /// The gateway's epoch is older than one that the agent has seen.
    Older {
        /// The gateway's epoch.
        granted: u64,
        /// The highest epoch that the agent has seen.
        highest: u64,
    },
}

impl std::fmt::Display for FenceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unproven => write!(
                f,
                "the gateway is of another cluster and cannot prove that it may take this node over: gateway and agent have \
                 different link secrets or tokens"
            ),
            Self::Older { granted, highest } => write!(
                f,
                "the gateway's epoch {granted} is older than {highest}, which this agent has seen"
            ),
        }
    }
}

impl std::error::Error for FenceError {}

impl Fence {
    /// Returns the fence after a grant and the event for the reconciler. `proven` is true if the grant has a valid proof for its
    /// cluster, which the first one does not need. A grant without a cluster is that of a gateway that has no identity yet.
    ///
    /// # Errors
    /// If the grant is not to be obeyed.
    pub fn grant(
        &self,
        cluster_id: Option<&ClusterId>,
        epoch: u64,
        proven: bool,
    ) -> Result<(Self, Event), FenceError> {
        let granted = Self {
            cluster_id: cluster_id.cloned(),
            highest_epoch: epoch,
        };
        match (cluster_id, &self.cluster_id) {
            // The first cluster with an identity is the one that the agent was pointed at, unless it has already seen a later epoch.
            (Some(_), None) if epoch >= self.highest_epoch => {
                Ok((granted, Event::Leased { epoch }))
            }
            (Some(theirs), ours) if ours.as_ref() != Some(theirs) => {
                if proven {
                    Ok((granted, Event::ClusterChanged { epoch }))
                } else {
                    Err(FenceError::Unproven)
                }
            }
            _ if epoch < self.highest_epoch => Err(FenceError::Older {
                granted: epoch,
                highest: self.highest_epoch,
            }),
            (_, ours) => {
                let cluster_id = ours.clone();
                let fence = Self {
                    cluster_id,
                    ..granted
                };
                Ok((fence, Event::Leased { epoch }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ClusterId {
        text.parse().unwrap()
    }

    fn fence(cluster: &str, highest_epoch: u64) -> Fence {
        Fence {
            cluster_id: Some(id(cluster)),
            highest_epoch,
        }
    }

    #[test]
    fn the_own_cluster_is_obeyed_unless_its_epoch_is_older() {
        let ours = fence("a", 7);
        for epoch in [7, 8] {
            let granted = ours.grant(Some(&id("a")), epoch, false);
            assert_eq!(granted, Ok((fence("a", epoch), Event::Leased { epoch })));
        }
        let older = FenceError::Older {
            granted: 6,
            highest: 7,
        };
        assert_eq!(ours.grant(Some(&id("a")), 6, true), Err(older));
    }

    #[test]
    fn another_cluster_is_obeyed_from_any_epoch_on_if_it_proves_that_it_may() {
        // The second has obeyed a gateway without an identity.
        let nameless = Fence {
            cluster_id: None,
            highest_epoch: 7,
        };
        for ours in [fence("a", 7), nameless] {
            let unproven = ours.grant(Some(&id("b")), 1, false);
            assert_eq!(unproven, Err(FenceError::Unproven));
            let proven = ours.grant(Some(&id("b")), 1, true);
            let event = Event::ClusterChanged { epoch: 1 };
            assert_eq!(proven, Ok((fence("b", 1), event)));
        }
    }

    #[test]
    fn the_first_cluster_is_the_one_that_the_agent_was_pointed_at() {
        let granted = Fence::default().grant(Some(&id("a")), 3, false);
        assert_eq!(granted, Ok((fence("a", 3), Event::Leased { epoch: 3 })));
    }

    #[test]
    fn a_gateway_without_an_identity_is_obeyed_by_its_epoch_alone() {
        let ours = fence("a", 7);
        let event = Event::Leased { epoch: 9 };
        assert_eq!(ours.grant(None, 9, false), Ok((fence("a", 9), event)));
        assert!(ours.grant(None, 6, false).is_err());
    }
}
