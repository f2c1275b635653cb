//! Random problems whose devices are loaded from a fifth to twice of what they carry, each of which a number makes again.

use std::ops::{Range, RangeInclusive};

use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::*;

/// The memory of a device in MiB; a replica takes at least a twelfth of it.
const MEMORY: u64 = 4_000;

/// Returns the value of a strategy that belongs to a number.
pub(crate) fn numbered<T: std::fmt::Debug>(number: u64, any: impl Strategy<Value = T>) -> T {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    any.new_tree(&mut runner)
        .expect("nothing is rejected")
        .current()
}

/// Returns the numbers of the problems to try: `usual` of them from 0, unless `PACKHORSE_SEEDS` (how many), `PACKHORSE_FIRST_SEED`
/// or `PACKHORSE_SEED` (a single one) say otherwise.
#[expect(
    clippy::disallowed_methods,
    reason = "for a search with more problems than a test has time for"
)]
pub(crate) fn numbers(usual: u64) -> Range<u64> {
    let number = |variable: &str| -> Option<u64> {
        let text = std::env::var(variable).ok()?;
        Some(text.parse().expect("a number"))
    };
    if let Some(seed) = number("PACKHORSE_SEED") {
        return seed..seed + 1;
    }
    let first = number("PACKHORSE_FIRST_SEED").unwrap_or(0);
    first..first + number("PACKHORSE_SEEDS").unwrap_or(usual)
}

/// Returns the profile rows of one model on one kind of device, with the least device seconds per request.
fn rows(model: usize) -> impl Strategy<Value = (f64, String)> {
    (1.0..30.0, 0.02..1.0, 5.0..100.0, 330_u64..2_000).prop_map(
        move |(base, per_row, used, memory)| {
            let mut text = String::new();
            let mut least = f64::INFINITY;
            for (size, growth) in [(1, 1.0), (4, 1.4), (16, 1.8)] {
                let rows = f64::from(size);
                let latency: f64 = base * (1.0 + per_row * rows);
                let used = f64::min(100.0, used * growth);
                writeln!(text, "m{model},k,{size},,{latency},,{memory},,,{used}").unwrap();
                least = least.min(latency * used / 1e5 / rows);
            }
            (least, text)
        },
    )
}

/// Returns problems of one to this many models on so many devices of one kind. The load is a part of what the devices carry in the batches that use the
/// least device time.
pub(super) fn loaded(
    models: usize,
    devices: RangeInclusive<usize>,
    load: Range<f64>,
) -> impl Strategy<Value = Problem> {
    let profiled: Vec<_> = (0..models).map(rows).collect();
    let demands = vec((0.1_f64..1.0, 30_u64..400, 0_u64..300_000), 1..=models);
    (profiled, demands, devices, load).prop_map(|(profiled, demands, devices, load)| {
        let total: f64 = demands.iter().map(|demand| demand.0).sum();
        let mut problem = Problem::default();
        let mut text = String::new();
        for (index, &(weight, slo, payload)) in demands.iter().enumerate() {
            let (least, rows) = &profiled[index];
            let rate = load * devices as f64 * weight / total / least;
            let mut model = model(&format!("m{index}"), rate, slo);
            model.payload = ByteCount::new(payload);
            problem.models.push(model);
            text.push_str(rows);
        }
        problem.profiles = profiles(&text);
        problem.devices = vec![device("k", MEMORY); devices];
        problem
    })
}
