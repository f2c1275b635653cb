//! The gateway's half of fencing: when it has to raise its epoch before it grants a lease.
//!
//! Every start of a gateway takes an epoch above those of earlier starts from its store, and an agent obeys nothing of an older
//! epoch than it has seen. A store that is restored from a backup gives an epoch that agents have already seen from a gateway that
//! wrote more: they would ignore this one, or take its revisions for old ones. Therefore an agent says with its lease request which
//! cluster it obeys and the highest epoch it has seen there, and the gateway raises its own epoch above that. The agent's half is in
//! `reconcile`.

use std::{collections::BTreeMap, fmt};

use packhorse_cluster::{ClusterId, NodeName};

/// The epoch of a running gateway, and the agents that have it from this gateway.
#[derive(Clone, Debug)]
pub struct EpochFence {
    cluster_id: ClusterId,
    epoch: u64,
    /// The agent's instance by node, for each node to which the present epoch was granted.
    granted: BTreeMap<NodeName, String>,
}

/// The part of a lease request that concerns epochs.
#[derive(Clone, Copy, Debug)]
pub struct EpochClaim<'a> {
    /// The node.
    pub node: &'a NodeName,
    /// The random identity of the agent's state folder.
    pub instance: &'a str,
    /// The cluster that the agent obeys; none before the first, and from an agent that does not say.
    pub cluster_id: Option<&'a ClusterId>,
    /// The highest epoch that the agent has seen in that cluster.
    pub highest_epoch: u64,
}

/// A claim that no agent of this cluster can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImplausibleEpoch {
    /// The claimed epoch.
    pub claimed: u64,
    /// The gateway's own epoch.
    pub own: u64,
}

impl fmt::Display for ImplausibleEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claimed, own } = self;
        write!(
            f,
            "{claimed} is implausibly far above this gateway's epoch {own}"
        )
    }
}

impl std::error::Error for ImplausibleEpoch {}

impl EpochFence {
    /// The largest number of epochs by which a claim may be above the gateway's own. Epochs count starts of gateways; a larger gap is an
    /// error or an attempt to use them up.
    pub const MAX_LEAD: u64 = 1 << 32;

    /// Creates the fence of a gateway that has just begun this epoch.
    pub fn new(cluster_id: ClusterId, epoch: u64) -> Self {
        Self {
            cluster_id,
            epoch,
            granted: BTreeMap::new(),
        }
    }

    /// Returns the identity of the gateway's store.
    pub fn cluster_id(&self) -> &ClusterId {
        &self.cluster_id
    }

    /// Returns the gateway's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the epoch that the gateway must at least have, durably, before it grants the lease; none if its present one will do.
    /// The caller stores it, then calls [`EpochFence::raise`].
    ///
    /// # Errors
    /// If the claim is implausible. The lease is not granted.
    pub fn required_epoch(&self, claim: EpochClaim<'_>) -> Result<Option<u64>, ImplausibleEpoch> {
        if claim.cluster_id != Some(&self.cluster_id) {
            // The epochs of another cluster have nothing to do with this one's.
            return Ok(None);
        }
        let claimed = claim.highest_epoch;
        if claimed > self.epoch.saturating_add(Self::MAX_LEAD) {
            let own = self.epoch;
            return Err(ImplausibleEpoch { claimed, own });
        }
        // The present epoch is known only to agents that have it from this gateway, unless an earlier gateway had it, too.
        let ours = self
            .granted
            .get(claim.node)
            .is_some_and(|instance| instance == claim.instance);
        let taken = claimed > self.epoch || (claimed == self.epoch && !ours);
        Ok(taken.then_some(claimed + 1))
    }

    /// Raises the epoch. Everything that is wanted of nodes must be published again with it.
    pub fn raise(&mut self, epoch: u64) {
        assert!(epoch > self.epoch, "an epoch is only ever raised");
        self.epoch = epoch;
        self.granted.clear();
    }

    /// Notes that an agent was granted the present epoch.
    pub fn granted(&mut self, node: &NodeName, instance: &str) {
        if self.granted.get(node).is_none_or(|held| held != instance) {
            self.granted.insert(node.clone(), instance.to_owned());
        }
    }

