//! The requests of every model in the last minute: how many of those that ended were in time.
//!
//! A request that has not ended counts as neither in time nor missed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{ModelId, Time};

use crate::{
    event::RequestCounts,
    missed_requests::{MissCause, MissedRequests},
    record::Forecast,
};

/// The time that is looked at.
const WINDOW: Duration = Duration::from_mins(1);
/// The part of the requests that shall be in time: that of the alerts, whose error budget is 1 %.
const OBJECTIVE: f64 = 0.99;
/// The least number of requests that ended for which a model can miss the objective.
const MIN_ENDED: u64 = 20;
/// The least number of missed requests for which a model can miss the objective.
const MIN_MISSED: u64 = 3;
/// The standard deviations of the planned number of requests, as they come at random, by which more must come to be clearly more.
const SIGNIFICANT: f64 = 3.0;
/// The factor above the planned requests from which any loss may be that of the load: queues grow until everything is late.
const LARGE: f64 = 1.5;
/// The number of requests that a request beyond the planned ones may cost below that factor.
const LOSS_PER_EXCESS: f64 = 2.0;

/// The requests of all models in the last minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceLevels {
    /// The time of the last sample.
    sampled: Time,
    models: BTreeMap<ModelId, History>,
}

/// The requests per second of every model that the plan of a time meant to answer in time.
type Planned = Arc<BTreeMap<ModelId, f64>>;

#[derive(Clone, Debug, Default)]
struct History {
    counted: Option<(RequestCounts, MissedRequests)>,
    /// The periods in which something happened, the oldest first.
    periods: VecDeque<Period>,
    /// The begin of the first period with a missed request, and what was planned then, while it misses its objective. Later plans are made for the
    /// load that came, and take from others what they had.
    began: Option<(Time, Planned)>,
}

/// The requests of a model between two samples.
#[derive(Clone, Debug)]
struct Period {
    begin: Time,
    end: Time,
    counts: RequestCounts,
    misses: MissedRequests,
    planned: Planned,
}

/// The requests of a model that misses its objective.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MissedLevel {
    /// The number of requests that ended in the last minute.
    pub(crate) ended: u64,
    /// The number of them that were not in time.
    pub(crate) missed: u64,
    /// The begin of the first period with a missed request.
    pub(crate) since: Time,
    /// Its load while it missed.
    pub(crate) load: Load,
    /// The missed requests.
    pub(crate) misses: MissedRequests,
    /// True if none of the last requests was answered, in time or late.
    pub(crate) is_unanswered: bool,
    /// The ends of the periods with missed requests, with their numbers.
    periods: Vec<(Time, u64)>,
    /// The plan when it began.
    planned: Planned,
}

/// The requests that came and those that were planned for. Each counts as many times as it has rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// The mean number of rows of a request that came.
    pub(crate) rows: f64,
    /// The requests per second that came.
    pub(crate) offered_rps: f64,
    /// The requests per second that the plan meant to answer in time when it began.
    pub(crate) planned_rps: f64,
    /// The time of both, in seconds.
    pub(crate) seconds: f64,
}

impl MissedLevel {
    /// Returns the part of the requests that ended, from 0 to 1, that were not in time.
    pub(crate) fn missed_part(&self) -> f64 {
        self.missed.min(self.ended) as f64 / self.ended.max(1) as f64
    }

    /// Returns the part of the missed requests, from 0 to 1, that ended in a period that was not over at this time.
    pub(crate) fn part_since(&self, time: Time) -> f64 {
        let later = self.periods.iter().filter(|(end, _)| *end > time);
        let later: u64 = later.map(|(_, missed)| missed).sum();
        later as f64 / self.missed.max(1) as f64
    }
}

impl Load {
    /// Returns true if clearly more came than was planned for: by a fifth, and by more than chance.
    pub(crate) fn is_excessive(self) -> bool {
        let planned = self.planned_rps * self.seconds / self.rows.max(1.0);
        let excess = self.excess_rps() * self.seconds / self.rows.max(1.0);
        self.planned_rps > 0.0
            && self.offered_rps > 1.2 * self.planned_rps
            && excess > SIGNIFICANT * planned.sqrt()
    }

