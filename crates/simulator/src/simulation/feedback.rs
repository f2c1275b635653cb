//! The observations of a run so far, as a gateway could make them: the rates at which requests arrive, and the times of batches.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, ReplicaObservation, RequestsPerSecond,
    Time,
};

/// The weight of a period's rate in the exponential moving average.
const WEIGHT: f64 = 0.5;

/// The least relative change of the average at which the reported rate changes.
const NOTICEABLE: f64 = 0.1;

/// The least change of the average at which the reported rate changes, in standard deviations of the average for a constant Poisson
/// process. Without it a policy would move replicas because of noise.
const DEVIATIONS: f64 = 3.0;

/// The largest number of observations. Beyond it the oldest are removed.
const HISTORY: usize = 512;

/// The rate of a model.
#[derive(Debug)]
struct ObservedRate {
    /// The arrivals of this period.
    arrivals: u64,
    /// The exponential moving average over periods, in requests/s.
    smoothed: f64,
    /// The rate for the policy.
    reported: RequestsPerSecond,
}

/// The batches of a replica in this period.
#[derive(Clone, Copy, Debug, Default)]
struct ObservedBatches {
    batches: u64,
    rows: u64,
    computing: Duration,
    expected: Duration,
}

/// A replica in the terms of observations.
pub(super) struct Subject {
    /// The index of the device in the scenario.
    pub(super) device: usize,
    pub(super) kind: DeviceKind,
    pub(super) model: ModelId,
    pub(super) compute_share: Option<ComputeShare>,
}

#[derive(Debug)]
pub(super) struct Feedback {
    since: Time,
    models: Vec<ObservedRate>,
    batches: BTreeMap<usize, ObservedBatches>,
    history: VecDeque<DeviceObservation>,
}

impl Feedback {
    /// Reports these rates until others were measured.
    pub(super) fn new(rates: impl Iterator<Item = RequestsPerSecond>) -> Self {
        let observed = |reported: RequestsPerSecond| ObservedRate {
            arrivals: 0,
            smoothed: reported.get(),
            reported,
        };
        Self {
            since: Time::ZERO,
            models: rates.map(observed).collect(),
            batches: BTreeMap::new(),
            history: VecDeque::new(),
        }
    }

    /// Counts the arrival of a request.
    pub(super) fn arrived(&mut self, model: usize) {
        self.models[model].arrivals += 1;
    }

    /// Counts an answered batch that computed for `compute`. Alone on its device it would have taken `expected`.
    pub(super) fn computed(
        &mut self,
        replica: usize,
        rows: usize,
        compute: Duration,
        expected: Duration,
    ) {
        let batches = self.batches.entry(replica).or_default();
        batches.batches += 1;
        batches.rows += rows as u64;
        batches.computing += compute;
        batches.expected += expected;
    }

    /// Ends a period and begins the next one. A batch counts in the period in which it was answered.
    pub(super) fn end_period(&mut self, now: Time, subject: impl Fn(usize) -> Subject) {
        let period = now.saturating_since(self.since).as_secs_f64();
        self.since = now;
        for model in &mut self.models {
            model.end_period(period);
        }
        let mut devices: BTreeMap<usize, DeviceObservation> = BTreeMap::new();
        for (replica, batches) in std::mem::take(&mut self.batches) {
            let Subject {
                device,
                kind,
                model,
                compute_share,
            } = subject(replica);
            let observation = devices.entry(device).or_insert(DeviceObservation {
                kind,
                replicas: Vec::new(),
            });
            observation.replicas.push(ReplicaObservation {
                model,
                compute_share,
                batches: batches.batches,
                mean_rows: batches.rows as f64 / batches.batches as f64,
                busy: (batches.computing.as_secs_f64() / period).min(1.0),
                slowdown: batches.computing.as_secs_f64() / batches.expected.as_secs_f64(),
            });
        }
        self.history.extend(devices.into_values());
        let superfluous = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..superfluous);
    }

    /// The rate of a model for the policy.
    pub(super) fn rate(&self, model: usize) -> RequestsPerSecond {
        self.models[model].reported
    }

    /// The observations of devices, the oldest first.
    pub(super) fn observations(&self) -> Vec<DeviceObservation> {
        self.history.iter().cloned().collect()
    }
}

