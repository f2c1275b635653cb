//! The way of batches between the gateway and worker processes.
//!
//! A batch is transmitted on the link of its device, after those before it, and takes the delay of its node. A message that cannot arrive waits until
//! the network works again, and those behind it with it; the gateway gives a connection up on which nothing was acknowledged for a time.

use std::collections::BTreeSet;

use packhorse_cluster::{Discipline, NodeName};
use packhorse_contention::{CompletedBatch, QueuedBatch};
use packhorse_control::{MissCause, RequestStage};
use packhorse_reconcile::{ExitCause, TaskId};
use packhorse_serving::{BatchError, BatchKey, Event as EngineEvent, ReplicaKey, RequestKey};

use crate::{
    cluster::Cluster,
    data_plane::SocketChange,
    environment::{AnsweredBatch, AnsweredRequest, Environment, LostBatch, SentBatch},
    events::{Event, RareEvent},
    network::{Batch, Connection, ConnectionKey, Message, Socket},
    node::{HeldBatch, Later, Node, Place},
};

impl<E: Environment> Cluster<E> {
    // The gateway's side.

    /// Has a link connect, or its connection closed.
    pub(crate) fn change_socket(&mut self, start: u64, change: SocketChange) {
        match change {
            SocketChange::Connect(key, target) => {
                let socket = Socket {
                    target: *target,
                    attempt: 0,
                    is_refused: false,
                    connection: None,
                };
                self.network.sockets.insert(key, socket);
                let connects = RareEvent::Connects(start, key, 0);
                self.schedule(self.settings.connect, connects);
            }
            SocketChange::Close(key) => {
                let socket = self.network.sockets.remove(&key);
                if let Some(connection) = socket.and_then(|socket| socket.connection) {
                    self.close(connection);
                }
            }
        }
    }

    /// Connects to a worker, or tries again later.
    pub(crate) fn connects(&mut self, start: u64, key: ReplicaKey, attempt: u64) {
        let now = self.now;
        let Some(gateway) = self.gateway.as_mut().filter(|g| g.start == start) else {
            return;
        };
        let Some(socket) = self.network.sockets.get_mut(&key) else {
            return;
        };
        if socket.attempt != attempt || socket.connection.is_some() {
            return;
        }
        let id = socket.target.replica.id;
        let spec = &socket.target.replica.spec;
        let node = self.nodes.index(spec.device.node());
        let reached = node.and_then(|index| {
            let node = &self.nodes[index];
            let connects = node.hears() && node.speaks();
            let worker = node
                .listens(now, id, socket.target.address)
                .filter(|_| connects)?;
            Some((index, worker))
        });
        let Some((node, (worker, _, place))) = reached else {
            // Its state says so already from the second time on.
            if !std::mem::replace(&mut socket.is_refused, true) {
                gateway.data_plane.disconnected(now, key, "refused");
            }
            let again = RareEvent::Connects(start, key, attempt);
            self.schedule(self.settings.reconnect, again);
            return;
        };
        let number = u32::try_from(self.network.connections.len()).expect("connections are few");
        let connection = ConnectionKey(number);
        socket.connection = Some(connection);
        let model = self.clients.index(&spec.model.model);
        self.network.connections.push(Connection {
            replica: key,
            model,
            node: u32::try_from(node).expect("nodes are few"),
            place,
            worker,
            is_open: true,
            is_closing: false,
            used_credits: 0,
            free_since: now,
            to_worker: now,
            to_gateway: now,
            stalled: Vec::new(),
        });
        self.clients.served(model);
        gateway.data_plane.connected(now, key, connection);
        self.weights_connected(connection);
    }

    /// Ends a connection, with the batches on it.
    fn close(&mut self, key: ConnectionKey) {
        let connection = &mut self.network.connections[key.0 as usize];
        if !std::mem::replace(&mut connection.is_open, false) {
            return;
        }
        connection.stalled = Vec::new();
        if connection.used_credits == 0 {
            return;
        }
        let device = self.nodes[connection.node as usize].number_of(connection.place);
        for (number, batch) in self.network.batches.numbered_mut() {
            if batch.connection == Some(key) && !batch.ended {
                batch.ended = true;
                let lost = LostBatch {
                    number,
                    model: connection.model,
                    replica: connection.replica.0 as usize,
                    device,
                    requests: batch.requests.len(),
                    dispatched: batch.dispatched,
                };
                self.environment.batch_lost(self.now, &lost);
            }
        }
        self.network.batches.remove_ended(|batch| batch.ended);
    }

