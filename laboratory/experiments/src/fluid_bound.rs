//! A bound that no plan and no dispatcher can exceed.

use packhorse_cluster::{DeviceIndex, ModelIndex};
use packhorse_simulator::{Report, Scenario};

/// Returns a bound on the goodput in a run, in requests per second.
///
/// A request costs a device at least `latency(b) · u(b) / b` of its time, with the batch size `b` at which that is least among those that
/// take at most the SLO alone, and `u` the utilisation of the multiprocessors: replicas of a device progress at a rate with which the sum
/// of `u` is at most the whole device. The bound serves the cheapest requests first, as a fluid, until the time of all devices is used,
/// and has no memory, network, queues or batches that wait. Devices work for the window and, for requests at its end, for the longest SLO.
pub(crate) fn fluid_bound(scenario: &Scenario, report: &Report) -> f64 {
    let problem = &scenario.problem;
    let window = scenario.simulation.window.as_secs_f64();
    let slos = problem.models.iter().map(|model| model.slo.as_secs_f64());
    let longest = slos.fold(0.0, f64::max);
    let mut costs: Vec<(f64, f64)> = problem
        .models()
        .zip(&report.models)
        .map(|((model, _), report)| (least_cost(scenario, model), report.offered_rps))
        .collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut left = problem.devices.len() as f64 * (window + longest) / window;
    let mut served = 0.0;
    for (cost, offered) in costs {
        let rate = offered.min(left / cost);
        served += rate;
        left -= rate * cost;
    }
    served
}

/// Returns the least time of a device that a request of a model costs on any device, in seconds; infinite if no device serves it in time.
fn least_cost(scenario: &Scenario, model: ModelIndex) -> f64 {
    let problem = &scenario.problem;
    let slo = problem.models[model.0].slo;
    let scale = scenario.workloads[model.0].latency_scale;
    let on_device = |device: DeviceIndex| {
        let profile = problem.profile(model, device)?;
        let largest = profile.whole().last()?.batch_size;
        let sizes = 1..=largest.min(problem.models[model.0].max_batch_size);
        let cost = |batch: u32| {
            let latency = profile.latency(batch).mul_f64(scale);
            let used = profile.sm_utilization(batch)?.get() / 100.0;
            (latency <= slo).then(|| latency.as_secs_f64() * used / f64::from(batch))
        };
        sizes.filter_map(cost).min_by(f64::total_cmp)
    };
    let devices = problem.devices().map(|(device, _)| device);
    devices.filter_map(on_device).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Discipline;

    use super::*;
    use crate::{
        plan_cache::PlanCache,
        planner::Planner,
        setting::{Calibration, Setting},
    };

    #[test]
    fn no_run_exceeds_the_bound_and_ample_devices_bound_nothing() {
        for (gpus, ample) in [(1, false), (2, false), (6, true)] {
            let setting = Setting::with_gpus("6.1", gpus);
            let scenario = setting.scenario(Calibration::Nominal).expect("a file");
            for name in ["goodput", "wsm-milp"] {
                let planner = Planner::from_policy(name);
                let plan = planner
                    .plan(&scenario, Discipline::Deadline, &PlanCache::default())
                    .expect("a plan");
                let report = planner
                    .run(&scenario, &plan, Discipline::Deadline.into(), 1)
                    .expect("a run");
                let bound = fluid_bound(&scenario, &report);
                assert!(report.totals.goodput_rps <= bound + 1e-9);
                assert_eq!(
                    bound >= report.totals.offered_rps - 1e-9,
                    ample,
                    "{gpus} GPUs"
                );
            }
        }
    }
}
