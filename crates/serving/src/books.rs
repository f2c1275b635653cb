//! Counts of all requests by how they ended or where they are.

use crate::RequestOutcome;

/// The number of requests in each place. Every request that arrived is either refused or accepted, and every accepted one is
/// in exactly one of the other places: `accepted = answered + failed + expired + lost + cancelled + queued + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Requests that ended as [`RequestOutcome::Refused`].
    pub refused: u64,
    /// Requests that were accepted at arrival.
    pub accepted: u64,
    /// Requests that ended as [`RequestOutcome::Answered`].
    pub answered: u64,
    /// Requests that ended as [`RequestOutcome::Failed`].
    pub failed: u64,
    /// Requests that ended as [`RequestOutcome::Expired`].
    pub expired: u64,
    /// Requests that ended as [`RequestOutcome::Lost`].
    pub lost: u64,
    /// Requests that ended as [`RequestOutcome::Cancelled`].
    pub cancelled: u64,
    /// Requests that wait in a queue now.
    pub queued: u64,
    /// Requests that are on a replica now.
    pub in_flight: u64,
}

impl Books {
    /// Returns true if every accepted request is in exactly one place.
    pub const fn is_balanced(&self) -> bool {
        let ended = self.answered + self.failed + self.expired + self.lost + self.cancelled;
        self.accepted == ended + self.queued + self.in_flight
    }

    /// Counts the end of a request. The caller has removed it from `queued` or `in_flight`.
    pub(crate) fn count_end(&mut self, outcome: RequestOutcome) {
        let count = match outcome {
            RequestOutcome::Answered => &mut self.answered,
            RequestOutcome::Refused(_) => &mut self.refused,
            RequestOutcome::Expired => &mut self.expired,
            RequestOutcome::Lost => &mut self.lost,
            RequestOutcome::Failed => &mut self.failed,
            RequestOutcome::Cancelled => &mut self.cancelled,
        };
        *count += 1;
    }
}
