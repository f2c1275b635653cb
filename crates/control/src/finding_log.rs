//! The memory of findings: since when each is there.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

use crate::finding::{Finding, FindingKey};

/// The time for which a finding may be away and is still the same when it is back.
const GRACE: Duration = Duration::from_mins(1);

/// The findings of the present and of the last minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct FindingLog {
    known: BTreeMap<FindingKey, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    since: Time,
    /// The time at which it was last there.
    last: Time,
}

impl FindingLog {
    /// Takes the present findings, and sets the time since which each is there: that which it says itself, or at which it first came.
    pub(crate) fn date(&mut self, now: Time, findings: &mut [Finding]) {
        for finding in findings {
            let since = finding.since.min(now);
            let known = self.known.entry(finding.key());
            let known = known.or_insert(Known { since, last: now });
            known.last = now;
            finding.since = known.since;
        }
        self.known
            .retain(|_, known| now.saturating_since(known.last) <= GRACE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Problem, Severity, Subject};

    #[test]
    fn a_finding_keeps_its_begin_while_it_changes_and_flaps_and_not_after_a_minute_away() {
        let mut log = FindingLog::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let finding = |text: &str| {
            let subject = Subject::Model("m".parse().unwrap());
            Finding::new(Severity::Warning, subject, Problem::ModelShort, text)
        };
        let mut since = |seconds: u64, text: Option<&str>| {
            let mut findings: Vec<Finding> = text.map(finding).into_iter().collect();
            log.date(at(seconds), &mut findings);
            findings.first().map(|finding| finding.since)
        };
        assert_eq!(since(10, Some("short by 1")), Some(at(10)));
        assert_eq!(since(15, Some("short by 2")), Some(at(10)));
        assert_eq!(since(20, None), None);
        assert_eq!(since(70, Some("short by 2")), Some(at(10)));
        assert_eq!(since(75, None), None);
        assert_eq!(since(131, None), None);
        assert_eq!(since(135, Some("short by 2")), Some(at(135)));
    }

    #[test]
    fn a_finding_may_know_an_earlier_begin_and_models_of_one_device_have_their_own() {
        let mut log = FindingLog::default();
        let now = Time::ZERO + Duration::from_mins(1);
        let of = |model: &str| {
            let subject = Subject::Device("n/0".parse().unwrap());
            let finding = Finding::new(Severity::Warning, subject, Problem::CannotStart, "");
            finding.of_model(&model.parse().unwrap())
        };
        let earlier = Time::ZERO + Duration::from_secs(50);
        let mut first = vec![Finding {
            since: earlier,
            ..of("a")
        }];
        log.date(now, &mut first);
        assert_eq!(first[0].since, earlier);
        let later = now + Duration::from_secs(5);
        let mut both = vec![of("a"), of("b")];
        log.date(later, &mut both);
        assert_eq!((both[0].since, both[1].since), (earlier, later));
    }
}
