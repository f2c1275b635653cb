//! Properties of the plans of random problems.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Returns profile rows of one model on one kind of device at batch sizes 1, 2, 4, …: with growing latency and memory, and some without
/// memory.
pub(super) fn rows(model: usize, kind: usize) -> impl Strategy<Value = String> {
    let row = (
        1_u32..40,
        1_u32..1_000,
        proptest::bool::weighted(0.9),
        0_u32..=100,
    );
    vec(row, 0..5).prop_map(move |rows| {
        let mut text = String::new();
        let (mut latency, mut memory) = (0, 0);
        for (i, (longer, larger, known, busy)) in rows.into_iter().enumerate() {
            latency += longer;
            memory += larger;
            let known = if known {
                memory.to_string()
            } else {
                String::new()
            };
            let (size, mean) = (1 << i, busy / 2);
            writeln!(
                text,
                "m{model},k{kind},{size},,{latency},,{known},{busy},{mean},{busy}"
            )
            .unwrap();
        }
        text
    })
}

pub(super) fn demanded(index: usize) -> impl Strategy<Value = DemandedModel> {
    let rate = prop_oneof![Just(0.0), 0.1..50.0, 50.0..2_000.0];
    (rate, 1_u64..300, 1_u32..20, 0_u64..1_000_000).prop_map(
        move |(rate, slo, max_batch_size, payload)| DemandedModel {
            max_batch_size,
            payload: ByteCount::new(payload),
            ..model(&format!("m{index}"), rate, slo)
        },
    )
}

prop_compose! {
    /// Returns problems of up to four models and four devices.
    pub(crate) fn problem()(
        models in (0_usize..5).prop_flat_map(|count| (0..count).map(demanded).collect::<Vec<_>>()),
        profiled in (0..10).map(|i| rows(i / 2, i % 2)).collect::<Vec<_>>(),
        devices in vec((0_usize..3, 100_u64..6_000), 0..5),
        current in vec((0_usize..6, 0_usize..6, 1_u32..16), 0..6),
    ) -> Problem {
        Problem {
            models,
            devices: devices.into_iter().map(|(kind, memory)| device(&format!("k{kind}"), memory)).collect(),
            profiles: profiles(&profiled.concat()),
            current: current
                .into_iter()
                .map(|(model, device, batch_size)| PlannedReplica::new(ModelIndex(model), DeviceIndex(device), batch_size))
                .collect(),
            ..Problem::default()
        }
    }
}

/// Returns problems with up to forty devices of two classes, and rates that some of them carry.
pub(crate) fn many_devices() -> impl Strategy<Value = Problem> {
    let classes = vec((0_usize..2, 200_u64..3_000), 1..3);
    let devices = vec(0_usize..2, 1..40);
    (problem(), classes, devices, vec(0.0..8_000.0, 5)).prop_map(
        |(mut problem, classes, devices, rates)| {
            let class = |number: usize| classes[number % classes.len()];
            problem.devices = devices
                .into_iter()
                .map(|number| device(&format!("k{}", class(number).0), class(number).1))
                .collect();
            for (model, rate) in problem.models.iter_mut().zip(rates) {
                model.rate = RequestsPerSecond::new(rate).unwrap();
            }
            problem
        },
    )
}

