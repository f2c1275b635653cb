//! The handle of the data plane: what the control plane and the HTTP handlers hold of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_api::ModelGoodput;
use packhorse_cluster::ReplicaId;
use packhorse_serving::{EngineConfig, ModelLimits, ReplicaKey, RequestId};
use packhorse_wire::{LinkSecret, MAX_PAYLOAD};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{
    Clock, LinkState, Target, Work,
    catalog::Catalog,
    request::{OutputRows, Submission, Submitted, Unanswered},
    task::Driver,
};
use crate::{telemetry::Telemetry, workers::LinkEvent};

/// What the data plane is started with.
#[derive(Clone, Debug)]
pub struct DataPlaneConfig {
    /// The secret that workers must share.
    pub link_secret: LinkSecret,
    /// The most requests that wait for a model that says nothing else; one more is refused.
    pub queue_limit: usize,
    /// How long `fixed-wait` holds an open batch at most.
    pub max_batch_wait: Duration,
    /// The most requests that are anywhere between arrival and answer; one more is refused.
    pub request_limit: usize,
    /// The largest result of one batch that a worker may send, in bytes; at most [`MAX_PAYLOAD`].
    pub result_limit_bytes: u64,
    /// A worker that has a batch for longer is given up. Longer than the workers' own limit, which ends them with a reason.
    pub batch_time: Duration,
}

impl Default for DataPlaneConfig {
    fn default() -> Self {
        Self {
            link_secret: LinkSecret::none(),
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
            max_batch_wait: EngineConfig::default().max_batch_wait,
            request_limit: 1 << 16,
            result_limit_bytes: MAX_PAYLOAD,
            batch_time: Duration::from_secs(15),
        }
    }
}

/// A handle to the data plane. Clones speak to the same one.
#[derive(Clone, Debug)]
pub struct DataPlane {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    telemetry: Telemetry,
    inbox: mpsc::UnboundedSender<Message>,
    catalog: watch::Receiver<Arc<Catalog>>,
    links: watch::Receiver<BTreeMap<ReplicaId, LinkState>>,
    /// Bounds the requests, and with them the inbox.
    places: Arc<Semaphore>,
    request_limit: usize,
    next_request: AtomicU64,
}

/// What the driver is told. The inbox needs no bound of its own: a request sends at most two messages, a link at most one per
/// batch that it was given.
#[derive(Debug)]
pub(super) enum Message {
    /// What shall be served from now on.
    Target(Target),
    /// A request arrived.
    Submit(Box<Submitted>),
    /// Nobody waits for this request any more.
    Cancel(RequestId),
    /// What have the replicas computed?
    Work(oneshot::Sender<BTreeMap<ReplicaId, Work>>),
    /// Something happened on a link.
    Link(ReplicaKey, LinkEvent),
    /// Take no further requests, and end when the last is answered or the time is over.
    Shutdown(Duration),
}

impl DataPlane {
    /// Starts the data plane's task on the current tokio runtime. It serves nothing before the first [`DataPlane::set_target`].
    pub fn spawn(config: DataPlaneConfig) -> Self {
        let clock = Clock::start();
        let telemetry = Telemetry::new(clock);
        let (inbox, messages) = mpsc::unbounded_channel();
        let (announce_catalog, catalog) = watch::channel(Arc::default());
        let (announce_links, links) = watch::channel(BTreeMap::new());
        let request_limit = config.request_limit.min(Semaphore::MAX_PERMITS);
        let driver = Driver::new(
            config,
            clock,
            telemetry.clone(),
            inbox.downgrade(),
            announce_catalog,
            announce_links,
        );
        tokio::spawn(driver.run(messages));
        Self {
            shared: Arc::new(Shared {
                clock,
                telemetry,
                inbox,
                catalog,
                links,
                places: Arc::new(Semaphore::new(request_limit)),
                request_limit,
                next_request: AtomicU64::new(0),
            }),
        }
    }

    /// Says what shall be served from now on. Returns at once; [`DataPlane::links`] tells what has become of it. Replicas that
    /// are equal in the earlier target are not touched.
    pub fn set_target(&self, target: Target) {
        self.tell(Message::Target(target));
    }

    /// How the data plane stands with every replica of the target.
    pub fn links(&self) -> watch::Receiver<BTreeMap<ReplicaId, LinkState>> {
        self.shared.links.clone()
    }

    /// What every replica of the target has computed since the data plane knows it. Nothing, once the data plane has ended.
    pub async fn work(&self) -> BTreeMap<ReplicaId, Work> {
        let (answer, answered) = oneshot::channel();
        self.tell(Message::Work(answer));
        answered.await.unwrap_or_default()
    }

    /// How the models of the target fared in the last `window`, at most [`crate::telemetry::LONGEST_WINDOW`].
    pub fn goodput(&self, window: Duration) -> Vec<ModelGoodput> {
        self.shared.telemetry.goodput(window)
    }

    /// What is measured.
    pub fn telemetry(&self) -> &Telemetry {
        &self.shared.telemetry
    }

    /// Takes no further requests, waits until those that are there are answered, at most `grace`, and ends.
    pub async fn shutdown(&self, grace: Duration) {
        self.tell(Message::Shutdown(grace));
        self.shared.inbox.closed().await;
    }

    /// Whether requests are taken: it is known what shall be served, and the data plane does not end.
    pub(crate) fn is_ready(&self) -> bool {
        !self.shared.inbox.is_closed() && self.shared.catalog.borrow().is_open()
    }

    /// The clock that arrivals and deadlines are told by.
    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// The models, as of now.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.shared.catalog.borrow())
    }

    /// Asks a model, and waits for its answer: the rows of each output, in the model's order. Dropped before that, the request
    /// leaves its queue; if it is being computed, its rows are thrown away.
    pub(crate) async fn submit(
        &self,
        submission: Submission,
    ) -> Result<Vec<OutputRows>, Unanswered> {
        let Ok(place) = Arc::clone(&self.shared.places).try_acquire_owned() else {
            return Err(Unanswered::Busy {
                limit: self.shared.request_limit,
            });
        };
        let id = RequestId(self.shared.next_request.fetch_add(1, Relaxed));
        let (answer, mut answered) = oneshot::channel();
        self.tell(Message::Submit(Box::new(Submitted {
            id,
            submission,
            answer,
            place,
        })));
        let abandoned = CancelOnDrop {
            data_plane: self,
            id,
        };
        let result = (&mut answered).await;
        std::mem::forget(abandoned);
        // The driver answers all it has before it ends, but what comes later it never sees.
        result.unwrap_or(Err(Unanswered::ShuttingDown))
    }

    fn tell(&self, message: Message) {
        // After a shutdown nobody listens, and nothing is served.
        let _ = self.shared.inbox.send(message);
    }
}

struct CancelOnDrop<'a> {
    data_plane: &'a DataPlane,
    id: RequestId,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.data_plane.tell(Message::Cancel(self.id));
    }
}
