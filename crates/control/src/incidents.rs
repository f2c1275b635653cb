//! Incidents: findings with one root, from the first of them until the last is over.
//!
//! They are kept in memory, as many as [`MAX_INCIDENTS`], and are gone with the process.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{ModelId, Time};

use crate::finding::{Finding, FindingKey, Problem, Severity, Subject};

/// The largest number of incidents that are kept. The oldest that are over are forgotten first.
const MAX_INCIDENTS: usize = 128;
/// The largest number of findings that an incident keeps. Those that are over are forgotten, and while none is, further ones are left out.
const MAX_FINDINGS: usize = 32;
/// The age from which an incident keeps its root: what becomes known later began later.
const SETTLED: Duration = Duration::from_mins(1);
/// The time after the end of an incident within which it goes on if its root has findings again.
const REOPENED: Duration = Duration::from_mins(1);

/// Findings with one root.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// The number of the incident since the start of the process, from 1.
    pub id: u64,
    /// The subject with which the trouble began, as far as known.
    pub root: Subject,
    /// The worst severity so far.
    pub severity: Severity,
    /// The begin of its first finding.
    pub since: Time,
    /// The time at which its last finding was over; none while there is one.
    pub end: Option<Time>,
    /// Its findings: those of the root first, then those with the most missed requests.
    pub findings: Vec<IncidentFinding>,
    /// The models whose requests missed their SLO in it.
    pub missed: BTreeMap<ModelId, MissedInIncident>,
}

/// The requests of a model that missed its SLO in an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedInIncident {
    /// The number of them, from the begin of its first finding until the last is over.
    pub requests: u64,
    /// The time up to which they are counted.
    counted: Time,
}

/// A finding of an incident: as it is now, and once it is over as it was at its worst.
#[derive(Clone, Debug, PartialEq)]
pub struct IncidentFinding {
    /// The finding. At its worst it cost the largest part of the requests; of several such states the most severe counts, of equal ones the last.
    pub finding: Finding,
    /// The time at which it was over; none while it is there.
    pub end: Option<Time>,
    /// The finding at its worst so far.
    worst: Finding,
}

impl IncidentFinding {
    fn new(finding: &Finding) -> Self {
        Self {
            finding: finding.clone(),
            end: None,
            worst: finding.clone(),
        }
    }

    /// Takes the newest state of the finding.
    fn take(&mut self, finding: &Finding) {
        if !self.worst.is_worse_than(finding) {
            self.worst = finding.clone();
        }
        self.finding = finding.clone();
        self.end = None;
    }

    fn end(&mut self, now: Time) {
        self.finding = self.worst.clone();
        self.end = Some(now);
    }
}

/// The identity of an incident's root. Troubles of the cluster have nothing to do with each other.
type Root = (Subject, Option<Problem>);

/// The incidents of the present and of before, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incidents {
    all: VecDeque<Incident>,
    last_id: u64,
}

fn root_of(finding: &Finding) -> Root {
    let root = finding.root().clone();
    let problem = (root == Subject::Cluster).then_some(finding.problem);
    (root, problem)
}

/// Returns the models whose missed requests a finding is about.
fn missing_models(finding: &Finding) -> &[ModelId] {
    match (&finding.problem, &finding.subject) {
        (Problem::SloMissed, Subject::Model(id)) => std::slice::from_ref(id),
        (Problem::WorkerEnded, _) => &finding.victims,
        // Their victims have findings of their own.
        _ => &[],
    }
}

impl Incident {
    /// Returns the number of requests that missed their SLO in it.
    pub fn missed_requests(&self) -> u64 {
        self.missed.values().map(|missed| missed.requests).sum()
    }

    /// Counts the requests that were missed since the last time; of a model that is new to it, since its finding began here.
    fn count(&mut self, now: Time, missed_since: impl Fn(&ModelId, Time) -> u64) {
        for one in self.findings.iter().filter(|one| one.end.is_none()) {
            let begin = one.finding.since.max(self.since);
            for model in missing_models(&one.finding) {
                let missed = self.missed.entry(model.clone());
                let missed = missed.or_insert(MissedInIncident {
                    requests: 0,
                    counted: begin,
                });
                missed.requests += missed_since(model, missed.counted);
                missed.counted = now;
            }
        }
    }

