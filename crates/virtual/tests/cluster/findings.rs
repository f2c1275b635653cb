//! Findings from what is observed: who misses its SLO, since when, why, and who is the culprit.

use std::time::Duration;

use packhorse_cluster::{DeviceId, ModelId, NodeName, Time};
use packhorse_control::{CurePreview, Finding, Incident, Problem, Severity, Subject};

use crate::virtual_cluster::{Settings, VirtualCluster};

const MINUTE: Duration = Duration::from_mins(1);

/// Returns a cluster with so many nodes of one device each with this memory, whose models serve and get their rates.
fn loaded_cluster(devices: usize, memory_mib: u64, models: &[(&str, f64)]) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    for number in 0..devices {
        cluster.add_node(&format!("n{number}"), "T4", 1, memory_mib);
    }
    for (model, rate) in models {
        cluster.register(model, *rate);
    }
    cluster.run_until("all models serve", 2 * MINUTE, VirtualCluster::is_healthy);
    for (model, rate) in models {
        cluster.set_clients(model, *rate);
    }
    cluster.run_for(2 * MINUTE);
    cluster
}

fn finding(cluster: &VirtualCluster, problem: Problem, subject: &Subject) -> Option<Finding> {
    let mut findings = cluster.controller().findings().iter();
    let found = findings.find(|f| f.problem == problem && f.subject == *subject);
    found.cloned()
}

fn missed(cluster: &VirtualCluster, model: &str) -> Option<Finding> {
    finding(cluster, Problem::SloMissed, &of_model(model))
}

fn of_model(model: &str) -> Subject {
    Subject::Model(model.parse().unwrap())
}

/// Returns true if no number of a finding has more than seven digits, or a part of more than 100 %.
fn is_rounded(finding: &Finding) -> bool {
    let evidence = finding.evidence.iter().map(|evidence| &evidence.text);
    let texts = evidence.chain([&finding.text]).chain(&finding.cause);
    texts.into_iter().all(|text| {
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
        let parts = text.split(" %").filter_map(|part| {
            let number = part.rsplit(|c: char| !c.is_ascii_digit()).next()?;
            number.parse::<u64>().ok()
        });
        numbers.into_iter().all(|number| number.len() <= 7)
            && (!text.contains(" %") || parts.into_iter().next().is_some_and(|part| part <= 100))
    })
}

#[test]
fn an_overloaded_model_is_found_with_its_rates_since_it_began_and_until_it_is_over() {
    let mut cluster = loaded_cluster(1, 1500, &[("a:1", 100.0)]);
    assert_eq!(cluster.controller().findings(), []);
    let begin = cluster.now;
    cluster.set_clients("a:1", 4000.0);
    let took = cluster.run_until("it is found", MINUTE, |c| missed(c, "a:1").is_some());
    assert!(took <= Duration::from_secs(11), "{took:?}");
    let first = missed(&cluster, "a:1").unwrap();
    // A period may have begun before the load.
    assert!(first.since + Duration::from_secs(5) >= begin && first.since <= cluster.now);
    cluster.run_for(Duration::from_secs(20));
    let found = missed(&cluster, "a:1").unwrap();
    assert_eq!(found.since, first.since);
    assert_eq!(found.severity, Severity::Critical);
    let cause = found.cause.as_deref().unwrap();
    assert!(cause.contains("requests/s come, and"), "{cause}");
    assert!(is_rounded(&found), "{found:?}");
    assert!(
        matches!(&found.preview, Some(CurePreview::Rate(id, _)) if id.to_string() == "a:1"),
        "{found:?}"
    );
    cluster.set_clients("a:1", 100.0);
    cluster.run_until("it is over", 3 * MINUTE, |c| missed(c, "a:1").is_none());
}

