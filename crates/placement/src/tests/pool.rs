//! Plans with pools.

use std::collections::BTreeMap;

use packhorse_cluster::{DevicePool, Discipline, Residency};
use proptest::prelude::*;

use super::*;

/// Models that leave no room: their use of the multiprocessors is not measured.
const ZOO: &str = "
small,GPU,1,,2,,101,,,
small,GPU,16,,8,,116,,,
middle,GPU,1,,5,,201,,,
middle,GPU,16,,30,,216,,,
large,GPU,1,,9,,401,,,
large,GPU,16,,60,,416,,,
";

const WEIGHTS: [(&str, u64); 3] = [("small", 100), ("middle", 200), ("large", 400)];

fn zoo(devices: usize, memory_mib: u64, models: &[(&str, f64, u64)]) -> Problem {
    let pool = DevicePool {
        host_link_bytes_per_second: 10e9,
        process: ByteCount::from_mib(84).unwrap(),
        own_workers: 0,
    };
    let device = Device {
        pool: Some(pool),
        ..device("GPU", memory_mib)
    };
    let mut problem = equal_devices(device, devices, models, profiles(ZOO));
    for model in &mut problem.models {
        model.max_batch_size = 16;
        let weights = WEIGHTS
            .iter()
            .find(|known| known.0 == model.id.name.as_str());
        model.weights = weights.and_then(|(_, mib)| ByteCount::from_mib(*mib));
    }
    problem
}

const THREE: [(&str, f64, u64); 3] = [
    ("small", 400.0, 100),
    ("middle", 50.0, 100),
    ("large", 5.0, 100),
];

fn goodput(plan: &Plan) -> f64 {
    plan.models.iter().map(|model| model.goodput.get()).sum()
}

/// Returns the models of the weights that are resident, by device.
fn residents(plan: &Plan) -> BTreeMap<usize, Vec<usize>> {
    let mut residents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for replica in &plan.replicas {
        let place = replica.pool.expect("all are in pools");
        if place.residency == Residency::Resident {
            residents
                .entry(replica.device.0)
                .or_default()
                .push(replica.model.0);
        }
    }
    residents
}

#[test]
fn every_model_is_at_home_everywhere_and_what_fits_is_resident() {
    // 84 MiB are for the process, and 16 for the inputs of a batch.
    let plan = place("goodput", &zoo(2, 100 + 700, &THREE));
    assert_eq!(plan.replicas.len(), 6);
    let all = vec![0, 1, 2];
    assert_eq!(
        residents(&plan),
        BTreeMap::from([(0, all.clone()), (1, all)])
    );
    assert!((goodput(&plan) - 455.0).abs() < 1e-6);
    let place = plan.replicas[5].pool.unwrap();
    assert_eq!(
        place.load,
        Duration::from_secs_f64(400.0 * 1024.0 * 1024.0 / 10e9)
    );
}

#[test]
fn what_is_asked_for_most_is_resident_where_not_all_fits() {
    let plan = place("goodput", &zoo(2, 100 + 500, &THREE));
    let residents = residents(&plan);
    let holders = |model| {
        residents
            .values()
            .filter(|there| there.contains(&model))
            .count()
    };
    assert_eq!([0, 1, 2].map(holders), [2, 2, 0]);
    // The large one is served all the same: its weights are copied when it is asked for.
    assert!((goodput(&plan) - 455.0).abs() < 1e-6);
}

#[test]
fn a_model_that_is_larger_than_every_device_has_no_home_and_says_so() {
    let plan = place("goodput", &zoo(2, 100 + 300, &THREE));
    assert!(plan.replicas.iter().all(|replica| replica.model.0 != 2));
    let shortfall = plan.models[2].shortfall.as_ref();
    assert_eq!(shortfall, Some(&Shortfall::NoDeviceWithMemoryLeft));
}

