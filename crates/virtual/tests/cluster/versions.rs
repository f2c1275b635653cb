//! Versions of a model: what is told when one takes over, and a rollback that is repeated.

use std::time::Duration;

use packhorse_cluster::{ModelVersion, Time};
use packhorse_control::{Command, CommandError, Notice, SplitChange};

use crate::virtual_cluster::{Settings, VirtualCluster, name};

/// Returns a cluster whose model `a` has two versions, of which the second has taken over.
fn taken_over() -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n", "T4", 1, 8192);
    let limit = Duration::from_mins(2);
    for version in ["a:1", "a:2"] {
        cluster.register(version, 20.0);
        let serves = |cluster: &VirtualCluster| !cluster.serving(version).is_empty();
        cluster.run_until("it serves", limit, serves);
    }
    cluster.run_until("the second takes over", limit, |cluster| {
        !rerouted(cluster).is_empty()
    });
    cluster
}

fn rerouted(cluster: &VirtualCluster) -> Vec<&str> {
    let notices = cluster.environment.notices.iter();
    let texts = notices.filter_map(|(at, notice)| match notice {
        Notice::Rerouted(_, text) if *at >= Time::ZERO => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn change(cluster: &mut VirtualCluster, change: SplitChange) -> Result<(), CommandError> {
    cluster.command_and_wait(Command::Split(name("a"), change))
}

const TAKEOVER: &str = "version 2 of model a has taken over from version 1";

#[test]
fn a_takeover_is_told_once_when_its_trial_is_over() {
    let mut cluster = taken_over();
    cluster.run_for(Duration::from_mins(2));
    assert_eq!(rerouted(&cluster), [TAKEOVER]);
}

#[test]
fn a_second_rollback_does_not_bring_back_what_the_first_has_taken_away() {
    let mut cluster = taken_over();
    change(&mut cluster, SplitChange::RollBack).unwrap();
    change(&mut cluster, SplitChange::RollBack).unwrap();
    let first = "requests for model a go to version 1: 100 %";
    assert_eq!(rerouted(&cluster), [TAKEOVER, first]);
    let promotion = SplitChange::Promote(ModelVersion::new(2).unwrap());
    change(&mut cluster, promotion).unwrap();
    change(&mut cluster, SplitChange::RollBack).unwrap();
    let second = "requests for model a go to version 2: 100 %";
    assert_eq!(rerouted(&cluster), [TAKEOVER, first, second, first]);
}
