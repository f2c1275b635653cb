//! The elastic partitioning of GPUlet, which adds a tenth to every measured latency.

use super::*;

/// Profile rows for shares. With the additional tenth the latencies are 110, 44, 33, 27.5, 26.4 and 22 ms, so that within 220 ms gpulets
/// of 20 to 100 % carry 9.09, 22.73, 30.30, 36.36, 37.88 and 45.45 requests/s in batches of 1.
const MEASURED: &str = "
m,k,1,20,100,,50,,,
m,k,1,40,40,,50,,,
m,k,1,50,30,,50,,,
m,k,1,60,25,,50,,,
m,k,1,80,24,,50,,,
m,k,1,100,20,,50,,,
";

/// Profile rows of models that use the whole device for 10 ms, with the additional tenth 11 ms. By the rule of contention a batch takes
/// (100 / p)^1.6 times as long under a share of p percent: 15.72, 24.91, 33.35, 47.66 and 144.46 ms from 80 down to 20 %.
const WHOLE: &str = "
a,k,1,,10,,50,,,100
b,k,1,,10,,50,,,100
c,k,1,,10,,50,,,100
";

fn setting(rows: &str, devices: usize, models: &[(&str, f64, u64)]) -> Problem {
    equal_devices(device("k", 1_000), devices, models, profiles(rows))
}

/// Returns the device and the share of each replica.
fn gpulets(plan: &Plan) -> Vec<(usize, f64)> {
    let gpulet = |replica: &PlannedReplica| (replica.device.0, share(replica));
    plan.replicas.iter().map(gpulet).collect()
}

#[test]
fn a_rate_becomes_gpulets_of_the_preferred_size_and_a_small_one_for_the_residual_rate() {
    // From 60 to 80 % the throughput grows by 4 %, which does not count. Per percent it grows by 0.61 from 50 to 60, by 0.76 from 40 to
    // 50 and by 0.68 from 20 to 40: the preferred size is 50 %. Two of those leave 9.39 of 70 requests/s, more than 20 % carry; 40 %
    // serve it, because 44 ms and 1 / 9.39 s are within 220 ms.
    let problem = setting(MEASURED, 3, &[("m", 70.0, 220)]);
    let plan = place("gpulet", &problem);
    // The second gpulet fits exactly beside the first one.
    assert_eq!(gpulets(&plan), [(0, 50.0), (0, 50.0), (1, 40.0)]);
    assert_eq!(shortfall(&plan, 0), None);
}

#[test]
fn a_model_with_most_of_its_rate_is_not_placed_once_more() {
    // On one device the model gets 60.61 of 70 requests/s, more than 85 %.
    let plan = place("gpulet", &setting(MEASURED, 1, &[("m", 70.0, 220)]));
    assert_eq!(gpulets(&plan), [(0, 50.0), (0, 50.0)]);
    let Some(Shortfall::NoPartitionLeftForMore {
        partitions,
        goodput,
        ..
    }) = shortfall(&plan, 0)
    else {
        panic!("{plan:?}");
    };
    assert_eq!(
        (*partitions, format!("{goodput:.2}")),
        (2, "60.61".to_owned())
    );
}

#[test]
fn a_model_below_85_percent_is_placed_once_more_on_whole_devices() {
    // Within 40 ms no gpulet below 80 % serves the model, because 24.91 ms are more than half. 80 % carry 1 / 15.72 ms = 63.6 of 85
    // requests/s, or 75 %; a whole device carries 1 / 11 ms = 90.9.
    let problem = setting(WHOLE, 1, &[("a", 85.0, 40)]);
    let plan = place("gpulet", &problem);
    assert_eq!(gpulets(&plan), [(0, 100.0)]);
    assert_eq!(shortfall(&plan, 0), None);
    // With a second device the first attempt suffices.
    let problem = setting(WHOLE, 2, &[("a", 85.0, 40)]);
    assert_eq!(gpulets(&place("gpulet", &problem)), [(0, 80.0), (1, 80.0)]);
}

