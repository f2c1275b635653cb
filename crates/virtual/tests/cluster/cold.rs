//! Models that are in no memory, and are read from the disk of their node when they are asked for.

use std::time::Duration;

use packhorse_virtual::{Disk, End};

use crate::virtual_cluster::{Settings, VirtualCluster, WEIGHTS};

const MODELS: usize = 6;

fn model(number: usize) -> String {
    format!("m{number}:1")
}

/// Returns a cluster of one device that holds some of the models, whose node holds so many more in memory. All are asked for.
fn cluster(warm: u64, read: Duration, rate: f64) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        pools: true,
        disk: Some(Disk {
            host_memory: warm * WEIGHTS,
            load: read,
        }),
        ..Settings::default()
    });
    cluster.add_node("n", "T4", 1, 2600);
    for number in 0..MODELS {
        cluster.register(&model(number), 1.0);
    }
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, |cluster| {
        (0..MODELS).all(|number| !cluster.serving(&model(number)).is_empty())
    });
    for number in 0..MODELS {
        cluster.set_clients(&model(number), rate);
    }
    cluster
}

/// Ends the clients and returns the number of requests that were sent, and of those that ended so.
fn finish(mut cluster: VirtualCluster, which: End) -> (u64, u64) {
    for number in 0..MODELS {
        cluster.set_clients(&model(number), 0.0);
    }
    cluster.run_for(Duration::from_secs(5));
    assert!(cluster.is_idle(), "no request is left");
    assert!(cluster.cold_requests() > 0);
    for end in [End::Lost, End::Failed, End::Broken] {
        assert_eq!(
            cluster.clients.count(end),
            0,
            "{:?}",
            cluster.clients.ends()
        );
    }
    (cluster.clients.ended(), cluster.clients.count(which))
}

#[test]
fn models_that_take_turns_in_memory_are_read_in_time() {
    let mut cluster = cluster(1, Duration::from_millis(40), 2.0);
    cluster.run_for(Duration::from_mins(2));
    let (sent, in_time) = finish(cluster, End::InTime);
    assert!(sent > 1000);
    assert!(in_time * 100 >= sent * 90, "{in_time} of {sent}");
}

#[test]
fn models_that_take_longer_than_anybody_waits_are_read_for_those_who_come_later() {
    // A resident model that makes room for a warm one does not have it leave memory just before; else they were 183 and 840.
    for (warm, least) in [(1, 750), (2, 1000)] {
        let mut cluster = cluster(warm, Duration::from_millis(700), 2.0);
        cluster.run_for(Duration::from_mins(2));
        let refused = cluster.clients.count(End::Refused);
        assert!(refused > 0, "{:?}", cluster.clients.ends());
        for (model, (sent, not_in_time)) in &cluster.environment.requests {
            let served = sent - not_in_time;
            assert!(served > 5, "{served} of {sent} of model {model}");
        }
        let (sent, in_time) = finish(cluster, End::InTime);
        assert!(in_time >= least, "{in_time} of {sent}");
    }
}
