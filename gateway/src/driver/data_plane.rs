//! The handle of the data plane, for the control plane and the HTTP handlers.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_api::ModelGoodput;
use packhorse_cluster::{ReplicaId, Time};
use packhorse_control::{ComputedWork, ServeChange};
use packhorse_links::LinkChange;
use packhorse_serving::{Refusal, RequestKey, RequestOutcome};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc, oneshot, watch},
};

use super::{
    catalog::Catalog,
    config::DataPlaneConfig,
    connector::Connector,
    director::Director,
    drivers::Drivers,
    message::DriverMessage,
    request::{RequestResult, Submission, SubmittedRequest},
    task::Driver,
    threads,
};
use crate::{
    clock::Clock,
    input_memory::InputMemories,
    memory::MemoryBudget,
    prediction_cache::PredictionCache,
    telemetry::Telemetry,
    tokenizers::Tokenizers,
    workers::{LinkConfig, Runtimes},
};

/// A handle to the data plane. Clones share one data plane.
#[derive(Clone, Debug)]
pub struct DataPlane {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    telemetry: Telemetry,
    memory: MemoryBudget,
    predictions: PredictionCache,
    tokenizers: Tokenizers,
    director: Mutex<Director>,
    drivers: Arc<Drivers>,
    catalog: watch::Receiver<Arc<Catalog>>,
    /// Limits the number of requests, and with it the length of the inbox.
    permits: Arc<Semaphore>,
    request_limit: usize,
    next_request: AtomicU64,
    /// True once the gateway is going to stop.
    lame_duck: AtomicBool,
}

