//! The MILP policies against the results of the thesis and an exhaustive search.

use proptest::{collection::vec, prelude::*};

use super::{oracle::colocated, thesis::*, *};
use packhorse_cluster::{ComputeMetric, Objective, PolicyOptions};

fn small_batches() -> PolicyOptions {
    PolicyOptions {
        prefer_small_batch: true,
        ..PolicyOptions::default()
    }
}

fn fair() -> PolicyOptions {
    PolicyOptions {
        objective: Objective::MaxMin,
        ..PolicyOptions::default()
    }
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_5_8_serves_alexnet_resnet50_and_t5() {
    let problem = setting(4, &["alexnet", "gpt2", "resnet50", "t5"], 400.0, 200);
    let plan = place("ao-milp", &problem);
    assert_goodput(&plan, 1092.04);
    assert_eq!(batches(&problem, &plan, "t5"), [16, 16]);
    // With the preference for small batches the plan has those that the thesis found.
    let plan = place_with("ao-milp", &problem, small_batches());
    assert_goodput(&plan, 1092.04);
    assert_eq!(batches(&problem, &plan, "alexnet"), [4]);
    assert_eq!(batches(&problem, &plan, "resnet50"), [4]);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_5_9_places_all_models_at_once() {
    let models = ["resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert"];
    let problem = setting(4, &models, 400.0, 300);
    assert_goodput(&place("ao-milp", &problem), 1331.19);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_5_10_uses_all_four_devices() {
    let models = ["alexnet", "resnet50", "mobilenet_v2", "bert"];
    let problem = setting(4, &models, 500.0, 200);
    let plan = place("ao-milp", &problem);
    assert_eq!(devices_used(&plan), 4);
    assert_goodput(&plan, 1624.88);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_6_12_wsm_milp_has_two_replicas_of_bert_and_of_gpt2() {
    let problem = setting(5, &MIX, 300.0, 300);
    let plan = place("wsm-milp", &problem);
    assert_eq!(batches(&problem, &plan, "bert"), [32, 32]);
    assert_eq!(batches(&problem, &plan, "gpt2"), [32, 32]);
    // 600 of the vision models, 2 · 131.19 and 2 · 117.21 of the language models.
    assert_goodput(&plan, 1096.80);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_6_16_wsm_milps_objectives_at_3000_and_4000_requests_per_second() {
    let goodput_at = |rate| goodput(&place("wsm-milp", &setting(4, &VISION, rate, 250)));
    // Every model is served in full except resnet50, which has one replica of 589.78.
    assert!(
        (goodput_at(600.0) - 2989.78).abs() < 0.01,
        "{}",
        goodput_at(600.0)
    );
    // At 800: alexnet and densenet121 in full, three replicas of efficientnet_b7 with batch size 8, resnet50 with 4, vgg19 with 128.
    assert!(
        (goodput_at(800.0) - 3612.17).abs() < 0.01,
        "{}",
        goodput_at(800.0)
    );
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn figure_6_16_wsm_milp_has_a_second_resnet50_and_three_of_densenet121_at_5000_requests_per_second()
{
    let problem = setting(4, &VISION, 1_000.0, 250);
    let plan = place("wsm-milp", &problem);
    // The text of the thesis names these replicas of figure 6.16c.
    assert_eq!(batches(&problem, &plan, "densenet121"), [8, 8, 8]);
    assert_eq!(batches(&problem, &plan, "resnet50").len(), 2);
    // The thesis prints no objective. By the throughputs of its table 6.5 it is 1000 each of alexnet, densenet121 and resnet50,
    // 3 · 133.93 of efficientnet_b7 and 641.97 of vgg19.
    assert_goodput(&plan, 4043.76);
    assert_eq!(batches(&problem, &plan, "efficientnet_b7"), [4, 4, 4]);
    assert_eq!(batches(&problem, &plan, "vgg19"), [128]);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn five_devices_serve_all_vision_models_by_utilisation() {
    let problem = setting(5, &VISION, 500.0, 200);
    assert_goodput(&place("wsm-milp", &problem), 2500.0);
    assert_goodput(&place("ao-milp", &setting(6, &VISION, 500.0, 200)), 2500.0);
}

#[test]
#[cfg_attr(not(feature = "highs"), ignore = "takes microlp minutes")]
fn max_min_serves_every_model_where_goodput_does_not() {
    // There is one device too few: one model gets nothing, or all models get less.
    let problem = setting(4, &["alexnet", "gpt2", "resnet50", "t5"], 400.0, 200);
    let (greedy, shared) = (
        place("ao-milp", &problem),
        place_with("ao-milp", &problem, fair()),
    );
    let least = |plan: &Plan| {
        let goodputs = plan.models.iter().map(|model| model.goodput.get());
        goodputs.fold(f64::INFINITY, f64::min)
    };
    assert_eq!(least(&greedy).to_bits(), 0.0_f64.to_bits());
    assert!((least(&shared) - 111.49).abs() < 0.01, "{}", least(&shared));
    assert!(goodput(&shared) < goodput(&greedy));
}

#[test]
#[cfg(feature = "highs")]
fn few_steps_end_the_search() {
    let problem = setting(4, &VISION, 1_000.0, 250);
    let result = policy("wsm-milp")
        .unwrap()
        .place(&problem, &mut Budget::new(10, &|| false));
    assert_eq!(result, Err(PlaceError::OutOfSteps));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn small_batches_are_as_good_and_usher_is_no_better(
        models in vec((1.0_f64..900.0, vec((1_u32..30, 20_u32..100, 25_u32..350), 1..3)), 1..4),
        devices in 1_usize..3,
    ) {
        let mut rows = String::new();
        for (model, (_, sizes)) in models.iter().enumerate() {
            let mut latency = 0;
            for (i, (longer, busy, memory)) in sizes.iter().enumerate() {
                latency += longer;
                // Sums of even sizes never fill 1001 MiB to the byte, which the program does not allow.
                let memory = 2 * memory;
                writeln!(rows, "m{model},k,{},,{latency},,{memory},{busy},{busy},{busy}", 4 << i).unwrap();
            }
        }
        let problem = Problem {
            models: models.iter().enumerate().map(|(i, (rate, _))| model(&format!("m{i}"), *rate, 40)).collect(),
            devices: vec![device("k", 1_001); devices],
            profiles: profiles(&rows),
            ..Problem::default()
        };
        let best = colocated(&problem, ComputeMetric::Achieved, 100.0);
        let fewest = place_with("ao-milp", &problem, small_batches());
        prop_assert!((goodput(&fewest) - best).abs() <= 1e-5 * best.max(1.0), "{fewest:?} for {best}");
        let heuristic = goodput(&place("usher", &problem));
        prop_assert!(heuristic <= best * (1.0 + 1e-9), "{heuristic} above {best}");
    }
}
