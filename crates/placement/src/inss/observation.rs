//! The state that the network sees.
//!
//! Source: InSS, section 5.2: for each device the memory that the last placement uses (`u_k`), for each model its rate and its backlog.

use packhorse_cluster::{DeviceIndex, ModelIndex, Problem};

use super::decision::{DEVICES, MODELS};
use crate::{PlanningOptions, candidates::largest_batch, share_latency::ShareLatency};

/// The inputs of a model.
const MODEL_INPUTS: usize = 6;
/// The inputs of a device.
const DEVICE_INPUTS: usize = 2;
/// The inputs of the network.
pub const INPUTS: usize = MODELS * MODEL_INPUTS + DEVICES * DEVICE_INPUTS;

/// The largest value of an input: what is beyond it makes no difference.
const MOST: f64 = 2.0;

/// The numbers that distinguish a model on a kind of device from others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelTraits {
    /// The requests per second that a whole device carries in batches of at most half of the SLO (of one request if none is that short).
    pub capacity: f64,
    /// The requests per second that a whole device carries one by one (`H`).
    pub single: f64,
    /// The time of one request on a whole device, as a part of the SLO.
    pub slo_part: f64,
    /// The time of one request under half of a device over that on a whole one.
    pub half_share: f64,
    /// The memory for one request, as a part of a device's.
    pub memory: f64,
}

impl ModelTraits {
    /// Returns the traits of a model on a device of a problem; `None` if the device has no profile of it, not the memory, or is too slow.
    pub fn new(
        problem: &Problem,
        options: &PlanningOptions,
        model: ModelIndex,
        device: DeviceIndex,
    ) -> Option<Self> {
        let demanded = &problem.models[model.0];
        let device = &problem.devices[device.0];
        let profile = problem.profiles.get(&demanded.id, &device.kind)?;
        let latencies = ShareLatency::new(options, &demanded.id, &device.kind, profile);
        let memory = profile.memory(1).unwrap_or(device.memory);
        if memory > device.memory || profile.latency(1) > demanded.slo {
            return None;
        }
        let slo = demanded.slo.as_secs_f64();
        let one = latencies.seconds(1, 100.0);
        let single = 1.0 / one;
        let sizes = 1..=largest_batch(profile, demanded);
        let timely = sizes.filter_map(|batch| {
            let seconds = latencies.seconds(batch, 100.0);
            (seconds <= slo / 2.0).then_some(f64::from(batch) / seconds)
        });
        Some(Self {
            capacity: timely.fold(single, f64::max),
            single,
            slo_part: one / slo,
            half_share: latencies.seconds(1, 50.0) / one,
            memory: memory.as_u64() as f64 / device.memory.as_u64().max(1) as f64,
        })
    }
}

/// A model of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// The traits of the model.
    pub traits: ModelTraits,
    /// The rate `λ` in requests per second.
    pub rate: f64,
    /// The requests that wait, `G`.
    pub backlog: f64,
}

impl Slot {
    /// Returns the rate as a part of what a whole device carries.
    pub fn load(&self) -> f64 {
        self.rate / self.traits.capacity
    }

    fn inputs(&self) -> [f64; MODEL_INPUTS] {
        let ModelTraits {
            capacity,
            single,
            slo_part,
            half_share,
            memory,
        } = self.traits;
        [
            self.load(),
            self.backlog / capacity,
            slo_part * 2.0,
            (capacity / single).ln() / 2.0,
            half_share / 2.0,
            memory,
        ]
    }
}

/// Returns the inputs of the network for at most [`MODELS`] models and for devices of which a part of the memory is used. The inputs of
/// models and devices that are not there are 0.
pub fn observation(slots: &[Slot], used: &[f64]) -> Vec<f32> {
    assert!(slots.len() <= MODELS && used.len() <= DEVICES);
    let mut inputs = vec![0.0; INPUTS];
    let (models, devices) = inputs.split_at_mut(MODELS * MODEL_INPUTS);
    let limited = |value: f64| value.min(MOST) as f32;
    for (inputs, slot) in models.chunks_exact_mut(MODEL_INPUTS).zip(slots) {
        inputs.copy_from_slice(&slot.inputs().map(limited));
    }
    for (inputs, used) in devices.chunks_exact_mut(DEVICE_INPUTS).zip(used) {
        inputs.copy_from_slice(&[1.0, limited(*used)]);
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_zero() {
        let slot = Slot {
            traits: ModelTraits {
                capacity: 200.0,
                single: 100.0,
                slo_part: 0.1,
                half_share: 1.5,
                memory: 0.25,
            },
            rate: 50.0,
            backlog: 1_000.0,
        };
        let inputs = observation(&[slot], &[0.5, 0.0]);
        assert_eq!(inputs.len(), INPUTS);
        // A backlog of 5 s is as bad as one of 2 s.
        assert_eq!(&inputs[..3], &[0.25, 2.0, 0.2][..]);
        assert!((inputs[3] - 0.346_573_6).abs() < 1e-6, "ln(2) / 2");
        assert_eq!(&inputs[4..6], &[0.75, 0.25][..]);
        assert_eq!(&inputs[6..48], &[0.0; 42][..]);
        assert_eq!(&inputs[48..], &[1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0][..]);
    }
}
