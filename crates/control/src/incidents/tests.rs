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
    let missed_since = |now: Time| move |_: &ModelId, time| now.saturating_since(time).as_secs();
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
