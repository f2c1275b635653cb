//! The requests of every model in the last minute: how many of those that ended were in time.
//!
//! A request that has not ended counts as neither in time nor missed.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{ModelId, Time};

use crate::{event::RequestCounts, missed_requests::MissedRequests, record::Forecast};

/// The time that is looked at.
const WINDOW: Duration = Duration::from_mins(1);
/// The part of the requests that shall be in time: that of the alerts, whose error budget is 1 %.
const OBJECTIVE: f64 = 0.99;
/// The least number of requests that ended for which a model can miss the objective.
const MIN_ENDED: u64 = 20;
/// The least number of missed requests for which a model can miss the objective.
const MIN_MISSED: u64 = 3;

/// The requests of all models in the last minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceLevels {
    /// The time of the last sample.
    sampled: Time,
    models: BTreeMap<ModelId, History>,
}

#[derive(Clone, Debug, Default)]
struct History {
    counted: Option<(RequestCounts, MissedRequests)>,
    /// The periods in which something happened, the oldest first.
    periods: VecDeque<Period>,
}

/// The requests of a model between two samples.
#[derive(Clone, Debug)]
struct Period {
    begin: Time,
    end: Time,
    counts: RequestCounts,
    misses: MissedRequests,
    /// The requests per second that the plan of the time meant to answer in time.
    planned_rps: f64,
}

/// The requests of a model that misses its objective.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MissedLevel {
    /// The number of requests that ended in the last minute.
    pub(crate) ended: u64,
    /// The number of them that were not in time.
    pub(crate) missed: u64,
    /// The begin of the first period of the last minute with a missed request.
    pub(crate) since: Time,
    /// Its load while it missed.
    pub(crate) load: Load,
    /// The missed requests.
    pub(crate) misses: MissedRequests,
    /// The ends of the periods with missed requests.
    periods: Vec<Time>,
}

/// The requests that came and those that were planned for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// The requests per second that came.
    pub(crate) offered_rps: f64,
    /// The requests per second that the plan meant to answer in time.
    pub(crate) planned_rps: f64,
}

impl Load {
    /// Returns true if clearly more came than was planned for.
    pub(crate) fn is_excessive(self) -> bool {
        self.planned_rps > 0.0 && self.offered_rps > 1.2 * self.planned_rps
    }

    /// Returns the requests per second that came beyond those that were planned for.
    pub(crate) fn excess_rps(self) -> f64 {
        (self.offered_rps - self.planned_rps).max(0.0)
    }
}

impl ServiceLevels {
    /// Takes the counts at the end of a period.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        counts: &BTreeMap<ModelId, RequestCounts>,
        misses: &BTreeMap<ModelId, MissedRequests>,
        forecasts: &BTreeMap<ModelId, Forecast>,
    ) {
        let begin = std::mem::replace(&mut self.sampled, now);
        self.models.retain(|model, _| counts.contains_key(model));
        for (model, counts) in counts {
            let history = self.models.entry(model.clone()).or_default();
            let misses = misses.get(model).cloned().unwrap_or_default();
            let before = history.counted.replace((*counts, misses.clone()));
            history.forget(now);
            // The first reading may be of more than the period.
            let Some((counts_before, misses_before)) = before.filter(|_| begin < now) else {
                continue;
            };
            let counts = counts.since(counts_before);
            if counts == RequestCounts::default() {
                continue;
            }
            let planned = forecasts.get(model);
            history.periods.push_back(Period {
                begin,
                end: now,
                counts,
                misses: misses.since(&misses_before),
                planned_rps: planned.map_or(0.0, |f| f.goodput.get().min(f.rate.get())),
            });
        }
    }

    /// Returns the models that miss their objective.
    pub(crate) fn missing(&self) -> BTreeMap<&ModelId, MissedLevel> {
        let levels = self.models.iter();
        levels
            .filter_map(|(model, history)| Some((model, history.missed_level()?)))
            .collect()
    }

    /// Returns the load of a model while another one missed its objective.
    pub(crate) fn load_during(&self, model: &ModelId, other: &MissedLevel) -> Load {
        let periods = self.models.get(model).map(|history| &history.periods);
        let periods = periods.into_iter().flatten();
        load(periods.filter(|period| other.periods.contains(&period.end)))
    }
}

