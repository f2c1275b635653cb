//! The engine's input and output: events and actions.

use std::time::Duration;

use packhorse_cluster::Priority;

use crate::{
    BatchKey, ModelKey, ModelLimits, ReplicaKey, ReplicaParameters, Request, RequestKey,
    RequestOutcome, TenantKey,
};

/// An event of the world around the engine.
///
/// Events about a replica, batch or request that the engine no longer has are ignored: they were on their way when it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A model takes requests from now on, or its limits or its priority changed.
    ModelUpdated {
        /// The model.
        model: ModelKey,
        /// Its limits.
        limits: ModelLimits,
        /// Its priority over the other models of its devices.
        priority: Priority,
    },
    /// Another model takes the requests that a model cannot answer in time, at their arrival or because they waited in vain. Both answer the
    /// same requests; the driver chooses the fallbacks so that none leads back to a model before it.
    FallbackChanged {
        /// The model.
        model: ModelKey,
        /// The model that answers in its place; `None` for none.
        fallback: Option<ModelKey>,
    },
    /// A model is no longer served: its waiting requests go to its fallback or end as [`RequestOutcome::Lost`], its batches in flight are still
    /// answered, its replicas drain.
    ModelRemoved {
        /// The model.
        model: ModelKey,
    },
    /// A replica is ready. One that was lost before is judged by what it did then. A replica of an unknown model is given back at once ([`Action::ReplicaDrained`]).
    ReplicaReady {
        /// The replica.
        replica: ReplicaKey,
        /// Its parameters.
        parameters: ReplicaParameters,
    },
    /// A replica shall get no further batches; [`Action::ReplicaDrained`] follows once it holds none.
    ReplicaDraining {
        /// The replica.
        replica: ReplicaKey,
    },
    /// A replica is gone with the batches that it held, which speaks against it if it comes back: these are void, and their requests are tried again where time and
    /// attempts allow. Those of the first batch, which it computed, travel alone from then on: one of them may have been the
    /// cause, and such a request takes no others along. It ends after [`crate::EngineConfig::max_losses`].
    ReplicaLost {
        /// The replica.
        replica: ReplicaKey,
    },
    /// A replica was found to have memory for smaller batches only. The batches that it holds are not touched; a limit above
    /// the present one changes nothing.
    BatchLimitLowered {
        /// The replica.
        replica: ReplicaKey,
        /// The most rows of a batch from now on, at least 1, of one request or of several.
        rows: u32,
    },
    /// A replica that is in no pool takes turns from now on, or no longer: see [`crate::DeviceSharing`].
    TimeSharingChanged {
        /// The replica.
        replica: ReplicaKey,
        /// True if it takes turns with the other time-shared replicas of its device.
        time_shared: bool,
    },
    /// The weights of a member of a pool are on its device: [`Action::Load`] is done.
    WeightsLoaded {
        /// The replica.
        replica: ReplicaKey,
    },
    /// The weights of a member of a pool are not on its device, although nobody asked for that: its worker had no room, and could not carry
    /// [`Action::Load`] out or needed the memory for something else.
    WeightsUnloaded {
        /// The replica.
        replica: ReplicaKey,
    },
    /// The weights of a member of a pool are brought to its device from elsewhere, or take longer or less long, from now on.
    WeightsStored {
        /// The replica.
        replica: ReplicaKey,
        /// True if they are in a file only, and not in the memory of the node.
        on_disk: bool,
        /// The time to bring them to the device.
        load: Duration,
    },
    /// The weights of a pool's members may have more or less of their device from now on.
    PoolMemoryChanged {
        /// A member of the pool.
        replica: ReplicaKey,
        /// The bytes for the weights of all members together.
        memory: u64,
    },
    /// A request arrived.
    RequestArrived(Request),
    /// The client of a request stopped waiting. The request ends here without an [`Action::Finish`]; if it is being computed,
    /// the driver discards its rows.
    RequestCancelled {
        /// The request.
        request: RequestKey,
    },
    /// A batch was computed: every request of it that was not cancelled is answered.
    BatchCompleted {
        /// The batch.
        batch: BatchKey,
        /// The time for which the batch waited at the worker behind earlier ones.
        queue_wait: Duration,
        /// The time for which the worker computed it.
        compute: Duration,
    },
    /// A batch came back without being computed.
    BatchFailed {
        /// The batch.
        batch: BatchKey,
        /// The reason.
        error: BatchError,
    },
}

/// The reason why a batch came back without being computed. It decides which of its requests are tried again, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// The model failed. The batch is divided in halves, on another replica where there is one, until the requests at fault are alone: these are
    /// tried once more elsewhere, and end as [`RequestOutcome::Failed`]. Where the model may divide no more, the requests of a shared batch end as
    /// [`RequestOutcome::Lost`]. The failure counts against the replica ([`Action::ReplicaEjected`]), unless the parts fail elsewhere too.
    ModelFailed,
    /// The batch took longer than it may, and its worker ends: the replica is ejected. Its requests are tried again as those of a lost batch; those that
    /// cannot be tried again end as [`RequestOutcome::Failed`] if they were alone, and else as [`RequestOutcome::Lost`].
    TimedOut,
    /// The replica had no memory for the batch: its requests are tried again where time and attempts allow, and batches of rows
    /// that are as long are at most half as large there for a while.
    TooLarge,
    /// The batch was not begun: its requests are tried again as if it had not been sent.
    NotBegun,
    /// No batch with these requests can be computed: it is divided, and a request that is alone ends as [`RequestOutcome::Failed`].
    Rejected,
}

/// An action that the driver shall carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends these requests as one batch, in this order.
    Dispatch {
        /// The batch's number.
        batch: BatchKey,
        /// The replica that computes it.
        replica: ReplicaKey,
        /// The batch's requests, at least one.
        requests: Vec<RequestKey>,
    },
    /// Brings the weights of a member of a pool to its device, after those that come the same way. [`Event::WeightsLoaded`] or [`Event::WeightsUnloaded`] follows.
    Load {
        /// The replica.
        replica: ReplicaKey,
    },
    /// Removes the weights of a member of a pool from its device. None of its batches is there.
    Unload {
        /// The replica.
        replica: ReplicaKey,
        /// The member that gets its room: its [`Action::Load`] follows, so that it is not to leave the memory of the node for those that come there.
        wanted: Option<ReplicaKey>,
    },
    /// Tells the client that there will be no answer, and why. A request gets at most one of these.
    Finish {
        /// The request.
        request: RequestKey,
        /// The reason: refused, expired, lost or failed.
        outcome: RequestOutcome,
    },
    /// Batches failed on this replica while others computed theirs, or one took longer than it may. It gets no batches for a while, and then one, which shows if it
    /// is healthy again.
    ReplicaEjected {
        /// The replica.
        replica: ReplicaKey,
        /// The number of batches that the model failed on in a row.
        failures: u32,
    },
    /// The replica that was ejected has computed a batch and takes work as before.
    ReplicaRestored {
        /// The replica.
        replica: ReplicaKey,
    },
    /// Requests of this tenant ended workers of the model, or had them hang: they are refused for a while ([`crate::Refusal::TenantPaused`]). It comes
    /// before the ends of its requests.
    TenantPaused {
        /// The model.
        model: ModelKey,
        /// The tenant.
        tenant: TenantKey,
        /// The number of workers that it is known to have ended, without those that are forgotten.
        losses: u32,
        /// The time for which its requests are refused.
        pause: Duration,
    },
    /// The draining replica holds nothing any more and is forgotten: it can be stopped.
    ReplicaDrained {
        /// The replica.
        replica: ReplicaKey,
    },
}
