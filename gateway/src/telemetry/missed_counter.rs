//! The counts of the requests that missed their SLO, from the records of those that ended lately.

use std::{collections::BTreeMap, time::Duration};

use packhorse_api::{CacheUse, EndOfRequest};
use packhorse_cluster::ModelId;
use packhorse_control::{MissCause, MissedRequests, RequestStage};

use super::{
    request_end::end_of,
    request_log::{BatchOutcome, Record, RequestLog, RequestRecord},
};

/// Counts missed requests. Each reading adds those that have ended since the one before, as far as their records are still there.
#[derive(Debug, Default)]
pub(super) struct MissedCounter {
    /// The number of the first record that was not read yet.
    next: u64,
    models: BTreeMap<ModelId, MissedRequests>,
}

impl MissedCounter {
    /// Returns the counts of all models that have some and for which `is_present` holds.
    pub(super) fn read(
        &mut self,
        log: &RequestLog,
        is_present: impl Fn(&ModelId) -> bool,
    ) -> BTreeMap<ModelId, MissedRequests> {
        let names = log.names();
        let (first, mut next) = (self.next, self.next);
        log.visit(|number, record| {
            if number < first {
                return false;
            }
            next = next.max(number + 1);
            if let Record::Request(request) = record
                && let Some(cause) = miss_cause(request)
                && let Some(model) = names.model(request.model)
            {
                let batch = request.course.batch;
                let device = batch.and_then(|batch| names.replica(batch.replica));
                let device = device.map(|(_, device)| device);
                let missed = self.models.entry(model.clone()).or_default();
                missed.add(cause, stages(request), device);
            }
            true
        });
        self.next = next;
        self.models.retain(|model, _| is_present(model));
        self.models.clone()
    }
}

/// Returns how a request missed its SLO; `None` if it did not, or if no device had to compute it.
fn miss_cause(request: &RequestRecord) -> Option<MissCause> {
    if request.course.cache == Some(CacheUse::Hit) {
        return None;
    }
    match end_of(request) {
        EndOfRequest::Late => Some(MissCause::Late),
        EndOfRequest::Refused => Some(MissCause::Refused),
        EndOfRequest::Expired => Some(MissCause::Expired),
        EndOfRequest::Lost => Some(MissCause::Lost),
        EndOfRequest::Failed => Some(MissCause::Failed),
        EndOfRequest::Answered | EndOfRequest::Cancelled | EndOfRequest::Rejected => None,
    }
}

/// Returns the times of a request's stages.
fn stages(request: &RequestRecord) -> [(RequestStage, Duration); 10] {
    let course = &request.course;
    let queue = match course.batch {
        Some(_) => Duration::from(course.inbox) + Duration::from(course.queue),
        // What was in no batch has spent the rest of its time in the queue.
        None => Duration::from(request.latency).saturating_sub(request.receive.into()),
    };
    let batch = &course.stages;
    let is_uncomputed = course
        .batch
        .is_some_and(|batch| batch.outcome == BatchOutcome::Failed);
    let before = [request.receive, course.load, course.batch_wait];
    let before = before.into_iter().map(Duration::from).sum::<Duration>() + queue;
    let uncomputed = if is_uncomputed {
        Duration::from(request.latency).saturating_sub(before)
    } else {
        Duration::ZERO
    };
    [
        (RequestStage::Receive, request.receive.into()),
        (RequestStage::Uncomputed, uncomputed),
        (RequestStage::Load, course.load.into()),
        (RequestStage::Batch, course.batch_wait.into()),
        (RequestStage::Queue, queue),
        (RequestStage::Network, batch.network.into()),
        (RequestStage::WorkerQueue, batch.worker_queue.into()),
        (RequestStage::CopyIn, batch.copy_in.into()),
        (RequestStage::Compute, batch.compute.into()),
        (RequestStage::CopyOut, batch.copy_out.into()),
    ]
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Time;
    use packhorse_serving::{Refusal, RequestOutcome};

    use super::*;
    use crate::telemetry::{
        request_log::{Micros, ModelNumber, ReplicaNumber, RequestBatch, RequestCourse},
        request_texts::TextPlace,
    };

    #[test]
    fn each_missed_request_is_counted_once_with_its_stages_and_its_device() {
        let log = RequestLog::default();
        let (model, device) = ("m".parse().unwrap(), "n/gpu0".parse().unwrap());
        let number = log.add_model(&model);
        let replica = ReplicaNumber(7);
        log.set_replicas([(replica, "1-0".parse().unwrap(), &device)].into_iter());
        let record = |outcome, latency_ms: u32, in_batch: bool| {
            let batch = in_batch.then_some(RequestBatch {
                key: 1,
                replica,
                rows: 1,
                round_trip: Micros(10_000),
                outcome: BatchOutcome::Computed,
            });
            let mut course = RequestCourse {
                batch,
                ..RequestCourse::default()
            };
            course.stages.compute = Micros(if in_batch { 10_000 } else { 0 });
            let record = RequestRecord {
                model: number,
                arrived: Time::ZERO,
                latency: Micros(latency_ms * 1000),
                slo: Micros(50_000),
                receive: Micros(1000),
                rows: 1,
                outcome,
                course,
                texts: TextPlace::default(),
            };
            log.record_request(record, [""; 4]);
        };
        let mut counter = MissedCounter::default();
        assert!(counter.read(&log, |_| true).is_empty());
        record(RequestOutcome::Answered, 20, true);
        record(RequestOutcome::Cancelled, 200, false);
        record(RequestOutcome::Answered, 60, true);
        record(RequestOutcome::Expired, 51, false);
        let counts = counter.read(&log, |_| true);
        let expected = BTreeMap::from([(MissCause::Late, 1), (MissCause::Expired, 1)]);
        assert_eq!(counts[&model].causes, expected);
        assert_eq!(counts[&model].devices, BTreeMap::from([(device, 1)]));
        let stages = &counts[&model].stages;
        assert_eq!(stages[&RequestStage::Compute], Duration::from_millis(10));
        assert_eq!(stages[&RequestStage::Queue], Duration::from_millis(50));
        // A second reading has no more than what came since.
        assert_eq!(counter.read(&log, |_| true), counts);
        record(RequestOutcome::Refused(Refusal::NoReplica), 2, false);
        let more = counter.read(&log, |_| true);
        assert_eq!(more[&model].causes[&MissCause::Refused], 1);
        assert_eq!(&more[&model].stages, stages);
        assert!(counter.read(&log, |_| false).is_empty());
        // A batch that was lost with its worker has no stages: the rest of the time is not that of receiving.
        let mut lost = before_batch(number, replica);
        lost.latency = Micros(41_000);
        log.record_request(lost, [""; 4]);
        let more = counter.read(&log, |_| true);
        let uncomputed = more[&model].stages[&RequestStage::Uncomputed];
        assert_eq!(uncomputed, Duration::from_millis(40));
    }

    /// Returns the record of a request that was lost in a batch of this replica, one millisecond after it came.
    fn before_batch(model: ModelNumber, replica: ReplicaNumber) -> RequestRecord {
        RequestRecord {
            model,
            arrived: Time::ZERO,
            latency: Micros(1000),
            slo: Micros(50_000),
            receive: Micros(1000),
            rows: 1,
            outcome: RequestOutcome::Lost,
            course: RequestCourse {
                batch: Some(RequestBatch {
                    key: 2,
                    replica,
                    rows: 1,
                    round_trip: Micros(40_000),
                    outcome: BatchOutcome::Failed,
                }),
                ..RequestCourse::default()
            },
            texts: TextPlace::default(),
        }
    }
}