#[test]
fn a_device_that_is_slower_than_its_sibling_is_named_with_its_models() {
    let mut cluster = loaded_cluster(2, 1500, &[("a:1", 1000.0)]);
    assert_eq!(cluster.serving("a:1").len(), 2);
    let device: DeviceId = "n1/sim0".parse().unwrap();
    let subject = Subject::Device(device.clone());
    let slow = |c: &VirtualCluster| finding(c, Problem::SlowDevice, &subject);
    assert_eq!(slow(&cluster), None);
    let node: NodeName = "n1".parse().unwrap();
    cluster.slow_device(&node, 0, 2.0);
    cluster.run_until("it is found", MINUTE, |c| slow(c).is_some());
    let found = slow(&cluster).unwrap();
    assert!(
        found
            .text
            .starts_with("batches on device n1/sim0 of node n1 take ")
            && found
                .text
                .ends_with(" times as long as on other devices of kind T4"),
        "{found:?}"
    );
    assert!(is_rounded(&found), "{found:?}");
    let evidence = &found.evidence[0].text;
    assert!(
        evidence.starts_with("batches of model a:1 take "),
        "{evidence}"
    );
    let kind = "T4".parse().unwrap();
    assert_eq!(found.preview, Some(CurePreview::WithoutDevice(kind)));
    let other = Subject::Device("n0/sim0".parse().unwrap());
    assert_eq!(finding(&cluster, Problem::SlowDevice, &other), None);
    // A model that misses because of it is found under it.
    cluster.slow_device(&node, 0, 30.0);
    cluster.run_until("it costs requests", 2 * MINUTE, |c| {
        missed(c, "a:1").is_some_and(|found| found.root.as_ref() == Some(&subject))
    });
    let found = slow(&cluster).unwrap();
    assert_eq!(found.victims, ["a:1".parse::<ModelId>().unwrap()]);
    assert!(found.severity <= missed(&cluster, "a:1").unwrap().severity);
    cluster.slow_device(&node, 0, 1.0);
    cluster.run_until("it is over", 3 * MINUTE, |c| slow(c).is_none());
}

#[test]
fn the_model_whose_load_costs_others_comes_first_and_names_its_victims() {
    let mut cluster = loaded_cluster(1, 8192, &[("a:1", 100.0), ("b:1", 50.0)]);
    for model in ["a:1", "b:1"] {
        cluster.set_clients(model, 0.0);
    }
    let (a, b): (ModelId, ModelId) = ("a:1".parse().unwrap(), "b:1".parse().unwrap());
    let counted = &mut cluster.counted;
    counted.rates.insert(a.clone(), 100.0);
    counted.rates.insert(b.clone(), 50.0);
    cluster.run_for(3 * MINUTE);
    assert_eq!(missed(&cluster, "b:1"), None);
    // The culprit itself is in time.
    cluster.counted.rates.insert(a.clone(), 4000.0);
    cluster.counted.in_time.insert(b.clone(), 0.5);
    cluster.run_until("the victim is found", MINUTE, |c| {
        missed(c, "b:1").is_some()
    });
    let victim = missed(&cluster, "b:1").unwrap();
    assert_eq!(victim.root, Some(of_model("a:1")), "{victim:?}");
    assert_eq!(victim.severity, Severity::Warning);
    let culprit = finding(&cluster, Problem::Overloaded, &of_model("a:1")).unwrap();
    assert_eq!(culprit.victims, std::slice::from_ref(&b));
    assert!(culprit.severity <= victim.severity);
    assert!(is_rounded(&culprit) && is_rounded(&victim));
    // Once it misses as well, its own finding names them.
    cluster.counted.in_time.insert(a.clone(), 0.4);
    cluster.run_until("the culprit misses", MINUTE, |c| missed(c, "a:1").is_some());
    let culprit = missed(&cluster, "a:1").unwrap();
    assert_eq!((culprit.root, culprit.severity), (None, Severity::Critical));
    assert_eq!(culprit.victims, [b]);
    assert_eq!(
        finding(&cluster, Problem::Overloaded, &of_model("a:1")),
        None
    );
}

#[test]
fn the_loss_of_a_node_is_the_root_of_what_it_costs() {
    let mut cluster = loaded_cluster(2, 1500, &[("a:1", 1000.0)]);
    assert_eq!(cluster.serving("a:1").len(), 2);
    let node: NodeName = "n1".parse().unwrap();
    let begin: Time = cluster.now;
    cluster.switch_off(&node);
    let root = Subject::Node(node);
    cluster.run_until("it is lost", MINUTE, |c| {
        finding(c, Problem::NodeLost, &root).is_some()
    });
    let lost = finding(&cluster, Problem::NodeLost, &root).unwrap();
    assert!(lost.since >= begin && lost.since <= cluster.now);
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(
        finding(&cluster, Problem::NodeLost, &root).unwrap().since,
        lost.since
    );
}

