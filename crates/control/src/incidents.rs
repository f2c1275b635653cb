//! Incidents: findings with one root, from the first of them until the last is over.
//!
//! They are kept in memory, as many as [`MAX_INCIDENTS`], and are gone with the process.

#[cfg(test)]
mod tests;

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
