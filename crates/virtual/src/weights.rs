//! The weights of the members of pools, which are copied from the memory of a node to a device, one model after the other.

use packhorse_serving::{Event as EngineEvent, ReplicaKey};

use crate::{
    cluster::Cluster, environment::Environment, events::RareEvent, network::ConnectionKey,
};

impl<E: Environment> Cluster<E> {
    /// Has the weights of a replica copied to its device, as the engine wants.
    pub(crate) fn load_weights(&mut self, replica: ReplicaKey) {
        let Some((key, load)) = self.pool_connection(replica) else {
            return;
        };
        let connection = &self.network.connections[key.0 as usize];
        let (place, model) = (connection.place, connection.model);
        let node = &mut self.nodes[connection.node as usize];
        let hardware = node.hardware_mut(place);
        hardware.copied = hardware.copied.max(self.now) + load;
        let after = hardware.copied.saturating_since(self.now);
        self.environment.weights_loaded(self.now, model);
        self.schedule(after, RareEvent::WeightsLoaded(key));
    }

    /// Takes note of weights that leave a device. They stay in the memory of the node.
    pub(crate) fn unload_weights(&mut self, replica: ReplicaKey) {
        let Some((key, _)) = self.pool_connection(replica) else {
            return;
        };
        let model = self.network.connections[key.0 as usize].model;
        self.environment.weights_evicted(self.now, model);
    }

    /// Tells the engine that weights are there, unless the connection has ended.
    pub(crate) fn weights_loaded(&mut self, key: ConnectionKey) {
        let connection = &self.network.connections[key.0 as usize];
        let replica = connection.replica;
        if let Some(gateway) = self.gateway.as_mut().filter(|_| connection.is_open) {
            let loaded = EngineEvent::WeightsLoaded { replica };
            gateway.data_plane.engine.handle(self.now, loaded);
        }
    }

    /// Returns the open connection of a member of a pool, and the time to copy its weights.
    fn pool_connection(&self, replica: ReplicaKey) -> Option<(ConnectionKey, std::time::Duration)> {
        let links = &self.gateway.as_ref()?.data_plane.links;
        let pool = links.target(replica)?.replica.spec.pool?;
        Some((*links.batches(replica)?, pool.load))
    }
}
