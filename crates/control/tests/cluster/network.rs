//! The way of requests through a cluster in virtual time: clients, the network between gateway and workers, and what workers compute.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ModelId, NodeName, Time};
use packhorse_control::{Event, ServeChange, Target};
use packhorse_reconcile::{ExitCause, TaskId};
use packhorse_serving::{BatchError, BatchKey, ReplicaKey, RequestOutcome};

use crate::{
    clients::End,
    data_plane::{Connection, Output, Tag},
    machine::{Later, Machine, WorkerBatch},
    virtual_cluster::{Scheduled, VirtualCluster},
};

/// The time to make a connection to a worker, and until it is tried again.
const CONNECT: Duration = Duration::from_millis(5);
const RECONNECT: Duration = Duration::from_millis(250);
/// The time after which a connection is given up over which nothing comes back.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// The time after which a worker is given up that does not answer a batch.
const BATCH_TIME: Duration = Duration::from_secs(15);
/// The time in which a client hangs up that does not wait for its answer.
const PATIENCE: Duration = Duration::from_millis(100);
/// The part of the clients that do not.
const IMPATIENT: f64 = 0.02;

/// The connections to workers.
#[derive(Debug, Default)]
pub(crate) struct Network {
    sockets: BTreeMap<ReplicaKey, Socket>,
    connections: BTreeMap<Connection, OpenConnection>,
    next_connection: u64,
}

/// The gateway's side of a link.
#[derive(Debug)]
struct Socket {
    target: Target,
    attempt: u64,
    connection: Option<Connection>,
}

/// A connection between a link and a worker process.
#[derive(Debug)]
struct OpenConnection {
    replica: ReplicaKey,
    node: NodeName,
    worker: (TaskId, u32),
    /// The batches that were sent and not answered.
    outstanding: BTreeMap<BatchKey, Time>,
    /// The latest arrival of a message in each direction: they do not overtake each other.
    to_worker: Time,
    to_gateway: Time,
    /// The messages that wait for the network, in order.
    stalled: Vec<Message>,
}

/// A message on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Batch(BatchKey, Vec<Tag>),
    Computed(BatchKey, Vec<Tag>, Duration),
    Failed(BatchKey, BatchError),
    Draining,
    /// The worker's side closes.
    Closed,
}

impl Message {
    fn is_for_worker(&self) -> bool {
        matches!(self, Self::Batch(..))
    }
}

impl VirtualCluster {
    // Clients.

    /// Has clients send requests to a model from now on, at this rate.
    pub(crate) fn set_clients(&mut self, model: &str, rate: f64) {
        let model: ModelId = model.parse().unwrap();
        let entry = self.clients.rates.entry(model.clone()).or_default();
        *entry = (rate, entry.1 + 1);
        let number = entry.1;
        self.schedule_arrival(model, number);
    }

    fn schedule_arrival(&mut self, model: ModelId, number: u64) {
        let rate = self.clients.rates[&model].0;
        if rate > 0.0 {
            let after = self.random.exponential(rate);
            self.schedule(after, Scheduled::Arrives(model, number));
        }
    }

    pub(crate) fn arrives(&mut self, model: ModelId, number: u64) {
        if self.clients.rates[&model].1 == number {
            self.send_request(&model);
            self.schedule_arrival(model, number);
        }
    }

    /// Sends a request, and returns its tag.
    pub(crate) fn send_request(&mut self, model: &ModelId) -> Tag {
        let now = self.now;
        let slo = self.gateway.as_ref().and_then(|gateway| {
            let model = gateway.controller.model(model)?;
            Some(model.spec.slo)
        });
        let tag = self.clients.send(now + slo.unwrap_or_default());
        let Some(gateway) = &mut self.gateway else {
            self.clients.end(tag, End::Unreachable);
            return tag;
        };
        gateway.data_plane.submit(now, tag, model, 1);
        if self.random.happens(IMPATIENT) {
            let after = self.random.between(Duration::ZERO, PATIENCE);
            self.schedule(after, Scheduled::HangsUp(tag));
        }
        tag
    }

