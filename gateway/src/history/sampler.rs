//! The task that samples all models and devices every ten seconds.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use packhorse_cluster::{DeviceId, ReplicaId};
use packhorse_control::ComputedWork;
use packhorse_history::{Block, DeviceSample, FINE_MS, Mark, ModelSample, Sample, Series};
use tokio::time::{MissedTickBehavior, interval};

use super::{files::Files, log::HistoryLog, marks::mark};
use crate::{driver::DataPlane, events::EventLog, store::unix_ms, telemetry::LONGEST_WINDOW};

/// The time between two looks at the clock.
const LOOK: Duration = Duration::from_secs(1);
/// The time after the end of a block at which it is made: other threads may still write to its last second.
const DELAY_MS: u64 = 2000;
/// The largest number of new events that are looked at for marks.
const MAX_EVENTS: usize = 1000;

/// The sampler.
pub(super) struct Sampler {
    data_plane: DataPlane,
    events: EventLog,
    log: HistoryLog,
    files: Files,
    /// The first second of the clock that is in no block yet.
    next_second: u64,
    work: BTreeMap<ReplicaId, ComputedWork>,
    last_event: u64,
    /// The time before which an earlier gateway has noted what happened.
    noted_ms: u64,
}

impl Sampler {
    pub(super) fn new(
        data_plane: DataPlane,
        events: EventLog,
        log: HistoryLog,
        files: Files,
    ) -> Self {
        let noted_ms = log.read(|history| history.last_ms().map_or(0, |last| last + FINE_MS));
        Self {
            data_plane,
            events,
            log,
            files,
            next_second: 0,
            work: BTreeMap::new(),
            last_event: 0,
            noted_ms,
        }
    }

    /// Makes a block of every ten seconds.
    pub(super) async fn run(mut self) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let slot = |now: u64| now.saturating_sub(DELAY_MS) / FINE_MS;
        let wall = || u64::try_from(unix_ms()).unwrap_or_default();
        let mut current = slot(wall());
        loop {
            ticks.tick().await;
            let now = slot(wall());
            if now <= current {
                // A clock that was set back leaves a gap.
                current = current.min(now + 1);
                continue;
            }
            current = now;
            self.sample((now - 1) * FINE_MS).await;
        }
    }

    /// Makes the block that begins then.
    async fn sample(&mut self, begin_ms: u64) {
        let telemetry = self.data_plane.telemetry();
        let clock = telemetry.clock();
        // The present second and the one before are not over for all threads.
        let end = (clock.now().as_nanos() / 1_000_000_000).saturating_sub(1);
        let first = self
            .next_second
            .max(end.saturating_sub(LONGEST_WINDOW.as_secs()));
        if first >= end {
            return;
        }
        self.next_second = end;
        let covered_ms = (end - first) * 1000;
        let generation = telemetry.generation().unwrap_or_default();
        let mut samples = self.models(&(first..=end - 1));
        samples.extend(self.devices(covered_ms).await);
        let block = Block {
            begin_ms,
            covered_ms,
            generation,
            samples,
            marks: self.new_marks().await,
        };
        let mut files = std::mem::replace(&mut self.files, Files::nowhere());
        let log = self.log.clone();
        // Somebody may be reading the day.
        let written = tokio::task::spawn_blocking(move || {
            let minutes = log.change(|history| history.add(&block));
            files.append(Some(&block), &minutes);
            files
        });
        match written.await {
            Ok(files) => self.files = files,
            Err(e) => tracing::error!(error = %e, "the history is not written any more"),
        }
    }

    fn models(&self, seconds: &RangeInclusive<u64>) -> BTreeMap<Series, Sample> {
        let mut all = ModelSample::default();
        let mut samples = BTreeMap::new();
        for (model, sample) in self.data_plane.telemetry().model_samples(seconds) {
            all.merge(&sample);
            samples.insert(Series::Model(model), Sample::Model(sample));
        }
        samples.insert(Series::Cluster, Sample::Model(all));
        samples
    }

    async fn devices(&mut self, covered_ms: u64) -> Vec<(Series, Sample)> {
        let work = self.data_plane.work().await;
        let telemetry = self.data_plane.telemetry();
        let on = telemetry.requests().names().devices();
        let mut busy: BTreeMap<DeviceId, Duration> = BTreeMap::new();
        for (replica, work) in &work {
            let before = self.work.get(replica).copied().unwrap_or_default();
            if let Some(device) = on.get(replica) {
                *busy.entry(device.clone()).or_default() += work.since(before).compute;
            }
        }
        let samples = telemetry
            .device_memory()
            .into_iter()
            .map(|(device, bytes)| {
                let mut sample = DeviceSample {
                    memory_kib: bytes / 1024,
                    ..DeviceSample::default()
                };
                let busy = busy.get(&device).copied().unwrap_or_default();
                sample.busy_ms = u64::try_from(busy.as_millis()).unwrap_or(u64::MAX);
                let gpus = telemetry.gpus(device.node());
                let gpu = gpus.iter().find(|gpu| gpu.device == device.local());
                if let Some(percent) = gpu.and_then(|gpu| gpu.utilization_pct) {
                    sample.read_ms = covered_ms;
                    let part = (percent / 100.0).clamp(0.0, 1.0);
                    sample.used_ms = (covered_ms as f64 * part) as u64;
                }
                (Series::Device(device), Sample::Device(sample))
            });
        let samples = samples.collect();
        self.work = work;
        samples
    }

    /// Returns the marks of the events since the last time.
    async fn new_marks(&mut self) -> Vec<Mark> {
        let newest = self.events.newest(self.last_event, MAX_EVENTS).await;
        let events = newest.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "the history lacks the marks of these ten seconds");
            Vec::new()
        });
        if let Some(last) = events.last() {
            self.last_event = last.id;
        }
        let marks = events.iter().filter_map(mark);
        marks.filter(|mark| mark.at_ms >= self.noted_ms).collect()
    }
}