    /// Returns true if the excess explains a loss of so many requests, each of which takes `work` times as much time on a device as one of these.
    pub(crate) fn explains(self, missed: u64, work: f64) -> bool {
        let excess = self.excess_rps() * self.seconds / self.rows.max(1.0);
        self.is_excessive()
            && (self.excess_factor() >= LARGE || missed as f64 * work <= LOSS_PER_EXCESS * excess)
    }

    /// Returns how many times as much came as was planned for.
    pub(crate) fn excess_factor(self) -> f64 {
        if self.planned_rps > 0.0 {
            self.offered_rps / self.planned_rps
        } else {
            0.0
        }
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
        let planned = forecasts.iter();
        let planned = planned.map(|(id, f)| (id.clone(), f.goodput.get().min(f.rate.get())));
        let planned: Planned = Arc::new(planned.collect());
        for (model, counts) in counts {
            let history = self.models.entry(model.clone()).or_default();
            let misses = misses.get(model).cloned().unwrap_or_default();
            let before = history.counted.replace((*counts, misses.clone()));
            history.forget(now);
            // Counts begin at zero with the process, as time does.
            let (counts_before, misses_before) = before.unwrap_or_default();
            if begin < now {
                history.add(Period {
                    begin,
                    end: now,
                    counts: counts.since(counts_before),
                    misses: misses.since(&misses_before),
                    planned: Arc::clone(&planned),
                });
            }
            history.note_begin();
        }
    }

    /// Returns the models that miss their objective.
    pub(crate) fn missing(&self) -> BTreeMap<&ModelId, MissedLevel> {
        let levels = self.models.iter();
        levels
            .filter_map(|(model, history)| Some((model, history.missed_level(model)?)))
            .collect()
    }

    /// Returns the number of requests of a model that missed its SLO in periods of the last minute that were not over at this time.
    pub(crate) fn missed_since(&self, model: &ModelId, time: Time) -> u64 {
        let periods = self.models.get(model).map(|history| &history.periods);
        let later = periods.into_iter().flatten().filter(|one| one.end > time);
        later.map(|period| period.counts.missed).sum()
    }

    /// Returns since when no request of these models, which share a process, was answered, if some were missed since: the begin of the period in
    /// which that began. Only periods that were over at this time count.
    pub(crate) fn unanswered_since<'a>(
        &self,
        models: impl IntoIterator<Item = &'a ModelId>,
        time: Time,
    ) -> Option<Time> {
        let mut periods: BTreeMap<Time, (Time, bool, u64)> = BTreeMap::new();
        let histories = models.into_iter().filter_map(|id| self.models.get(id));
        let all = histories.flat_map(|history| &history.periods);
        for period in all.filter(|period| period.end <= time) {
            let sum = periods.entry(period.end);
            let (_, is_answered, missed) = sum.or_insert((period.begin, false, 0));
            *is_answered |= period.is_answered();
            *missed += period.counts.missed;
        }
        let mut since = None;
        for (begin, is_answered, missed) in periods.into_values().rev() {
            if is_answered {
                let began_here = missed > 0 && since.is_some();
                return if began_here { Some(begin) } else { since };
            }
            if missed > 0 {
                since = Some(begin);
            }
        }
        since
    }

    /// Returns the load of a model that its devices took while another one missed its objective. What was refused on arrival cost the other nothing.
    pub(crate) fn load_during(&self, model: &ModelId, other: &MissedLevel) -> Load {
        let periods = self.models.get(model).map(|history| &history.periods);
        let periods = periods.into_iter().flatten();
        let periods = periods.filter(|period| {
            let mut ends = other.periods.iter();
            ends.any(|(end, _)| *end == period.end)
        });
        let (mut arrived, mut refused) = (0, 0);
        for period in periods.clone() {
            arrived += period.counts.arrived;
            let causes = &period.misses.causes;
            refused += causes.get(&MissCause::Refused).copied().unwrap_or_default();
        }
        let mut load = load(periods, model, &other.planned);
        let taken = arrived.saturating_sub(refused) as f64 / arrived.max(1) as f64;
        load.offered_rps *= taken;
        load
    }
}