#[test]
fn of_two_lost_nodes_the_one_on_which_a_model_ran_is_the_root_of_what_it_lacks() {
    let mut cluster = loaded_cluster(2, 1100, &[("a:1", 10.0), ("b:1", 10.0)]);
    let models = ["a:1", "b:1"].map(|model| (model, cluster.node_of(model)));
    assert_ne!(models[0].1, models[1].1);
    for (_, node) in &models {
        cluster.switch_off(node);
        cluster.run_for(Duration::from_secs(1));
    }
    let missing = |c: &VirtualCluster, model| finding(c, Problem::ModelNotServed, &of_model(model));
    cluster.run_until("nothing is served", MINUTE, |c| {
        models.iter().all(|(model, _)| missing(c, model).is_some())
    });
    for (model, node) in models {
        let root = missing(&cluster, model).unwrap().root;
        assert_eq!(root, Some(Subject::Node(node)), "{model}");
    }
}

#[test]
fn what_was_missed_before_a_node_was_lost_is_not_laid_to_it() {
    let mut cluster = loaded_cluster(2, 1500, &[("a:1", 1000.0)]);
    assert_eq!(cluster.serving("a:1").len(), 2);
    cluster.set_clients("a:1", 8000.0);
    cluster.run_until("it misses", MINUTE, |c| missed(c, "a:1").is_some());
    cluster.set_clients("a:1", 100.0);
    cluster.run_for(Duration::from_secs(15));
    let node: NodeName = "n1".parse().unwrap();
    cluster.switch_off(&node);
    let root = Subject::Node(node);
    cluster.run_until("it is lost", MINUTE, |c| {
        finding(c, Problem::NodeLost, &root).is_some()
    });
    let found = missed(&cluster, "a:1").expect("it missed in the last minute");
    assert_eq!(found.root, None, "{found:?}");
    let lost = finding(&cluster, Problem::NodeLost, &root).unwrap();
    assert_eq!(lost.victims, []);
}

#[test]
fn requests_that_come_again_to_a_model_without_a_replica_are_no_overload() {
    let mut cluster = loaded_cluster(1, 1500, &[("a:1", 100.0)]);
    let node: NodeName = "n0".parse().unwrap();
    // Its worker answers no batch any more, and its clients try again.
    cluster.slow_device(&node, 0, 1e6);
    cluster.set_clients("a:1", 400.0);
    cluster.run_until("no replica serves", 2 * MINUTE, |c| {
        c.serving("a:1").is_empty()
    });
    cluster.run_until("it is found", MINUTE, |c| {
        let cause = missed(c, "a:1").and_then(|found| found.cause);
        cause.is_some_and(|cause| cause.starts_with("none of its last requests was answered"))
    });
}

#[test]
fn what_is_missed_while_no_node_is_there_is_no_overload() {
    let mut cluster = loaded_cluster(2, 1500, &[("a:1", 1000.0)]);
    cluster.set_clients("a:1", 8000.0);
    cluster.run_until("it misses", MINUTE, |c| missed(c, "a:1").is_some());
    let cause = missed(&cluster, "a:1").and_then(|found| found.cause);
    assert!(cause.unwrap().contains("requests/s come, and"));
    for node in ["n0", "n1"] {
        cluster.switch_off(&node.parse().unwrap());
    }
    let last = Subject::Node("n1".parse().unwrap());
    cluster.run_until("all are lost", MINUTE, |c| {
        c.controller().nodes().all(|(_, node)| !node.holds_lease())
    });
    let lost_at = cluster.now;
    cluster.run_for(Duration::from_secs(6));
    let found = missed(&cluster, "a:1").expect("its clients go on");
    assert!(cluster.now.saturating_since(lost_at) < MINUTE);
    let cause = found.cause.as_deref().unwrap();
    assert!(cause.starts_with("no node is there; node n"), "{found:?}");
    assert_eq!((found.root, found.preview), (Some(last), None));
    let not_served = finding(&cluster, Problem::ModelNotServed, &of_model("a:1"));
    let cause = not_served.and_then(|found| found.cause);
    assert_eq!(cause.as_deref(), Some("no node is there"));
    let short = finding(&cluster, Problem::ModelShort, &of_model("a:1"));
    assert_eq!(short, None, "the plan of before counts no more");
}

/// Returns a cluster of one device whose pool has ten models, each of which gets this rate.
fn pool_cluster(rate: f64) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        pools: true,
        ..Settings::default()
    });
    cluster.add_node("n", "T4", 1, 16 << 10);
    let models = || (0..10).map(|number| format!("m{number}:1"));
    for model in models() {
        cluster.register(&model, rate);
    }
    cluster.run_until("all models serve", 2 * MINUTE, VirtualCluster::is_healthy);
    for model in models() {
        cluster.set_clients(&model, rate);
    }
    cluster.run_for(2 * MINUTE);
    cluster
}

fn incidents(cluster: &VirtualCluster) -> Vec<&Incident> {
    cluster.controller().incidents().collect()
}

