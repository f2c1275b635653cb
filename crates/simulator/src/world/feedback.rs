//! What a run has shown so far, as a gateway could see it: the rates at which requests arrive, and how long batches compute.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, ReplicaObservation, RequestsPerSecond,
    Time,
};

/// How much of a period's rate is believed; the rest is what was believed before.
const WEIGHT: f64 = 0.5;

/// A rate is told anew only when it has moved by more than this part of the one told last,
const NOTICEABLE: f64 = 0.1;

/// and by more than so many standard deviations of what chance makes of a steady Poisson stream: or a policy would move replicas
/// after noise.
const DEVIATIONS: f64 = 3.0;

/// How many observations are kept: the oldest give way.
const HISTORY: usize = 512;

/// One model's rate.
#[derive(Debug)]
struct Observed {
    /// Arrivals of this period.
    arrivals: u64,
    /// Requests per second, smoothed over periods.
    smoothed: f64,
    told: RequestsPerSecond,
}

/// What was seen of a replica in this period.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    batches: u64,
    rows: u64,
    computing: Duration,
    expected: Duration,
}

/// A replica as observations name it.
pub(super) struct Subject {
    /// The device, by its place in the scenario.
    pub(super) device: usize,
    pub(super) kind: DeviceKind,
    pub(super) model: ModelId,
    pub(super) compute_share: Option<ComputeShare>,
}

#[derive(Debug)]
pub(super) struct Feedback {
    since: Time,
    models: Vec<Observed>,
    seen: BTreeMap<usize, Seen>,
    history: VecDeque<DeviceObservation>,
}

impl Feedback {
    /// Believes these rates until it has seen others.
    pub(super) fn new(rates: impl Iterator<Item = RequestsPerSecond>) -> Self {
        let observed = |told: RequestsPerSecond| Observed {
            arrivals: 0,
            smoothed: told.get(),
            told,
        };
        Self {
            since: Time::ZERO,
            models: rates.map(observed).collect(),
            seen: BTreeMap::new(),
            history: VecDeque::new(),
        }
    }

    /// A request arrived, whatever becomes of it.
    pub(super) fn arrived(&mut self, model: usize) {
        self.models[model].arrivals += 1;
    }

    /// A batch came back that computed for so long, where it should have taken `expected` alone on its device.
    pub(super) fn computed(
        &mut self,
        replica: usize,
        rows: usize,
        compute: Duration,
        expected: Duration,
    ) {
        let seen = self.seen.entry(replica).or_default();
        seen.batches += 1;
        seen.rows += rows as u64;
        seen.computing += compute;
        seen.expected += expected;
    }

    /// Ends a period and begins the next one. A batch counts in the period in which it came back.
    pub(super) fn end_period(&mut self, now: Time, subject: impl Fn(usize) -> Subject) {
        let period = now.saturating_since(self.since).as_secs_f64();
        self.since = now;
        for model in &mut self.models {
            model.end_period(period);
        }
        let mut devices: BTreeMap<usize, DeviceObservation> = BTreeMap::new();
        for (replica, seen) in std::mem::take(&mut self.seen) {
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
                batches: seen.batches,
                mean_rows: seen.rows as f64 / seen.batches as f64,
                busy: (seen.computing.as_secs_f64() / period).min(1.0),
                slowdown: seen.computing.as_secs_f64() / seen.expected.as_secs_f64(),
            });
        }
        self.history.extend(devices.into_values());
        let superfluous = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..superfluous);
    }

    /// The rate to plan for.
    pub(super) fn rate(&self, model: usize) -> RequestsPerSecond {
        self.models[model].told
    }

    /// The oldest first.
    pub(super) fn observations(&self) -> Vec<DeviceObservation> {
        self.history.iter().cloned().collect()
    }
}

impl Observed {
    fn end_period(&mut self, period: f64) {
        let measured = std::mem::take(&mut self.arrivals) as f64 / period;
        self.smoothed += WEIGHT * (measured - self.smoothed);
        // Of a Poisson stream's rate over a period; smoothing leaves WEIGHT / (2 - WEIGHT) of the variance.
        let variance = self.told.get() / period * WEIGHT / (2.0 - WEIGHT);
        let moved = (self.smoothed - self.told.get()).abs();
        if moved > (NOTICEABLE * self.told.get()).max(DEVIATIONS * variance.sqrt()) {
            self.told = RequestsPerSecond::new(self.smoothed).expect("counts make a rate");
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

    /// The rates told after seconds with so many arrivals each, where 100 were expected.
    fn told(arrivals: &[u64]) -> Vec<f64> {
        let mut feedback = Feedback::new([rate(100.0)].into_iter());
        let mut now = Time::ZERO;
        let told = arrivals.iter().map(|count| {
            (0..*count).for_each(|_| feedback.arrived(0));
            now += Duration::from_secs(1);
            feedback.end_period(now, subject);
            feedback.rate(0).get()
        });
        told.collect()
    }

    #[test]
    fn noise_changes_no_rate_and_a_step_is_followed() {
        assert_eq!(told(&[110, 90, 115, 85, 100]), [100.0; 5]);
        // From 175, three deviations are 22.9: the smoothed 187.5, 193.75 and 196.875 are within, 198.4375 is not.
        let followed = told(&[200; 6]);
        assert_eq!(followed, [150.0, 175.0, 175.0, 175.0, 175.0, 198.4375]);
        assert_eq!(told(&[0, 0]), [50.0, 25.0]);
    }

    #[test]
    fn observations_are_by_device_with_what_their_replicas_did() {
        let mut feedback = Feedback::new([rate(100.0)].into_iter());
        feedback.computed(0, 4, MS * 20, MS * 10);
        feedback.computed(0, 8, MS * 40, MS * 20);
        feedback.computed(1, 1, MS * 5, MS * 5);
        feedback.computed(2, 1, MS * 300, MS * 300);
        feedback.end_period(Time::ZERO + MS * 200, subject);
        feedback.end_period(Time::ZERO + MS * 400, subject);
        let observations = feedback.observations();
        assert_eq!(observations.len(), 2, "an idle period shows nothing");
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
        // It began before the period did.
        assert!((observations[1].replicas[0].busy - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_oldest_observations_give_way() {
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
