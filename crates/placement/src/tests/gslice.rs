//! GSLICE's plans for clusters. The tuning loop itself is tested next to its code.

use super::*;

/// Profile rows of models that use the whole device, so that a batch takes (100 / s)^1.6 times as long under a share of s percent.
const FULL: &str = "
a,k,1,,10,,50,,,100
b,k,1,,10,,50,,,100
c,k,1,,10,,50,,,100
";

/// Profile rows of models whose batches of b take 4 + b ms on the whole device, and (100 / 30)^1.6 = 6.865 times as long under 30 %. With
/// a limit of half of 400 ms the loop goes from batches of 1 (34.3 ms, slack 4.83 times that) to 6 (68.7 ms, 1.91), 18 (151.0 ms, 0.32)
/// and 24, whose 192.2 ms have a slack of 3.9 %. That is 124.9 requests/s; for rates between 113.5 and 124.9 the share stays as well.
const LINEAR: &str = "
a,k,1,,5,,50,,,100
a,k,32,,36,,50,,,100
b,k,1,,5,,50,,,100
b,k,32,,36,,50,,,100
c,k,1,,5,,50,,,100
c,k,32,,36,,50,,,100
d,k,1,,5,,50,,,100
d,k,32,,36,,50,,,100
";

fn linear(devices: usize, models: &[(&str, f64, u64)]) -> Problem {
    equal_devices(device("k", 1_000), devices, models, profiles(LINEAR))
}

fn setting(devices: usize, models: &[(&str, f64, u64)]) -> Problem {
    equal_devices(device("k", 1_000), devices, models, profiles(FULL))
}

fn shares(plan: &Plan, model: usize) -> Vec<f64> {
    replicas_of(plan, model).map(share).collect()
}

#[test]
fn a_share_that_does_not_fit_goes_to_the_next_device() {
    let models = ["a", "b", "c", "d"].map(|name| (name, 120.0, 400));
    let plan = place("gslice", &linear(2, &models));
    for model in 0..4 {
        assert_eq!(shares(&plan, model), [30.0]);
        assert_eq!(plan.replicas[model].batch_size, 24);
        assert_eq!(shortfall(&plan, model), None);
    }
    assert_eq!(devices_of(&plan, 2), [0]);
    assert_eq!(devices_of(&plan, 3), [1]);
}

#[test]
fn a_rate_above_a_device_gets_whole_devices_and_a_share() {
    // Batches of 32 in 36 ms are 888.9/s on each of two whole devices; for the other 120/s the loop ends at 30 %.
    let plan = place("gslice", &linear(4, &[("a", 1897.8, 400)]));
    assert_eq!(shares(&plan, 0), [100.0, 100.0, 30.0]);
    assert_eq!(batch_sizes(&plan), [32, 32, 24]);
    assert_eq!(shortfall(&plan, 0), None);
}

#[test]
fn a_cluster_that_is_too_small_is_divided_fairly() {
    // Both models want the whole device. Each gets half, on which a request takes 10 · 2^1.6 = 30.3 ms.
    let plan = place(
        "gslice",
        &setting(1, &[("a", 400.0, 100), ("b", 400.0, 100)]),
    );
    assert_eq!(
        (shares(&plan, 0), shares(&plan, 1)),
        (vec![50.0], vec![50.0])
    );
    for model in 0..2 {
        let goodput = plan.models[model].goodput.get();
        assert!((goodput - 32.9877).abs() < 1e-3, "{goodput}");
        assert_eq!(
            shortfall(&plan, model),
            Some(&Shortfall::ShareThroughput {
                goodput: plan.models[model].goodput,
                rate: RequestsPerSecond::new(400.0).unwrap(),
            })
        );
    }
}

#[test]
fn a_part_that_computes_no_batch_in_time_goes_to_the_others() {
    // With a third of a device a request takes 58 ms, and half of the SLO of c is 40 ms. With half of a device it takes 30.3 ms.
    let models = [("a", 90.0, 200), ("b", 90.0, 200), ("c", 95.0, 80)];
    let plan = place("gslice", &setting(1, &models));
    assert_eq!(
        (shares(&plan, 0), shares(&plan, 1)),
        (vec![50.0], vec![50.0])
    );
    assert_eq!(shortfall(&plan, 2), Some(&Shortfall::NoComputeShareLeft));
}

#[test]
fn a_batch_above_half_of_the_slo_is_reported() {
    let plan = place("gslice", &setting(1, &[("a", 1.0, 19)]));
    assert_eq!(
        shortfall(&plan, 0),
        Some(&Shortfall::NoBatchWithinHalfSlo {
            slo: Duration::from_millis(19)
        })
    );
}

#[test]
fn memory_is_a_limit() {
    let mut problem = setting(2, &[("a", 5.0, 500), ("b", 5.0, 500)]);
    for device in &mut problem.devices {
        device.memory = ByteCount::from_mib(80).unwrap();
    }
    let plan = place("gslice", &problem);
    assert_ne!(devices_of(&plan, 0), devices_of(&plan, 1));
    problem.devices[0].memory = ByteCount::from_mib(1_000).unwrap();
    let plan = place("gslice", &problem);
    assert_eq!(devices_of(&plan, 0).len() + devices_of(&plan, 1).len(), 2);
}
