//! The time from the operators of each model in `profiles/operators` to its estimated profile, as a worker reports them: JSON is read and
//! checked, and a profile of eight batch sizes is estimated for one kind of device.
//!
//! `cargo run -p packhorse-estimator --example time`

#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]
#![expect(
    clippy::disallowed_methods,
    reason = "it reads files and measures time, which the crate does not"
)]
#![expect(clippy::unwrap_used, reason = "the files are checked by tests")]

use std::{fs, hint::black_box, path::Path, time::Instant};

use packhorse_cluster::ByteCount;
use packhorse_estimator::{Coefficients, DeviceSheet, OperatorGraph, dataset::graphs};

const KIND: &str = "V100-SXM2-16GB";
const BATCH_SIZES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// The number of estimates of each model, of which the median counts.
const RUNS: usize = 101;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/operators");
    let sheet = DeviceSheet::of(&KIND.parse().unwrap()).unwrap();
    for file in ["thesis", "clockwork"] {
        let lines = fs::read_to_string(folder.join(format!("{file}.jsonl"))).unwrap();
        let mut medians: Vec<(f64, String, usize)> = Vec::new();
        for (model, graph) in graphs(&lines).unwrap() {
            let json = graph.to_json();
            let mut times: Vec<f64> = (0..RUNS).map(|_| estimate_ms(&json, &sheet)).collect();
            times.sort_by(f64::total_cmp);
            medians.push((times[RUNS / 2], model, graph.operators.len()));
        }
        medians.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, _, _) = &medians[medians.len() / 2];
        let (longest, model, operators) = medians.last().unwrap();
        println!(
            "{file}: {} models, median {median:.2} ms, longest {longest:.2} ms ({model}, {operators} different operators)",
            medians.len()
        );
    }
}

/// Returns the time of one estimate in milliseconds.
fn estimate_ms(json: &str, sheet: &DeviceSheet) -> f64 {
    let begin = Instant::now();
    let graph = OperatorGraph::from_json(black_box(json)).unwrap();
    let memory = ByteCount::new(16 << 30);
    let profile = Coefficients::libtorch().profile(&graph, sheet, memory, &BATCH_SIZES);
    black_box(profile);
    begin.elapsed().as_secs_f64() * 1e3
}
