//! The clients of a cluster: when they send requests, and what becomes of these.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use packhorse_cluster::{ModelId, Time};
use packhorse_serving::{RequestKey, RequestOutcome};

use crate::numbered_queue::NumberedQueue;

/// The end of a request, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It was answered in time.
    InTime,
    /// It was answered late.
    Late,
    /// It was refused.
    Refused,
    /// It was accepted, and its deadline passed.
    Expired,
    /// It was accepted, and its worker was lost with no time or attempts left.
    Lost,
    /// Its batch failed.
    Failed,
    /// The client hung up.
    Cancelled,
    /// The connection to the gateway broke.
    Broken,
    /// No gateway took the connection.
    Unreachable,
}

/// The times at which clients send requests.
pub enum Arrivals {
    /// No time.
    Never,
    /// These times, which ascend.
    At(Box<dyn Iterator<Item = Time>>),
    /// Independent ones at this rate, in requests/s, from the random numbers of the cluster.
    Poisson(f64),
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => write!(f, "Never"),
            Self::At(_) => write!(f, "At(..)"),
            Self::Poisson(rate) => write!(f, "Poisson({rate})"),
        }
    }
}

/// The state of the clients of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// They begin once a replica serves their model.
    Waiting,
    /// They send requests.
    Sending,
    /// They have ended.
    Ended,
}

/// The clients of one model.
#[derive(Debug)]
pub(crate) struct ModelClients {
    pub(crate) id: ModelId,
    pub(crate) state: ClientState,
    pub(crate) arrivals: Arrivals,
    /// The number of changes of `arrivals`, which outdates what was scheduled before.
    pub(crate) number: u32,
    /// The bytes of a request.
    pub(crate) bytes: u64,
}

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    pub(crate) model: u32,
    pub(crate) arrived: Time,
    pub(crate) deadline: Time,
    /// True while the gateway has it.
    pub(crate) at_gateway: bool,
    pub(crate) ended: bool,
}

/// The clients.
#[derive(Debug, Default)]
pub struct Clients {
    models: Vec<ModelClients>,
    by_id: BTreeMap<ModelId, usize>,
    requests: NumberedQueue<PendingRequest>,
    /// The number of requests that have not ended.
    pending: u64,
    /// The number of requests by their ends.
    ends: [u64; End::ALL.len()],
    /// The requests on which the model throws.
    pub poison: BTreeSet<RequestKey>,
    /// The requests that kill their workers.
    pub killers: BTreeSet<RequestKey>,
}

impl Clients {
    /// The bytes of a request, unless it is said otherwise.
    const BYTES: u64 = 16;

    /// Returns the index of a model, which stays.
    pub(crate) fn index(&mut self, id: &ModelId) -> usize {
        if let Some(index) = self.by_id.get(id) {
            return *index;
        }
        let index = self.models.len();
        self.models.push(ModelClients {
            id: id.clone(),
            state: ClientState::Sending,
            arrivals: Arrivals::Never,
            number: 0,
            bytes: Self::BYTES,
        });
        self.by_id.insert(id.clone(), index);
        index
    }

    pub(crate) fn model(&self, index: usize) -> &ModelClients {
        &self.models[index]
    }

    pub(crate) fn model_mut(&mut self, index: usize) -> &mut ModelClients {
        &mut self.models[index]
    }

    /// Returns the models by index.
    pub(crate) fn models(&self) -> &[ModelClients] {
        &self.models
    }

    /// Has the clients of a model that waited for a replica begin.
    pub(crate) fn served(&mut self, model: usize) {
        let clients = &mut self.models[model];
        if clients.state == ClientState::Waiting {
            clients.state = ClientState::Sending;
        }
    }

    /// Adds a request.
    pub(crate) fn send(&mut self, model: usize, arrived: Time, deadline: Time) -> RequestKey {
        self.pending += 1;
        RequestKey(self.requests.push(PendingRequest {
            model: u32::try_from(model).expect("models are few"),
            arrived,
            deadline,
            at_gateway: false,
            ended: false,
        }))
    }

    /// Returns a request; `None` if it has ended.
    pub(crate) fn pending(&self, request: RequestKey) -> Option<&PendingRequest> {
        self.requests
            .get(request.0)
            .filter(|pending| !pending.ended)
    }

    pub(crate) fn pending_mut(&mut self, request: RequestKey) -> Option<&mut PendingRequest> {
        self.requests
            .get_mut(request.0)
            .filter(|pending| !pending.ended)
    }

    /// Notes the end of a request.
    ///
    /// Panics if it had ended.
    pub(crate) fn end(&mut self, request: RequestKey, end: End) {
        let pending = self.pending_mut(request);
        let pending = pending.unwrap_or_else(|| panic!("{request:?} ends again: {end:?}"));
        pending.ended = true;
        self.pending -= 1;
        self.ends[end as usize] += 1;
    }

    /// Notes that a request is answered. Returns it; `None` if it had ended.
    pub(crate) fn answer(&mut self, now: Time, request: RequestKey) -> Option<PendingRequest> {
        let pending = *self.pending(request)?;
        let in_time = now <= pending.deadline;
        self.end(request, if in_time { End::InTime } else { End::Late });
        Some(pending)
    }

    /// Forgets the requests that have ended.
    pub(crate) fn forget_ended(&mut self) {
        self.requests.remove_ended(|pending| pending.ended);
    }

    /// Returns the number of requests that ended so.
    pub fn count(&self, end: End) -> u64 {
        self.ends[end as usize]
    }

    /// Returns the number of requests that have ended.
    pub fn ended(&self) -> u64 {
        self.ends.iter().sum()
    }

    /// Returns true if all requests have ended.
    pub fn are_idle(&self) -> bool {
        self.pending == 0
    }

    /// Returns the requests that have not ended, with their deadlines.
    pub fn waiting(&self) -> impl Iterator<Item = (RequestKey, Time)> {
        let requests = self.requests.numbered();
        let waiting = requests.filter(|(_, pending)| !pending.ended);
        waiting.map(|(number, pending)| (RequestKey(number), pending.deadline))
    }

    /// Returns the number of requests by those ends that there were.
    pub fn ends(&self) -> BTreeMap<End, u64> {
        let counts = End::ALL.map(|end| (end, self.count(end)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

impl End {
    const ALL: [Self; 9] = [
        Self::InTime,
        Self::Late,
        Self::Refused,
        Self::Expired,
        Self::Lost,
        Self::Failed,
        Self::Cancelled,
        Self::Broken,
        Self::Unreachable,
    ];

    /// Returns the end of a request that the gateway has ended without an answer.
    pub(crate) fn without_answer(outcome: RequestOutcome) -> Self {
        match outcome {
            RequestOutcome::Refused(_) => Self::Refused,
            RequestOutcome::Expired => Self::Expired,
            RequestOutcome::Lost => Self::Lost,
            RequestOutcome::Failed => Self::Failed,
            RequestOutcome::Answered | RequestOutcome::Cancelled => {
                unreachable!("the engine tells neither")
            }
        }
    }
}
