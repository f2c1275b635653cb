//! Compares `goodput` with the best placement of tiny problems by its own objective function, found by exhaustive search.
//!
//! A placement is a multiset of replicas for each device, of profiled batch sizes within the SLO, that its memory holds. Its value
//! is the objective function that the policy maximises: about a fraction of all requests, so that a loss of 0.01 is one request
//! in a hundred.
//!
//! The search is a heuristic. The tests state its measured loss, the largest and the mean of many cases. Each case is a number from
//! which [`tiny`] makes the same problem again: one or two devices of one or two kinds, one to three models with one to three batch
//! sizes, loads from a fifth to twice the capacity of the devices, and memory for four replicas at most.

use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::*;
use crate::goodput::{best_value, value};
use packhorse_cluster::{ComputeShareMode, Objective, PolicyOptions};

/// The error of the estimate; a larger loss of the search is counted.
const LARGE_LOSS: f64 = 0.01;

/// The memory of a device in MiB; a replica takes at least a quarter of it.
const MEMORY: u64 = 1_000;

/// Returns the profile rows of one model on one kind of device, with the least device seconds per request.
fn rows(model: usize, kind: usize, sizes: usize) -> impl Strategy<Value = (f64, String)> {
    let memory = prop_oneof![250_u64..340, 250_u64..1_000];
    (1.0..30.0, 0.02..1.0, 5.0..100.0, memory, 0_u64..120).prop_map(
        move |(base, per_row, used, memory, larger)| {
            let mut text = String::new();
            let mut least = f64::INFINITY;
            for step in 0..sizes {
                let size = f64::from(1_u32 << (2 * step));
                let latency = base * (1.0 + per_row * size);
                let used = f64::min(100.0, used * (1.0 + 0.4 * step as f64));
                let memory = memory + larger * step as u64;
                writeln!(
                    text,
                    "m{model},k{kind},{size},,{latency},,{memory},,,{used}"
                )
                .unwrap();
                least = least.min(latency * used / 1e5 / size);
            }
            (least, text)
        },
    )
}

/// Returns problems of this many models, devices and batch sizes, with a random load in the batches that use the least device time.
fn sized(models: usize, devices: usize, sizes: usize) -> impl Strategy<Value = Problem> {
    let profiled: Vec<_> = (0..2 * models).map(|i| rows(i / 2, i % 2, sizes)).collect();
    let demands = vec((0.1_f64..1.0, 30_u64..400, 0_u64..600_000), models);
    let conditions = prop_oneof![3 => Just(1.0), 1 => 1.0..4.0];
    (
        profiled,
        demands,
        vec(0_usize..2, devices),
        0.2..2.0,
        conditions,
    )
        .prop_map(move |(profiled, demands, kinds, load, burstiness)| {
            let total: f64 = demands.iter().map(|demand| demand.0).sum();
            let mut problem = Problem::default();
            let mut text = String::new();
            for (index, &(weight, slo, payload)) in demands.iter().enumerate() {
                let (least, _) = profiled[2 * index + kinds[index % devices]];
                let rate = load * devices as f64 * weight / total / least;
                let mut model = model(&format!("m{index}"), rate, slo);
                model.payload = ByteCount::new(payload);
                problem.models.push(model);
            }
            for (_, rows) in &profiled {
                text.push_str(rows);
            }
            problem.profiles = profiles(&text);
            problem.devices = kinds
                .iter()
                .map(|kind| device(&format!("k{kind}"), MEMORY))
                .collect();
            problem.conditions.burstiness = burstiness;
            problem
        })
}

/// Returns the problem of a case.
fn tiny(case: u64, any: impl Strategy<Value = Problem>) -> Problem {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&case.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let problem = any.new_tree(&mut runner);
    problem.expect("nothing is rejected").current()
}

