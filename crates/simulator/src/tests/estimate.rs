//! What `goodput` estimates of a plan, against what the simulator makes of it, over a grid of random plans.

use std::fmt::Write as _;

use super::THESIS;
use crate::{PlanReport, Rate, Scenario, simulate};
use packhorse_cluster::{DeviceIndex, Discipline, ModelIndex, PlannedReplica, RequestsPerSecond};

const MODELS: [(&str, u32); 6] = [
    ("densenet121", 602_112),
    ("efficientnet_b7", 602_112),
    ("resnet50", 602_112),
    ("vgg19", 602_112),
    ("mobilenet_v2", 602_112),
    ("bert", 4_096),
];

/// A linear congruential generator: the grid is the same in every run.
struct Choice(u64);

impl Choice {
    fn of<T: Copy>(&mut self, among: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        among[(self.0 >> 33) as usize % among.len()]
    }
}

fn scenario(devices: usize, models: &[(&str, u32)], slo_ms: u32) -> Scenario {
    let mut text = format!(
        "name = \"grid\"\nprofiles = [\"thesis\"]\n[simulation]\nlatency_scale = 1.22\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    for (name, bytes) in models {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = 1\nslo_ms = {slo_ms}\npayload_bytes = {bytes}"
        )
        .unwrap();
    }
    Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap()
}

/// Seconds and utilisation of a full batch.
fn full(scenario: &Scenario, replica: &PlannedReplica) -> (f64, f64) {
    let profile = scenario
        .problem
        .profile(replica.model, replica.device)
        .unwrap();
    let seconds = profile.latency(replica.batch_size).as_secs_f64() * 1.22;
    let used = profile.sm_utilization(replica.batch_size).unwrap();
    (seconds, used.get() / 100.0)
}

/// A random plan and rates with which its busiest device, or replica, is busy for `target` of the time in full batches.
fn point(choice: &mut Choice, target: f64) -> (Scenario, Vec<PlannedReplica>) {
    let devices = choice.of(&[1, 2]);
    let first = choice.of(&[0, 1, 2, 3, 4, 5]);
    let count = choice.of(&[1, 2, 3]);
    let models: Vec<(&str, u32)> = (0..count)
        .map(|i| MODELS[(first + i) % MODELS.len()])
        .collect();
    let mut scenario = scenario(devices, &models, choice.of(&[200, 300, 400]));
    let mut plan: Vec<PlannedReplica> = (0..count.max(devices) + choice.of(&[0, 1, 2]))
        .map(|i| PlannedReplica {
            model: ModelIndex(i % count),
            device: DeviceIndex(i % devices),
            batch_size: choice.of(&[4, 8]),
            compute_share: None,
            duty_cycle: None,
        })
        .collect();
    plan.sort_by_key(|replica| (replica.model, replica.device));
    let mut carried = vec![0.0; count];
    let mut busy = vec![0.0; devices];
    for replica in &plan {
        let (seconds, used) = full(&scenario, replica);
        carried[replica.model.0] += f64::from(replica.batch_size) / seconds;
        busy[replica.device.0] += used;
    }
    let most = busy.into_iter().fold(1.0, f64::max);
    for (model, carried) in scenario.problem.models.iter_mut().zip(carried) {
        model.rate = RequestsPerSecond::new(carried * target / most).unwrap();
    }
    for (workload, model) in scenario.workloads.iter_mut().zip(&scenario.problem.models) {
        workload.rate = Rate::constant(model.rate);
    }
    (scenario, plan)
}

#[test]
fn the_estimate_is_close_at_utilisations_up_to_0_9_and_never_far_too_bright() {
    let mut choice = Choice(7);
    let (mut sum, mut count) = (0.0, 0.0);
    for target in [0.3, 0.5, 0.7, 0.8, 0.9] {
        for _ in 0..8 {
            let (scenario, plan) = point(&mut choice, target);
            let estimated = packhorse_placement::estimate(&scenario.problem, &plan);
            let report = PlanReport::from_replicas(&scenario, &plan);
            let report = simulate(
                &scenario,
                report,
                &plan,
                Discipline::Deadline,
                1,
                &mut |_| {},
            )
            .unwrap();
            for ((forecast, model), demanded) in estimated
                .iter()
                .zip(&report.models)
                .zip(&scenario.problem.models)
            {
                let estimated = forecast.goodput.get() / demanded.rate.get();
                let found = model.goodput_rps / model.offered_rps;
                assert!(
                    estimated <= found + 0.1,
                    "{target}: {} at {}: {estimated:.3} estimated, {found:.3} found with {plan:?}",
                    model.name,
                    demanded.rate
                );
                sum += (estimated - found).abs();
                count += 1.0;
            }
        }
    }
    let error = sum / count;
    assert!(
        error <= 0.03,
        "mean absolute error {error:.4} over {count} models"
    );
}