    /// Forgets a node that was removed.
    pub fn forget(&mut self, node: &NodeName) {
        self.granted.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster(text: &str) -> ClusterId {
        text.parse().unwrap()
    }

    fn node(number: u8) -> NodeName {
        format!("n{number}").parse().unwrap()
    }

    /// An agent as far as fencing is concerned.
    #[derive(Clone, Debug)]
    struct Agent {
        node: NodeName,
        instance: String,
        cluster: ClusterId,
        highest: u64,
    }

    impl Agent {
        fn new(number: u8) -> Self {
            Self {
                node: node(number),
                instance: format!("instance {number}"),
                cluster: cluster("a"),
                highest: 0,
            }
        }

        fn claim(&self) -> EpochClaim<'_> {
            EpochClaim {
                node: &self.node,
                instance: &self.instance,
                cluster_id: Some(&self.cluster),
                highest_epoch: self.highest,
            }
        }

        /// Takes the lease, as the gateway's owner does it. Returns true if the epoch was raised.
        fn lease(&mut self, gateway: &mut EpochFence) -> bool {
            let required = gateway.required_epoch(self.claim()).unwrap();
            if let Some(epoch) = required {
                gateway.raise(epoch);
            }
            gateway.granted(&self.node, &self.instance);
            self.highest = self.highest.max(gateway.epoch());
            required.is_some()
        }
    }

    #[test]
    fn renewals_and_ordinary_restarts_raise_nothing() {
        let mut agent = Agent::new(0);
        for epoch in 1..4 {
            let mut gateway = EpochFence::new(cluster("a"), epoch);
            for _ in 0..3 {
                assert!(!agent.lease(&mut gateway));
                assert_eq!(agent.highest, epoch);
            }
        }
    }

    #[test]
    fn a_restored_backup_raises_its_epoch_once_above_what_agents_have_seen() {
        let mut agents = [Agent::new(0), Agent::new(1)];
        for agent in &mut agents {
            agent.lease(&mut EpochFence::new(cluster("a"), 7));
        }
        for restored in 1..=7 {
            let mut gateway = EpochFence::new(cluster("a"), restored);
            let mut agents = agents.clone();
            assert!(agents[0].lease(&mut gateway));
            assert_eq!(gateway.epoch(), 8);
            assert!(!agents[1].lease(&mut gateway));
            assert!(!agents[0].lease(&mut gateway));
        }
    }

    #[test]
    fn claims_of_other_clusters_and_of_agents_that_make_none_change_nothing() {
        let gateway = EpochFence::new(cluster("b"), 1);
        let mut agent = Agent::new(0);
        agent.highest = 99;
        assert_eq!(gateway.required_epoch(agent.claim()), Ok(None));
        let none = EpochClaim {
            cluster_id: None,
            ..agent.claim()
        };
        assert_eq!(gateway.required_epoch(none), Ok(None));
    }

    #[test]
    fn a_claim_that_would_use_up_the_epochs_is_refused() {
        let gateway = EpochFence::new(cluster("a"), 1);
        let mut agent = Agent::new(0);
        agent.highest = 1 + EpochFence::MAX_LEAD;
        assert!(gateway.required_epoch(agent.claim()).is_ok());
        for claimed in [2 + EpochFence::MAX_LEAD, u64::MAX] {
            agent.highest = claimed;
            let error = ImplausibleEpoch { claimed, own: 1 };
            assert_eq!(gateway.required_epoch(agent.claim()), Err(error));
        }
    }

    proptest! {
        /// After any history of restarts, restored backups and renewals, an agent that has just got its lease has seen no epoch from
        /// another gateway that is as high as the present one.
        #[test]
        fn a_granted_epoch_is_above_all_that_other_gateways_gave(
            steps in prop::collection::vec((0_u8..4, 0_u8..3, 0_u64..6), 1..60),
        ) {
            let mut store = 1;
            let mut gateway = EpochFence::new(cluster("a"), store);
            let mut agents: Vec<Agent> = (0..3).map(Agent::new).collect();
            // The highest epoch that each agent had when this gateway started.
            let mut before = [0; 3];
            for (step, agent, back) in steps {
                if step == 0 {
                    // A restart, with the store of some epochs ago.
                    store = store.saturating_sub(back) + 1;
                    gateway = EpochFence::new(cluster("a"), store);
                    before = [agents[0].highest, agents[1].highest, agents[2].highest];
                } else {
                    let i = usize::from(agent);
                    agents[i].lease(&mut gateway);
                    store = gateway.epoch();
                    prop_assert!(gateway.epoch() > before[i]);
                    prop_assert_eq!(agents[i].highest, gateway.epoch());
                }
            }
        }
    }
}