impl History {
    fn forget(&mut self, now: Time) {
        let is_old = |period: &mut Period| now.saturating_since(period.begin) > WINDOW;
        while self.periods.pop_front_if(is_old).is_some() {}
    }

    fn missed_level(&self) -> Option<MissedLevel> {
        let (mut within, mut missed) = (0, 0);
        for period in &self.periods {
            within += period.counts.within_slo;
            missed += period.counts.missed;
        }
        let ended = within + missed;
        let part = within as f64 / ended.max(1) as f64;
        if ended < MIN_ENDED || missed < MIN_MISSED || part >= OBJECTIVE {
            return None;
        }
        let missing = || self.periods.iter().filter(|p| p.counts.missed > 0);
        let mut misses = MissedRequests::default();
        for period in missing() {
            misses.merge(&period.misses);
        }
        Some(MissedLevel {
            ended,
            missed,
            since: missing().next()?.begin,
            load: load(missing()),
            misses,
            periods: missing().map(|period| period.end).collect(),
        })
    }
}

/// Returns the load over some periods.
fn load<'a>(periods: impl Iterator<Item = &'a Period>) -> Load {
    let (mut seconds, mut offered, mut planned) = (0.0, 0.0, 0.0);
    for period in periods {
        let length = period.end.saturating_since(period.begin).as_secs_f64();
        seconds += length;
        offered += period.counts.arrived as f64;
        planned += period.planned_rps * length;
    }
    if seconds <= 0.0 {
        return Load::default();
    }
    Load {
        offered_rps: offered / seconds,
        planned_rps: planned / seconds,
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::RequestsPerSecond;

    use super::*;

    /// A model that is planned for 100 requests/s, sampled every five seconds.
    #[derive(Default)]
    struct Sampled {
        levels: ServiceLevels,
        now: Time,
        counts: RequestCounts,
    }

    impl Sampled {
        fn pass(&mut self, arrived: u64, within_slo: u64, missed: u64) -> Option<MissedLevel> {
            let model: ModelId = "m".parse().unwrap();
            self.now += Duration::from_secs(5);
            self.counts.arrived += arrived;
            self.counts.within_slo += within_slo;
            self.counts.missed += missed;
            let rate = RequestsPerSecond::new(100.0).unwrap();
            let forecast = Forecast {
                model: model.clone(),
                rate,
                goodput: rate,
                shortfall: None,
            };
            let forecasts = BTreeMap::from([(model.clone(), forecast)]);
            let counts = BTreeMap::from([(model.clone(), self.counts)]);
            self.levels
                .sample(self.now, &counts, &BTreeMap::new(), &forecasts);
            self.levels.missing().remove(&model)
        }
    }

    #[test]
    fn a_model_misses_its_objective_from_the_first_missed_request_until_a_minute_after_the_last() {
        let mut model = Sampled::default();
        // The first reading is of any time.
        assert_eq!(model.pass(1000, 0, 1000), None);
        assert_eq!(model.pass(500, 500, 0), None);
        let before = model.now;
        let level = model.pass(2000, 500, 1500).unwrap();
        assert_eq!((level.ended, level.missed), (2500, 1500));
        assert_eq!(level.since, before);
        assert!((level.load.offered_rps - 400.0).abs() < 1e-9);
        assert!((level.load.planned_rps - 100.0).abs() < 1e-9);
        assert!(level.load.is_excessive());
        let mut seconds = 0;
        while model.pass(50, 50, 0).is_some() {
            seconds += 5;
        }
        assert_eq!(seconds, 55);
    }

    #[test]
    fn requests_that_have_not_ended_and_few_that_missed_are_nothing() {
        let mut model = Sampled::default();
        model.pass(0, 0, 0);
        // All wait.
        for _ in 0..5 {
            assert_eq!(model.pass(10_000, 0, 0), None);
        }
        let mut model = Sampled::default();
        model.pass(0, 0, 0);
        for (within_slo, missed) in [(0, 19), (0, 0), (98, 2), (299, 3)] {
            let mut model = Sampled {
                levels: model.levels.clone(),
                ..model
            };
            assert_eq!(model.pass(400, within_slo, missed), None, "{missed}");
        }
        assert!(model.pass(400, 290, 3).is_some());
    }
}
