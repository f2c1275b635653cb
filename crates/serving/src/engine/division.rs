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
use crate::{ReplicaKey, RequestOutcome, ShapeClass, queue::QueuedRequest};

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
        let may_divide = self
            .models
            .get_mut(&model)
            .is_some_and(|model| model.divisions.spend(now));
        if !may_divide {
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
