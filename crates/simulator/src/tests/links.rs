//! Links that queue: a batch is transmitted once those before it are.

use super::*;

/// The bytes per second of a link, and those of a request.
const LINK: f64 = 1.128e9;
const PAYLOAD: f64 = 602_112.0;

/// The models of `scenarios/scale/thousand-queue.toml` at a hundredth of their rates: the name, the rate, the devices and the batch
/// size of each.
const HUNDREDTH: [(&str, u32, usize, u32); 5] = [
    ("alexnet", 5000, 3, 64),
    ("mobilenet_v2", 2000, 2, 32),
    ("resnet50", 1000, 2, 16),
    ("densenet121", 1000, 2, 32),
    ("inception_v3", 1000, 2, 16),
];

/// Returns a scenario with links of this kind, and a plan in which no two models share a device.
fn with_links(links: &str, models: &[(&str, u32, usize, u32)]) -> (Scenario, Vec<PlannedReplica>) {
    let devices: usize = models.iter().map(|model| model.2).sum();
    let mut text = format!(
        "name = \"links\"\nprofiles = [\"thesis\"]\n[simulation]\nwindow_s = 4\nlinks = \"{links}\"\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    let mut replicas = Vec::new();
    for (name, rate, devices, batch_size) in models {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = {rate}\nslo_ms = 200\npayload_bytes = {PAYLOAD}"
        )
        .unwrap();
        for _ in 0..*devices {
            replicas.push((*name, replicas.len(), *batch_size));
        }
    }
    let scenario = Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap();
    let replicas = plan(&scenario, &replicas);
    (scenario, replicas)
}

#[test]
fn where_links_queue_a_device_gets_no_more_than_its_link_carries() {
    let models = [("alexnet", 3000, 1, 64)];
    for discipline in Discipline::LIVE {
        let goodput = |links| {
            let (scenario, replicas) = with_links(links, &models);
            run(&scenario, &replicas, discipline, 1).totals.goodput_rps
        };
        assert!(goodput("queue") <= LINK / PAYLOAD, "{discipline}");
    }
    let (scenario, replicas) = with_links("instant", &models);
    let report = run(&scenario, &replicas, Discipline::Deadline, 1);
    assert!(report.totals.goodput_rps > LINK / PAYLOAD);
}

/// All that the links carry is computed in time: the batches under way suffice, and none waits on its link for long.
#[test]
fn batches_under_way_keep_replicas_and_links_busy_and_no_more() {
    let (scenario, replicas) = with_links("queue", &HUNDREDTH);
    let [deadline, fixed_wait] = [Discipline::Deadline, Discipline::FixedWait]
        .map(|discipline| run(&scenario, &replicas, discipline, 1).totals);
    assert!(
        deadline.goodput_rps >= 0.995 * deadline.offered_rps,
        "{deadline:?}"
    );
    assert!(deadline.goodput_rps >= fixed_wait.goodput_rps);
}

#[test]
fn with_more_requests_than_its_link_carries_a_device_still_answers_what_that_carries() {
    let (scenario, replicas) = with_links("queue", &[("alexnet", 2500, 1, 64)]);
    let goodput = [Discipline::Deadline, Discipline::FixedWait]
        .map(|discipline| run(&scenario, &replicas, discipline, 1).totals.goodput_rps);
    assert!(goodput[0] >= 0.95 * LINK / PAYLOAD, "{goodput:?}");
    assert!(goodput[0] > goodput[1], "{goodput:?}");
}

/// With two batches under way, of which each travels 35 ms and computes for 10, a replica would compute less than half of the time.
#[test]
fn a_long_way_that_batches_share_leaves_no_replica_idle() {
    let (scenario, replicas) = with_links("instant", &[("alexnet", 5000, 1, 64)]);
    let report = run(&scenario, &replicas, Discipline::Deadline, 1);
    assert!(
        report.totals.goodput_rps >= 0.99 * report.totals.offered_rps,
        "{:?}",
        report.totals
    );
}
