//! Compares every policy with the largest goodput of any plan of tiny problems, found by exhaustive search.
//!
//! The plans are those without violations (`Plan::violations`): batches of at most the model's limit and within its SLO on the whole
//! device, the memory of all replicas of a device within its own, shares of at most 100 %. The throughput of a replica is its batch
//! size over the time of a batch, under its share if it has one. Each policy is compared with the best of the plans of its kind:
//!
//! | policy | a device has |
//! |---|---|
//! | `exclusive` | one replica |
//! | `usher`, `wao-usher`, `ao-milp`, `wsm-milp` | a replica of each of some models, with Creq and Mreq of at most 100 % in sum; a model has one of its profiled batch sizes everywhere |
//! | `first-fit`, `nexus` | time-shared models in any proportion, each with the whole memory in its turn |
//! | `gpulet` | time-shared models, or two partitions with one model each and the memory for both; a batch takes a tenth longer than measured |
//! | `gslice` | a replica of each of some models with shares of whole percents, and the memory for all |
//!
//! `igniter` predicts latencies by its own model and is not compared.
//!
//! The possible throughputs of a device, in requests per second for each model, are a set of vectors. The sums over devices are
//! limited to the rates, and a sum is dropped if another one is at least as large for every model: that loses no optimum.

use proptest::{collection::vec, prelude::*};

use super::{
    properties::{demanded, rows},
    thesis::goodput,
    *,
};
use crate::share_latency::latency_under_share;
use packhorse_cluster::ComputeMetric;

/// Requests per second by model.
pub(crate) type Capacity = Vec<f64>;

/// A batch size that a model can have on a device.
#[derive(Clone, Copy)]
struct Batch {
    size: u32,
    memory: u64,
    throughput: f64,
}

/// The rounding error by which a forecast may exceed the optimum.
const ROUNDING: f64 = 1e-9;

/// A Pareto front: vectors, limited to the rates, of which none is at least as large as another for every model.
pub(crate) struct ParetoFront<'a> {
    rates: &'a [f64],
    capacities: Vec<Capacity>,
}

impl<'a> ParetoFront<'a> {
    /// Starts with the zero vector.
    fn new(rates: &'a [f64]) -> Self {
        Self {
            rates,
            capacities: vec![vec![0.0; rates.len()]],
        }
    }

    pub(crate) fn add(&mut self, mut capacity: Capacity) {
        let dominates = |a: &Capacity, b: &Capacity| a.iter().zip(b).all(|(a, b)| a >= b);
        for (capacity, rate) in capacity.iter_mut().zip(self.rates) {
            *capacity = capacity.min(*rate);
        }
        if !self
            .capacities
            .iter()
            .any(|other| dominates(other, &capacity))
        {
            self.capacities.retain(|other| !dominates(&capacity, other));
            self.capacities.push(capacity);
        }
    }

    /// Returns the front of the sums of both.
    fn plus(&self, other: &Self) -> Self {
        let mut sums = Self::new(self.rates);
        for a in &self.capacities {
            for b in &other.capacities {
                sums.add(a.iter().zip(b).map(|(a, b)| a + b).collect());
            }
        }
        sums
    }

    fn best(&self) -> f64 {
        let goodputs = self.capacities.iter().map(|all| all.iter().sum());
        goodputs.fold(0.0, f64::max)
    }
}

fn rates(problem: &Problem) -> Vec<f64> {
    let rates = problem.models.iter().map(|model| model.rate.get());
    rates.collect()
}

fn models(problem: &Problem) -> impl Iterator<Item = ModelIndex> + Clone + use<> {
    (0..problem.models.len()).map(ModelIndex)
}

/// Returns the batches that `Plan::violations` allows a single replica on a device.
fn batches(problem: &Problem, model: ModelIndex, device: DeviceIndex) -> Vec<Batch> {
    let Some(profile) = problem.profile(model, device) else {
        return Vec::new();
    };
    let demanded = &problem.models[model.0];
    let sizes = 1..=demanded.max_batch_size;
    let in_time = sizes.filter(|&size| profile.latency(size) <= demanded.slo);
    let batch = |size| Batch {
        size,
        memory: profile.memory(size).unwrap_or_default().as_u64(),
        throughput: f64::from(size) / profile.latency(size).as_secs_f64(),
    };
    in_time
        .map(batch)
        .filter(|batch| batch.memory <= problem.devices[device.0].memory.as_u64())
        .collect()
}