#[test]
fn a_process_that_was_killed_is_an_incident_with_its_models_and_what_it_cost() {
    let mut cluster = pool_cluster(20.0);
    let node: NodeName = "n".parse().unwrap();
    let device = Subject::Device("n/sim0".parse().unwrap());
    let before = cluster.environment.requests.clone();
    let begin = cluster.now;
    // Each of them has a process of its own here.
    for member in 0..10 {
        cluster.kill_worker(&node, member);
    }
    cluster.run_until("it is found", MINUTE, |c| {
        finding(c, Problem::WorkerEnded, &device).is_some()
    });
    cluster.run_for(Duration::from_secs(20));
    let found = finding(&cluster, Problem::WorkerEnded, &device).unwrap();
    assert!(found.since >= begin && found.since <= begin + Duration::from_secs(1));
    let text = &found.text;
    let begins =
        "a process on device n/sim0 with models m0:1, m1:1, m2:1, m3:1, m4:1, 5 more ended, and ";
    assert!(text.starts_with(begins), "{text}");
    assert!(is_rounded(&found), "{found:?}");
    let again = &found.evidence[0].text;
    assert!(
        again.starts_with("all of its models were seen to serve again "),
        "{again}"
    );
    // All requests that were missed since are of it: those of models that missed too few for a finding of their own as well.
    let missed = cluster.environment.requests.iter();
    let missed = missed.map(|(model, (_, missed))| missed - before[model].1);
    let missed: u64 = missed.sum();
    assert!(missed > 0);
    assert_eq!(found.missed, missed);
    for finding in cluster.controller().findings() {
        assert_eq!(finding.root(), &device, "{finding:?}");
    }
    let all = incidents(&cluster);
    let [incident] = all[..] else {
        panic!("{all:#?}");
    };
    assert_eq!((&incident.root, incident.end), (&device, None));
    assert_eq!(incident.missed_requests(), missed);
    // Its models have missed requests in a period that may have begun before.
    let since = incident.since;
    assert!(since <= found.since && since + Duration::from_secs(5) > found.since);
    assert_eq!(incident.findings[0].finding.problem, Problem::WorkerEnded);
    cluster.run_until("it is over", 2 * MINUTE, |c| incidents(c)[0].end.is_some());
    assert_eq!(incidents(&cluster)[0].missed_requests(), missed);
}

#[test]
fn a_process_that_hangs_is_one_incident_with_all_models_since_the_batch_that_hung() {
    let mut cluster = pool_cluster(20.0);
    let node: NodeName = "n".parse().unwrap();
    let device = Subject::Device("n/sim0".parse().unwrap());
    let begin = cluster.now;
    for member in 0..10 {
        cluster.stop_worker(&node, member, Duration::from_secs(18));
    }
    cluster.run_for(Duration::from_secs(16));
    // The link of one member ends first.
    cluster.kill_worker(&node, 0);
    cluster.run_until("it is found", MINUTE, |c| {
        finding(c, Problem::WorkerEnded, &device).is_some()
    });
    let found = finding(&cluster, Problem::WorkerEnded, &device).unwrap();
    assert!(found.since <= begin && found.since + Duration::from_secs(5) > begin);
    let text = &found.text;
    assert!(text.contains("5 more answered nothing and ended"), "{text}");
    assert_eq!(found.victims.len(), 10);
    for finding in cluster.controller().findings() {
        assert_eq!(finding.root(), &device, "{finding:?}");
    }
    let all = incidents(&cluster);
    let present = all.iter().filter(|incident| incident.end.is_none());
    let present: Vec<_> = present.collect();
    let [incident] = present[..] else {
        panic!("{present:#?}");
    };
    assert_eq!(incident.root, device);
    assert!(incident.since <= begin && incident.since + Duration::from_secs(5) > begin);
}

#[test]
fn what_misses_without_a_reason_of_its_own_is_not_laid_to_chance_in_its_load() {
    let mut cluster = pool_cluster(3.0);
    let node: NodeName = "n".parse().unwrap();
    cluster.stop_worker(&node, 0, Duration::from_secs(4));
    let mut seen = 0;
    for _ in 0..30 {
        cluster.run_for(Duration::from_secs(1));
        for finding in cluster.controller().findings() {
            let cause = finding.cause.as_deref().unwrap_or_default();
            assert!(!cause.contains(" were planned for"), "{finding:?}");
            seen += usize::from(finding.problem == Problem::SloMissed);
        }
    }
    assert!(seen > 100, "{seen}");
}