/// Returns all multisets of replicas that a device's memory holds, each replica with one of the shares, which are 100 % at most together.
fn possible_replicas(
    problem: &Problem,
    device: DeviceIndex,
    shares: &[Option<f64>],
) -> Vec<Vec<PlannedReplica>> {
    let mut all = vec![(problem.devices[device.0].memory, 100.0, Vec::new())];
    for (model, demanded) in problem.models() {
        let profile = problem.profile(model, device).expect("all are profiled");
        let in_time = profile
            .whole()
            .iter()
            .filter(|row| row.latency <= demanded.slo);
        for (row, share) in in_time.flat_map(|row| shares.iter().map(move |share| (row, *share))) {
            let memory = row.memory.expect("all are measured");
            let taken = share.unwrap_or_default();
            let mut next = 0;
            while let Some((left, free, replicas)) = all.get(next).cloned() {
                next += 1;
                if memory <= left && taken <= free {
                    let mut more = replicas;
                    more.push(PlannedReplica {
                        model,
                        device,
                        batch_size: row.batch_size,
                        compute_share: share.map(|share| ComputeShare::new(share).unwrap()),
                        duty_cycle: None,
                        memory: None,
                        backbone: None,
                        pool: None,
                    });
                    all.push((left.saturating_sub(memory), free - taken, more));
                }
            }
        }
    }
    all.into_iter().map(|(.., replicas)| replicas).collect()
}

/// Returns the value of the best placement.
fn best(problem: &Problem, objective: Objective, shares: &[Option<f64>]) -> f64 {
    let on_device = |device| possible_replicas(problem, DeviceIndex(device), shares);
    let (first, second) = (on_device(0), problem.devices.get(1).map(|_| on_device(1)));
    let Some(second) = second else {
        return best_value(problem, &mut first.into_iter(), objective);
    };
    // Equal devices are interchangeable.
    let are_equal = problem.devices[0] == problem.devices[1];
    let mut both = first.iter().enumerate().flat_map(|(i, first)| {
        let others = second.iter().skip(if are_equal { i } else { 0 });
        others.map(move |other| first.iter().chain(other).cloned().collect())
    });
    best_value(problem, &mut both, objective)
}

/// Returns the difference between the best value and that of the policy's placement.
fn loss(problem: &Problem, objective: Objective, compute_shares: ComputeShareMode) -> f64 {
    let shares: &[Option<f64>] = match compute_shares {
        ComputeShareMode::Never => &[None],
        ComputeShareMode::Auto => &[None, Some(20.0), Some(40.0), Some(60.0), Some(80.0)],
    };
    let options = PolicyOptions {
        objective,
        compute_shares,
        ..PolicyOptions::default()
    };
    let plan = place_with("goodput", problem, options);
    best(problem, objective, shares) - value(problem, &plan.replicas, objective)
}

/// The number of problems for each objective.
const CASES: u64 = 1_000;

/// Checks that losses are at most `worst`, at most `mean` in the mean, and above [`LARGE_LOSS`] in at most `large_losses` cases.
#[track_caller]
fn check(losses: impl Iterator<Item = f64>, worst: f64, mean: f64, large_losses: usize) {
    let losses: Vec<(f64, usize)> = losses.zip(0..).collect();
    let count = losses.len() as f64;
    let sum: f64 = losses.iter().map(|(loss, _)| loss).sum();
    let most = losses.iter().map(|(loss, _)| *loss).fold(0.0, f64::max);
    let mut large = losses;
    large.retain(|(loss, _)| *loss > LARGE_LOSS);
    large.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert!(
        most <= worst && sum <= mean * count && large.len() <= large_losses,
        "{} in the mean of {count}; loss and case where it is large: {large:?}",
        sum / count,
    );
}

/// Returns the losses for an objective without shares.
fn losses(objective: Objective) -> impl Iterator<Item = f64> {
    let any = || {
        prop_oneof![
            sized(1, 1, 3),
            sized(2, 1, 3),
            sized(3, 1, 2),
            sized(1, 2, 2),
            sized(2, 2, 2),
            sized(3, 2, 1),
        ]
    };
    (0..CASES).map(move |case| loss(&tiny(case, any()), objective, ComputeShareMode::Never))
}

// In the cases with large losses the devices are overloaded, and several replicas of a model together would gain while each of them
// alone does not.

#[test]
fn the_mean_loss_of_the_sum_is_at_most_a_thousandth() {
    check(losses(Objective::Goodput), 0.23, 1e-3, 10);
}

#[test]
fn the_mean_loss_of_the_worst_model_is_at_most_a_thousandth() {
    check(losses(Objective::MaxMin), 0.15, 1e-3, 10);
}

#[test]
fn the_loss_with_shares_is_small() {
    for objective in [Objective::Goodput, Objective::MaxMin] {
        let any = || prop_oneof![sized(2, 1, 1), sized(2, 1, 2), sized(3, 1, 1)];
        let losses =
            (0..400).map(|case| loss(&tiny(case, any()), objective, ComputeShareMode::Auto));
        check(losses, 0.29, 1.5e-3, 8);
    }
}
