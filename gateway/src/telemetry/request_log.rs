//! The requests and batches that ended lately, in one ring of 17 MiB: for the question where the time of a single request went. The texts of
//! requests are in a ring of their own.
//!
//! A record has a fixed size, so that recording allocates nothing: it takes a lock and copies one record. Memory is used as the ring fills
//! for the first time. Readers copy the ring in chunks and hold the lock for microseconds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use packhorse_api::CacheUse;
use packhorse_cluster::{DeviceId, ModelId, ReplicaId, Time};
use packhorse_serving::RequestOutcome;

use super::request_texts::{RequestTexts, TextPlace, TextRing};

/// The size of the ring, in bytes.
const RING_BYTES: usize = 17 << 20;
/// The number of records of the ring: at 1000 requests per second the last two minutes.
const CAPACITY: usize = RING_BYTES / size_of::<Record>();
// A record that grows must not shorten the memory unnoticed.
const _: () = assert!(CAPACITY >= 120 * 1000);
/// The number of records that a reader copies at a time.
const CHUNK: u64 = 512;
/// The number of removed models, and of removed replicas, whose names are still known.
const KEPT_NAMES: usize = 1024;

/// A duration in microseconds, which a record has room for: up to 71 minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Micros(pub(crate) u32);

impl From<Duration> for Micros {
    fn from(duration: Duration) -> Self {
        Self(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(Micros(micros): Micros) -> Self {
        Self::from_micros(micros.into())
    }
}

impl Micros {
    /// Returns the duration in milliseconds.
    pub(crate) fn as_ms(self) -> f64 {
        f64::from(self.0) / 1e3
    }
}

/// The number of a model in the records. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelNumber(pub(crate) u32);

/// The number of a replica in the records: its key in the engine, which is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplicaNumber(pub(crate) u32);

/// The stages of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchStages {
    /// The transmission to the worker and back.
    pub(crate) network: Micros,
    /// The time before the batch was computed: in the gateway until its turn on a time-shared device, and in the worker.
    pub(crate) worker_queue: Micros,
    /// The copy into the device's memory.
    pub(crate) copy_in: Micros,
    /// The computation.
    pub(crate) compute: Micros,
    /// The copy out of the device's memory.
    pub(crate) copy_out: Micros,
}

/// The batch that a request was last in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestBatch {
    /// The batch's key in the engine.
    pub(crate) key: u64,
    pub(crate) replica: ReplicaNumber,
    /// The rows of the whole batch.
    pub(crate) rows: u32,
    /// The time from its dispatch until it came back or failed.
    pub(crate) round_trip: Micros,
    pub(crate) outcome: BatchOutcome,
}

/// The course of a request through the data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCourse {
    /// The batch that it was last in.
    pub(crate) batch: Option<RequestBatch>,
    /// The time in which its pictures became tensors, a part of that in which it was received.
    pub(crate) decode: Micros,
    /// The time in which its texts became tensors, a part of that in which it was received.
    pub(crate) tokenize: Micros,
    /// The outcome of looking for it in the cache; none if it was not looked for there.
    pub(crate) cache: Option<CacheUse>,
    /// The time in which it was looked for, a part of that in which it was received.
    pub(crate) lookup: Micros,
    /// The time in the driver's inbox.
    pub(crate) inbox: Micros,
    /// The time from then until the weights of the model were on the device.
    pub(crate) load: Micros,
    /// The time from then until the last request of this batch had arrived.
    pub(crate) batch_wait: Micros,
    /// The time from then until this batch was dispatched.
    pub(crate) queue: Micros,
    /// The stages of this batch; 0 if it did not come back.
    pub(crate) stages: BatchStages,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRecord {
    pub(crate) model: ModelNumber,
    /// The time of the request's head.
    pub(crate) arrived: Time,
    pub(crate) latency: Micros,
    pub(crate) slo: Micros,
    pub(crate) receive: Micros,
    pub(crate) rows: u32,
    pub(crate) outcome: RequestOutcome,
    pub(crate) course: RequestCourse,
    /// The place of its texts.
    pub(crate) texts: TextPlace,
}

/// The end of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// It came back.
    Computed,
    /// It failed, or its worker was lost.
    Failed,
}

/// A batch that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchRecord {
    pub(crate) model: ModelNumber,
    /// The batch's key in the engine.
    pub(crate) key: u64,
    pub(crate) replica: ReplicaNumber,
    pub(crate) dispatched: Time,
    pub(crate) round_trip: Micros,
    pub(crate) requests: u32,
    pub(crate) rows: u32,
    pub(crate) stages: BatchStages,
    pub(crate) outcome: BatchOutcome,
}

/// An element of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A request that has ended.
    Request(RequestRecord),
    /// A batch that has ended. It is recorded before its requests.
    Batch(BatchRecord),
}