impl Period {
    /// Returns true if a request was answered in it, in time or late.
    fn is_answered(&self) -> bool {
        let late = self.misses.causes.get(&MissCause::Late);
        self.counts.within_slo > 0 || late.is_some_and(|late| *late > 0)
    }
}

impl History {
    fn forget(&mut self, now: Time) {
        let is_old = |period: &mut Period| now.saturating_since(period.begin) > WINDOW;
        while self.periods.pop_front_if(is_old).is_some() {}
    }

    /// Adds a period, unless nothing happened in it.
    fn add(&mut self, period: Period) {
        if period.counts != RequestCounts::default() {
            self.periods.push_back(period);
        }
    }

    /// Notes when it began to miss its objective, or that it no longer does.
    fn note_begin(&mut self) {
        let begin = self.missed_requests().and_then(|_| {
            let first = self.missing().next()?;
            Some((first.begin, Arc::clone(&first.planned)))
        });
        self.began = begin.map(|begin| self.began.take().unwrap_or(begin));
    }

    /// Returns the periods with missed requests.
    fn missing(&self) -> impl Iterator<Item = &Period> {
        self.periods
            .iter()
            .filter(|period| period.counts.missed > 0)
    }

    /// Returns the number of requests that ended, and of those that were missed, if the model misses its objective.
    fn missed_requests(&self) -> Option<(u64, u64)> {
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
        Some((ended, missed))
    }

    /// Returns true if none of the last requests was answered, as many as it takes to miss the objective.
    fn is_unanswered(&self) -> bool {
        let mut ended = 0;
        for period in self.periods.iter().rev() {
            if period.is_answered() {
                return false;
            }
            ended += period.counts.missed;
            if ended >= MIN_ENDED {
                return true;
            }
        }
        false
    }

    fn missed_level(&self, model: &ModelId) -> Option<MissedLevel> {
        let (ended, missed) = self.missed_requests()?;
        let (since, planned) = self.began.clone()?;
        let mut sum = MissedRequests::default();
        for period in self.missing() {
            sum.merge(&period.misses);
        }
        Some(MissedLevel {
            ended,
            missed,
            since,
            load: load(self.missing(), model, &planned),
            misses: sum,
            is_unanswered: self.is_unanswered(),
            periods: self
                .missing()
                .map(|period| (period.end, period.counts.missed))
                .collect(),
            planned,
        })
    }
}