    /// Ends a connection at the gateway, which makes another one.
    fn lose(&mut self, key: ConnectionKey, reason: &str) {
        let connection = self.network.connection(key);
        if !connection.is_open {
            return;
        }
        let replica = connection.replica;
        let (worker, node) = (
            &connection.worker,
            &self.nodes[connection.node as usize].name,
        );
        self.print(|| format!("the connection to {worker:?} on {node} is lost: {reason}"));
        self.close(key);
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let (now, start) = (self.now, gateway.start);
        if let Some(socket) = self.network.sockets.get_mut(&replica) {
            socket.connection = None;
            socket.is_refused = false;
            socket.attempt += 1;
            let connects = RareEvent::Connects(start, replica, socket.attempt);
            gateway.data_plane.disconnected(now, replica, reason);
            self.schedule(self.settings.reconnect, connects);
        }
    }

    /// Closes all connections of a gateway that has died.
    pub(crate) fn close_all(&mut self) {
        self.network.sockets.clear();
        for key in self.network.open(|_| true) {
            self.close(key);
        }
    }

    /// Gives up a worker that has not answered a batch.
    pub(crate) fn overdue(&mut self, number: u64) {
        if let Some((_, key)) = self.network.batch(number) {
            self.lose(key, "a batch was not answered");
        }
    }

    /// Gives a connection up whose messages have not arrived for long.
    pub(crate) fn gives_up(&mut self, key: ConnectionKey) {
        if !self.network.connection(key).stalled.is_empty() {
            self.lose(key, "nothing was acknowledged");
        }
    }

    /// Sends a batch on a connection. Without one it is lost, as the engine is about to learn.
    pub(crate) fn send_batch(
        &mut self,
        batch: BatchKey,
        key: Option<ConnectionKey>,
        requests: Vec<RequestKey>,
    ) {
        let now = self.now;
        let mut sent = Batch {
            connection: key,
            requests,
            free_since: now,
            dispatched: now,
            reached_worker: now,
            started: now,
            computed: now,
            failed: false,
            ended: key.is_none(),
        };
        if let Some(key) = key {
            let connection = &mut self.network.connections[key.0 as usize];
            connection.used_credits += 1;
            sent.free_since = connection.free_since;
            let count = SentBatch {
                model: connection.model,
                requests: sent.requests.len(),
            };
            self.environment.batch_sent(now, &count);
            let bytes = self.clients.model(connection.model).bytes as f64;
            let node = &mut self.nodes[connection.node as usize];
            let link_free = &mut node.hardware_mut(connection.place).link_free;
            let links = &self.settings.links;
            let there = links.send(now, link_free, bytes * sent.requests.len() as f64);
            let there = there + self.network.delay + self.random.delay(node.delay);
            // Without a queue, batches overtake each other as if each had a link of its own.
            if links.queues {
                connection.to_worker = connection.to_worker.max(there);
                sent.reached_worker = connection.to_worker;
            } else {
                sent.reached_worker = there;
            }
        }
        let reached_worker = sent.reached_worker;
        let number = self.network.batches.push(sent);
        let first = self.gateway.as_ref().map(|g| g.data_plane.first_batch);
        assert_eq!(
            first.map(|first| first + batch.0),
            Some(number),
            "an engine counts its batches from 0"
        );
        if key.is_some() {
            self.events
                .push(reached_worker, Event::BatchAtWorker(number));
            if let Some(limit) = self.settings.batch_limit {
                self.schedule(limit, RareEvent::Overdue(number));
            }
        }
    }

    // Between them.

    /// Sends a message to the gateway.
    fn send_message(&mut self, key: ConnectionKey, message: Message) {
        let node = self.network.connection(key).node as usize;
        let arrives = self.now + self.network.delay + self.random.delay(self.nodes[node].delay);
        let connection = self.network.connection_mut(key);
        connection.to_gateway = connection.to_gateway.max(arrives);
        let after = connection.to_gateway.saturating_since(self.now);
        self.schedule(after, RareEvent::Delivers(key, message));
    }

    /// Returns true if a message arrives now. Else it waits for the network, as the cluster has noted.
    fn message_arrives(&mut self, key: ConnectionKey, message: Message) -> bool {
        let connection = &mut self.network.connections[key.0 as usize];
        if !connection.is_open {
            return false;
        }
        let node = &self.nodes[connection.node as usize];
        let goes = if message.is_for_worker() {
            node.hears()
        } else {
            node.speaks()
        };
        let is_behind = |stalled: &Message| stalled.is_for_worker() == message.is_for_worker();
        if goes && !connection.stalled.iter().any(is_behind) {
            return true;
        }
        let is_first = connection.stalled.is_empty();
        connection.stalled.push(message);
        if is_first {
            self.schedule(self.settings.unacknowledged, RareEvent::GivesUp(key));
        }
        false
    }