    /// Puts the findings of the root first, then those with the most missed requests.
    fn sort(&mut self) {
        let root = &self.root;
        self.findings.sort_by_key(|one| {
            let is_symptom = one.finding.root.is_some() || one.finding.subject != *root;
            (
                is_symptom,
                Reverse(one.worst.missed.max(one.finding.missed)),
            )
        });
    }

    fn is_of(&self, root: &Root) -> bool {
        let mut findings = self.findings.iter();
        let is_kind = |problem| findings.any(|one| one.finding.problem == problem);
        self.root == root.0 && root.1.is_none_or(is_kind)
    }

    fn present(&self) -> impl Iterator<Item = &Finding> {
        let present = self.findings.iter().filter(|one| one.end.is_none());
        present.map(|one| &one.finding)
    }

    /// Returns true if it is so old that it keeps its root and its findings whatever becomes known.
    fn is_settled(&self, now: Time) -> bool {
        now.saturating_since(self.since) > SETTLED
    }

    /// Gives a finding to another incident, or ends it here if it was this one's for long.
    fn give(&mut self, now: Time, key: &FindingKey, is_late: bool) -> Option<IncidentFinding> {
        let is_it = |one: &IncidentFinding| one.finding.key() == *key;
        let at = self.findings.iter().position(is_it)?;
        if is_late {
            self.findings[at].end(now);
            return None;
        }
        let given = self.findings.remove(at);
        for model in missing_models(&given.finding) {
            self.missed.remove(model);
        }
        Some(given)
    }

    /// Takes the newest state of a finding, which it or the incident that gave it may have had before, and has had since `begin`.
    fn take(&mut self, finding: &Finding, given: Option<IncidentFinding>, begin: Time) {
        let key = finding.key();
        self.end = None;
        self.severity = self.severity.min(finding.severity);
        let mut findings = self.findings.iter_mut();
        if let Some(known) = findings.find(|one| one.finding.key() == key) {
            // It is this incident's since it came here, however long it was there before.
            if let Some(given) = given {
                self.since = self.since.min(begin);
                known.take(&given.worst);
            }
            known.take(finding);
            return;
        }
        self.since = self.since.min(begin);
        let mut taken = given.unwrap_or_else(|| IncidentFinding::new(finding));
        taken.take(finding);
        if self.findings.len() >= MAX_FINDINGS {
            let Some(over) = self.findings.iter().position(|one| one.end.is_some()) else {
                return;
            };
            self.findings.remove(over);
        }
        self.findings.push(taken);
    }

    /// Ends the findings that are not there any more, and itself with the last of them.
    fn end_missing(&mut self, now: Time, present: &BTreeMap<FindingKey, Root>) {
        if self.end.is_some() {
            return;
        }
        for one in &mut self.findings {
            if one.end.is_none() && !present.contains_key(&one.finding.key()) {
                one.end(now);
            }
        }
        if self.present().next().is_none() {
            self.end = Some(now);
        }
    }
}

impl Incidents {
    /// Takes the present findings, of which notices alone are no incident. `missed_since` returns the number of a model's missed requests since a time
    /// of the last minute.
    pub(crate) fn update(
        &mut self,
        now: Time,
        findings: &[Finding],
        missed_since: impl Fn(&ModelId, Time) -> u64,
    ) {
        let present = findings.iter().map(|f| (f.key(), root_of(f)));
        let present: BTreeMap<FindingKey, Root> = present.collect();
        for finding in findings {
            let root = &present[&finding.key()];
            let current = self.open_with(&finding.key());
            if current.is_none() && finding.severity == Severity::Notice {
                continue;
            }
            let at = self.incident_of(now, finding, root, current, &present);
            let moved = current.filter(|current| *current != at);
            let is_late = moved.is_some_and(|from| self.all[from].is_settled(now));
            let begin = if is_late { now } else { finding.since };
            let given = moved.and_then(|from| self.all[from].give(now, &finding.key(), is_late));
            self.all[at].take(finding, given, begin);
            self.all.retain(|incident| !incident.findings.is_empty());
        }
        for incident in &mut self.all {
            incident.end_missing(now, &present);
            incident.count(now, &missed_since);
            incident.sort();
        }
        self.forget();
    }

    /// Returns the place of the open incident that has a finding now.
    fn open_with(&self, key: &FindingKey) -> Option<usize> {
        let has = |incident: &Incident| incident.present().any(|finding| finding.key() == *key);
        self.all.iter().position(has)
    }