impl DataPlane {
    /// Starts the data plane with threads of its own: one for each driver's time, a few for the links. It must be called within the runtime of
    /// HTTP, which also reads results. It serves nothing before the first [`DataPlane::serve`]. The receiver gets every change of a link's state.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn spawn(
        config: DataPlaneConfig,
    ) -> io::Result<(Self, mpsc::UnboundedReceiver<LinkChange>)> {
        let clock = Clock::start();
        let memory = MemoryBudget::new(config.memory_budget_bytes);
        let predictions = PredictionCache::new(config.prediction_cache_bytes);
        let kept = (memory.clone(), predictions.clone());
        let telemetry = Telemetry::new(clock, kept, config.telemetry);
        let (catalog_sender, catalog) = watch::channel(Arc::default());
        let (links_sender, link_changes) = mpsc::unbounded_channel();
        let request_limit = config.request_limit.min(Semaphore::MAX_PERMITS);
        let links = threads::links()?;
        let runtimes = Runtimes {
            links: links.handle().clone(),
            http: Handle::current(),
        };
        let link_config = LinkConfig {
            secret: config.link_secret,
            tls: config.link_tls,
            payload_limit: config.result_limit_bytes,
            batch_time: config.batch_time,
            shared_memory: config.shared_memory_links,
            worker_user: config.worker_user,
        };
        let inputs = InputMemories::new(memory.clone());
        let drivers = Drivers::new(clock, config.drivers.max(1), |number, inbox| {
            let connector = Connector {
                inbox,
                runtimes: runtimes.clone(),
                clock,
                config: link_config.clone(),
                inputs: inputs.clone(),
            };
            Driver::new(
                number,
                config.max_batch_wait,
                connector,
                links_sender.clone(),
                telemetry.weights().clone(),
            )
        });
        threads::keep_time(&drivers, links)?;
        let tokenizers = Tokenizers::new(config.files);
        let director = Director::new(
            telemetry.clone(),
            memory.clone(),
            inputs,
            tokenizers.clone(),
            config.queue_limit,
            catalog_sender,
        );
        let shared = Shared {
            clock,
            telemetry,
            memory,
            predictions,
            tokenizers,
            director: Mutex::new(director),
            drivers,
            catalog,
            permits: Arc::new(Semaphore::new(request_limit)),
            request_limit,
            next_request: AtomicU64::new(0),
            lame_duck: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        Ok((Self { shared }, link_changes))
    }

    /// Waits until the data plane has ended: after a shutdown, or by a panic of a driver.
    pub async fn ended(&self) {
        self.shared.drivers.ended().await;
    }

    /// Has a driver panic, on a thread that this costs.
    #[cfg(test)]
    pub(crate) fn panic(&self) {
        let data_plane = self.clone();
        let thread = std::thread::spawn(move || data_plane.send(DriverMessage::Panic));
        assert!(thread.join().is_err());
    }

    /// Changes what is served. Returns at once; the changes of the links show the progress.
    pub fn serve(&self, changes: Vec<ServeChange>) {
        let Shared { clock, drivers, .. } = &*self.shared;
        self.director().serve(*clock, drivers, changes);
    }

    /// Returns the work of every replica; nothing once the data plane has ended.
    pub async fn work(&self) -> BTreeMap<ReplicaId, ComputedWork> {
        let (answer, mut answers) = mpsc::unbounded_channel();
        self.shared
            .drivers
            .send_to_all(|| DriverMessage::GetWork(answer.clone()));
        drop(answer);
        let mut work = BTreeMap::new();
        while let Some(of_driver) = answers.recv().await {
            work.extend(of_driver);
        }
        work
    }

    /// Returns the goodput of the models in the last `window`, at most [`crate::telemetry::LONGEST_WINDOW`].
    pub fn goodput(&self, window: Duration) -> Vec<ModelGoodput> {
        self.shared.telemetry.goodput(window)
    }

    /// Returns the measurements.
    pub fn telemetry(&self) -> &Telemetry {
        &self.shared.telemetry
    }

    /// Is no longer ready, but still takes requests.
    pub fn begin_lame_duck(&self) {
        self.shared.lame_duck.store(true, Relaxed);
    }

    /// Takes no further requests, waits until the present ones are answered, at most `grace`, and ends.
    pub async fn shutdown(&self, grace: Duration) {
        self.director().close();
        self.shared
            .drivers
            .send_to_all(|| DriverMessage::Shutdown(grace));
        self.shared.drivers.ended().await;
    }

    /// Returns true if clients shall send requests: the control plane has opened the data plane, and the gateway is not going to stop.
    pub(crate) fn is_ready(&self) -> bool {
        !self.shared.lame_duck.load(Relaxed)
            && !self.shared.drivers.have_ended()
            && self.shared.catalog.borrow().is_open()
    }

    /// Returns the memory budget of all requests.
    /// Returns the tokenizers in memory.
    pub(crate) fn tokenizers(&self) -> &Tokenizers {
        &self.shared.tokenizers
    }

    /// Returns the kept answers.
    pub(crate) fn predictions(&self) -> &PredictionCache {
        &self.shared.predictions
    }

    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.shared.memory
    }

    /// Returns the clock of arrivals and deadlines.
    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Returns the present models.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.shared.catalog.borrow())
    }

    /// Returns the present models, once the gateway has started or at `deadline`.
    pub(crate) async fn started_catalog(&self, deadline: Time) -> Arc<Catalog> {
        let mut catalog = self.shared.catalog.clone();
        let started = catalog.wait_for(|catalog| !catalog.is_starting());
        // A catalog that no longer changes is that of a driver that has ended.
        let _ = tokio::time::timeout_at(self.clock().instant(deadline), started).await;
        self.catalog()
    }

    /// Sends a request to its model and waits for the result. If the future is dropped before, the request leaves its queue; if
    /// it is being computed, its rows are discarded.
    pub(crate) async fn submit(&self, submission: Submission) -> RequestResult {
        let Ok(permit) = Arc::clone(&self.shared.permits).try_acquire_owned() else {
            let limit = self.shared.request_limit;
            let refusal = Refusal::TooManyRequests { limit };
            return Err(RequestOutcome::Refused(refusal).into());
        };
        let now = self.shared.clock.now();
        let allowed = submission.deadline.saturating_since(now);
        submission.requested.record_patience(now, allowed);
        let key = RequestKey(self.shared.next_request.fetch_add(1, Relaxed));
        let (answer, mut answered) = oneshot::channel();
        self.send(DriverMessage::Submit(Box::new(SubmittedRequest {
            key,
            submission,
            submitted: now,
            answer,
            permit,
        })));
        let cancel = CancelOnDrop {
            data_plane: self,
            request: key,
        };
        let result = (&mut answered).await;
        std::mem::forget(cancel);
        // The driver answers all its requests before it ends, but never receives later ones.
        result.unwrap_or(Err(RequestOutcome::Refused(Refusal::ShuttingDown).into()))
    }

    fn director(&self) -> MutexGuard<'_, Director> {
        let director = self.shared.director.lock();
        // A panic within it has ended the drivers.
        director.unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: DriverMessage) {
        self.shared.drivers.send(message);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.drivers.end();
    }
}

struct CancelOnDrop<'a> {
    data_plane: &'a DataPlane,
    request: RequestKey,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let drivers = &self.data_plane.shared.drivers;
        drivers.send_to_all(|| DriverMessage::Cancel(self.request));
    }
}