    pub(crate) fn hangs_up(&mut self, tag: Tag) {
        let now = self.now;
        let gateway = self.gateway.as_mut();
        if gateway.is_some_and(|gateway| gateway.data_plane.cancel(now, tag)) {
            self.clients.end(tag, End::Cancelled);
        }
    }

    // The gateway's side.

    pub(crate) fn serve(&mut self, change: ServeChange) {
        let now = self.now;
        let gateway = self.gateway.as_mut().expect("it runs");
        gateway.data_plane.serve(now, change);
    }

    /// Has the data plane act, and carries out what it asks for. Returns true if the control plane has something to do then.
    pub(crate) fn drive_data_plane(&mut self) -> bool {
        let now = self.now;
        loop {
            let Some(gateway) = &mut self.gateway else {
                return false;
            };
            gateway.data_plane.act(now);
            let outputs = gateway.data_plane.take_outputs();
            if outputs.is_empty() {
                break;
            }
            let start = gateway.start;
            for output in outputs {
                self.put_out(start, output);
            }
        }
        let gateway = self.gateway.as_mut().expect("it runs");
        let changes = gateway.data_plane.take_link_changes();
        let told = !changes.is_empty();
        for (id, state) in changes {
            self.tell_gateway(Event::LinkChanged(id, state));
        }
        told
    }