    /// Returns the place of the incident that a finding belongs to, which may be new. `current` is the one that it is in.
    fn incident_of(
        &mut self,
        now: Time,
        finding: &Finding,
        root: &Root,
        current: Option<usize>,
        present: &BTreeMap<FindingKey, Root>,
    ) -> usize {
        if let Some(at) = current.filter(|at| self.all[*at].is_of(root)) {
            return at;
        }
        let goes_on = |incident: &Incident| {
            incident
                .end
                .is_none_or(|end| now.saturating_since(end) <= REOPENED)
        };
        let known = self
            .all
            .iter()
            .rposition(|one| one.is_of(root) && goes_on(one));
        if let Some(at) = known {
            return at;
        }
        // The root of a whole incident may become known later.
        let is_now_of = |incident: &Incident| {
            let mut roots = incident.present().filter_map(|f| present.get(&f.key()));
            !incident.is_settled(now)
                && roots.next() == Some(root)
                && roots.all(|other| other == root)
        };
        if root.1.is_none()
            && let Some(at) = self.all.iter().position(is_now_of)
        {
            self.all[at].root = root.0.clone();
            return at;
        }
        self.last_id += 1;
        self.all.push_back(Incident {
            id: self.last_id,
            root: root.0.clone(),
            severity: finding.severity,
            since: now,
            end: None,
            findings: Vec::new(),
            missed: BTreeMap::new(),
        });
        self.all.len() - 1
    }

    fn forget(&mut self) {
        while self.all.len() > MAX_INCIDENTS {
            let over = self.all.iter().position(|incident| incident.end.is_some());
            self.all.remove(over.unwrap_or_default());
        }
    }

