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

/// A thousand GPUs with links that queue.
const THOUSAND: &str = include_str!("../../../scenarios/scale/thousand-queue.toml");
const PROFILES: &str = include_str!("../../../profiles/v100-thesis.csv");

/// The name, the rate, the number of devices and the batch size of each model. No two models share a device.
type Models = [(&'static str, u32, usize, u32)];

/// Returns the TOML of a scenario with these models.
fn scenario(name: &str, models: &Models, window_s: f64) -> String {
    let devices: usize = models.iter().map(|model| model.2).sum();
    let mut text = format!(
        "name = \"{name}\"\nprofiles = [\"p\"]\n[simulation]\nwarmup_s = 0.5\nwindow_s = {window_s}\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    for (model, rate, ..) in models {
        let _ = write!(
            text,
            "[[models]]\nname = \"{model}\"\nrate_rps = {rate}\nslo_ms = 200\npayload_bytes = 602112\n"
        );
    }
    text
}

/// Returns the replicas of these models.
fn replicas(models: &Models) -> Vec<PlannedReplica> {
    let mut replicas = Vec::new();
    for (index, (_, _, devices, batch_size)) in models.iter().enumerate() {
        for _ in 0..*devices {
            let device = DeviceIndex(replicas.len());
            replicas.push(PlannedReplica::new(ModelIndex(index), device, *batch_size));
        }
    }
    replicas
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn measure(name: &str, scenario: &str, models: &Models) {
    let scenario = Scenario::parse(scenario, &mut |_| Ok(PROFILES.to_owned()));
    let (scenario, replicas) = (scenario.expect("a valid scenario"), replicas(models));
    let simulated = scenario.simulation.warmup + scenario.simulation.window;
    for discipline in Discipline::LIVE {
        let plan = PlanReport::from_replicas(&scenario, &replicas);
        let start = Instant::now();
        let report = simulate(&scenario, plan, &replicas, discipline, 1, &mut |_| {});
        let seconds = start.elapsed().as_secs_f64();
        let totals = report.expect("the plan fits").totals;
        let requests = totals.offered_rps * simulated.as_secs_f64();
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
    measure("six GPUs", &scenario("vision", &vision, 200.0), &vision);
    let large_cluster = [
        ("alexnet", 500_000, 150, 64),
        ("mobilenet_v2", 200_000, 200, 32),
        ("resnet50", 100_000, 200, 16),
        ("densenet121", 100_000, 250, 32),
        ("inception_v3", 100_000, 200, 16),
    ];
    let text = scenario("large", &large_cluster, 2.0);
    measure("a thousand GPUs", &text, &large_cluster);
    // The link of a device carries 1,873 requests/s, less than some devices compute.
    let carried = [
        ("alexnet", 500_000, 290, 64),
        ("mobilenet_v2", 200_000, 150, 32),
        ("resnet50", 100_000, 160, 16),
        ("densenet121", 100_000, 200, 32),
        ("inception_v3", 100_000, 200, 16),
    ];
    measure("a thousand GPUs, links that queue", THOUSAND, &carried);
}
