//! The choice of the requests that are exported, and the queue to the exporter.

use std::{
    fmt::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use packhorse_api::EndOfRequest;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};
use tokio::sync::mpsc;

use super::{context::TraceContext, identity::RequestIdentity, sample_ratio::SampleRatio};
use crate::telemetry::{
    request_end::end_of,
    request_log::RequestRecord,
    samples::{encode_samples, encode_value},
};

/// The number of requests that wait for the exporter; further ones are dropped.
const QUEUE: usize = 4096;

/// A request that has ended and is to be exported.
#[derive(Clone, Debug)]
pub(super) struct EndedTrace {
    pub(super) id: String,
    pub(super) context: TraceContext,
    pub(super) record: RequestRecord,
}

/// The counts of exported and dropped traces.
#[derive(Debug, Default)]
pub(super) struct TraceCounts {
    pub(super) exported: AtomicU64,
    /// Those that the receiver did not take.
    pub(super) failed: AtomicU64,
    /// Those for which the queue had no place.
    overflowed: AtomicU64,
}

/// A handle to the queue of requests that are to be exported. Clones share it.
#[derive(Clone, Debug)]
pub struct Tracer {
    queue: mpsc::Sender<EndedTrace>,
    ratio: SampleRatio,
    pub(super) counts: Arc<TraceCounts>,
}

impl Tracer {
    pub(super) fn new(ratio: SampleRatio) -> (Self, mpsc::Receiver<EndedTrace>) {
        let (queue, ended) = mpsc::channel(QUEUE);
        let counts = Arc::default();
        let tracer = Self {
            queue,
            ratio,
            counts,
        };
        (tracer, ended)
    }

    /// Returns the part of the requests within their SLO that is exported.
    pub(crate) fn ratio(&self) -> SampleRatio {
        self.ratio
    }

    /// Takes a request that has ended, if it is chosen: one that missed its SLO or was not answered, and a sample of the others.
    /// Never waits.
    pub(crate) fn end(&self, identity: &RequestIdentity, record: RequestRecord) {
        let Some(context) = identity.trace else {
            return;
        };
        let missed = match end_of(&record) {
            EndOfRequest::Answered | EndOfRequest::Cancelled | EndOfRequest::Rejected => false,
            EndOfRequest::Late
            | EndOfRequest::Refused
            | EndOfRequest::Expired
            | EndOfRequest::Lost
            | EndOfRequest::Failed => true,
        };
        if !missed && !context.is_sampled {
            return;
        }
        let ended = EndedTrace {
            id: identity.id().to_owned(),
            context,
            record,
        };
        if self.queue.try_send(ended).is_err() {
            self.counts.overflowed.fetch_add(1, Relaxed);
        }
    }
}

impl Collector for Tracer {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let TraceCounts {
            exported,
            failed,
            overflowed,
        } = &*self.counts;
        encode_value(
            &mut encoder,
            "packhorse_traces_exported_total",
            "Traces of requests that the receiver has taken.",
            MetricType::Counter,
            &exported.load(Relaxed),
        )?;
        let dropped = [("queue", overflowed), ("receiver", failed)];
        encode_samples(
            &mut encoder,
            "packhorse_traces_dropped_total",
            "Traces of requests that were chosen but not exported: the queue was full, or the receiver did not take them.",
            MetricType::Counter,
            dropped.map(|(cause, count)| ([("cause", cause)], count.load(Relaxed))),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderMap;
    use packhorse_cluster::Time;
    use packhorse_serving::RequestOutcome;

    use super::*;
    use crate::telemetry::{
        RequestCourse,
        request_log::{Micros, ModelNumber},
        request_texts::TextPlace,
    };

    fn record(outcome: RequestOutcome, latency: u32) -> RequestRecord {
        RequestRecord {
            model: ModelNumber(0),
            arrived: Time::ZERO + Duration::from_secs(1),
            latency: Micros(latency),
            slo: Micros(10),
            receive: Micros(1),
            rows: 1,
            outcome,
            course: RequestCourse::default(),
            texts: TextPlace::default(),
        }
    }

    #[test]
    fn requests_that_miss_their_slo_are_chosen_and_a_full_queue_drops() {
        let (tracer, mut ended) = Tracer::new(SampleRatio::new(0.0).unwrap());
        let identity = RequestIdentity::new(&HeaderMap::new(), Some(tracer.ratio()));
        tracer.end(&identity, record(RequestOutcome::Answered, 5));
        tracer.end(&identity, record(RequestOutcome::Cancelled, 50));
        assert!(ended.try_recv().is_err());
        for (outcome, latency) in [
            (RequestOutcome::Answered, 11),
            (RequestOutcome::Expired, 5),
            (RequestOutcome::Failed, 5),
            (RequestOutcome::Lost, 5),
        ] {
            tracer.end(&identity, record(outcome, latency));
            assert_eq!(ended.try_recv().unwrap().record.outcome, outcome);
        }
        for _ in 0..QUEUE + 3 {
            tracer.end(&identity, record(RequestOutcome::Lost, 5));
        }
        assert_eq!(tracer.counts.overflowed.load(Relaxed), 3);
    }
}
