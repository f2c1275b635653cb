//! The choice of the requests that are exported, and the queue to the exporter.

use std::{
    fmt::Error,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::http::HeaderMap;
use packhorse_api::EndOfRequest;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};
use tokio::sync::mpsc;

use super::{context::TraceContext, identity::RequestIdentity};
use crate::telemetry::{request_log::RequestRecord, request_views::end_of};

/// The number of requests that wait for the exporter; further ones are dropped.
const QUEUE: usize = 4096;

/// The part of the requests within their SLO that is exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(f64);

/// A text that is no ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 0 to 1")]
pub struct SampleRatioError;

impl SampleRatio {
    /// Creates a ratio; `None` if it is not between 0 and 1.
    pub fn new(ratio: f64) -> Option<Self> {
        (0.0..=1.0).contains(&ratio).then_some(Self(ratio))
    }

    /// Returns true for this part of all traces. All gateways agree about a trace: what decides is its last 7 bytes, which W3C Trace
    /// Context wants to be random, against the threshold of OpenTelemetry's consistent probability sampling.
    pub(super) fn includes(self, trace: u128) -> bool {
        const ALL: u64 = 1 << 56;
        let random = trace & u128::from(ALL - 1);
        let rejected = (1.0 - self.0) * ALL as f64;
        random >= rejected as u128
    }
}

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let ratio = text.parse().ok().and_then(Self::new);
        ratio.ok_or(SampleRatioError)
    }
}

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

    /// Begins the span of a request with these headers.
    pub(super) fn begin(&self, headers: &HeaderMap) -> TraceContext {
        TraceContext::of_request(headers, self.ratio)
    }

    /// Takes a request that has ended, if it is chosen: one that missed its SLO or was not answered, and a sample of the others.
    /// Never waits.
    pub(crate) fn end(&self, identity: &RequestIdentity, record: RequestRecord) {
        let Some(context) = identity.trace else {
            return;
        };
        let missed = match end_of(&record) {
            EndOfRequest::Answered | EndOfRequest::Cancelled => false,
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
        // Counters are written like gauges, under their own type: the encoder would add `_total` again.
        let mut metric = encoder.encode_descriptor(
            "packhorse_traces_exported_total",
            "Traces of requests that the receiver has taken.",
            None,
            MetricType::Counter,
        )?;
        metric.encode_gauge(&exported.load(Relaxed))?;
        let mut metric = encoder.encode_descriptor(
            "packhorse_traces_dropped_total",
            "Traces of requests that were chosen but not exported: the queue was full, or the receiver did not take them.",
            None,
            MetricType::Counter,
        )?;
        for (cause, count) in [("queue", overflowed), ("receiver", failed)] {
            let labels = [("cause", cause)];
            metric
                .encode_family(&labels)?
                .encode_gauge(&count.load(Relaxed))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packhorse_cluster::Time;
    use packhorse_serving::RequestOutcome;

    use super::*;
    use crate::telemetry::{
        RequestCourse,
        request_log::{Micros, ModelNumber},
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
        }
    }

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        for text in ["0", "0.01", "1", "1e-3"] {
            assert!(text.parse::<SampleRatio>().is_ok(), "{text}");
        }
        for text in ["", "-0.1", "1.01", "NaN", "inf", "1%"] {
            assert_eq!(text.parse::<SampleRatio>(), Err(SampleRatioError), "{text}");
        }
        let ratio = SampleRatio::new(0.25).unwrap();
        let included = (0..4000).filter(|_| ratio.includes(rand::random()));
        let included = included.count();
        assert!((800..1200).contains(&included), "{included}");
        assert!(!SampleRatio::new(0.0).unwrap().includes(u128::MAX));
        assert!(SampleRatio::new(1.0).unwrap().includes(0));
    }

    #[test]
    fn requests_that_miss_their_slo_are_chosen_and_a_full_queue_drops() {
        let (tracer, mut ended) = Tracer::new(SampleRatio::new(0.0).unwrap());
        let identity = RequestIdentity::new(&HeaderMap::new(), Some(&tracer));
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
