//! The record of a load: counts, histograms and stages of the requests within the measured time.
//!
//! Latencies are kept in HDR histograms (G. Tene, "`HdrHistogram`", 2012): every percentile has a relative error of at most 0.1 %, in constant
//! memory.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use hdrhistogram::Histogram;
use packhorse_api::ServerTiming;

use super::request_end::{Outcome, RequestEnd};

/// The largest time that is recorded, in nanoseconds; it exceeds the longest exchange. A longer one counts as this.
const MAX_TIME_NS: u64 = 120_000_000_000;
/// The significant decimal digits of recorded times.
const DIGITS: u8 = 3;
/// The largest number of different errors that are counted apart.
const MAX_ERRORS: usize = 8;
/// The largest number of requests whose stages are kept.
const MAX_STAGE_SAMPLES: usize = 1 << 20;

/// The stages of a request as the client sees it: its wait in the generator, the stages in the gateway, and the rest, which is the way
/// between client and gateway. They add up to its latency.
pub(super) const STAGES: [&str; ServerTiming::NAMES.len() + 2] = {
    let mut names = ["client"; ServerTiming::NAMES.len() + 2];
    let (_, after) = names.split_at_mut(1);
    let (gateway, last) = after.split_at_mut(ServerTiming::NAMES.len());
    gateway.copy_from_slice(&ServerTiming::NAMES);
    last[0] = "transfer";
    names
};

/// The durations of a request's stages, in milliseconds, in the order of [`STAGES`].
pub(super) type StageSample = [f32; STAGES.len()];

/// The times of many requests.
#[derive(Clone, Debug)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    pub(super) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, MAX_TIME_NS, DIGITS).expect("the bounds are valid"))
    }

    pub(super) fn record(&mut self, time: Duration) {
        self.0
            .saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the number of requests.
    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the smallest recorded time that this part of the requests did not exceed, in milliseconds; `None` without requests.
    pub(super) fn quantile_ms(&self, part: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(part) as f64 / 1e6)
    }

    pub(super) fn mean_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.mean() / 1e6)
    }

    pub(super) fn max_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.max() as f64 / 1e6)
    }
}

/// The numbers of requests by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) answered: u64,
    /// Of those answered: within the SLO.
    pub(super) within_slo: u64,
    pub(super) refused: u64,
    pub(super) expired: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
}

impl Ends {
    pub(super) fn all(&self) -> u64 {
        self.answered + self.refused + self.expired + self.failed + self.lost
    }
}

/// The time by which a request belongs to the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountBy {
    /// The time at which it is due, for an open loop.
    Due,
    /// The time at which it ended, for a closed loop.
    End,
}

/// The record.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    window: Range<Duration>,
    count_by: CountBy,
    slo: Option<Duration>,
    pub(super) ends: Ends,
    /// The latencies of answered requests.
    pub(super) latency: Times,
    /// The delays from due to sent, of all requests.
    pub(super) lateness: Times,
    /// The delays from ready to sent, of all requests: the generator's own.
    pub(super) own_delay: Times,
    /// The numbers of requests by second of the window, in which they were due or ended.
    pub(super) seconds: Vec<Ends>,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) stages: Vec<StageSample>,
    last_end: Duration,
}

impl Recorder {
    /// Begins a record of the requests within a window.
    pub(super) fn new(window: Range<Duration>, count_by: CountBy, slo: Option<Duration>) -> Self {
        let last_end = window.end;
        Self {
            window,
            count_by,
            slo,
            ends: Ends::default(),
            latency: Times::new(),
            lateness: Times::new(),
            own_delay: Times::new(),
            seconds: Vec::new(),
            errors: BTreeMap::new(),
            stages: Vec::new(),
            last_end,
        }
    }

    /// Returns the length of the window, in seconds.
    pub(super) fn window_s(&self) -> f64 {
        self.window
            .end
            .saturating_sub(self.window.start)
            .as_secs_f64()
    }

    /// Returns the time from the window's start until its end, or the last end of a request if that is later, in seconds.
    pub(super) fn until_last_end_s(&self) -> f64 {
        self.last_end
            .saturating_sub(self.window.start)
            .as_secs_f64()
    }