/// Returns the requests per second that the model's replicas carry, up to its rate: in full batches, or in the best size if `any_size`.
fn fluid_goodput(
    problem: &Problem,
    replicas: &[PlannedReplica],
    model: ModelIndex,
    any_size: bool,
) -> f64 {
    let rows_per_second = replicas
        .iter()
        .filter(|replica| replica.model == model)
        .map(|replica| {
            let profile = problem.profile(model, replica.device).unwrap();
            let per_second = |size: u32| f64::from(size) / profile.latency(size).as_secs_f64();
            let full = replica.batch_size;
            let least = if any_size { 1 } else { full };
            (least..=full).map(per_second).fold(0.0, f64::max)
        });
    rows_per_second
        .sum::<f64>()
        .min(problem.models[model.0].rate.get())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_plan_has_violations_and_every_shortfall_has_a_reason(problem in problem()) {
        for entry in POLICIES {
            let plan = entry.place(&problem, &mut Budget::unlimited()).unwrap();
            prop_assert_eq!(plan.violations(&problem), []);
            prop_assert!(plan.replicas.is_sorted_by_key(|replica| (replica.model, replica.device)));
            for (model, demanded) in problem.models() {
                let forecast = &plan.models[model.0];
                let (goodput, rate) = (forecast.goodput.get(), demanded.rate.get());
                // The dispatcher keeps batches small where larger ones would be late; only `goodput` takes that into account.
                let any_size = entry.name == "goodput";
                let most = fluid_goodput(&problem, &plan.replicas, model, any_size);
                prop_assert!(goodput <= most * (1.0 + 1e-9), "{}: {goodput} of {most}", entry.name);
                let served = plan.replicas.iter().any(|replica| replica.model == model);
                let short = !served || goodput < rate * (1.0 - 1e-6);
                prop_assert_eq!(forecast.shortfall.is_some(), short, "{:?}", forecast);
            }
        }
    }

    #[test]
    fn equal_problems_have_equal_plans_and_planned_replicas_stay(mut problem in problem()) {
        for entry in POLICIES {
            problem.current.clear();
            let plan = place(entry.name, &problem);
            prop_assert_eq!(&plan, &place(entry.name, &problem));
            problem.current.clone_from(&plan.replicas);
            prop_assert_eq!(&plan.replicas, &place(entry.name, &problem).replicas, "{}", entry.name);
        }
    }

    #[test]
    fn exclusive_equals_the_best_plan_of_its_kind_where_devices_suffice(
        demand in vec((1.0..2_000.0, 1.0..20.0), 1..3),
        devices in 1_usize..4,
    ) {
        // Throughput grows with the batch: latency is a constant and a tenth of it per row.
        let mut profiled = String::new();
        for (model, (_, constant)) in demand.iter().enumerate() {
            for batch in [1_u32, 2, 4] {
                let latency = constant * (1.0 + 0.1 * f64::from(batch));
                writeln!(profiled, "m{model},k,{batch},,{latency},,10,,,").unwrap();
            }
        }
        let problem = Problem {
            models: demand.iter().enumerate().map(|(i, (rate, _))| model(&format!("m{i}"), *rate, 1_000)).collect(),
            devices: vec![device("k", 1_000); devices],
            profiles: profiles(&profiled),
            ..Problem::default()
        };
        let plan = place("exclusive", &problem);
        let goodput: f64 = plan.models.iter().map(|forecast| forecast.goodput.get()).sum();
        let best = oracle::exclusive(&problem);
        prop_assert!(goodput <= best * (1.0 + 1e-9), "{goodput} over the optimum of {best}");
        if problem.models.len() == 1 || plan.models.iter().all(|forecast| forecast.shortfall.is_none()) {
            prop_assert!(goodput >= best * (1.0 - 1e-6), "{goodput} under the optimum of {best}");
        }
    }

    #[test]
    fn models_that_fit_one_device_are_packed_onto_one(weights in vec(0.05_f64..1.0, 1..6)) {
        // Every model has 1000 rows per second alone, and together they need 84 % of the device.
        let total: f64 = weights.iter().sum();
        let mut problem = Problem { devices: vec![device("k", 1_000); 3], ..Problem::default() };
        let mut profiled = String::new();
        for (i, weight) in weights.iter().enumerate() {
            writeln!(profiled, "m{i},k,10,,10,,50,,,").unwrap();
            problem.models.push(model(&format!("m{i}"), 840.0 * weight / total, 100));
        }
        problem.profiles = profiles(&profiled);
        let plan = place("first-fit", &problem);
        prop_assert!(plan.replicas.iter().all(|replica| replica.device == DeviceIndex(0)));
        prop_assert!(plan.models.iter().all(|forecast| forecast.shortfall.is_none()));
    }
}