    fn put_out(&mut self, start: u64, output: Output) {
        match output {
            Output::Connect(key, target) => {
                let socket = Socket {
                    target: *target,
                    attempt: 0,
                    connection: None,
                };
                self.network.sockets.insert(key, socket);
                self.schedule(CONNECT, Scheduled::Connects(start, key, 0));
            }
            Output::Close(key) => {
                let socket = self.network.sockets.remove(&key);
                if let Some(connection) = socket.and_then(|socket| socket.connection) {
                    self.network.connections.remove(&connection);
                }
            }
            Output::Send(connection, batch, tags) => {
                let now = self.now;
                if let Some(open) = self.network.connections.get_mut(&connection) {
                    open.outstanding.insert(batch, now);
                    self.send(connection, Message::Batch(batch, tags));
                    let overdue = Scheduled::Overdue(connection, batch);
                    self.schedule(BATCH_TIME, overdue);
                }
            }
            Output::End(tag, outcome) => {
                let refused = matches!(outcome, RequestOutcome::Refused(_));
                if outcome != RequestOutcome::Answered && !refused {
                    self.print(|| format!("request {}: {outcome:?}", tag.0));
                }
                self.clients.outcome(self.now, tag, outcome);
            }
        }
    }

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
        let node = socket.target.replica.spec.device.node();
        let machine = self.machines.get(node).filter(|m| m.hears() && m.speaks());
        let Some(worker) = machine.and_then(|m| m.listens(now, id, socket.target.address)) else {
            gateway.data_plane.disconnected(now, key, "refused");
            self.schedule(RECONNECT, Scheduled::Connects(start, key, attempt));
            return;
        };
        let connection = Connection(self.network.next_connection);
        self.network.next_connection += 1;
        socket.connection = Some(connection);
        let open = OpenConnection {
            replica: key,
            node: node.clone(),
            worker,
            outstanding: BTreeMap::new(),
            to_worker: now,
            to_gateway: now,
            stalled: Vec::new(),
        };
        self.network.connections.insert(connection, open);
        gateway.data_plane.connected(now, key, connection);
    }

    /// Ends a connection at the gateway, which makes another one.
    fn lose(&mut self, connection: Connection, reason: &str) {
        let now = self.now;
        let Some(open) = self.network.connections.remove(&connection) else {
            return;
        };
        let key = open.replica;
        self.print(|| {
            format!(
                "the connection to {:?} on {} is lost: {reason}",
                open.worker.0, open.node
            )
        });
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        if let Some(socket) = self.network.sockets.get_mut(&key) {
            socket.connection = None;
            socket.attempt += 1;
            let connects = Scheduled::Connects(gateway.start, key, socket.attempt);
            gateway.data_plane.disconnected(now, key, reason);
            self.schedule(RECONNECT, connects);
        }
    }

    pub(crate) fn overdue(&mut self, connection: Connection, batch: BatchKey) {
        let open = self.network.connections.get(&connection);
        if open.is_some_and(|open| open.outstanding.contains_key(&batch)) {
            self.lose(connection, "a batch was not answered");
        }
    }

    // Between them.

    fn send(&mut self, connection: Connection, message: Message) {
        let now = self.now;
        let Some(open) = self.network.connections.get_mut(&connection) else {
            return;
        };
        let delay = self.machines[&open.node].delay;
        let latest = if message.is_for_worker() {
            &mut open.to_worker
        } else {
            &mut open.to_gateway
        };
        let arrives = now + self.random.between(delay / 4, delay);
        *latest = arrives.max(*latest);
        let after = latest.saturating_since(now);
        self.schedule(after, Scheduled::Delivers(connection, message));
    }

    /// Delivers a message, or has it wait until the network works again.
    pub(crate) fn deliver(&mut self, connection: Connection, message: Message) {
        let Some(open) = self.network.connections.get_mut(&connection) else {
            return;
        };
        let machine = &self.machines[&open.node];
        let goes = if message.is_for_worker() {
            machine.hears()
        } else {
            machine.speaks()
        };
        let overtakes = |stalled: &Message| stalled.is_for_worker() == message.is_for_worker();
        if !goes || open.stalled.iter().any(overtakes) {
            if open.stalled.is_empty() {
                let gives_up = Scheduled::GivesUp(connection);
                open.stalled.push(message);
                self.schedule(UNACKNOWLEDGED, gives_up);
            } else {
                open.stalled.push(message);
            }
            return;
        }
        let (replica, node) = (open.replica, open.node.clone());
        match message {
            Message::Batch(batch, tags) => {
                let worker = open.worker.clone();
                self.worker_receives(&node, &worker, connection, batch, tags);
            }
            Message::Closed => self.lose(connection, "the worker closed the connection"),
            Message::Draining => {
                let now = self.now;
                if let Some(gateway) = &mut self.gateway {
                    gateway.data_plane.worker_drains(now, replica);
                }
            }
            Message::Computed(batch, tags, compute) => {
                open.outstanding.remove(&batch);
                let now = self.now;
                if let Some(gateway) = &mut self.gateway {
                    gateway.data_plane.computed(now, batch, &tags, compute);
                }
            }
            Message::Failed(batch, error) => {
                open.outstanding.remove(&batch);
                let now = self.now;
                if let Some(gateway) = &mut self.gateway {
                    gateway.data_plane.failed(now, batch, error);
                }
            }
        }
    }

    /// Gives a connection up whose messages have not arrived for long.
    pub(crate) fn gives_up(&mut self, connection: Connection) {
        let open = self.network.connections.get(&connection);
        if open.is_some_and(|open| !open.stalled.is_empty()) {
            self.lose(connection, "nothing was acknowledged");
        }
    }

    /// Changes the network of a node, and delivers what has waited for it.
    pub(crate) fn change_network(&mut self, node: &NodeName, change: impl FnOnce(&mut Machine)) {
        let machine = self.machines.get_mut(node).expect("there is this node");
        change(machine);
        let mut waited = Vec::new();
        for (connection, open) in &mut self.network.connections {
            if open.node == *node {
                let stalled = std::mem::take(&mut open.stalled);
                waited.extend(stalled.into_iter().map(|message| (*connection, message)));
            }
        }
        for (connection, message) in waited {
            self.deliver(connection, message);
        }
        self.drive();
    }

    /// Closes the connections to worker processes that are gone.
    pub(crate) fn close_connections(&mut self) {
        let mut closed = Vec::new();
        for (connection, open) in &self.network.connections {
            let process = self.machines[&open.node].processes.get(&open.worker.0);
            if process.is_none_or(|process| process.pid != open.worker.1) {
                closed.push(*connection);
            }
        }
        for connection in closed {
            self.send(connection, Message::Closed);
        }
    }

    /// Closes all connections of a gateway that has died, and those of its clients.
    pub(crate) fn gateway_closes(&mut self) {
        self.network.sockets.clear();
        self.network.connections.clear();
        self.clients.break_all();
    }

    // The workers' side.

    fn worker_receives(
        &mut self,
        node: &NodeName,
        worker: &(TaskId, u32),
        connection: Connection,
        batch: BatchKey,
        tags: Vec<Tag>,
    ) {
        let machine = self.machines.get_mut(node).expect("there is this node");
        let Some(process) = machine.process(worker) else {
            return;
        };
        process.batches.push_back(WorkerBatch {
            connection,
            batch,
            tags,
        });
        if process.batches.len() == 1 {
            self.compute(node, worker);
        }
    }

    /// Begins the first batch of a worker.
    fn compute(&mut self, node: &NodeName, worker: &(TaskId, u32)) {
        let machine = self.machines.get_mut(node).expect("there is this node");
        let Some(process) = machine.process(worker) else {
            return;
        };
        let Some(first) = process.batches.front() else {
            return;
        };
        let model = &process.task.program().model;
        let slowdown = self.slowdowns.get(model).copied().unwrap_or(1.0);
        let alone = Duration::from_millis(5 + first.tags.len() as u64);
        let time = alone.mul_f64(slowdown);
        let time = self.random.between(time, time.mul_f64(1.05));
        let computes = Scheduled::Computed(node.clone(), worker.clone(), time);
        self.schedule(time, computes);
    }

    /// Ends the first batch of a worker.
    pub(crate) fn worker_computed(
        &mut self,
        node: &NodeName,
        worker: &(TaskId, u32),
        time: Duration,
    ) {
        let now = self.now;
        let machine = self.machines.get_mut(node).expect("there is this node");
        let Some(process) = machine.process(worker) else {
            return;
        };
        if let Some(until) = process.stopped_until.filter(|until| *until > now) {
            let computed = Scheduled::Computed(node.clone(), worker.clone(), time);
            self.schedule(until.saturating_since(now), computed);
            return;
        }
        let done = process.batches.pop_front().expect("it was begun");
        let mut tags = done.tags.iter();
        let poisoned = tags.any(|tag| self.clients.poison.contains(tag));
        let throws = poisoned || self.machines[node].behaviour.throws;
        if done
            .tags
            .iter()
            .any(|tag| self.clients.killers.contains(tag))
        {
            let (id, pid) = worker.clone();
            let exits = Later::WorkerExits(id, pid, ExitCause::Signal(11));
            self.schedule(Duration::ZERO, Scheduled::Machine(node.clone(), exits));
            return;
        }
        let answer = if throws {
            Message::Failed(done.batch, BatchError::ModelFailed)
        } else {
            Message::Computed(done.batch, done.tags, time)
        };
        self.send(done.connection, answer);
        self.compute(node, worker);
    }

    /// Tells the gateways of workers that drain to send no more batches.
    pub(crate) fn tell_draining(&mut self, node: &NodeName, worker: &TaskId) {
        let connections = self.network.connections.iter();
        let told: Vec<Connection> = connections
            .filter(|(_, open)| open.node == *node && open.worker.0 == *worker)
            .map(|(connection, _)| *connection)
            .collect();
        for connection in told {
            self.send(connection, Message::Draining);
        }
    }

    /// Stops a worker process for a time.
    pub(crate) fn stop_worker(&mut self, node: &NodeName, which: usize, time: Duration) {
        let until = self.now + time;
        let machine = self.machines.get_mut(node).expect("there is this node");
        let count = machine.processes.len();
        if let Some(process) = machine.processes.values_mut().nth(which % count.max(1)) {
            process.stopped_until = Some(until);
        }
    }
}