    /// Records the end of a request, if it belongs to the window.
    pub(super) fn record(&mut self, end: RequestEnd) {
        let at = match self.count_by {
            CountBy::Due => end.due,
            CountBy::End => end.ended,
        };
        if !self.window.contains(&at) {
            return;
        }
        let latency = end.ended.saturating_sub(end.due);
        self.lateness.record(end.sent.saturating_sub(end.due));
        self.own_delay.record(end.sent.saturating_sub(end.ready));
        self.last_end = self.last_end.max(end.ended);
        let is_answered = end.outcome == Outcome::Answered;
        let is_within = is_answered && self.slo.is_some_and(|slo| latency <= slo);
        if is_answered {
            self.latency.record(latency);
            if let Some(timing) = &end.timing
                && self.stages.len() < MAX_STAGE_SAMPLES
            {
                self.stages.push(stage_sample(&end, timing));
            }
        }
        let second = at.saturating_sub(self.window.start).as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Ends::default());
        }
        for ends in [&mut self.ends, &mut self.seconds[second]] {
            ends.within_slo += u64::from(is_within);
            *match &end.outcome {
                Outcome::Answered => &mut ends.answered,
                Outcome::Refused(_) => &mut ends.refused,
                Outcome::Expired(_) => &mut ends.expired,
                Outcome::Failed(_) => &mut ends.failed,
                Outcome::Lost(_) => &mut ends.lost,
            } += 1;
        }
        match end.outcome {
            Outcome::Answered => {}
            Outcome::Refused(error)
            | Outcome::Expired(error)
            | Outcome::Failed(error)
            | Outcome::Lost(error) => self.count_error(error),
        }
    }

    fn count_error(&mut self, error: String) {
        let is_known = self.errors.len() < MAX_ERRORS || self.errors.contains_key(&error);
        let error = if is_known { error } else { "other".to_owned() };
        *self.errors.entry(error).or_default() += 1;
    }
}

fn stage_sample(end: &RequestEnd, timing: &ServerTiming) -> StageSample {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut sample = [0.0; STAGES.len()];
    sample[0] = ms(end.sent.saturating_sub(end.due)) as f32;
    for (stage, duration) in sample[1..].iter_mut().zip(timing.durations()) {
        *stage = duration as f32;
    }
    let rest = ms(end.ended.saturating_sub(end.sent)) - timing.total;
    sample[STAGES.len() - 1] = rest.max(0.0) as f32;
    sample
}

#[cfg(test)]
mod tests {
    use packhorse_api::RequestStages;
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn end(due: u64, sent: u64, ended: u64, outcome: Outcome) -> RequestEnd {
        RequestEnd {
            due: ms(due),
            ready: ms(due),
            sent: ms(sent),
            ended: ms(ended),
            outcome,
            timing: None,
        }
    }

    /// |shown / exact − 1| ≤ 0.1 %, the error of three digits.
    fn assert_close(shown: Option<f64>, exact: f64) {
        let shown = shown.unwrap();
        assert!((shown / exact - 1.0).abs() <= 1e-3, "{shown}, not {exact}");
    }

    #[test]
    fn percentiles_of_a_hundred_latencies_are_those_worked_by_hand() {
        let mut times = Times::new();
        assert_eq!((times.quantile_ms(0.5), times.max_ms()), (None, None));
        // 1, 2, …, 100 ms, in another order.
        for i in 0..100 {
            times.record(ms(1 + i * 37 % 100));
        }
        for (part, exact) in [
            (0.5, 50.0),
            (0.9, 90.0),
            (0.99, 99.0),
            (0.999, 100.0),
            (1.0, 100.0),
        ] {
            assert_close(times.quantile_ms(part), exact);
        }
        assert_close(times.mean_ms(), 50.5);
        assert_close(times.max_ms(), 100.0);
        times.record(Duration::MAX);
        assert_close(times.max_ms(), 120_000.0);
    }

