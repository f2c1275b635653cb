//! The results that Elvinger's thesis prints, computed from its own profiles (table A.1).

use super::*;

const TABLE_A1: &str = include_str!("../../../../profiles/v100-thesis.csv");

pub(super) const VISION: [&str; 5] = [
    "alexnet",
    "densenet121",
    "efficientnet_b7",
    "resnet50",
    "vgg19",
];

pub(super) const MIX: [&str; 4] = ["bert", "gpt2", "mobilenet_v2", "resnet50"];

/// Returns a problem with V100s, and models with the same rate and SLO each.
pub(super) fn setting(devices: usize, models: &[&str], rate: f64, slo_ms: u64) -> Problem {
    let device = device("V100-SXM2-16GB", 16_384);
    let models: Vec<_> = models.iter().map(|name| (*name, rate, slo_ms)).collect();
    let profiles = ProfileTable::from_csv(TABLE_A1).unwrap();
    equal_devices(device, devices, &models, profiles)
}

/// Returns the sum of the models' goodput.
pub(super) fn goodput(plan: &Plan) -> f64 {
    plan.models.iter().map(|model| model.goodput.get()).sum()
}

/// Asserts a goodput to the two decimals that the thesis prints.
#[track_caller]
pub(super) fn assert_goodput(plan: &Plan, printed: f64) {
    assert!(
        (goodput(plan) - printed).abs() < 0.01,
        "{} for {printed}",
        goodput(plan)
    );
}

/// Returns the batch sizes of a model's replicas.
pub(super) fn batches(problem: &Problem, plan: &Plan, name: &str) -> Vec<u32> {
    let id = name.parse().unwrap();
    let of_model = plan
        .replicas
        .iter()
        .filter(|replica| problem.models[replica.model.0].id == id);
    of_model.map(|replica| replica.batch_size).collect()
}

/// Returns the number of devices with a replica.
pub(super) fn devices_used(plan: &Plan) -> usize {
    let devices: std::collections::BTreeSet<DeviceIndex> =
        plan.replicas.iter().map(|replica| replica.device).collect();
    devices.len()
}

#[test]
fn figure_5_5_usher_serves_two_of_four() {
    let problem = setting(4, &["alexnet", "gpt2", "resnet50", "t5"], 400.0, 200);
    let plan = place("usher", &problem);
    assert_goodput(&plan, 800.0);
    assert_eq!(batches(&problem, &plan, "t5"), [8, 8, 8]);
    assert_eq!(batches(&problem, &plan, "resnet50"), [32]);
}

#[test]
fn figure_5_6_usher_has_no_device_left_for_the_second_group() {
    let models = ["resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert"];
    let problem = setting(4, &models, 400.0, 300);
    let plan = place("usher", &problem);
    assert_goodput(&plan, 793.57);
    assert_eq!(batches(&problem, &plan, "bert"), [32, 32, 32]);
    assert_eq!(shortfall(&plan, 1), Some(&Shortfall::NoRoomLeft));
}

#[test]
fn figure_5_7_usher_leaves_a_device_idle_and_bert_unserved() {
    let models = ["alexnet", "resnet50", "mobilenet_v2", "bert"];
    let problem = setting(4, &models, 500.0, 200);
    let plan = place("usher", &problem);
    assert_goodput(&plan, 1500.0);
    assert_eq!(devices_used(&plan), 3);
    assert_eq!(
        shortfall(&plan, 3),
        Some(&Shortfall::TooManyReplicas {
            replicas: 5.0,
            devices: 4
        })
    );
}

#[test]
fn figure_6_2_usher_grows_by_efficientnet() {
    let plan = |devices| {
        let problem = setting(devices, &VISION, 500.0, 200);
        let plan = place("usher", &problem);
        (goodput(&plan), batches(&problem, &plan, "efficientnet_b7"))
    };
    assert_eq!(plan(2), (1000.0, vec![]));
    let (goodput, batches) = plan(3);
    assert!((goodput - 1344.10).abs() < 0.01, "{goodput}");
    assert_eq!(batches, [16]);
    assert_eq!(plan(4), (1500.0, vec![8, 8]));
    // Figure 6.5a: six devices serve everything.
    assert_eq!(plan(6), (2500.0, vec![8, 8]));
    assert!(plan(5).0 < 2500.0);
}

#[test]
fn figure_6_3_wao_usher_needs_three_devices_only() {
    for devices in [4, 6] {
        let problem = setting(devices, &VISION, 500.0, 200);
        let plan = place("wao-usher", &problem);
        assert_eq!((goodput(&plan), devices_used(&plan)), (2500.0, 3));
        let resnet50 = plan
            .replicas
            .iter()
            .find(|replica| replica.model.0 == 3)
            .unwrap();
        assert_eq!(resnet50.batch_size, 4);
        assert_eq!(resnet50.compute_share, ComputeShare::new(17.55).ok());
    }
}

#[test]
fn figure_6_11_wao_usher_puts_both_language_models_on_each_of_three_devices() {
    let problem = setting(4, &MIX, 300.0, 300);
    let plan = place("wao-usher", &problem);
    assert_eq!((goodput(&plan), devices_used(&plan)), (1200.0, 3));
    assert_eq!(devices_of(&plan, 0), devices_of(&plan, 1));
    assert_eq!(batches(&problem, &plan, "bert"), [4, 4, 4]);
}

#[test]
fn figure_6_12_usher_has_three_replicas_of_gpt2_on_five_devices() {
    let problem = setting(5, &MIX, 300.0, 300);
    let plan = place("usher", &problem);
    assert_eq!(batches(&problem, &plan, "gpt2").len(), 3);
    assert!(batches(&problem, &plan, "bert").is_empty());
}