    /// Delivers a message.
    pub(crate) fn deliver(&mut self, key: ConnectionKey, message: Message) {
        match message {
            Message::Batch(number) => self.batch_at_worker(number),
            Message::Answer(number) => self.batch_answered(number),
            Message::Draining | Message::Closed if !self.message_arrives(key, message) => {}
            Message::Closed => self.lose(key, "the worker closed the connection"),
            Message::Draining => {
                let replica = self.network.connection(key).replica;
                if let Some(gateway) = &mut self.gateway {
                    gateway.data_plane.worker_drains(self.now, replica);
                }
            }
        }
    }

    /// Changes the network of a node, and delivers what has waited for it.
    pub fn change_network(&mut self, name: &NodeName, change: impl FnOnce(&mut Node)) {
        let index = self.nodes.named(name);
        change(&mut self.nodes[index]);
        self.end_wait(index);
        let mut waited = Vec::new();
        for key in self.network.open(|open| open.node as usize == index) {
            let connection = self.network.connection_mut(key);
            let stalled = std::mem::take(&mut connection.stalled);
            waited.extend(stalled.into_iter().map(|message| (key, message)));
        }
        for (key, message) in waited {
            self.deliver(key, message);
        }
        self.drive();
    }

    /// Closes the connections to worker processes that have ended.
    pub(crate) fn close_ended(&mut self, node: usize) {
        let nodes = &self.nodes;
        let has_ended = |connection: &Connection| {
            let is_here = connection.node as usize == node && !connection.is_closing;
            is_here && nodes[node].lane(connection.place).worker.is_none()
        };
        for key in self.network.open(has_ended) {
            self.network.connection_mut(key).is_closing = true;
            self.send_message(key, Message::Closed);
        }
    }

    /// Tells the gateways of a worker that drains to send no more batches.
    pub(crate) fn tell_draining(&mut self, node: usize, worker: &TaskId) {
        let told = self
            .network
            .open(|open| open.node as usize == node && open.worker == *worker);
        for key in told {
            self.send_message(key, Message::Draining);
        }
    }

    // The workers' side.

    pub(crate) fn batch_at_worker(&mut self, number: u64) {
        let now = self.now;
        let Some((batch, key)) = self.network.batch(number) else {
            return;
        };
        let rows = batch.requests.len();
        if !self.message_arrives(key, Message::Batch(number)) {
            return;
        }
        let connection = &self.network.connections[key.0 as usize];
        let (index, place) = (connection.node, connection.place);
        let node = &mut self.nodes[index as usize];
        let lane = node.lane_mut(place);
        if lane.worker.is_none() {
            // Nobody reads it, and the connection is about to break.
            return;
        }
        if let Some(until) = lane.stopped_until(now) {
            self.events.push(until, Event::BatchAtWorker(number));
            return;
        }
        lane.held += 1;
        if let Some(batch) = self.network.batches.get_mut(number) {
            batch.reached_worker = now;
        }
        let (mut solo_time, demand) = lane.costs[rows - 1];
        if !self.slowdowns.is_empty() {
            let model = &self.clients.model(connection.model).id;
            solo_time = solo_time.mul_f64(self.slowdowns.get(model).copied().unwrap_or(1.0));
        }
        let solo_time = self.random.jittered(solo_time, self.settings.jitter);
        let queued = QueuedBatch {
            batch: HeldBatch {
                number,
                lane: place.lane,
            },
            solo_time,
            demand,
        };
        let device = &mut node.hardware_mut(place).shared;
        device.enqueue(now, place.lane as usize, queued);
        self.schedule_completion(index, place.device);
    }

    pub(crate) fn schedule_completion(&mut self, node: u32, device: u32) {
        let shared = &self.nodes[node as usize].hardware[device as usize].shared;
        if let Some((at, revision)) = shared.next_completion() {
            let completes = Event::DeviceCompletes {
                node,
                device,
                revision,
            };
            self.events.push(at, completes);
        }
    }

    pub(crate) fn device_completes(&mut self, index: u32, device: u32, revision: u64) {
        let now = self.now;
        let mut completed = std::mem::take(&mut self.network.completed);
        let node = &mut self.nodes[index as usize];
        let shared = &mut node.hardware[device as usize].shared;
        shared.complete(now, revision, &mut completed);
        if !completed.is_empty() {
            for done in completed.drain(..) {
                self.batch_computed(index, device, &done);
            }
            self.schedule_completion(index, device);
        }
        self.network.completed = completed;
    }

