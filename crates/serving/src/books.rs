//! The books of the engine: where every request went.

/// How many requests are where. Every request that arrived is either refused or accepted, and every accepted one is in exactly
/// one of the other places: `accepted = answered + failed + expired + lost + cancelled + queued + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Refused at arrival.
    pub refused: u64,
    /// Accepted at arrival.
    pub accepted: u64,
    /// Came back from a replica.
    pub answered: u64,
    /// The module threw.
    pub failed: u64,
    /// Could no longer make the deadline.
    pub expired: u64,
    /// Worker or model gone.
    pub lost: u64,
    /// The client did not wait.
    pub cancelled: u64,
    /// Wait now.
    pub queued: u64,
    /// Are on a replica now.
    pub in_flight: u64,
}

impl Books {
    /// Whether every accepted request is in exactly one place.
    pub const fn balance(&self) -> bool {
        let ended = self.answered + self.failed + self.expired + self.lost + self.cancelled;
        self.accepted == ended + self.queued + self.in_flight
    }
}
