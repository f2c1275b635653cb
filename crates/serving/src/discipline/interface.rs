//! The interface of the dispatch disciplines: how waiting requests become batches, and which replica takes them.
//!
//! A discipline decides and keeps no state: it reads the [`ModelView`] and returns a [`Decision`], which the engine carries out
//! and checks.

use std::fmt::Debug;

use super::{decision::Decision, model_view::ModelView};
use crate::{Refusal, Request};

/// A dispatch discipline.
pub(crate) trait Discipline: Debug + Send {
    /// Returns true if a batch is formed when a replica takes it: when it has a free credit and, on a device that is shared in time,
    /// the turn. If false, batches wait at the replicas.
    fn binds_late(&self) -> bool;

    /// Returns true if the discipline uses [`crate::adaptive_batch`]: the engine then compares batches with the objectives of their requests.
    fn adapts_batches(&self) -> bool {
        false
    }

    /// Returns the rank of a request in its queue: the smallest rank is first, equal ranks are ordered by arrival.
    fn rank(&self, request: &Request) -> u64;

    /// Decides if a request may wait at a rank: its own, or a later one. The queue has room for it, and a replica of its model is serving.
    fn admit(&self, view: ModelView<'_>, request: &Request, rank: u64) -> Result<(), Refusal>;

    /// Decides the next step. The engine calls it again after every decision except to wait, and after every event that concerns
    /// the model.
    fn decide(&self, view: ModelView<'_>) -> Decision;
}