    pub(crate) fn batch_computed(
        &mut self,
        index: u32,
        device: u32,
        done: &CompletedBatch<HeldBatch>,
    ) {
        let now = self.now;
        let HeldBatch { number, lane } = done.batch;
        let node = &mut self.nodes[index as usize];
        let throws = node.behaviour.throws;
        let lane = node.lane_mut(Place { device, lane });
        let Some((id, pid)) = lane.worker.clone() else {
            return;
        };
        if let Some(until) = lane.stopped_until(now) {
            let resumes = RareEvent::WorkerResumes(index, device, *done);
            self.events.push(until, resumes.into());
            return;
        }
        lane.held -= 1;
        // The gateway may have closed the connection.
        let batch = self.network.batches.get_mut(number).filter(|b| !b.ended);
        let Some((batch, key)) = batch.and_then(|b| b.connection.map(|key| (b, key))) else {
            return;
        };
        (batch.started, batch.computed) = (done.started, now);
        batch.failed = throws;
        let has = |which: &BTreeSet<RequestKey>| {
            !which.is_empty() && batch.requests.iter().any(|request| which.contains(request))
        };
        if has(&self.clients.killers) {
            let exits = Later::WorkerExits(id, pid, ExitCause::Signal(11));
            let exits = RareEvent::Node(node.name.clone(), exits);
            self.events.push(now, exits.into());
            return;
        }
        batch.failed |= has(&self.clients.poison);
        let connection = &mut self.network.connections[key.0 as usize];
        let delay = self.settings.links.return_time + self.network.delay;
        let answered = now + delay + self.random.delay(node.delay);
        connection.to_gateway = connection.to_gateway.max(answered);
        self.events
            .push(connection.to_gateway, Event::BatchAnswered(number));
    }

    pub(crate) fn batch_answered(&mut self, number: u64) {
        let now = self.now;
        let Some((_, key)) = self.network.batch(number) else {
            return;
        };
        if !self.message_arrives(key, Message::Answer(number)) {
            return;
        }
        let (Some(gateway), Some(batch)) =
            (&mut self.gateway, self.network.batches.get_mut(number))
        else {
            return;
        };
        batch.ended = true;
        let connection = &mut self.network.connections[key.0 as usize];
        let replica = connection.replica;
        let plane = &mut gateway.data_plane;
        if self.settings.engine.discipline != Discipline::FixedWait
            && Some(connection.used_credits) >= plane.engine.credits(replica)
        {
            connection.free_since = now;
        }
        connection.used_credits -= 1;
        let engine_batch = BatchKey(number - plane.first_batch);
        if batch.failed {
            let error = BatchError::ModelFailed;
            plane.links.batch_failed(replica, "it throws".to_owned());
            let failed = EngineEvent::BatchFailed {
                batch: engine_batch,
                error,
            };
            self.network.batches.remove_ended(|batch| batch.ended);
            plane.engine.handle(now, failed);
            return;
        }
        let answered = AnsweredBatch {
            number,
            model: connection.model,
            replica: replica.0 as usize,
            device: self.nodes[connection.node as usize].number_of(connection.place),
            dispatched: batch.dispatched,
            reached_worker: batch.reached_worker,
            started: batch.started,
            computed: batch.computed,
        };
        let rows = u32::try_from(batch.requests.len()).expect("a batch is small");
        plane.links.count_batch(replica, rows, answered.compute());
        let mut requests = std::mem::take(&mut self.network.answered);
        let (mut in_time, mut missed) = (0, 0);
        for request in &batch.requests {
            // Of a cancelled request nothing is left.
            let Some(pending) = self.clients.answer(now, *request) else {
                continue;
            };
            plane.requests -= 1;
            let is_in_time = now <= pending.deadline;
            in_time += u64::from(is_in_time);
            missed += u64::from(!is_in_time);
            let waited = batch.dispatched.saturating_since(pending.arrived);
            let queue = batch.free_since.saturating_since(pending.arrived);
            let queue = queue.min(waited);
            if !is_in_time {
                let stages = [
                    (RequestStage::Queue, waited),
                    (RequestStage::WorkerQueue, answered.worker_queue()),
                    (RequestStage::Compute, answered.compute()),
                ];
                let (model, cause) = (connection.model, MissCause::Late);
                plane.missed(model, cause, &stages, Some(replica));
            }
            requests.push(AnsweredRequest {
                number: request.0,
                arrived: pending.arrived,
                queue,
                batch: waited.saturating_sub(queue),
            });
        }
        plane.ended(connection.model, in_time, missed);
        self.clients.forget_ended();
        self.environment.batch_answered(now, &answered, &requests);
        requests.clear();
        self.network.answered = requests;
        self.network.batches.remove_ended(|batch| batch.ended);
        let completed = EngineEvent::BatchCompleted {
            batch: engine_batch,
            queue_wait: answered.worker_queue(),
            compute: answered.compute(),
        };
        plane.engine.handle(now, completed);
    }
}
