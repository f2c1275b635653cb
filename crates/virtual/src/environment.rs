//! The surroundings of a cluster: what plans for it, and what is told of its requests and batches.

use std::time::Duration;

use packhorse_cluster::{ReplicaId, Time};
use packhorse_control::{
    Config, Event, Notice, PlanningInput, Solution, SolveError, Write, record::StoredCluster,
};
use packhorse_serving::RequestOutcome;

/// The surroundings of a [`Cluster`](crate::Cluster). Everything but the planning may be ignored.
pub trait Environment {
    /// Plans. The answer reaches the controller after [`Settings::solve_delay`](crate::Settings::solve_delay).
    ///
    /// # Errors
    /// Returns what the policy says where it finds no plan.
    fn plan(&mut self, now: Time, input: &PlanningInput) -> Result<Solution, SolveError>;

    /// Takes note of a control plane that starts with these settings and this state.
    fn control_plane_starts(&mut self, _config: &Config, _stored: &StoredCluster) {}

    /// Takes note of a request that a client sends, of the model with this index.
    fn request_arrived(&mut self, _now: Time, _model: usize) {}

    /// Takes note of a request that the gateway, or its death, ends without an answer.
    fn request_ended(&mut self, _now: Time, _request: &EndedRequest) {}

    /// Takes note of a batch that the engine sends.
    fn batch_sent(&mut self, _now: Time, _batch: &SentBatch) {}

    /// Takes note of a batch that was computed and whose answer is at the gateway, with its requests.
    fn batch_answered(
        &mut self,
        _now: Time,
        _batch: &AnsweredBatch,
        _requests: &[AnsweredRequest],
    ) {
    }

    /// Takes note of a batch that was lost with its connection.
    fn batch_lost(&mut self, _now: Time, _batch: &LostBatch) {}

    /// Takes note of the weights of a model that are copied to a device.
    fn weights_loaded(&mut self, _now: Time, _model: usize) {}

    /// Takes note of the weights of a model that leave a device.
    fn weights_evicted(&mut self, _now: Time, _model: usize) {}

    /// Takes note of an event that the controller handles.
    fn controller_handles(&mut self, _now: Time, _event: &Event) {}

    /// Takes note of what the controller stores.
    fn stores(&mut self, _write: &Write) {}

    /// Takes note of what the controller tells people.
    fn told(&mut self, _now: Time, _notice: &Notice) {}

    /// Takes note of a worker process that starts to serve a replica.
    fn worker_started(&mut self, _now: Time, _replica: ReplicaId) {}

    /// Takes note of a worker process that has ended.
    fn worker_ended(&mut self, _now: Time, _replica: ReplicaId) {}
}

/// A request that ends without an answer.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest {
    /// Its number in the run.
    pub number: u64,
    /// The index of its model.
    pub model: usize,
    /// The time at which it arrived.
    pub arrived: Time,
    /// The reason.
    pub outcome: RequestOutcome,
}

/// A batch that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentBatch {
    /// The index of the model of its replica.
    pub model: usize,
    /// The number of its requests.
    pub requests: usize,
}

/// A batch whose answer is at the gateway, with the times of its stages.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredBatch {
    /// Its number in the run.
    pub number: u64,
    /// The index of the model of its replica.
    pub model: usize,
    /// The number of its replica: the engine's key.
    pub replica: usize,
    /// The number of its device in the cluster.
    pub device: usize,
    /// The time at which the engine sent it.
    pub dispatched: Time,
    /// The time at which it was at its worker.
    pub reached_worker: Time,
    /// The time at which it began to compute.
    pub started: Time,
    /// The time at which it was computed.
    pub computed: Time,
}

impl AnsweredBatch {
    /// Returns the time on the network, there and back, of a batch that is back now.
    pub fn network(&self, now: Time) -> Duration {
        self.reached_worker.saturating_since(self.dispatched) + now.saturating_since(self.computed)
    }

    /// Returns the wait at the worker.
    pub fn worker_queue(&self) -> Duration {
        self.started.saturating_since(self.reached_worker)
    }

    /// Returns the time of the computation.
    pub fn compute(&self) -> Duration {
        self.computed.saturating_since(self.started)
    }
}

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest {
    /// Its number in the run.
    pub number: u64,
    /// The time at which it arrived.
    pub arrived: Time,
    /// Its wait until its replica had a free credit.
    pub queue: Duration,
    /// Its wait after that until its batch was sent.
    pub batch: Duration,
}

/// A batch that was lost.
#[derive(Clone, Copy, Debug)]
pub struct LostBatch {
    /// Its number in the run.
    pub number: u64,
    /// The index of the model of its replica.
    pub model: usize,
    /// The number of its replica: the engine's key.
    pub replica: usize,
    /// The number of its device in the cluster.
    pub device: usize,
    /// The number of its requests.
    pub requests: usize,
    /// The time at which the engine sent it.
    pub dispatched: Time,
}
