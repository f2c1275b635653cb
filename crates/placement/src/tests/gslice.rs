//! The self-tuning loop on clusters; the loop itself by hand is with its code.

use super::*;

/// Fills the device: (100 / s)^1.6 times as long under a share of s percent.
const FULL: &str = "
a,k,1,,10,,50,,,100
b,k,1,,10,,50,,,100
c,k,1,,10,,50,,,100
";

/// b take 4 + b ms on the whole device, and (100 / 30)^1.6 = 6.865 times as long under 30 %. Within half of 400 ms the loop goes
/// from 1 (34.3 ms, slack 4.83 times that) to 6 (68.7 ms, 1.91), 18 (151.0 ms, 0.32) and 24: 192.2 ms have slack of 3.9 %. That is 124.9/s; where
/// between 113.5 and 124.9 are wanted the share stays as well.
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
    Problem {
        profiles: profiles(LINEAR),
        ..setting(devices, models)
    }
}

fn setting(devices: usize, models: &[(&str, f64, u64)]) -> Problem {
    Problem {
        devices: vec![device("k", 1_000); devices],
        models: models
            .iter()
            .map(|&(name, rate, slo)| model(name, rate, slo))
            .collect(),
        profiles: profiles(FULL),
        ..Problem::default()
    }
}

fn shares(plan: &Plan, model: usize) -> Vec<f64> {
    plan.replicas
        .iter()
        .filter(|replica| replica.model.0 == model)
        .map(|replica| replica.compute_share.map_or(100.0, ComputeShare::get))
        .collect()
}

#[test]
fn shares_add_up_to_a_device_and_the_next_one_takes_what_does_not_fit() {
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
fn a_rate_beyond_a_device_takes_whole_ones_and_a_share() {
    // 32 in 36 ms are 888.9/s from each of two whole devices; for the other 120/s the loop ends at 30 %.
    let plan = place("gslice", &linear(4, &[("a", 1897.8, 400)]));
    assert_eq!(shares(&plan, 0), [100.0, 100.0, 30.0]);
    let batches: Vec<u32> = plan
        .replicas
        .iter()
        .map(|replica| replica.batch_size)
        .collect();
    assert_eq!(batches, [32, 32, 24]);
    assert_eq!(shortfall(&plan, 0), None);
}

#[test]
fn the_cluster_is_split_fairly_where_it_is_short() {
    // Both want everything: half a device each, on which a request takes 10 · 2^1.6 = 30.3 ms.
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
fn a_part_that_computes_nothing_in_time_goes_to_the_others() {
    // With a third of a device a request takes 58 ms, and half of the SLO of c is 40 ms; with half of one 30.3 ms.
    let models = [("a", 90.0, 200), ("b", 90.0, 200), ("c", 95.0, 80)];
    let plan = place("gslice", &setting(1, &models));
    assert_eq!(
        (shares(&plan, 0), shares(&plan, 1)),
        (vec![50.0], vec![50.0])
    );
    assert_eq!(shortfall(&plan, 2), Some(&Shortfall::NoComputeShareLeft));
}

#[test]
fn an_slo_is_halved_and_said_when_that_is_too_little() {
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
