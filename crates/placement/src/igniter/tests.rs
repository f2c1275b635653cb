//! A bound of iGniter's goodput: the best plan without interference by its own model.

use std::sync::LazyLock;

use packhorse_cluster::{DeviceIndex, ProfileTable};
use proptest::{collection::vec, prelude::*, sample::subsequence};

use super::*;
use crate::tests::{device, model, oracle::best_goodput};

const KIND: &str = "V100-SXM2-16GB";

static COEFFICIENTS: LazyLock<IgniterCoefficients> = LazyLock::new(|| {
    let measured = include_str!("../../../../scenarios/igniter/coefficients.csv");
    IgniterCoefficients::from_csv(measured).unwrap()
});

/// The largest throughput of a model by itself under each number of units of share, with batches that `Plan::violations` lets pass.
fn alone(problem: &Problem, model: ModelIndex) -> Vec<f64> {
    let device = DeviceIndex(0);
    let demanded = &problem.models[model.0];
    let profile = problem.profile(model, device).unwrap();
    let kind = &problem.devices[device.0].kind;
    let (hardware, known) = COEFFICIENTS.workload(&demanded.id, kind).unwrap();
    let units = (100.0 / hardware.share_unit).floor() as u32;
    let sizes = 1..=sizing::MAX_BATCH;
    let in_time: Vec<u32> = sizes
        .filter(|&batch| profile.latency(batch) <= demanded.slo)
        .collect();
    let under = |unit: u32| {
        let share = f64::from(unit) * hardware.share_unit;
        let predictions = in_time.iter().flat_map(|&batch| {
            let workload = Workload {
                hardware,
                model: known,
                batch,
            };
            latency::predict(&[(workload, share)])
        });
        let throughputs = predictions.map(|prediction| prediction.throughput);
        throughputs.fold(0.0, f64::max)
    };
    (0..=units)
        .map(|unit| if unit == 0 { 0.0 } else { under(unit) })
        .collect()
}

/// One or two models on each device, with shares of all of it.
fn best_without_interference(problem: &Problem) -> f64 {
    let throughputs: Vec<Vec<f64>> = problem
        .models()
        .map(|(model, _)| alone(problem, model))
        .collect();
    best_goodput(problem, |_: DeviceIndex, front| {
        let units = throughputs[0].len() - 1;
        for unit in 0..=units {
            let parts = [unit, units - unit];
            front.add(
                throughputs
                    .iter()
                    .zip(parts)
                    .map(|(of, part)| of[part])
                    .collect(),
            );
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn it_promises_no_more_than_the_best_plan_without_interference(
        names in subsequence(vec!["alexnet", "resnet50", "vgg19"], 1..=2),
        demands in vec((1.0..3_000.0, 4_u64..200), 2),
        devices in 1_usize..=3,
    ) {
        let problem = Problem {
            devices: vec![device(KIND, 16_384); devices],
            models: names.iter().zip(demands).map(|(name, (rate, slo))| model(name, rate, slo)).collect(),
            profiles: ProfileTable::from_csv(include_str!("../../../../profiles/v100-igniter.csv")).unwrap(),
            ..Problem::default()
        };
        let options = PlanningOptions {
            igniter_coefficients: Some(COEFFICIENTS.clone()),
            ..PlanningOptions::default()
        };
        let plan = Igniter.place(&problem, &options, &mut Budget::unlimited()).unwrap();
        prop_assert_eq!(plan.violations(&problem), []);
        let promised: f64 = plan.models.iter().map(|forecast| forecast.goodput.get()).sum();
        let best = best_without_interference(&problem);
        prop_assert!(promised <= best * (1.0 + 1e-9), "{promised} above {best}");
    }
}