    #[test]
    fn an_open_loop_counts_what_was_due_in_the_window_from_the_due_time() {
        let mut recorder = Recorder::new(ms(1000)..ms(3000), CountBy::Due, Some(ms(100)));
        let refused = || Outcome::Refused("503: full".to_owned());
        for end in [
            // Before and after the window.
            end(999, 999, 1500, Outcome::Answered),
            end(3000, 3000, 3001, Outcome::Answered),
            // 100 ms, of which 60 ms in the generator: just within.
            end(1000, 1060, 1100, Outcome::Answered),
            end(1500, 1500, 1601, Outcome::Answered),
            end(2000, 2000, 2010, refused()),
            end(2999, 3000, 4500, Outcome::Lost("reset".to_owned())),
        ] {
            recorder.record(end);
        }
        let expected = Ends {
            answered: 2,
            within_slo: 1,
            refused: 1,
            lost: 1,
            ..Ends::default()
        };
        assert_eq!((recorder.ends, recorder.ends.all()), (expected, 4));
        assert_eq!(
            recorder.seconds.iter().map(Ends::all).collect::<Vec<_>>(),
            [2, 2]
        );
        assert_close(recorder.latency.max_ms(), 101.0);
        assert_close(recorder.lateness.max_ms(), 60.0);
        assert_eq!(
            (recorder.window_s(), recorder.until_last_end_s()),
            (2.0, 3.5)
        );
        assert_eq!(
            recorder.errors,
            [("503: full", 1), ("reset", 1)]
                .map(|(e, n)| (e.to_owned(), n))
                .into()
        );
    }

    #[test]
    fn a_closed_loop_counts_what_ended_in_the_window() {
        let mut recorder = Recorder::new(ms(1000)..ms(2000), CountBy::End, None);
        for (sent, ended) in [(900, 999), (950, 1000), (1990, 1999), (1991, 2000)] {
            recorder.record(end(sent, sent, ended, Outcome::Answered));
        }
        assert_eq!((recorder.ends.answered, recorder.ends.within_slo), (2, 0));
    }

    #[test]
    fn stages_add_up_to_the_latency() {
        let mut recorder = Recorder::new(ms(0)..ms(1000), CountBy::Due, None);
        let stages = RequestStages {
            compute: 20.0,
            network: 1.5,
            ..RequestStages::default()
        };
        recorder.record(RequestEnd {
            timing: Some(ServerTiming {
                stages,
                inbox: 0.5,
                total: 24.0,
            }),
            ..end(100, 103, 130, Outcome::Answered)
        });
        let sample = recorder.stages[0];
        let by_name: BTreeMap<&str, f32> = STAGES.into_iter().zip(sample).collect();
        // 30 ms: 3 in the generator, 24 in the gateway, of which 2 are no stage of a batch, and 3 between the two.
        assert_eq!(
            (by_name["client"], by_name["answer"], by_name["transfer"]),
            (3.0, 2.0, 3.0)
        );
        assert!((sample.iter().sum::<f32>() - 30.0).abs() < 1e-4);
    }

    #[test]
    fn errors_are_counted_apart_up_to_a_limit() {
        let mut recorder = Recorder::new(ms(0)..ms(1000), CountBy::Due, None);
        for i in 0..30 {
            recorder.record(end(1, 1, 2, Outcome::Failed(format!("{}", i % 15))));
        }
        assert_eq!(recorder.ends.failed, 30);
        assert_eq!(
            (recorder.errors.len(), recorder.errors["other"]),
            (MAX_ERRORS + 1, 14)
        );
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_a_thousandth_of_the_sorted_list(
            mut micros in proptest::collection::vec(1_u64..60_000_000, 1..300),
            part in 0.0..=1.0_f64,
        ) {
            let mut times = Times::new();
            for micros in &micros {
                times.record(Duration::from_micros(*micros));
            }
            micros.sort_unstable();
            let rank = ((micros.len() as f64 * part).ceil() as usize).clamp(1, micros.len());
            let exact = micros[rank - 1] as f64 / 1e3;
            let shown = times.quantile_ms(part).unwrap();
            prop_assert!((shown / exact - 1.0).abs() <= 1e-3, "{} {}", shown, exact);
        }
    }
}
