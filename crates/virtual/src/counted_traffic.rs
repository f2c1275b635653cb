//! Requests that are counted, but that nobody sends: load for the control plane in scenarios whose requests do not matter.

use std::{collections::BTreeMap, mem};

use packhorse_cluster::{ModelId, Time};
use packhorse_control::{ComputedWork, RequestCounts, Sample};

use crate::gateway::Gateway;

/// The requests that are counted. Replicas of the model that serve share them, in batches of four.
#[derive(Debug, Default)]
pub struct CountedTraffic {
    /// The requests per second for each model.
    pub rates: BTreeMap<ModelId, f64>,
    /// The rows of each request to a model, where it is not one.
    pub rows: BTreeMap<ModelId, u64>,
    /// The part of each model's requests that is answered within the SLO, where it is not all.
    pub in_time: BTreeMap<ModelId, f64>,
    /// The sizes of the variable dimensions of each model's inputs, where they count.
    pub input_sizes: BTreeMap<ModelId, Vec<u64>>,
    /// The gateway's start and the counts of the last sample, with its time.
    last: (u64, Time, Sample),
}

impl CountedTraffic {
    /// Returns the counts since the start of a gateway.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        gateway: &Gateway,
        slowdowns: &BTreeMap<ModelId, f64>,
    ) -> Sample {
        let (start, before, mut sample) = mem::take(&mut self.last);
        if start != gateway.start {
            sample = Sample::default();
        }
        let seconds = now.saturating_since(before).as_secs_f64();
        for (model, rate) in &self.rates {
            let requests = (rate * seconds).round() as u64;
            let counts: &mut RequestCounts = sample.models.entry(model.clone()).or_default();
            let rows = self.rows.get(model).copied().unwrap_or(1);
            counts.arrive(requests, rows);
            let controller = gateway.controller.as_ref();
            let registered = controller.and_then(|controller| controller.model(model));
            if registered.is_some_and(|model| model.spec.variant.is_some()) {
                counts.rows_for_family += requests * rows;
            }
            let serving: Vec<_> = gateway.data_plane.serving(model).collect();
            if serving.is_empty() {
                counts.missed += requests;
                continue;
            }
            if let Some(sizes) = self.input_sizes.get(model) {
                let shapes = sample.shapes.entry(model.clone()).or_default();
                shapes.add_batch(u32::try_from(requests * rows).unwrap_or(u32::MAX), sizes);
            }
            let in_time = self.in_time.get(model).copied().unwrap_or(1.0);
            let in_time = (requests as f64 * in_time) as u64;
            counts.answer(in_time, rows);
            counts.missed += requests - in_time;
            let slowdown = slowdowns.get(model).copied().unwrap_or(1.0);
            for (id, target) in &serving {
                let work: &mut ComputedWork = sample.work.entry(*id).or_default();
                let alone = target.profile.latency(4);
                for _ in 0..requests * rows / 4 / serving.len() as u64 {
                    work.add_batch(4, alone.mul_f64(slowdown), alone);
                }
            }
        }
        self.last = (gateway.start, now, sample.clone());
        sample
    }

    /// Counts from now on, for a gateway that has just started.
    pub(crate) fn begin(&mut self, now: Time, start: u64) {
        self.last = (start, now, Sample::default());
    }
}