    /// Returns the incidents: those that are not over first, then those that cost the most requests, then the newest.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Incident> {
        let mut all: Vec<&Incident> = self.all.iter().collect();
        all.sort_by_key(|one| {
            (
                one.end.is_some(),
                Reverse(one.missed_requests()),
                Reverse(one.id),
            )
        });
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes findings whose requests do not matter.
    fn update(incidents: &mut Incidents, now: Time, findings: &[Finding]) {
        incidents.update(now, findings, |_, _| 0);
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn missed(model: &str, since: u64, root: Option<Subject>) -> Finding {
        let subject = Subject::Model(model.parse().unwrap());
        let finding = Finding::new(Severity::Warning, subject, Problem::SloMissed, "");
        Finding {
            since: at(since),
            root,
            ..finding
        }
    }

    fn slow(severity: Severity) -> Finding {
        let subject = Subject::Device("n/0".parse().unwrap());
        let finding = Finding::new(severity, subject, Problem::SlowDevice, "");
        Finding {
            since: at(5),
            ..finding
        }
    }

    fn device() -> Subject {
        slow(Severity::Notice).subject
    }

    #[test]
    fn symptoms_join_their_root_and_the_incident_ends_with_the_last_of_them() {
        let mut incidents = Incidents::default();
        update(&mut incidents, at(5), &[slow(Severity::Notice)]);
        assert_eq!(incidents.all().count(), 0, "a notice alone is none");
        // The root of the first symptom is known later.
        update(&mut incidents, at(10), &[missed("a", 8, None)]);
        let both = [slow(Severity::Critical), missed("a", 8, Some(device()))];
        update(&mut incidents, at(15), &both);
        let more = [&both[..], &[missed("b", 20, Some(device()))]].concat();
        update(&mut incidents, at(20), &more);
        let all: Vec<&Incident> = incidents.all().collect();
        let [incident] = all[..] else {
            panic!("{all:?}");
        };
        assert_eq!((incident.id, &incident.root), (1, &device()));
        assert_eq!(incident.severity, Severity::Critical);
        assert_eq!((incident.since, incident.end), (at(5), None));
        assert_eq!(incident.findings.len(), 3);
        // It goes on until the last is over, and a pause does not end it.
        update(&mut incidents, at(25), &more[2..]);
        update(&mut incidents, at(30), &[]);
        update(&mut incidents, at(80), &more[..1]);
        assert_eq!(incidents.all().next().unwrap().end, None);
        update(&mut incidents, at(90), &[]);
        let incident = incidents.all().next().unwrap();
        assert_eq!(incident.end, Some(at(90)));
        let ends: Vec<_> = incident.findings.iter().map(|one| one.end).collect();
        let cause_first = [Some(at(90)), Some(at(25)), Some(at(30))];
        assert_eq!(ends, cause_first);
        // Later it is another one.
        update(&mut incidents, at(200), &both);
        let ids: Vec<u64> = incidents.all().map(|incident| incident.id).collect();
        assert_eq!(ids, [2, 1]);
    }

    #[test]
    fn a_finding_is_shown_as_it_is_and_once_it_is_over_as_it_was_at_its_worst() {
        let mut incidents = Incidents::default();
        let mut seconds = 5;
        let mut pass = |findings: &[(f64, Severity, Option<Subject>)]| {
            let finding = |(part, severity, root): &(f64, Severity, Option<Subject>)| Finding {
                missed_part: *part,
                severity: *severity,
                text: format!("{part} missed"),
                ..missed("a", 5, root.clone())
            };
            let findings: Vec<Finding> = findings.iter().map(finding).collect();
            update(&mut incidents, at(seconds), &findings);
            seconds += 5;
            let newest = incidents.all().next().unwrap();
            (newest.id, newest.findings[0].finding.text.clone())
        };
        let shown = |id: u64, part: &str| (id, format!("{part} missed"));
        // Its root becomes known when the worst is over, and makes it less severe: it is still the same.
        let (critical, warning) = (Severity::Critical, Severity::Warning);
        assert_eq!(pass(&[(0.3, warning, None)]), shown(1, "0.3"));
        assert_eq!(pass(&[(0.6, critical, None)]), shown(1, "0.6"));
        assert_eq!(pass(&[(0.5, critical, None)]), shown(1, "0.5"));
        assert_eq!(pass(&[(0.01, warning, Some(device()))]), shown(1, "0.01"));
        assert_eq!(pass(&[]), shown(1, "0.6"));
        // It goes on.
        assert_eq!(pass(&[(0.02, warning, Some(device()))]), shown(1, "0.02"));
        assert_eq!(pass(&[]), shown(1, "0.6"));
        assert_eq!(pass(&[(0.7, warning, Some(device()))]), shown(1, "0.7"));
        assert_eq!(pass(&[]), shown(1, "0.7"));
    }

    #[test]
    fn an_incident_begins_when_a_finding_of_long_before_comes_to_it() {
        let mut incidents = Incidents::default();
        let mut seconds = 10;
        while seconds <= 120 {
            update(&mut incidents, at(seconds), &[missed("a", 5, None)]);
            seconds += 5;
        }
        // After two minutes its device becomes slow, too.
        for _ in 0..3 {
            let both = [slow(Severity::Critical), missed("a", 5, Some(device()))];
            let both = both.map(|one| Finding {
                since: if one.problem == Problem::SlowDevice {
                    at(125)
                } else {
                    one.since
                },
                ..one
            });
            update(&mut incidents, at(seconds), &both);
            seconds += 5;
        }
        let begins: Vec<Time> = incidents.all().map(|one| one.since).collect();
        assert_eq!(begins, [at(125), at(5)]);
    }

    #[test]
    fn a_symptom_of_two_models_moves_to_its_root_alone() {
        let mut incidents = Incidents::default();
        let culprit = Some(Subject::Model("a".parse().unwrap()));
        let before = [missed("a", 1, None), missed("b", 2, culprit.clone())];
        update(&mut incidents, at(5), &before);
        update(&mut incidents, at(6), &[missed("c", 6, None)]);
        assert_eq!(incidents.all().count(), 2);
        // What was an incident of its own joins the one of its root.
        update(
            &mut incidents,
            at(10),
            &[&before[..], &[missed("c", 6, culprit)]].concat(),
        );
        let all: Vec<&Incident> = incidents.all().collect();
        assert_eq!(all.iter().filter(|one| one.end.is_none()).count(), 1);
        let models: Vec<_> = all.last().unwrap().present().map(Finding::key).collect();
        assert_eq!(models.len(), 3);
    }

    #[test]
    fn what_has_another_root_after_a_minute_is_another_incident() {
        let mut incidents = Incidents::default();
        update(&mut incidents, at(10), &[missed("a", 8, None)]);
        let both = [slow(Severity::Warning), missed("a", 8, Some(device()))];
        let both = both.map(|finding| Finding {
            since: finding.since.max(at(8)),
            ..finding
        });
        update(&mut incidents, at(100), &both);
        let all: Vec<&Incident> = incidents.all().collect();
        let [second, first] = all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(first.root, missed("a", 8, None).subject);
        assert_eq!((first.since, first.end), (at(8), Some(at(100))));
        assert_eq!((&second.root, second.findings.len()), (&device(), 2));
    }

    #[test]
    fn the_memory_of_incidents_and_of_their_findings_is_bounded() {
        let mut incidents = Incidents::default();
        for number in 0..2 * MAX_INCIDENTS as u64 {
            let now = at(1000 * number);
            update(&mut incidents, now, &[missed("a", 1000 * number, None)]);
            update(&mut incidents, now + REOPENED, &[]);
        }
        assert_eq!(incidents.all().count(), MAX_INCIDENTS);
        let mut incidents = Incidents::default();
        let root = Some(device());
        let many = (0..2 * MAX_FINDINGS).map(|n| missed(&format!("m{n}"), 5, root.clone()));
        let all: Vec<Finding> = [slow(Severity::Warning)].into_iter().chain(many).collect();
        update(&mut incidents, at(5), &all);
        let incident = incidents.all().next().unwrap();
        assert_eq!(incident.findings.len(), MAX_FINDINGS);
        assert_eq!(incident.findings[0].finding.problem, Problem::SlowDevice);
        update(&mut incidents, at(10), &all);
        assert_eq!(
            incidents.all().count(),
            1,
            "those that were forgotten are of it"
        );
    }

    #[test]
    fn an_incident_counts_the_requests_that_its_models_missed_since_it_began_there() {
        // Each model misses a request a second.
        let missed_since =
            |now: Time| move |_: &ModelId, time| now.saturating_since(time).as_secs();
        let mut incidents = Incidents::default();
        let mut pass = |seconds, findings: &[Finding]| {
            incidents.update(at(seconds), findings, missed_since(at(seconds)));
            let counts = |one: &Incident| {
                let models = one.missed.iter();
                let models = models.map(|(model, missed)| (model.to_string(), missed.requests));
                (one.id, models.collect::<Vec<_>>())
            };
            incidents.all().map(counts).collect::<Vec<_>>()
        };
        let of = |model: &str, requests: u64| (model.to_owned(), requests);
        assert_eq!(pass(10, &[missed("a", 8, None)]), [(1, vec![of("a:1", 2)])]);
        // What comes to its root in the first minute is counted there, and here no more.
        let other = missed("b", 5, None);
        let both = [missed("a", 8, None), other.clone()];
        let counted = pass(15, &both);
        assert_eq!(counted, [(2, vec![of("b:1", 10)]), (1, vec![of("a:1", 7)])]);
        let all = [slow(Severity::Warning), missed("a", 8, Some(device()))];
        let counted = pass(20, &[&all[..], &[other]].concat());
        assert_eq!(
            counted,
            [(2, vec![of("b:1", 15)]), (1, vec![of("a:1", 12)])]
        );
        // What is over comes last, however much it cost, and costs no more.
        let counted = pass(25, &all);
        assert_eq!(
            counted,
            [(1, vec![of("a:1", 17)]), (2, vec![of("b:1", 15)])]
        );
        pass(30, &[]);
        assert_eq!(
            pass(40, &[]),
            [(1, vec![of("a:1", 17)]), (2, vec![of("b:1", 15)])]
        );
    }

    #[test]
    fn the_cause_stands_above_its_symptoms_and_the_worst_of_these_first() {
        let mut incidents = Incidents::default();
        let of = |model: &str, requests| Finding {
            missed: requests,
            ..missed(model, 5, Some(device()))
        };
        update(&mut incidents, at(5), &[missed("a", 5, None)]);
        let all = [of("a", 2), of("b", 7), slow(Severity::Warning), of("c", 5)];
        update(&mut incidents, at(10), &all);
        let all: Vec<&Incident> = incidents.all().collect();
        let [incident] = all[..] else {
            panic!("{all:?}");
        };
        let subjects = incident.findings.iter().map(|one| &one.finding.subject);
        let subjects: Vec<_> = subjects.cloned().collect();
        let models = ["b", "c", "a"].map(|model| Subject::Model(model.parse().unwrap()));
        assert_eq!(subjects, [&[device()][..], &models].concat());
    }
}