#[test]
fn three_models_share_one_device_in_time() {
    // 10 requests/s are more than the 6.9 of 20 %. The first model gets 40 %, the second one the other 60 %, and no partition is left for
    // the third one. One request of each model every 100 ms takes 33 ms of the whole device, and 33 + 100 ms are within 300 ms.
    let models = [("a", 10.0, 300), ("b", 10.0, 300), ("c", 10.0, 300)];
    let problem = setting(WHOLE, 1, &models);
    let plan = place("gpulet", &problem);
    assert_eq!(gpulets(&plan), [(0, 100.0), (0, 100.0), (0, 100.0)]);
    for replica in &plan.replicas {
        assert_eq!(replica.duty_cycle, Some(Duration::from_millis(100)));
        assert_eq!(replica.compute_share, None);
    }
    assert!((0..3).all(|model| shortfall(&plan, model).is_none()));
    // Two models: the later one comes first among equals.
    let plan = place("gpulet", &setting(WHOLE, 1, &models[..2]));
    assert_eq!(gpulets(&plan), [(0, 60.0), (0, 40.0)]);
    assert!(
        plan.replicas
            .iter()
            .all(|replica| replica.duty_cycle.is_none())
    );
}

#[test]
fn an_unused_device_is_better_than_a_larger_part_but_not_than_an_exact_fit() {
    // a with a rate · SLO of 3 comes before b with 10.5, and its 40 % leave 60 %. The rate of b is above the 20.98 of 40 % and the 29.98 of
    // 50 %, and below the 40.1 of 60 %: an exact fit.
    let problem = setting(WHOLE, 2, &[("a", 10.0, 300), ("b", 35.0, 300)]);
    assert_eq!(gpulets(&place("gpulet", &problem)), [(0, 40.0), (0, 60.0)]);
    // 25 requests/s need 50 %, for which the free part of 60 % is too large.
    let problem = setting(WHOLE, 2, &[("a", 10.0, 300), ("b", 25.0, 300)]);
    assert_eq!(gpulets(&place("gpulet", &problem)), [(0, 40.0), (1, 50.0)]);
}

#[test]
fn a_full_link_allows_no_second_model() {
    // 35 and 10 requests/s of 1 MB are more than the link's 40 MB/s.
    let mut problem = setting(WHOLE, 2, &[("a", 10.0, 300), ("b", 35.0, 300)]);
    for model in &mut problem.models {
        model.payload = ByteCount::new(1_000_000);
    }
    problem.network.bytes_per_second = 4e7;
    assert_eq!(gpulets(&place("gpulet", &problem)), [(0, 40.0), (1, 60.0)]);
}

#[test]
fn memory_is_a_limit() {
    let mut problem = setting(WHOLE, 2, &[("a", 10.0, 300), ("b", 35.0, 300)]);
    for device in &mut problem.devices {
        device.memory = ByteCount::from_mib(80).unwrap();
    }
    assert_eq!(gpulets(&place("gpulet", &problem)), [(0, 40.0), (1, 60.0)]);
    problem.devices.truncate(1);
    assert_eq!(
        shortfall(&place("gpulet", &problem), 1),
        Some(&Shortfall::NoPartitionLeft)
    );
    problem.devices[0].memory = ByteCount::from_mib(49).unwrap();
    assert_eq!(
        shortfall(&place("gpulet", &problem), 0),
        Some(&Shortfall::NoMemoryWithinHalfSlo)
    );
}

#[test]
fn a_remaining_rate_uses_the_next_cheapest_kind() {
    let mut problem = setting(WHOLE, 1, &[("a", 130.0, 40)]);
    problem.devices.push(device("fast", 1_000));
    let fast = "a,fast,1,,5,,50,,,100\n";
    problem.profiles = profiles(&format!("{}{fast}", WHOLE.trim_start()));
    // Two gpulets of 50 % on the fast device carry 60.0 each; the other 10 need 80 % of the slow one.
    let plan = place("gpulet", &problem);
    assert_eq!(gpulets(&plan), [(0, 80.0), (1, 50.0), (1, 50.0)]);
    // 50 requests/s need the fast device only, or the slow one only if its requests are cheaper.
    problem.models[0].rate = RequestsPerSecond::new(50.0).unwrap();
    assert_eq!(devices_of(&place("gpulet", &problem), 0), [1]);
    problem.devices[0].cost_per_hour = Some(1.0);
    problem.devices[1].cost_per_hour = Some(4.0);
    assert_eq!(devices_of(&place("gpulet", &problem), 0), [0]);
}
