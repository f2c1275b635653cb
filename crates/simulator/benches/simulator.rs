//! The simulated requests per second of wall time, on one core.
//!
//! Prints one JSON object per line, for `cargo xtask bench engine`.
#![expect(
    clippy::print_stdout,
    reason = "a measurement that another program reads"
)]

use std::{fmt::Write as _, time::Instant};

use packhorse_cluster::{DeviceIndex, Discipline, ModelIndex, PlannedReplica};
use packhorse_simulator::{PlanReport, Scenario, simulate};

const PROFILES: &str = include_str!("../../../profiles/v100-thesis.csv");

/// The name, the rate, the number of devices and the batch size of each model. No two models share a device.
type Models = [(&'static str, u32, usize, u32)];

fn scenario(name: &str, models: &Models, window_s: f64) -> (Scenario, Vec<PlannedReplica>) {
    let devices: usize = models.iter().map(|model| model.2).sum();
    let mut text = format!(
        "name = \"{name}\"\nprofiles = [\"p\"]\n[simulation]\nwarmup_s = 0.5\nwindow_s = {window_s}\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    let mut replicas = Vec::new();
    for (index, (model, rate, devices, batch_size)) in models.iter().enumerate() {
        let _ = write!(
            text,
            "[[models]]\nname = \"{model}\"\nrate_rps = {rate}\nslo_ms = 200\npayload_bytes = 602112\n"
        );
        for _ in 0..*devices {
            replicas.push(PlannedReplica::new(
                ModelIndex(index),
                DeviceIndex(replicas.len()),
                *batch_size,
            ));
        }
    }
    let scenario = Scenario::parse(&text, &mut |_| Ok(PROFILES.to_owned()));
    (scenario.expect("written here"), replicas)
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn measure(name: &str, models: &Models, window_s: f64) {
    let (scenario, replicas) = scenario(name, models, window_s);
    for discipline in Discipline::ALL {
        let plan = PlanReport::from_replicas(&scenario, &replicas);
        let start = Instant::now();
        let report = simulate(&scenario, plan, &replicas, discipline, 1, &mut |_| {});
        let seconds = start.elapsed().as_secs_f64();
        let totals = report.expect("the plan fits").totals;
        let requests = totals.offered_rps * (window_s + 0.5);
        println!(
            "{{\"scenario\":\"{name}\",\"discipline\":\"{discipline}\",\"devices\":{},\"offered_rps\":{:.0},\
             \"goodput_rps\":{:.0},\"wall_s\":{seconds:.2},\"requests_per_s\":{:.0}}}",
            replicas.len(),
            totals.offered_rps,
            totals.goodput_rps,
            requests / seconds
        );
    }
}

fn main() {
    let vision = [
        ("alexnet", 500, 1, 16),
        ("densenet121", 500, 1, 16),
        ("efficientnet_b7", 500, 2, 16),
        ("resnet50", 500, 1, 16),
        ("vgg19", 500, 1, 16),
    ];
    measure("six GPUs", &vision, 200.0);
    let large_cluster = [
        ("alexnet", 500_000, 150, 64),
        ("mobilenet_v2", 200_000, 200, 32),
        ("resnet50", 100_000, 200, 16),
        ("densenet121", 100_000, 250, 32),
        ("inception_v3", 100_000, 200, 16),
    ];
    measure("a thousand GPUs", &large_cluster, 2.0);
}
