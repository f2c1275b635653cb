//! The weights of the members of pools, which are copied from the memory of a node to a device, one model after the other. Where that memory has a limit, the
//! weights that were used least recently leave it, and are read from the node's disk.

use std::time::Duration;

use packhorse_cluster::PoolPlace;
use packhorse_reconcile::{WarmProgram, leaving};
use packhorse_serving::{Event as EngineEvent, ReplicaKey};

use crate::{
    cluster::Cluster, environment::Environment, events::RareEvent, network::ConnectionKey,
    shelf::Shelf,
};

impl<E: Environment> Cluster<E> {
    /// Takes note of a new connection, whose weights are in memory if they are not on the device.
    pub(crate) fn weights_connected(&mut self, key: ConnectionKey) {
        let replica = self.network.connections[key.0 as usize].replica;
        if let Some((_, pool)) = self.pool_connection(replica)
            && pool.resident_bytes().is_none()
        {
            self.warm(key, pool);
        }
    }

    /// Has the weights of a replica brought to its device, as the engine wants.
    pub(crate) fn load_weights(&mut self, replica: ReplicaKey) {
        let Some((key, pool)) = self.pool_connection(replica) else {
            return;
        };
        let read = self.settings.disk.map(|disk| disk.load);
        let held = self.shelf(key);
        // What is being copied is in use, and leaves memory for no other.
        held.warm.remove(&key);
        let from_disk = read.filter(|_| held.cold.contains(&key));
        let connection = &self.network.connections[key.0 as usize];
        let (place, model) = (connection.place, connection.model);
        let node = &mut self.nodes[connection.node as usize];
        let hardware = node.hardware_mut(place);
        let (lane, load) = match from_disk {
            Some(load) => (&mut hardware.read, load),
            None => (&mut hardware.copied, pool.load),
        };
        *lane = (*lane).max(self.now) + load;
        let after = lane.saturating_since(self.now);
        self.environment.weights_loaded(self.now, model);
        self.schedule(after, RareEvent::WeightsLoaded(key));
    }

    /// Takes note of weights that leave a device. They stay in the memory of the node, from which others may leave for them, but not those that are wanted on
    /// the device.
    pub(crate) fn unload_weights(&mut self, replica: ReplicaKey, wanted: Option<ReplicaKey>) {
        if let Some((wanted, _)) = wanted.and_then(|wanted| self.pool_connection(wanted)) {
            self.shelf(wanted).warm.remove(&wanted);
        }
        let Some((key, pool)) = self.pool_connection(replica) else {
            return;
        };
        let model = self.network.connections[key.0 as usize].model;
        self.environment.weights_evicted(self.now, model);
        self.warm(key, pool);
    }

    /// Tells the engine that weights are there, unless the connection has ended.
    pub(crate) fn weights_loaded(&mut self, key: ConnectionKey) {
        let was_cold = self.shelf(key).remove(key);
        let replica = self.network.connections[key.0 as usize].replica;
        if was_cold && let Some((_, pool)) = self.pool_connection(replica) {
            self.tell_of_weights(key, |replica| EngineEvent::WeightsStored {
                replica,
                on_disk: false,
                load: pool.load,
            });
        }
        self.tell_of_weights(key, |replica| EngineEvent::WeightsLoaded { replica });
    }

    /// Tells the engine that weights are on a node's disk only, if they still are.
    pub(crate) fn weights_cooled(&mut self, key: ConnectionKey) {
        let load = self.settings.disk.map(|disk| disk.load);
        if let Some(load) = load.filter(|_| self.shelf(key).cold.contains(&key)) {
            self.tell_of_weights(key, |replica| EngineEvent::WeightsStored {
                replica,
                on_disk: true,
                load,
            });
        }
    }

    /// Puts weights into the memory of their node, from which others leave for them where it is limited.
    fn warm(&mut self, key: ConnectionKey, pool: PoolPlace) {
        let Some(disk) = self.settings.disk else {
            return;
        };
        let now = self.now.as_nanos();
        let connections = &self.network.connections;
        let connection = &connections[key.0 as usize];
        let device = (connection.node, connection.place.device);
        let held = self.shelves.entry(device).or_default();
        let is_open = |key: &ConnectionKey| connections[key.0 as usize].is_open;
        held.warm.retain(|key, _| is_open(key));
        held.cold.retain(is_open);
        held.warm.insert(key, (now, pool.weights.as_u64()));
        let warm = held.warm.iter().map(|(key, (used, bytes))| WarmProgram {
            key: *key,
            used: *used,
            bytes: *bytes,
            is_idle: true,
        });
        let cooled = leaving(warm.collect(), disk.host_memory);
        for key in &cooled {
            held.warm.remove(key);
            held.cold.insert(*key);
        }
        let bytes: u64 = held.warm.values().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= disk.host_memory, "{bytes} bytes are warm");
        for key in cooled {
            self.schedule(Duration::ZERO, RareEvent::WeightsCooled(key));
        }
    }

    fn shelf(&mut self, key: ConnectionKey) -> &mut Shelf {
        let connection = &self.network.connections[key.0 as usize];
        let device = (connection.node, connection.place.device);
        self.shelves.entry(device).or_default()
    }

    fn tell_of_weights(
        &mut self,
        key: ConnectionKey,
        event: impl FnOnce(ReplicaKey) -> EngineEvent,
    ) {
        let connection = &self.network.connections[key.0 as usize];
        let replica = connection.replica;
        if let Some(gateway) = self.gateway.as_mut().filter(|_| connection.is_open) {
            gateway.data_plane.engine.handle(self.now, event(replica));
        }
    }

    /// Returns the open connection of a member of a pool, and its place there.
    fn pool_connection(&self, replica: ReplicaKey) -> Option<(ConnectionKey, PoolPlace)> {
        let links = &self.gateway.as_ref()?.data_plane.links;
        let pool = links.target(replica)?.replica.spec.pool?;
        Some((*links.batches(replica)?, pool))
    }
}