/// The ring. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestLog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ring: Mutex<Ring>,
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Ring {
    records: Vec<Record>,
    /// The number of records so far, also of those that were overwritten.
    count: u64,
    texts: TextRing,
}

impl Ring {
    fn push(&mut self, record: Record) {
        if self.records.len() < CAPACITY {
            if self.records.capacity() == 0 {
                self.records.reserve_exact(CAPACITY);
            }
            self.records.push(record);
        } else {
            let at = (self.count % CAPACITY as u64) as usize;
            self.records[at] = record;
        }
        self.count += 1;
    }
}

/// The names of models and replicas in the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    models: BTreeMap<ModelNumber, ModelId>,
    next_model: u32,
    removed_models: BTreeSet<ModelNumber>,
    replicas: BTreeMap<ReplicaNumber, (ReplicaId, DeviceId)>,
}

impl Names {
    /// Returns the name of a model, unless too many models were removed since.
    pub(crate) fn model(&self, number: ModelNumber) -> Option<&ModelId> {
        self.models.get(&number)
    }

    /// Returns the devices of the replicas.
    pub(crate) fn devices(&self) -> BTreeMap<ReplicaId, DeviceId> {
        self.replicas.values().cloned().collect()
    }

    /// Returns the identity of a replica and its device, unless too many replicas were removed since.
    pub(crate) fn replica(&self, number: ReplicaNumber) -> Option<&(ReplicaId, DeviceId)> {
        self.replicas.get(&number)
    }
}

impl RequestLog {
    /// Adds a batch.
    pub(crate) fn record_batch(&self, batch: BatchRecord) {
        self.ring().push(Record::Batch(batch));
    }

    /// Adds a request with its id, trace, key and failure.
    pub(crate) fn record_request(&self, mut request: RequestRecord, texts: [&str; 4]) {
        let mut ring = self.ring();
        request.texts = ring.texts.add(texts);
        ring.push(Record::Request(request));
    }

    /// Returns the texts of a request, unless they were overwritten.
    pub(crate) fn texts(&self, request: &RequestRecord) -> Option<RequestTexts> {
        self.ring().texts.get(request.texts)
    }

    /// Returns the request with this number, unless it was overwritten.
    pub(crate) fn request(&self, number: u64) -> Option<RequestRecord> {
        let ring = self.ring();
        let oldest = ring.count - ring.records.len() as u64;
        if !(oldest..ring.count).contains(&number) {
            return None;
        }
        match ring.records[(number % CAPACITY as u64) as usize] {
            Record::Request(request) => Some(request),
            Record::Batch(_) => None,
        }
    }

    /// Visits the records with their numbers, the newest first, until `visit` returns false.
    pub(crate) fn visit(&self, mut visit: impl FnMut(u64, &Record) -> bool) {
        let mut chunk = Vec::with_capacity(CHUNK as usize);
        let mut end = u64::MAX;
        loop {
            let first = {
                let ring = self.ring();
                let oldest = ring.count - ring.records.len() as u64;
                end = end.min(ring.count);
                let first = end.saturating_sub(CHUNK).max(oldest);
                chunk.clear();
                let numbers = first..end;
                chunk.extend(numbers.map(|n| ring.records[(n % CAPACITY as u64) as usize]));
                first
            };
            if chunk.is_empty() {
                return;
            }
            for (number, record) in (first..end).rev().zip(chunk.iter().rev()) {
                if !visit(number, record) {
                    return;
                }
            }
            end = first;
        }
    }

