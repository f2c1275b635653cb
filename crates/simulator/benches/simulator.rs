//! The simulated requests per second of wall time, on one core.
//!
//! Prints one JSON object per line, for `cargo xtask bench engine`.
#![expect(
    clippy::print_stdout,
    reason = "a measurement that another program reads"
)]

use std::{fmt::Write as _, time::Duration};

use packhorse_cluster::{DeviceIndex, Discipline, ModelIndex, PlannedReplica};
use packhorse_simulator::{PlanReport, Report, Scenario, simulate};

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

/// Returns the time that the calling thread has had a processor for, so that other programs on the machine count little.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it began at zero")
}

/// Runs a plan and returns the report with the processor time in seconds.
fn timed(
    scenario: &Scenario,
    replicas: &[PlannedReplica],
    discipline: Discipline,
) -> (Report, f64) {
    let plan = PlanReport::from_replicas(scenario, replicas);
    let start = processor_time();
    let report = simulate(scenario, plan, replicas, discipline, 1, &mut |_| {});
    let seconds = processor_time().saturating_sub(start).as_secs_f64();
    (report.expect("the plan fits"), seconds)
}

fn measure(name: &str, scenario: &str, models: &Models, disciplines: &[Discipline]) {
    let scenario = Scenario::parse(scenario, &mut |_| Ok(PROFILES.to_owned()));
    let (scenario, replicas) = (scenario.expect("a valid scenario"), replicas(models));
    let simulated = scenario.simulation.warmup + scenario.simulation.window;
    for &discipline in disciplines {
        let (report, seconds) = timed(&scenario, &replicas, discipline);
        let totals = report.totals;
        let requests = totals.offered_rps * simulated.as_secs_f64();
        println!(
            "{{\"scenario\":\"{name}\",\"discipline\":\"{discipline}\",\"devices\":{},\"offered_rps\":{:.0},\
             \"goodput_rps\":{:.0},\"seconds\":{seconds:.2},\"requests_per_s\":{:.0}}}",
            replicas.len(),
            totals.offered_rps,
            totals.goodput_rps,
            requests / seconds
        );
    }
}

/// The largest batch of the model whose decisions are counted, in rows, and the requests/s of a device in such batches: a batch takes 8 ms and 1 ms
/// per row, as in the benchmark of the engine.
const BATCH_SIZE: u32 = 16;
const DEVICE_RPS: f64 = 16e3 / 24.0;

/// The requests of a run whose decisions are counted, beside those of [`FULL`].
const REQUESTS: f64 = 100_000.0;

/// The requests per second below which a discipline is not measured with more devices, of which there would be ten times as many.
const LEAST_RPS: f64 = 100_000.0;

/// The simulated time until the devices are full, in seconds; at least the SLO, which a run must last.
const FULL: f64 = 0.2;

/// Measures the decisions of a discipline for one model with so many replicas, at so many times what these can do at best. A decision is a batch
/// or a dropped request. Returns the requests per second of processor time.
fn measure_decisions(discipline: Discipline, devices: usize, load: f64) -> f64 {
    let mut profile = format!("{}\n", packhorse_cluster::ProfileTable::CSV_HEADER);
    for rows in 1..=BATCH_SIZE {
        let _ = writeln!(profile, "model,box,{rows},,{},,300,,,", 8 + rows);
    }
    let rate = load * DEVICE_RPS * devices as f64;
    let text = format!(
        "name = \"decisions\"\nprofiles = [\"p\"]\n\
         [simulation]\nwarmup_s = 0\nwindow_s = {}\nrouter_overhead_ms = 0\nnetwork_base_ms = 0\nreturn_ms = 0\n\
         [[devices]]\nkind = \"box\"\ncount = {devices}\nmemory_mib = 1000\n\
         [[models]]\nname = \"model\"\nrate_rps = {rate}\nslo_ms = 200\n",
        FULL + REQUESTS / rate
    );
    let scenario = Scenario::parse(&text, &mut |_| Ok(profile.clone())).expect("a valid scenario");
    let replica = |device| PlannedReplica::new(ModelIndex(0), DeviceIndex(device), BATCH_SIZE);
    let replicas: Vec<_> = (0..devices).map(replica).collect();
    let (report, seconds) = timed(&scenario, &replicas, discipline);
    let requests = report.totals.offered_rps * scenario.simulation.window.as_secs_f64();
    let model = &report.models[0];
    let dropped = model.dropped as f64;
    let batches = (requests - dropped) / model.mean_batch.expect("there are batches");
    println!(
        "{{\"discipline\":\"{discipline}\",\"replicas\":{devices},\"load\":{load},\"requests_per_s\":{:.0},\
         \"decisions_per_s\":{:.0},\"mean_batch\":{:.1},\"in_time_percent\":{:.1}}}",
        requests / seconds,
        (batches + dropped) / seconds,
        (requests - dropped) / batches,
        100.0 * report.totals.goodput_rps / report.totals.offered_rps,
    );
    requests / seconds
}

fn main() {
    for discipline in Discipline::ALL {
        for devices in [1, 10, 100, 1000] {
            let rates = [0.8, 2.0].map(|load| measure_decisions(discipline, devices, load));
            if rates.into_iter().fold(f64::INFINITY, f64::min) < LEAST_RPS {
                break;
            }
        }
    }
    let vision = [
        ("alexnet", 500, 1, 16),
        ("densenet121", 500, 1, 16),
        ("efficientnet_b7", 500, 2, 16),
        ("resnet50", 500, 1, 16),
        ("vgg19", 500, 1, 16),
    ];
    measure(
        "six GPUs",
        &scenario("vision", &vision, 100.0),
        &vision,
        &Discipline::ALL,
    );
    let large_cluster = [
        ("alexnet", 500_000, 150, 64),
        ("mobilenet_v2", 200_000, 200, 32),
        ("resnet50", 100_000, 200, 16),
        ("densenet121", 100_000, 250, 32),
        ("inception_v3", 100_000, 200, 16),
    ];
    let text = scenario("large", &large_cluster, 1.0);
    measure("a thousand GPUs", &text, &large_cluster, &Discipline::LIVE);
    // The link of a device carries 1,873 requests/s, less than some devices compute.
    let carried = [
        ("alexnet", 500_000, 290, 64),
        ("mobilenet_v2", 200_000, 150, 32),
        ("resnet50", 100_000, 160, 16),
        ("densenet121", 100_000, 200, 32),
        ("inception_v3", 100_000, 200, 16),
    ];
    measure(
        "a thousand GPUs, links that queue",
        THOUSAND,
        &carried,
        &Discipline::LIVE,
    );
}
