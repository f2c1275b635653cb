//! A bound on the goodput in a run that no plan and no dispatcher can exceed.

use packhorse_placement::{Demand, goodput_bound};
use packhorse_simulator::{Report, Scenario};

/// Returns a bound on the goodput in a run, in requests per second: that of its offered requests. Devices work for the window and, for
/// requests at its end, for the longest SLO.
pub(crate) fn fluid_bound(scenario: &Scenario, report: &Report) -> f64 {
    let problem = &scenario.problem;
    let window = scenario.simulation.window.as_secs_f64();
    let slos = problem.models.iter().map(|model| model.slo.as_secs_f64());
    let longest = slos.fold(0.0, f64::max);
    let models = scenario.workloads.iter().zip(&report.models);
    let demands: Vec<Demand> = models
        .map(|(workload, report)| Demand {
            rate: report.offered_rps,
            latency_scale: workload.latency_scale,
        })
        .collect();
    let devices = problem.devices.len() as f64 * (window + longest) / window;
    goodput_bound(problem, &demands, devices)
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
