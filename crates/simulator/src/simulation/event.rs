//! The events of a simulation.

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimEvent {
    /// The next request of a model arrives.
    RequestArrives(usize),
    /// A batch reaches its worker.
    BatchAtWorker(u64),
    /// A device has computed a batch. Outdated unless the device still has this revision.
    DeviceCompletes { device: usize, revision: u64 },
    /// The answer of a batch reaches the gateway.
    BatchAnswered(u64),
    /// A fault begins.
    FaultBegins(usize),
    /// The gateway notices a fault.
    FaultNoticed(usize),
    /// A fault ends.
    FaultEnds(usize),
    /// The agent of a node renews its lease.
    AgentRenews(usize),
    /// The autoscaler decides.
    AutoscalerDecides,
    /// The agent of a node that the autoscaler asked for joins. The number is that of the device.
    NodeStarted(usize),
    /// A worker has loaded its model. Outdated unless this is still the worker's attempt.
    ModelLoaded { replica: usize, attempt: u32 },
}