    /// Returns the names of the models and replicas.
    pub(crate) fn names(&self) -> Names {
        let names = self.0.names.read();
        names.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives a model a number.
    pub(super) fn add_model(&self, model: &ModelId) -> ModelNumber {
        self.change_names(|names| {
            let number = ModelNumber(names.next_model);
            names.next_model += 1;
            names.models.insert(number, model.clone());
            number
        })
    }

    /// Notes that a model was removed. Its name is known a while longer.
    pub(super) fn remove_model(&self, number: ModelNumber) {
        self.change_names(|names| {
            names.removed_models.insert(number);
            while names.removed_models.len() > KEPT_NAMES
                && let Some(oldest) = names.removed_models.pop_first()
            {
                names.models.remove(&oldest);
            }
        });
    }

    /// Names the present replicas. The names of those that were removed are known a while longer.
    pub(crate) fn set_replicas<'a>(
        &self,
        replicas: impl Iterator<Item = (ReplicaNumber, ReplicaId, &'a DeviceId)>,
    ) {
        self.change_names(|names| {
            let mut present = BTreeSet::new();
            for (number, id, device) in replicas {
                present.insert(number);
                let named = names.replicas.entry(number);
                named.or_insert_with(|| (id, device.clone()));
            }
            let mut surplus = names.replicas.len() - present.len();
            names.replicas.retain(|number, _| {
                let keep = surplus <= KEPT_NAMES || present.contains(number);
                surplus -= usize::from(!keep);
                keep
            });
        });
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic of another thread has at worst lost a record.
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_names<T>(&self, change: impl FnOnce(&mut Names) -> T) -> T {
        let mut names = self.0.names.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64) -> Record {
        Record::Request(RequestRecord {
            model: ModelNumber(0),
            arrived: Time::from_nanos(number),
            latency: Micros(1),
            slo: Micros(2),
            receive: Micros(0),
            rows: 1,
            outcome: RequestOutcome::Expired,
            course: RequestCourse::default(),
            texts: TextPlace::default(),
        })
    }

    fn add(log: &RequestLog, number: u64) {
        if let Record::Request(request) = request(number) {
            log.record_request(request, ["order-4711", "", "team-a", ""]);
        }
    }

    /// The record without the place of its texts.
    fn without_texts(record: &Record) -> Record {
        match *record {
            Record::Request(request) => Record::Request(RequestRecord {
                texts: TextPlace::default(),
                ..request
            }),
            Record::Batch(batch) => Record::Batch(batch),
        }
    }

    fn newest(log: &RequestLog, limit: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        log.visit(|number, record| {
            assert_eq!(without_texts(record), request(number));
            numbers.push(number);
            numbers.len() < limit
        });
        numbers
    }

    #[test]
    fn recording_allocates_nothing_once_the_ring_exists() {
        let log = RequestLog::default();
        let first = allocation_counter::measure(|| add(&log, 0));
        // The records, and their texts.
        assert_eq!(first.count_total, 2);
        assert!(first.bytes_total <= (RING_BYTES + (24 << 20)) as u64);
        let all = 2 * CAPACITY as u64;
        let later = allocation_counter::measure(|| {
            for number in 1..all {
                add(&log, number);
            }
        });
        assert_eq!(later.count_total, 0);
    }

    #[test]
    fn the_newest_records_are_visited_first_and_the_oldest_are_overwritten() {
        let log = RequestLog::default();
        assert_eq!(newest(&log, 10), [0; 0]);
        for number in 0..3 {
            add(&log, number);
        }
        assert_eq!(newest(&log, 10), [2, 1, 0]);
        let all = CAPACITY as u64 + 1000;
        for number in 3..all {
            add(&log, number);
        }
        assert_eq!(newest(&log, 3), [all - 1, all - 2, all - 3]);
        let numbers = newest(&log, usize::MAX);
        assert_eq!(numbers.len(), CAPACITY);
        assert_eq!(numbers.last(), Some(&1000));
    }

    #[test]
    fn what_is_recorded_during_a_visit_does_not_disturb_it() {
        let log = RequestLog::default();
        for number in 0..CAPACITY as u64 {
            add(&log, number);
        }
        let mut next = CAPACITY as u64;
        let mut visited = Vec::new();
        log.visit(|number, record| {
            assert_eq!(without_texts(record), request(number));
            visited.push(number);
            add(&log, next);
            next += 1;
            true
        });
        assert!(visited.is_sorted_by(|a, b| a > b));
        // The ring is overwritten from its other end at the same speed.
        assert!(
            visited.len() >= CAPACITY / 2 - CHUNK as usize,
            "{}",
            visited.len()
        );
    }

    #[test]
    fn names_outlive_their_models_and_replicas_for_a_while() {
        let log = RequestLog::default();
        let model: ModelId = "m".parse().unwrap();
        let numbers: Vec<ModelNumber> = (0..2000).map(|_| log.add_model(&model)).collect();
        for number in &numbers[..1500] {
            log.remove_model(*number);
        }
        let names = log.names();
        let known = |range: std::ops::Range<usize>| {
            let mut numbers = numbers[range].iter();
            numbers.all(|number| names.model(*number).is_some())
        };
        assert!(known(1500 - KEPT_NAMES..2000));
        assert_eq!(names.models.len(), 500 + KEPT_NAMES);

        let device: DeviceId = "n/gpu0".parse().unwrap();
        let id: ReplicaId = "1-0".parse().unwrap();
        for generation in 0..3000 {
            let present = [0, generation + 1].map(|n| (ReplicaNumber(n), id, &device));
            log.set_replicas(present.into_iter());
        }
        let names = log.names();
        assert_eq!(names.replicas.len(), 2 + KEPT_NAMES);
        assert!(names.replica(ReplicaNumber(0)).is_some());
        assert!(names.replica(ReplicaNumber(1)).is_none());
        assert!(names.replica(ReplicaNumber(3000)).is_some());
    }
}
