//! The conversation with the gateway: hold the lease, follow what is wanted, say how the node stands. Each in its own time; when
//! the gateway is away all of them try again until it is back, and nothing else of the agent notices.

use std::time::Duration;

use packhorse_api::agent::{AgentStatus, LeaseRequest};
use packhorse_cluster::{ProfileProgress, ReplicaStatus};
use packhorse_reconcile::Event;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::sleep,
};

use super::{gateway::Gateway, gpus::Gpus};

const FIRST_RETRY: Duration = Duration::from_millis(100);
/// A gateway that was started again is found within this.
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// Between two requests that the gateway answers at once but in vain.
const BREATH: Duration = Duration::from_millis(100);

/// How the node stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeStatus {
    /// The epoch of the wanted state that is being made true.
    pub(super) epoch: u64,
    /// Its revision.
    pub(super) revision: u64,
    pub(super) replicas: Vec<ReplicaStatus>,
    pub(super) profiles: Vec<ProfileProgress>,
}

/// The conversation of one start of the agent.
pub(super) struct Session {
    gateway: Gateway,
    request: LeaseRequest,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<NodeStatus>,
    gpus: Gpus,
    /// Counts the grants of the lease.
    grants: watch::Sender<u64>,
    /// The gateway says that the lease is not held.
    lost: Notify,
}

/// Pauses that double up to a limit, and vary so that agents do not come all at once.
struct Retry(Duration);

impl Retry {
    fn new() -> Self {
        Self(FIRST_RETRY)
    }

    async fn pause(&mut self) {
        sleep(self.0.mul_f64(rand::random_range(0.5..1.0))).await;
        self.0 = (self.0 * 2).min(LONGEST_RETRY);
    }
}

impl Session {
    pub(super) fn new(
        gateway: Gateway,
        request: LeaseRequest,
        events: mpsc::Sender<Event>,
        status: watch::Receiver<NodeStatus>,
        gpus: Gpus,
    ) -> Self {
        Self {
            gateway,
            request,
            events,
            status,
            gpus,
            grants: watch::Sender::new(0),
            lost: Notify::new(),
        }
    }

    /// Never ends by itself.
    pub(super) async fn run(self) {
        tokio::join!(
            self.keep_lease(),
            self.follow_wanted(),
            self.report_status()
        );
    }

    async fn tell(&self, event: Event) {
        // The receiver lives as long as the process does.
        let _ = self.events.send(event).await;
    }

    async fn keep_lease(&self) {
        let mut retry = Retry::new();
        let mut held = None;
        let mut newest = 0;
        loop {
            match self.gateway.lease(&self.request).await {
                Ok(grant) => {
                    if held != Some(true) {
                        tracing::info!(grant.epoch, grant.lease_ms, "lease held");
                        if grant.epoch < newest {
                            tracing::warn!(
                                grant.epoch,
                                newest,
                                "the gateway is older than one this agent has worked for, and is not obeyed; if it was \
                                 set up anew, start the agent again"
                            );
                        }
                    }
                    held = Some(true);
                    newest = newest.max(grant.epoch);
                    retry = Retry::new();
                    self.tell(Event::Leased { epoch: grant.epoch }).await;
                    self.grants.send_modify(|grants| *grants += 1);
                    let renew = Duration::from_millis(grant.lease_ms / 3).max(BREATH);
                    tokio::select! {
                        () = sleep(renew) => {}
                        () = self.lost.notified() => sleep(BREATH).await,
                    }
                }
                Err(e) => {
                    if held != Some(false) {
                        tracing::warn!(error = %e, "no lease; workers go on, and so do attempts");
                    }
                    held = Some(false);
                    retry.pause().await;
                }
            }
        }
    }

    async fn first_grant(&self) -> watch::Receiver<u64> {
        let mut grants = self.grants.subscribe();
        // The sender is ours.
        let _ = grants.wait_for(|grants| *grants > 0).await;
        grants
    }

    async fn follow_wanted(&self) {
        self.first_grant().await;
        let mut retry = Retry::new();
        let mut known = (0, 0);
        loop {
            match self.gateway.wanted(known).await {
                Ok(wanted) => {
                    retry = Retry::new();
                    let version = (wanted.epoch, wanted.revision);
                    if version > known {
                        known = version;
                        self.tell(Event::Wanted(wanted)).await;
                    } else {
                        sleep(BREATH).await;
                    }
                }
                Err(e) => {
                    tracing::debug!(error = %e, "wanted state not read");
                    retry.pause().await;
                }
            }
        }
    }

    async fn report_status(&self) {
        let mut status = self.status.clone();
        let mut grants = self.first_grant().await;
        let mut retry = Retry::new();
        loop {
            grants.mark_unchanged();
            let NodeStatus {
                epoch,
                revision,
                replicas,
                profiles,
            } = status.borrow_and_update().clone();
            let message = AgentStatus {
                instance: self.request.instance.clone(),
                epoch,
                revision,
                replicas,
                profiles,
                gpus: self.gpus.read().await,
            };
            match self.gateway.report(&message).await {
                Ok(()) => {
                    retry = Retry::new();
                    // The senders outlive this.
                    tokio::select! {
                        _ = status.changed() => {}
                        _ = grants.changed() => {}
                    }
                }
                Err(e) if e.is_conflict() => {
                    tracing::debug!(error = %e, "status refused");
                    self.lost.notify_one();
                    let _ = grants.changed().await;
                }
                Err(e) => {
                    tracing::debug!(error = %e, "status not reported");
                    retry.pause().await;
                }
            }
        }
    }
}
