//! The session with the gateway: it holds the lease, follows the wanted state and reports the node's status, each at its own pace. While
//! the gateway does not answer, all three retry, and the rest of the agent is not affected.

use std::time::Duration;

use packhorse_api::agent::{AgentStatus, LeaseRequest};
use packhorse_cluster::{ProfileProgress, ReplicaStatus};
use packhorse_reconcile::Event;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::sleep,
};

use crate::{gateway::GatewayClient, gpus::Gpus};

/// The pause before the first retry.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between retries, after which a restarted gateway is found at the latest.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The least time between two requests that the gateway answers at once without a change.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The status of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeStatus {
    /// The epoch of the current wanted state.
    pub(super) epoch: u64,
    /// The revision of the current wanted state.
    pub(super) revision: u64,
    /// The status of each replica.
    pub(super) replicas: Vec<ReplicaStatus>,
    /// The progress of each measurement.
    pub(super) profiles: Vec<ProfileProgress>,
}

/// The session of one agent process.
pub(super) struct Session {
    gateway: GatewayClient,
    request: LeaseRequest,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<NodeStatus>,
    gpus: Gpus,
    /// The number of grants of the lease.
    grants: watch::Sender<u64>,
    /// Notified when the gateway answers that the lease is not held.
    lost: Notify,
}

/// Exponential backoff with jitter, so that agents do not retry at the same time.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    async fn pause(&mut self) {
        sleep(self.0.mul_f64(rand::random_range(0.5..1.0))).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

impl Session {
    /// Creates a session, which does nothing until [`Session::run`].
    pub(super) fn new(
        gateway: GatewayClient,
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

    /// Runs the session. Never returns.
    pub(super) async fn run(self) {
        tokio::join!(
            self.keep_lease(),
            self.follow_wanted(),
            self.report_status()
        );
    }

    async fn send_event(&self, event: Event) {
        // The receiver lives as long as the process.
        let _ = self.events.send(event).await;
    }

    async fn keep_lease(&self) {
        let mut backoff = Backoff::new();
        let mut held = None;
        let mut newest = 0;
        loop {
            match self.gateway.acquire_lease(&self.request).await {
                Ok(grant) => {
                    if held != Some(true) {
                        tracing::info!(grant.epoch, grant.lease_ms, "lease held");
                        if grant.epoch < newest {
                            tracing::warn!(
                                grant.epoch,
                                newest,
                                "the gateway's epoch is lower than one that this agent has seen, so the agent ignores its wanted \
                                 state; if the gateway's state was deleted, restart the agent"
                            );
                        }
                    }
                    held = Some(true);
                    newest = newest.max(grant.epoch);
                    backoff = Backoff::new();
                    self.send_event(Event::Leased { epoch: grant.epoch }).await;
                    self.grants.send_modify(|grants| *grants += 1);
                    let renew = Duration::from_millis(grant.lease_ms / 3).max(MIN_INTERVAL);
                    tokio::select! {
                        () = sleep(renew) => {}
                        () = self.lost.notified() => sleep(MIN_INTERVAL).await,
                    }
                }
                Err(e) => {
                    if held != Some(false) {
                        tracing::warn!(error = %e, "no lease; the agent retries, and workers continue");
                    }
                    held = Some(false);
                    backoff.pause().await;
                }
            }
        }
    }

    /// Waits until the lease has been granted once.
    async fn wait_for_grant(&self) -> watch::Receiver<u64> {
        let mut grants = self.grants.subscribe();
        // This struct holds the sender, so that the channel is open.
        let _ = grants.wait_for(|grants| *grants > 0).await;
        grants
    }

    async fn follow_wanted(&self) {
        self.wait_for_grant().await;
        let mut backoff = Backoff::new();
        let mut known = (0, 0);
        loop {
            match self.gateway.poll_wanted(known).await {
                Ok(wanted) => {
                    backoff = Backoff::new();
                    let version = (wanted.epoch, wanted.revision);
                    if version > known {
                        known = version;
                        self.send_event(Event::Wanted(wanted)).await;
                    } else {
                        sleep(MIN_INTERVAL).await;
                    }
                }
                Err(e) => {
                    tracing::debug!(error = %e, "wanted state not read");
                    backoff.pause().await;
                }
            }
        }
    }

    async fn report_status(&self) {
        let mut status = self.status.clone();
        let mut grants = self.wait_for_grant().await;
        let mut backoff = Backoff::new();
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
            match self.gateway.report_status(&message).await {
                Ok(()) => {
                    backoff = Backoff::new();
                    // The senders outlive this task.

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
                    backoff.pause().await;
                }
            }
        }
    }
}