/// Returns the load of a model over some periods of its, beside what was planned for it.
fn load<'a>(periods: impl Iterator<Item = &'a Period>, model: &ModelId, planned: &Planned) -> Load {
    let (mut seconds, mut requests, mut rows) = (0.0, 0.0, 0.0);
    for period in periods {
        seconds += period.end.saturating_since(period.begin).as_secs_f64();
        requests += period.counts.arrived as f64;
        rows += period.counts.rows_arrived as f64;
    }
    if seconds <= 0.0 {
        return Load::default();
    }
    Load {
        rows: rows / f64::max(requests, 1.0),
        offered_rps: rows / seconds,
        planned_rps: planned.get(model).copied().unwrap_or_default(),
        seconds,
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
            self.counts.arrive(arrived, 1);
            self.counts.answer(within_slo, 1);
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
    fn what_a_model_missed_before_its_first_sample_counts() {
        let ids: [ModelId; 2] = ["old", "new"].map(|name| name.parse().unwrap());
        let missed = RequestCounts {
            missed: 7,
            ..RequestCounts::default()
        };
        let (mut levels, mut counts) = (ServiceLevels::default(), BTreeMap::new());
        for (second, id) in [(5, &ids[0]), (10, &ids[1])] {
            counts.insert(id.clone(), missed);
            let now = Time::ZERO + Duration::from_secs(second);
            levels.sample(now, &counts, &BTreeMap::new(), &BTreeMap::new());
        }
        for id in &ids {
            assert_eq!(levels.missed_since(id, Time::ZERO), 7);
        }
    }

    #[test]
    fn a_model_misses_its_objective_from_the_first_missed_request_until_a_minute_after_the_last() {
        let mut model = Sampled::default();
        assert_eq!(model.pass(500, 500, 0), None);
        let before = model.now;
        let level = model.pass(2000, 500, 1500).unwrap();
        assert_eq!((level.ended, level.missed), (2500, 1500));
        assert_eq!(level.since, before);
        assert!(!level.is_unanswered);
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
    fn requests_are_unanswered_once_as_many_in_a_row_are_as_count() {
        let mut model = Sampled::default();
        model.pass(0, 0, 0);
        assert!(!model.pass(100, 50, 50).unwrap().is_unanswered);
        assert!(!model.pass(15, 0, 15).unwrap().is_unanswered);
        assert!(model.pass(15, 0, 15).unwrap().is_unanswered);
        assert!(!model.pass(15, 1, 14).unwrap().is_unanswered);
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

    #[test]
    fn a_slight_excess_explains_a_loss_of_its_size_and_chance_none() {
        let load = |offered_rps, planned_rps, seconds| Load {
            rows: 1.0,
            offered_rps,
            planned_rps,
            seconds,
        };
        // 36 requests where 29 were planned for: as many come by chance.
        assert!(!load(7.2, 5.8, 5.0).is_excessive());
        assert!(!load(7.2, 5.8, 5.0).explains(5, 1.0));
        // 140 more than 580: they cost 280 at most.
        let slight = load(7.2, 5.8, 100.0);
        assert!(slight.is_excessive() && slight.explains(280, 1.0));
        assert!(!slight.explains(281, 1.0) && !slight.explains(280, 2.0));
        // Twice as many can make all of them late.
        assert!(load(20.0, 10.0, 10.0).explains(200, 1.0));
        assert!(
            !load(20.0, 0.0, 10.0).explains(200, 1.0),
            "nothing was planned"
        );
    }

    #[test]
    fn missed_requests_are_counted_from_a_time_on() {
        let mut model = Sampled::default();
        let id: ModelId = "m".parse().unwrap();
        model.pass(0, 0, 0);
        model.pass(10, 0, 10);
        let between = model.now;
        model.pass(10, 3, 7);
        assert_eq!(model.levels.missed_since(&id, Time::ZERO), 17);
        assert_eq!(model.levels.missed_since(&id, between), 7);
        assert_eq!(model.levels.missed_since(&id, model.now), 0);
        let other = "other".parse().unwrap();
        assert_eq!(model.levels.missed_since(&other, Time::ZERO), 0);
    }
    #[test]
    fn what_a_model_refused_on_arrival_is_not_blamed_for_what_its_neighbour_missed() {
        let ids: [ModelId; 2] = ["hung", "neighbour"].map(|name| name.parse().unwrap());
        let mut counts = BTreeMap::new();
        for id in &ids {
            let mut of_model = RequestCounts::default();
            of_model.arrive(150, 1);
            of_model.answer(50, 1);
            of_model.missed += 100;
            counts.insert(id.clone(), of_model);
        }
        let all_ended = |cause| MissedRequests {
            causes: BTreeMap::from([(cause, 100)]),
            ..MissedRequests::default()
        };
        for (cause, taken_rps) in [(MissCause::Refused, 10.0), (MissCause::Late, 30.0)] {
            let misses = BTreeMap::from([(ids[1].clone(), all_ended(cause))]);
            let mut levels = ServiceLevels::default();
            let now = Time::ZERO + Duration::from_secs(5);
            levels.sample(now, &counts, &misses, &BTreeMap::new());
            let victim = levels.missing().remove(&ids[0]).unwrap();
            let load = levels.load_during(&ids[1], &victim);
            assert!((load.offered_rps - taken_rps).abs() < 1e-9, "{load:?}");
        }
    }
}
