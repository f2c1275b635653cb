//! The session with the gateway: it holds the lease, follows the wanted state and reports the node's status, each at its own pace. While
//! the gateway does not answer, all three retry, and the rest of the agent is not affected.

use std::time::Duration;

use packhorse_api::agent::{AgentStatus, LeaseRequest, ProtocolRange};
use packhorse_cluster::{InspectionResult, ProfileProgress, ReplicaStatus};
use packhorse_reconcile::{Event, Fence, FenceError};
use packhorse_service::StateDirError;
use packhorse_wire::{ClusterKey, LinkSecret};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::sleep,
};

use crate::{
    fence_file::FenceFile,
    gateway::{GatewayClient, GatewayError},
    gpus::Gpus,
};

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
    /// The results of the inspections; none if the node makes none.
    pub(super) inspections: Option<Vec<InspectionResult>>,
}

/// The session of one agent process.
pub(super) struct Session {
    gateway: GatewayClient,
    request: LeaseRequest,
    events: mpsc::Sender<Event>,
    status: watch::Receiver<NodeStatus>,
    gpus: Gpus,
    link_secret: LinkSecret,
    fence_file: FenceFile,
    /// The authority that the agent obeys. Whoever waits for it is woken by every grant.
    authority: watch::Sender<Authority>,
    /// Notified when the gateway answers that the lease is not held.
    lost: Notify,
}

/// The rights that the grants of the lease so far give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Authority {
    /// The number of grants.
    grants: u64,
    /// The number of changes to another cluster.
    changes: u64,
    /// The epoch of the last grant; none before the first, and while the gateway's grants are not to be obeyed.
    epoch: Option<u64>,
}

/// A lease that was not taken.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(
        "the gateway speaks version {0} of the agent protocol, this agent {ours}; update the older one",
        ours = ProtocolRange::SUPPORTED
    )]
    Protocol(ProtocolRange),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("the cluster cannot be noted: {0}")]
    Store(#[from] StateDirError),
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
        (link_secret, fence_file): (LinkSecret, FenceFile),
    ) -> Self {
        Self {
            gateway,
            request,
            events,
            status,
            gpus,
            link_secret,
            fence_file,
            authority: watch::Sender::default(),
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
        loop {
            match self.acquire_lease().await {
                Ok((epoch, lease)) => {
                    if held != Some(true) {
                        tracing::info!(
                            grant.epoch = epoch,
                            grant.lease_ms = lease.as_millis(),
                            "lease held"
                        );
                    }
                    held = Some(true);
                    backoff = Backoff::new();
                    let renew = (lease / 3).max(MIN_INTERVAL);
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

    /// Takes or renews the lease. Returns the gateway's epoch and the duration of the lease.
    async fn acquire_lease(&self) -> Result<(u64, Duration), LeaseError> {
        let fence = self.fence_file.fence();
        let nonce = format!("{:032x}", rand::random::<u128>());
        let request = LeaseRequest {
            cluster_id: fence.cluster_id.clone(),
            highest_epoch: fence.highest_epoch,
            nonce: Some(nonce.clone()),
            ..self.request.clone()
        };
        let (grant, token) = self.gateway.acquire_lease(&request).await?;
        let common = grant.protocol.highest_common(ProtocolRange::SUPPORTED);
        common.ok_or(LeaseError::Protocol(grant.protocol))?;
        let proven = match (&grant.cluster_id, &grant.proof) {
            (Some(cluster), Some(proof)) => {
                let key = ClusterKey::new(&self.link_secret, &token);
                let proof = hex::decode(proof).unwrap_or_default();
                key.verifies(&nonce, cluster, &proof)
            }
            _ => false,
        };
        let verdict = fence.grant(grant.cluster_id.as_ref(), grant.epoch, proven);
        let (next, event) = match verdict {
            Ok(granted) => granted,
            Err(e) => {
                // What this gateway wants does not count, either.
                self.authority
                    .send_modify(|authority| authority.epoch = None);
                return Err(e.into());
            }
        };
        let changed = matches!(event, Event::ClusterChanged { .. });
        if next != fence {
            self.store_fence(&fence, next)?;
        }
        self.send_event(event).await;
        self.authority.send_modify(|authority| {
            authority.grants += 1;
            authority.changes += u64::from(changed);
            authority.epoch = Some(grant.epoch);
        });
        Ok((grant.epoch, Duration::from_millis(grant.lease_ms)))
    }

    /// Stores the fence before anything is obeyed that depends on it.
    fn store_fence(&self, before: &Fence, next: Fence) -> Result<(), StateDirError> {
        if next.cluster_id != before.cluster_id {
            let cluster = next.cluster_id.as_ref();
            let cluster = cluster.map(packhorse_cluster::ClusterId::as_str);
            let epoch = next.highest_epoch;
            if before.cluster_id.is_some() {
                tracing::warn!(
                    cluster,
                    epoch,
                    "the agent obeys another cluster from now on"
                );
            } else {
                tracing::info!(cluster, epoch, "the agent obeys its first cluster");
            }
        }
        self.fence_file.store(next)
    }

    /// Waits until the lease has been granted once.
    async fn wait_for_grant(&self) -> watch::Receiver<Authority> {
        let mut authority = self.authority.subscribe();
        // This struct holds the sender, so that the channel is open.
        let _ = authority.wait_for(|authority| authority.grants > 0).await;
        authority
    }

    async fn follow_wanted(&self) {
        let authority = self.wait_for_grant().await;
        let mut backoff = Backoff::new();
        let mut changes = 0;
        let mut known = (0, 0);
        loop {
            if changes != authority.borrow().changes {
                changes = authority.borrow().changes;
                known = (0, 0);
            }
            match self.gateway.poll_wanted(known).await {
                Ok(wanted) => {
                    backoff = Backoff::new();
                    let version = (wanted.epoch, wanted.revision);
                    let Authority {
                        changes: now,
                        epoch,
                        ..
                    } = *authority.borrow();
                    if changes != now || version <= known {
                        sleep(MIN_INTERVAL).await;
                    } else if epoch.is_none_or(|epoch| wanted.epoch > epoch) {
                        // Only the gateway that granted the lease is obeyed. A newer one has to be asked for it first.
                        self.lost.notify_one();
                        sleep(MIN_INTERVAL).await;
                    } else {
                        known = version;
                        self.send_event(Event::Wanted(wanted)).await;
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
        let mut refused = false;
        loop {
            grants.mark_unchanged();
            let NodeStatus {
                epoch,
                revision,
                replicas,
                profiles,
                inspections,
            } = status.borrow_and_update().clone();
            let message = AgentStatus {
                instance: self.request.instance.clone(),
                epoch,
                revision,
                replicas,
                profiles,
                inspections,
                gpus: self.gpus.read().await,
            };
            match self.gateway.report_status(&message).await {
                Ok(()) => {
                    backoff = Backoff::new();
                    refused = false;
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
                    // A gateway that is away is no news; one that refuses what this agent says never changes its mind.
                    if e.is_bad_request() && !refused {
                        tracing::warn!(error = %e, "the gateway does not accept the node's status");
                    } else {
                        tracing::debug!(error = %e, "status not reported");
                    }
                    refused = e.is_bad_request();
                    backoff.pause().await;
                }
            }
        }
    }
}