/// Returns the best throughput of a model alone on a device.
fn throughput_alone(problem: &Problem, model: ModelIndex, device: DeviceIndex) -> f64 {
    let batches = batches(problem, model, device).into_iter();
    batches.map(|batch| batch.throughput).fold(0.0, f64::max)
}

/// Returns the largest goodput of all combinations of the devices' capacities. `add` adds those of a device.
pub(crate) fn best_goodput(
    problem: &Problem,
    add: impl Fn(DeviceIndex, &mut ParetoFront<'_>),
) -> f64 {
    let rates = rates(problem);
    let mut sums = ParetoFront::new(&rates);
    for (device, _) in problem.devices() {
        let mut on_device = ParetoFront::new(&rates);
        add(device, &mut on_device);
        sums = sums.plus(&on_device);
    }
    sums.best()
}

/// Returns the optimum with one replica per device.
pub(super) fn exclusive(problem: &Problem) -> f64 {
    best_goodput(problem, |device, front| {
        for model in models(problem) {
            let mut capacity = vec![0.0; problem.models.len()];
            capacity[model.0] = throughput_alone(problem, model, device);
            front.add(capacity);
        }
    })
}

/// Returns the optimum of co-located replicas with Usher's requirements. `memory` is the limit of a device in percent.
pub(super) fn colocated(problem: &Problem, metric: ComputeMetric, memory: f64) -> f64 {
    best_assignment(problem, &mut Vec::new(), &|sizes| {
        best_goodput(problem, |device, front| {
            let needs: Vec<Option<(f64, f64, f64)>> = models(problem)
                .map(|model| requirement(problem, metric, model, device, sizes[model.0]?))
                .collect();
            for hosted in 0_u32..1 << needs.len() {
                let (mut compute, mut taken) = (0.0, 0.0);
                let mut capacity = vec![0.0; needs.len()];
                for (model, need) in needs.iter().enumerate() {
                    if let (true, Some(need)) = (hosted & (1 << model) != 0, need) {
                        compute += need.0;
                        taken += need.1;
                        capacity[model] = need.2;
                    }
                }
                if compute <= 100.0 + ROUNDING && taken <= memory + ROUNDING {
                    front.add(capacity);
                }
            }
        })
    })
}

/// Returns the largest result of `best` over all choices of no or one batch size per model.
fn best_assignment(
    problem: &Problem,
    sizes: &mut Vec<Option<u32>>,
    best: &dyn Fn(&[Option<u32>]) -> f64,
) -> f64 {
    let Some(demanded) = problem.models.get(sizes.len()) else {
        return best(sizes);
    };
    let devices = problem.devices();
    let tables = devices.filter_map(|(device, _)| problem.profile(ModelIndex(sizes.len()), device));
    let profiled = tables.flat_map(|profile| profile.whole().iter().map(|row| row.batch_size));
    let mut possible: Vec<Option<u32>> = profiled
        .filter(|size| *size <= demanded.max_batch_size)
        .map(Some)
        .chain([None])
        .collect();
    possible.sort_unstable();
    possible.dedup();
    let mut most = 0.0;
    for size in possible {
        sizes.push(size);
        most = f64::max(most, best_assignment(problem, sizes, best));
        sizes.pop();
    }
    most
}

/// Returns Creq and Mreq in percent, and the throughput. A batch size between profiled ones has the requirements of the next larger one.
fn requirement(
    problem: &Problem,
    metric: ComputeMetric,
    model: ModelIndex,
    device: DeviceIndex,
    size: u32,
) -> Option<(f64, f64, f64)> {
    let profile = problem.profile(model, device)?;
    let row = profile.whole().iter().find(|row| row.batch_size >= size)?;
    let latency = profile.latency(size);
    let memory = profile.memory(size)?.as_u64() as f64;
    let all = problem.devices[device.0].memory.as_u64() as f64;
    (latency <= problem.models[model.0].slo).then_some((
        metric.value(row)?.get(),
        100.0 * memory / all,
        f64::from(size) / latency.as_secs_f64(),
    ))
}

/// Returns the optimum of time-shared models on these devices, for the rest of their rates.
///
/// With `t` the part of a device's time that a model has, this is the linear program
/// `max Σ min(rateₘ, Σ_d throughputₘ_d · tₘ_d)`, `Σₘ tₘ_d ≤ 1`. Its dual has a price `wₘ` between 0 and 1 for a request of a model:
/// `min Σ rateₘ (1 − wₘ) + Σ_d maxₘ throughputₘ_d · wₘ`. In one of its optima every price is 0, or 1, or such that a device is worth as
/// much with the model as with another. The function tries all of these.
fn time_shared_on(throughputs: &[Vec<f64>], rates: &[f64]) -> f64 {
    least_dual(throughputs, rates, &mut vec![None; rates.len()])
}

/// Returns the least objective of the dual program over all prices that are not set.
fn least_dual(throughputs: &[Vec<f64>], rates: &[f64], set: &mut Vec<Option<f64>>) -> f64 {
    let open: Vec<usize> = (0..rates.len()).filter(|&m| set[m].is_none()).collect();
    if open.is_empty() {
        let price = |m: usize| set[m].expect("all are set");
        let paid = (0..rates.len()).map(|m| rates[m] * (1.0 - price(m)));
        let devices = throughputs.iter().map(|on_device| {
            let values = (0..rates.len()).map(|m| on_device[m] * price(m));
            values.fold(0.0, f64::max)
        });
        return paid.sum::<f64>() + devices.sum::<f64>();
    }
    let mut least = f64::INFINITY;
    for m in open {
        let mut possible = vec![0.0, 1.0];
        for on_device in throughputs.iter().filter(|on_device| on_device[m] > 0.0) {
            let others =
                (0..rates.len()).filter_map(|n| Some(set[n]? * on_device[n] / on_device[m]));
            possible.extend(others.filter(|price| *price < 1.0));
        }
        for price in possible {
            set[m] = Some(price);
            least = least.min(least_dual(throughputs, rates, set));
        }
        set[m] = None;
    }
    least
}

/// Returns the optimum of time-shared models on every device.
fn time_shared(problem: &Problem) -> f64 {
    time_shared_on(&throughputs_alone(problem), &rates(problem))
}

/// Returns the throughputs alone, by device, then model.
fn throughputs_alone(problem: &Problem) -> Vec<Vec<f64>> {
    let on_device = |(device, _)| {
        models(problem)
            .map(|model| throughput_alone(problem, model, device))
            .collect()
    };
    problem.devices().map(on_device).collect()
}

/// Returns the throughput with a batch size under a share in percent.
fn throughput_under_share(
    problem: &Problem,
    model: ModelIndex,
    device: DeviceIndex,
    size: u32,
    share: u8,
) -> f64 {
    let profile = problem.profile(model, device).expect("it has batches");
    f64::from(size) / latency_under_share(profile, size, f64::from(share))
}

/// Adds two models under shares of 100 % together, with the memory for both. With `twice`, both may be the same model.
fn add_pairs(
    problem: &Problem,
    device: DeviceIndex,
    shares: &[u8],
    twice: bool,
    front: &mut ParetoFront<'_>,
) {
    let memory = problem.devices[device.0].memory.as_u64();
    for a in models(problem) {
        for b in models(problem).filter(|b| twice || *b != a) {
            let (of_a, of_b) = (batches(problem, a, device), batches(problem, b, device));
            for &share in shares {
                let memory_and_throughput = |model, batch: &Batch, share| {
                    (
                        batch.memory,
                        throughput_under_share(problem, model, device, batch.size, share),
                    )
                };
                let of_a: Vec<(u64, f64)> = of_a
                    .iter()
                    .map(|batch| memory_and_throughput(a, batch, share))
                    .collect();
                let of_b: Vec<(u64, f64)> = of_b
                    .iter()
                    .map(|batch| memory_and_throughput(b, batch, 100 - share))
                    .collect();
                for first in &of_a {
                    for second in of_b.iter().filter(|second| first.0 + second.0 <= memory) {
                        let mut capacity = vec![0.0; problem.models.len()];
                        capacity[a.0] += first.1;
                        capacity[b.0] += second.1;
                        front.add(capacity);
                    }
                }
            }
        }
    }
}

/// The factor by which `gpulet` multiplies measured latencies.
const MARGIN: f64 = 1.1;

/// Returns the optimum with two partitions on some devices and time sharing on the others. Latencies that are longer by a factor are
/// equivalent to rates that are higher by it.
fn gpulets(problem: &Problem) -> f64 {
    let rates: Vec<f64> = rates(problem).iter().map(|rate| rate * MARGIN).collect();
    let whole = throughputs_alone(problem);
    let splits: Vec<ParetoFront<'_>> = problem
        .devices()
        .map(|(device, _)| {
            let mut front = ParetoFront::new(&rates);
            add_pairs(problem, device, &[20, 40, 50], true, &mut front);
            front
        })
        .collect();
    let mut most: f64 = 0.0;
    for split in 0_u32..1 << splits.len() {
        let is_split = |device: usize| split & (1 << device) != 0;
        let mut sums = ParetoFront::new(&rates);
        for front in (0..splits.len())
            .filter(|&device| is_split(device))
            .map(|device| &splits[device])
        {
            sums = sums.plus(front);
        }
        let others: Vec<Vec<f64>> = (0..splits.len())
            .filter(|&device| !is_split(device))
            .map(|device| whole[device].clone())
            .collect();
        for capacity in sums.capacities {
            let left: Vec<f64> = rates
                .iter()
                .zip(&capacity)
                .map(|(rate, carried)| rate - carried)
                .collect();
            most = most.max(capacity.iter().sum::<f64>() + time_shared_on(&others, &left));
        }
    }
    most / MARGIN
}

/// Returns the optimum with shares of whole percents for up to two models per device.
fn slices(problem: &Problem) -> f64 {
    let shares: Vec<u8> = (1..100).collect();
    best_goodput(problem, |device, front| {
        for model in models(problem) {
            let mut capacity = vec![0.0; problem.models.len()];
            capacity[model.0] = throughput_alone(problem, model, device);
            front.add(capacity);
        }
        add_pairs(problem, device, &shares, false, front);
    })
}

prop_compose! {
    fn tiny(most_models: usize, most_devices: usize)(
        models in (1..=most_models).prop_flat_map(|count| (0..count).map(demanded).collect::<Vec<_>>()),
        limits in vec(1_u32..=4, 3),
        profiled in (0..6).map(|i| rows(i / 2, i % 2)).collect::<Vec<_>>(),
        devices in vec((0_usize..2, 100_u64..3_000), 1..=most_devices),
    ) -> Problem {
        let mut problem = Problem {
            models,
            devices: devices.into_iter().map(|(kind, memory)| device(&format!("k{kind}"), memory)).collect(),
            profiles: profiles(&profiled.concat()),
            ..Problem::default()
        };
        for (model, limit) in problem.models.iter_mut().zip(limits) {
            model.max_batch_size = limit;
        }
        problem
    }
}

#[track_caller]
fn assert_at_most(name: &str, problem: &Problem, best: f64) {
    let goodput = goodput(&place(name, problem));
    assert!(
        goodput <= best * (1.0 + 1e-6) + ROUNDING,
        "{name}: {goodput} above {best}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_heuristic_forecasts_more_than_the_best_plan_of_its_kind(problem in tiny(3, 3)) {
        assert_at_most("exclusive", &problem, exclusive(&problem));
        assert_at_most("first-fit", &problem, time_shared(&problem));
        assert_at_most("nexus", &problem, time_shared(&problem));
        assert_at_most("usher", &problem, colocated(&problem, ComputeMetric::Achieved, 100.0));
        assert_at_most("wao-usher", &problem, colocated(&problem, ComputeMetric::Mean, 100.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_policy_with_shares_forecasts_more_than_the_best_plan_of_its_kind(problem in tiny(2, 2)) {
        assert_at_most("gpulet", &problem, gpulets(&problem));
        assert_at_most("gslice", &problem, slices(&problem));
    }

    #[test]
    fn the_linear_programs_find_the_best_plan_of_their_kind(problem in tiny(3, 2)) {
        for (name, metric) in [("ao-milp", ComputeMetric::Achieved), ("wsm-milp", ComputeMetric::Sm)] {
            // The linear programs keep a millionth of a percent of the memory free, for the tolerance of the solver.
            let least = colocated(&problem, metric, 100.0 - 1e-5);
            let most = colocated(&problem, metric, 100.0);
            let solved = goodput(&place(name, &problem));
            let slack = 1e-5 * most.max(1.0);
            prop_assert!(least - slack <= solved && solved <= most + slack, "{name}: {solved} for {least} to {most}");
        }
    }
}

#[test]
fn time_shared_devices_have_the_optimum_of_their_linear_program() {
    let check = |throughputs: &[Vec<f64>], rates: &[f64], expected: f64| {
        let most = time_shared_on(throughputs, rates);
        assert!((most - expected).abs() < 1e-9, "{most} for {expected}");
    };
    check(&[vec![100.0, 50.0]], &[60.0, 100.0], 60.0 + 0.4 * 50.0);
    check(&[vec![100.0, 50.0]], &[10.0, 20.0], 30.0);
    // The first device gets the model that only it can serve; the second device serves the other model.
    check(
        &[vec![100.0, 50.0], vec![80.0, 0.0]],
        &[100.0, 40.0],
        40.0 + 20.0 + 80.0,
    );
    check(&[], &[100.0], 0.0);
}