#[test]
fn a_batch_that_would_need_nearly_all_memory_takes_the_room_of_no_other_model() {
    // Of the middle one a single size was measured, so that a batch of 16 rows is thought to need 16 times as much.
    let guessed = ZOO.replace("middle,GPU,16,,30,,216,,,\n", "");
    let mut problem = zoo(2, 100 + 700, &THREE);
    problem.profiles = profiles(&guessed);
    problem.models[1].weights = ByteCount::from_mib(150);
    let plan = place("goodput", &problem);
    for (model, most) in [(0, 16), (1, 7), (2, 16)] {
        let of_model = plan.replicas.iter().filter(|r| r.model.0 == model);
        let sizes: Vec<u32> = of_model.map(|replica| replica.batch_size).collect();
        assert_eq!(sizes.len(), 2, "model {model} is at home on both devices");
        assert!(
            sizes.iter().all(|size| (1..=most).contains(size)),
            "model {model}: {sizes:?}"
        );
    }
}

#[test]
fn pools_are_for_models_that_leave_no_room_and_for_the_discipline_that_knows_them() {
    let has_pools = |problem: &Problem| {
        let plan = place("goodput", problem);
        plan.replicas.iter().any(|replica| replica.pool.is_some())
    };
    let problem = zoo(1, 4000, &THREE);
    assert!(has_pools(&problem));
    let mut fixed_wait = problem.clone();
    fixed_wait.discipline = Discipline::FixedWait;
    assert!(!has_pools(&fixed_wait));
    let mut without = problem.clone();
    without.devices[0].pool = None;
    assert!(!has_pools(&without));
    let mut roomy = problem;
    let measured = ZOO.replace("small,GPU,1,,2,,101,,,", "small,GPU,1,,2,,101,,,35");
    roomy.profiles = profiles(&measured);
    assert!(!has_pools(&roomy));
}

#[test]
fn few_models_have_workers_of_their_own_unless_one_would_have_no_device() {
    let with_own = |memory, own_workers| {
        let mut problem = zoo(1, memory, &THREE);
        let pool = problem.devices[0].pool.as_mut();
        pool.unwrap().own_workers = own_workers;
        problem
    };
    let is_pooled = |problem: &Problem| {
        let plan = place("goodput", problem);
        assert_eq!(plan.placed_models(), 3);
        let pooled = plan.replicas.iter().filter(|r| r.pool.is_some()).count();
        assert!(pooled == 0 || pooled == plan.replicas.len(), "all or none");
        pooled > 0
    };
    assert!(!is_pooled(&with_own(4000, 3)));
    assert!(is_pooled(&with_own(4000, 2)), "they are more");
    // Three processes have 101, 201 and 401 MiB at least.
    assert!(
        is_pooled(&with_own(100 + 500, 3)),
        "one would have no device"
    );
    // One model less than before moves nobody.
    let mut pooled = with_own(4000, 4);
    assert!(!is_pooled(&pooled));
    pooled.current = place("goodput", &with_own(4000, 0)).replicas;
    assert!(is_pooled(&pooled));
    pooled.devices[0].pool.as_mut().unwrap().own_workers = 6;
    assert!(!is_pooled(&pooled), "half as many have processes again");
}

#[test]
fn where_time_is_short_the_cheapest_requests_are_forecast() {
    let plan = place(
        "goodput",
        &zoo(1, 4000, &[("small", 1000.0, 100), ("large", 500.0, 200)]),
    );
    let goodput = |model: usize| plan.models[model].goodput.get();
    // A batch of 16 small ones takes 8 ms, so that they need half of the device.
    assert!((goodput(0) - 1000.0).abs() < 1e-6);
    // The other half computes 16 of the large ones in 60 ms.
    assert!((goodput(1) - 133.3).abs() < 0.1, "{}", goodput(1));
}

proptest! {
    #[test]
    fn more_devices_memory_or_time_never_give_a_worse_plan(
        devices in 1_usize..6,
        memory_mib in 150_u64..2000,
        rates in prop::array::uniform3(0.0_f64..3000.0),
        slo in 20_u64..400,
    ) {
        let models = |slo: u64| [("small", rates[0], slo), ("middle", rates[1], slo), ("large", rates[2], slo)];
        let plan = |devices, memory, slo| place("goodput", &zoo(devices, memory, &models(slo)));
        let base = goodput(&plan(devices, memory_mib, slo));
        let better = [plan(devices + 1, memory_mib, slo), plan(devices, memory_mib + 100, slo), plan(devices, memory_mib, slo + 30)];
        for plan in better {
            prop_assert!(goodput(&plan) >= base - 1e-6, "{} after {base}", goodput(&plan));
        }
    }
}