impl ObservedRate {
    fn end_period(&mut self, period: f64) {
        let measured = std::mem::take(&mut self.arrivals) as f64 / period;
        self.smoothed += WEIGHT * (measured - self.smoothed);
        // The variance of a Poisson process' rate over a period, of which smoothing leaves WEIGHT / (2 - WEIGHT).
        let variance = self.reported.get() / period * WEIGHT / (2.0 - WEIGHT);
        let change = (self.smoothed - self.reported.get()).abs();
        if change > (NOTICEABLE * self.reported.get()).max(DEVIATIONS * variance.sqrt()) {
            self.reported = RequestsPerSecond::new(self.smoothed).expect("counts make a rate");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rate(rate: f64) -> RequestsPerSecond {
        RequestsPerSecond::new(rate).unwrap()
    }

    fn subject(replica: usize) -> Subject {
        Subject {
            device: replica / 2,
            kind: "V100-SXM2-16GB".parse().unwrap(),
            model: format!("m{replica}").parse().unwrap(),
            compute_share: None,
        }
    }

    /// The rate reported after each second with this many arrivals. The first rate is 100 requests/s.
    fn reported(arrivals: &[u64]) -> Vec<f64> {
        let mut feedback = Feedback::new([rate(100.0)].into_iter());
        let mut now = Time::ZERO;
        let reported = arrivals.iter().map(|count| {
            (0..*count).for_each(|_| feedback.arrived(0));
            now += Duration::from_secs(1);
            feedback.end_period(now, subject);
            feedback.rate(0).get()
        });
        reported.collect()
    }

    #[test]
    fn noise_changes_no_rate_and_a_step_is_followed() {
        assert_eq!(reported(&[110, 90, 115, 85, 100]), [100.0; 5]);
        // From 175, three deviations are 22.9: the smoothed 187.5, 193.75 and 196.875 are within, 198.4375 is not.
        let followed = reported(&[200; 6]);
        assert_eq!(followed, [150.0, 175.0, 175.0, 175.0, 175.0, 198.4375]);
        assert_eq!(reported(&[0, 0]), [50.0, 25.0]);
    }

    #[test]
    fn an_observation_has_the_batches_of_all_replicas_of_a_device() {
        let mut feedback = Feedback::new([rate(100.0)].into_iter());
        feedback.computed(0, 4, MS * 20, MS * 10);
        feedback.computed(0, 8, MS * 40, MS * 20);
        feedback.computed(1, 1, MS * 5, MS * 5);
        feedback.computed(2, 1, MS * 300, MS * 300);
        feedback.end_period(Time::ZERO + MS * 200, subject);
        feedback.end_period(Time::ZERO + MS * 400, subject);
        let observations = feedback.observations();
        assert_eq!(observations.len(), 2, "an idle period has no observations");
        let [first, second] = observations[0].replicas.as_slice() else {
            panic!("{observations:?}");
        };
        assert_eq!(
            (first.model.to_string(), first.batches),
            ("m0:1".to_owned(), 2)
        );
        assert_eq!(
            (first.mean_rows, first.busy, first.slowdown),
            (6.0, 0.3, 2.0)
        );
        assert_eq!((second.batches, second.slowdown), (1, 1.0));
        // The batch began before the period.
        assert!((observations[1].replicas[0].busy - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_oldest_observations_are_removed() {
        let mut feedback = Feedback::new([rate(100.0)].into_iter());
        let mut now = Time::ZERO;
        for rows in 0..HISTORY + 10 {
            feedback.computed(0, rows, MS, MS);
            now += MS * 10;
            feedback.end_period(now, subject);
        }
        let observations = feedback.observations();
        assert_eq!(observations.len(), HISTORY);
        assert!((observations[0].replicas[0].mean_rows - 10.0).abs() < f64::EPSILON);
    }
}
