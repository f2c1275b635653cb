//! The division of a batch on which the model failed, so that only the requests at fault fail with it.
//!
//! The batch is divided in halves, each half is a batch of its own, and so on down to single requests: `k` requests at fault among `n` cost about
//! `k log n` batches more. A request on which the model fails alone is tried once more on another replica, where there is one. Each part goes to
//! another replica than the one that failed, if there is one, so that the requests of a broken replica are answered elsewhere.
//!
//! The divisions of a model have a budget ([`crate::division_budget`]), apart from that of repeated attempts ([`crate::retry_budget`]): a request
//! that shared its batch with a bad one asks for nothing twice. The requests of a batch that cannot be divided end as
//! [`RequestOutcome::Lost`]: nobody knows which of them was at fault, and what the model says of a shared batch may be about the data of another client.
//!
//! Source: the adaptive group test by halving, Hwang, "A Method for Detecting All Defective Members in a Population by Group Testing", JASA
//! 1972. Ours divides every failed part instead of searching one defective at a time: the parts are computed at the same time, and requests
//! have deadlines.

use packhorse_cluster::Time;

use super::Engine;
use crate::{
    ModelKey, ReplicaKey, RequestOutcome, ShapeClass, division_budget::DivisionBudget,
    queue::QueuedRequest,
};

impl Engine {
    /// Returns the failed requests of one batch to the queue in two halves; `failed_on` is the replica that they shall not go to.
    pub(super) fn divide(
        &mut self,
        now: Time,
        mut requests: Vec<QueuedRequest>,
        failed_on: ReplicaKey,
    ) {
        let Some(model) = requests.first().map(|waiting| waiting.request.model) else {
            return;
        };
        if !self.may_divide(now, model, &requests) {
            for waiting in requests {
                self.finish(waiting.request.id, RequestOutcome::Lost);
            }
            return;
        }
        let half = requests.split_off(requests.len().div_ceil(2));
        for part in [requests, half] {
            let class = self.own_class();
            for mut waiting in part {
                waiting.request.class = class;
                waiting.failures += 1;
                waiting.failed_on = Some(failed_on);
                // Of the batch and not of its requests: the next one is at most half as large.
                waiting.attempts -= 1;
                self.retry(now, waiting, RequestOutcome::Lost);
            }
        }
    }

    /// Returns true, and counts a division, if a failed batch may be divided. A tenant that is kept apart pays for its own.
    fn may_divide(&mut self, now: Time, model: ModelKey, requests: &[QueuedRequest]) -> bool {
        self.divisions(model, requests)
            .is_some_and(|divisions| divisions.spend(now))
    }

    /// Counts requests that were answered in one batch.
    pub(super) fn earn_divisions(&mut self, model: ModelKey, answered: &[QueuedRequest]) {
        if let Some(divisions) = self.divisions(model, answered) {
            divisions.earn(answered.len());
        }
    }

    fn divisions(
        &mut self,
        model: ModelKey,
        requests: &[QueuedRequest],
    ) -> Option<&mut DivisionBudget> {
        let model = self.models.get_mut(&model)?;
        let mut tenants = requests.iter().map(|waiting| waiting.request.tenant);
        if let Some(first) = tenants.next().filter(|_| !model.blame.is_empty())
            && tenants.all(|tenant| tenant == first)
            && model.blame.knows(first)
        {
            return model.blame.divisions(first);
        }
        Some(&mut model.divisions)
    }

    /// Returns a shape class for requests that share batches with nobody else. The driver's classes are counted from 0.
    fn own_class(&mut self) -> ShapeClass {
        let number = self.next_arrival;
        self.next_arrival += 1;
        ShapeClass::own(number)
    }

    /// Retries a request on which the model failed alone: once, and on another replica.
    pub(super) fn retry_elsewhere(
        &mut self,
        now: Time,
        waiting: QueuedRequest,
        replica: ReplicaKey,
    ) {
        let rows = waiting.request.rows;
        let model = self.models.get(&waiting.request.model);
        let elsewhere = model.is_some_and(|model| model.pool.takes_elsewhere(replica, rows));
        // In a larger batch the model failed on it elsewhere.
        let failed_elsewhere = waiting.failed_on.is_some_and(|other| other != replica);
        if waiting.failed_alone || failed_elsewhere || !elsewhere || !self.may_retry(now, &waiting)
        {
            if let Some(model) = self.models.get_mut(&waiting.request.model) {
                model.blame.threw(now, waiting.request.tenant);
            }
            self.finish(waiting.request.id, RequestOutcome::Failed);
            return;
        }
        let waiting = QueuedRequest {
            failed_on: Some(replica),
            failed_alone: true,
            failures: waiting.failures + 1,
            ..waiting
        };
        self.retry(now, waiting.alone(), RequestOutcome::Failed);
    }
}
